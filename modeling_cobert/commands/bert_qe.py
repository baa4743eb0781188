"""BERT-QE (Zheng et al., 2020): re-ranks a run with the help of the best chunks of the best documents.

    cobert retrieve --collection data/cranfield --k 50 --output runs/cranfield.trec
    cobert bert-qe --collection data/cranfield --run runs/cranfield.trec --k 50 --output outputs/bert-qe \\
        --phase1 models/cross-encoder --phase2 models/cross-encoder --phase3 models/cross-encoder

`--phase1 'models/bert-base/fold-{fold}-cross-encoder'` uses a model of each fold for its validation and test queries.
On two processes: `torchrun --nproc_per_node 2 -- data_scripts/run_bert_qe.py ...`, where `--` keeps torchrun from
taking `--run` for its own `--run-path`. Killed at any point, the same command goes on.
"""

from ..baselines.bert_qe import BertQeOptions
from ..baselines.interpolation import TuningOptions, run_bert_qe
from ..collections.options import CollectionOptions, SplitOptions
from ..evaluation.tables import Table, to_terminal
from ..steps.processes import process_state
from .options import RunOptions

ARGUMENTS = (RunOptions, CollectionOptions, BertQeOptions, TuningOptions, SplitOptions)


def results_table(results: dict) -> Table:
    """First stage, phase 1 and BERT-QE, one row each."""
    names = {"first_stage": "first stage", "phase1": "phase 1 (MaxP)", "bert_qe": "BERT-QE"}
    measures = list(results["measures"]["bert_qe"])
    rows = [
        [label, *(f"{results['measures'][name][measure]:.4f}" for measure in measures)]
        for name, label in names.items()
    ]
    notes = [f"fold {number}: alpha {alpha:g}" for number, alpha in results["alphas"].items()]
    for key, what in (("queries_without_results", "have no results and count as zero"), ("queries_unjudged", "")):
        if results[key]:
            notes.append(f"{results[key]} queries {what or 'are not judged and count for nothing'}")
    return Table(["system", *measures], rows, f"{results['queries']} test queries", notes)


def main(
    options: RunOptions,
    collection: CollectionOptions,
    scoring: BertQeOptions,
    tuning: TuningOptions,
    splits: SplitOptions,
) -> dict:
    """Scores, tunes, tests, and prints a table."""
    results = run_bert_qe(collection.open(), options.run, options.output, scoring, tuning, splits)
    if process_state().is_main_process:
        print(f"{options.output}/result/run.trec\n{to_terminal(results_table(results))}")
    return results
