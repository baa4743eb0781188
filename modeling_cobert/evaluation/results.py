"""What a re-ranking is worth: measures beside the first stage's, the ceiling, tables and files."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..ranking.ranker import Inputs
from ..steps.files import atomic_open, write_json
from .measures import UNJUDGED_DEPTH, Evaluation, evaluate_run, ideal_run, mean_values, parse_measures, recall_ceiling
from .significance import Comparison, compare_runs
from .tables import Table, results_table


@dataclass(frozen=True)
class Results:
    """
    A re-ranking beside its first stage.

    Args:
        model (`str`): what re-ranked.
        inputs ([`Inputs`]): what was re-ranked.
        first_stage, reranked ([`Evaluation`]): both over the same judged queries.
        comparisons (`list[Comparison]`): the second against the first, one a measure.
        ceiling (`float`): the recall of the candidates, more than which no order of them has.
        ideal (`dict[str, float]`): the measures of their best order.
    """

    model: str
    inputs: Inputs
    first_stage: Evaluation
    reranked: Evaluation
    comparisons: list[Comparison]
    ceiling: float
    ideal: dict[str, float]

    def to_dict(self) -> dict:
        """Returns what `json.dump` can write: everything but the values per query."""
        return {
            "model": self.model,
            "collection": self.inputs.name,
            "first_stage_tag": self.inputs.tag,
            "k": self.inputs.k,
            "queries": self.reranked.queries,
            "measures": self.reranked.means,
            "first_stage": self.first_stage.means,
            "best_order": self.ideal,
            "recall_ceiling": {f"R@{self.inputs.k}": self.ceiling},
            f"unjudged@{UNJUDGED_DEPTH}": {
                "reranked": self.reranked.unjudged_share,
                "first_stage": self.first_stage.unjudged_share,
            },
            "comparison": {
                c.measure: {
                    "relative_change": c.relative_change,
                    "p_t_test": c.p_t_test,
                    "p_randomisation": c.p_randomisation,
                    "helped": c.helped,
                    "hurt": c.hurt,
                    "unchanged": c.unchanged,
                }
                for c in self.comparisons
            },
            "queries_without_results": self.reranked.missing,
            "queries_without_judgments": self.reranked.unjudged,
            "skipped": self.inputs.skipped,
        }

    def per_query(self) -> dict[str, dict[str, dict[str, float]]]:
        """Query id to `first_stage` and `reranked` to measure to value."""
        both = {"first_stage": self.first_stage.per_query, "reranked": self.reranked.per_query}
        queries = next(iter(self.reranked.per_query.values()))
        return {
            query_id: {name: {m: values[m][query_id] for m in values} for name, values in both.items()}
            for query_id in queries
        }

    def table(self) -> Table:
        """The first stage above the result, and below them what bounds both."""
        first = _first_stage_name(self.inputs)
        table = results_table({first: self.first_stage, self.model: self.reranked}, self.comparisons, [first])
        ideal = ", ".join(f"{measure} {value:.4f}" for measure, value in self.ideal.items())
        notes = [
            f"recall ceiling: R@{self.inputs.k} {self.ceiling:.4f}; the best order of these documents has {ideal}",
            f"unjudged documents in the top {UNJUDGED_DEPTH}: {self.first_stage.unjudged_share:.1%} in the first "
            f"stage, {self.reranked.unjudged_share:.1%} after",
        ]
        notes += [f"left out: {kind.replace('_', ' ')}: {count}" for kind, count in self.inputs.skipped.items()]
        return Table(table.columns, table.rows, table.title, [*table.notes, *notes], table.text_columns)


def evaluate_ranking(
    model: str, inputs: Inputs, run: Mapping[str, Mapping[str, float]], measures: Sequence[str]
) -> Results | None:
    """
    Measures a re-ranking and its first stage over the judged queries; `None` where nothing is judged.

    Args:
        model (`str`): the name of what re-ranked, for tables.
        inputs ([`Inputs`]): what was re-ranked.
        run (`Mapping[str, Mapping[str, float]]`): the result.
        measures (`Sequence[str]`): ir_measures names.
    """
    if inputs.qrels is None:
        return None
    parsed = parse_measures(measures)
    first, reranked = (evaluate_run(inputs.qrels, r, parsed) for r in (inputs.run, run))
    name = _first_stage_name(inputs)
    return Results(
        model=model,
        inputs=inputs,
        first_stage=first,
        reranked=reranked,
        comparisons=compare_runs({name: first, model: reranked}, [name]),
        ceiling=recall_ceiling(inputs.qrels, inputs.run, inputs.k),
        ideal=mean_values(inputs.qrels, ideal_run(inputs.qrels, inputs.run, inputs.k), parsed),
    )


def _first_stage_name(inputs: Inputs) -> str:
    return f"{inputs.tag} (first stage)"


def write_results(results: Results, folder: str | os.PathLike) -> None:
    """Writes `measures.json`, `per_query.json` and `per_query.tsv`, each whole or not there."""
    folder = Path(folder)
    per_query = results.per_query()
    write_json(folder / "measures.json", results.to_dict())
    write_json(folder / "per_query.json", per_query)
    measures = list(results.reranked.means)
    with atomic_open(folder / "per_query.tsv") as file:
        columns = [f"{measure}{part}" for measure in measures for part in (" first stage", "")]
        file.write("\t".join(["query", *columns]) + "\n")
        for query_id, values in per_query.items():
            cells = [values[part][measure] for measure in measures for part in ("first_stage", "reranked")]
            file.write("\t".join([query_id, *(repr(value) for value in cells)]) + "\n")
