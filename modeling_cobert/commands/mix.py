"""A mixture of first stage, selector and any runs, its weights tuned on the validation queries of each fold.

    cobert mix --rows outputs/demo/prepared/rows --sources first-stage selector --output outputs/mixture
    cobert mix --rows outputs/demo/prepared/rows --sources first-stage outputs/demo/start-promising/seed-42 \\
        --output outputs/mixture-with-cobert
    cobert mix --rows outputs/demo/prepared/rows --sources first-stage runs/other.trec --weights 1 2 \\
        --output outputs/fixed

Scores are standardised over each query's candidates and added up. Give a training's folder (above its `fold-1`,
`fold-2` ..) rather than its merged run: for each fold the model of that fold scores the validation queries too.
The output folder has `run.trec`, `results.json`, and each source alone as `source-1.trec`, `source-2.trec` ..
"""

from dataclasses import dataclass, field

from ..baselines.mixture import MixtureOptions, mix_sources
from ..data.rows import load_rows
from ..evaluation.tables import Table, to_terminal
from .options import OutputOptions


@dataclass(frozen=True)
class MixArguments(OutputOptions):
    """Whose candidates are mixed, and where the result goes."""

    rows: str = field(metadata={"help": "The folder of rows that cobert prepare made."})


ARGUMENTS = (MixArguments, MixtureOptions)


def results_table(results: dict) -> Table:
    """Each source alone, then the mixture, one row each."""
    systems = {**results["sources"], "mixture": results["mixture"]}
    measures = list(results["mixture"])
    rows = [[name, *(f"{values[measure]:.4f}" for measure in measures)] for name, values in systems.items()]
    notes = []
    for fold in results["folds"]:
        label = "" if fold["fold"] is None else f"fold {fold['fold']}: "
        weights = ", ".join(f"{name} {weight:g}" for name, weight in fold["weights"].items())
        reached = (
            "" if fold["validation"] is None else f" ({results['measure']} {fold['validation']:.4f} in validation)"
        )
        notes.append(f"{label}{weights}{reached}")
    return Table(["system", *measures], rows, f"{results['queries']} test queries", notes)


def main(arguments: MixArguments, options: MixtureOptions) -> dict:
    """Mixes, prints a table, and returns the results."""
    results = mix_sources(load_rows(arguments.rows), arguments.output, options)
    print(f"{arguments.output}/run.trec")
    print(to_terminal(results_table(results)) if "mixture" in results else "no query is judged: nothing is measured")
    return results
