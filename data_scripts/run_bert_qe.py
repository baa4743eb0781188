"""BERT-QE (Zheng et al., 2020): re-ranks a run with the help of the best chunks of the best documents.

```bash
python data_scripts/retrieve.py --collection data/cranfield --k 50 --output runs/cranfield.trec
python data_scripts/run_bert_qe.py --collection data/cranfield --run runs/cranfield.trec --k 50 \
    --phase1 models/cross-encoder --phase2 models/cross-encoder --phase3 models/cross-encoder --output outputs/bert-qe
```

`--phase1 'models/bert-base/fold-{fold}-cross-encoder'` uses a model of each fold for its validation and test queries.
On two processes: `torchrun --nproc_per_node 2 -- data_scripts/run_bert_qe.py ...`, where `--` keeps torchrun from
taking `--run` for its own `--run-path`. Killed at any point, the same command goes on.
"""

import logging
import sys
from dataclasses import asdict, dataclass, field

from accelerate import PartialState
from transformers import HfArgumentParser

from modeling_cobert.baselines.bert_qe import CHUNKS_FROM, PHASE3_WINDOWS, BertQeOptions
from modeling_cobert.baselines.interpolation import RELEVANCE, TuningOptions, run_bert_qe
from modeling_cobert.data.arguments import CollectionArguments
from modeling_cobert.evaluation.tables import Table, to_terminal


@dataclass
class Arguments:
    """What to re-rank, and where to put it."""

    run: str = field(metadata={"help": "The TREC run to re-rank."})
    output: str = field(metadata={"help": "A new folder, or one that the same command has begun."})


@dataclass
class ScoringArguments:
    """The models, and how much of everything."""

    phase1: str = field(metadata={"help": "Cross-encoder that re-ranks: Hub id or folder; {fold} is a fold's number."})
    phase2: str = field(metadata={"help": "Cross-encoder that scores chunks for the query."})
    phase3: str = field(metadata={"help": "Cross-encoder that scores documents for the chunks."})
    k: int = field(default=1000, metadata={"help": "How many documents of each query are re-ranked."})
    passage_words: int = field(default=100, metadata={"help": "Words of a passage."})
    passage_overlap: int = field(default=50, metadata={"help": "Words that neighbouring passages share."})
    passage_title: bool = field(default=False, metadata={"help": "Put the title before every passage."})
    max_length: int = field(default=384, metadata={"help": "The most tokens of a pair."})
    feedback_docs: int = field(default=10, metadata={"help": "k_d, the best documents of phase 1 that give chunks."})
    feedback_chunks: int = field(default=10, metadata={"help": "k_c, how many chunks are kept."})
    chunk_words: int = field(default=10, metadata={"help": "m, words of a chunk."})
    chunk_overlap: int = field(default=5, metadata={"help": "Words that neighbouring chunks share."})
    chunks_from: str = field(
        default="document",
        metadata={"help": "Cut the whole document, or its best passage only.", "choices": list(CHUNKS_FROM)},
    )
    phase3_windows: str = field(
        default="best",
        metadata={
            "help": "Compare chunks with the document's best passage of phase 1, or with all of its passages.",
            "choices": list(PHASE3_WINDOWS),
        },
    )
    batch_tokens: int | None = field(
        default=None,
        metadata={"help": "The most tokens of a batch, padding included; by default 16384, or 1024 on a CPU."},
    )
    shard_queries: int = field(default=1, metadata={"help": "Queries that are worked on, and saved, together."})


@dataclass
class TuningArguments:
    """How the chunks' share is chosen."""

    folds: str = field(
        default="auto",
        metadata={
            "help": "A JSON file of folds, round-robin or random. auto: the collection's own folds, else its own "
            "validation and test, else random."
        },
    )
    alpha: float | None = field(default=None, metadata={"help": "A fixed share for all queries: nothing is tuned."})
    relevance: str = field(
        default="logit",
        metadata={"help": "What a score is: probability is what the authors' code took.", "choices": list(RELEVANCE)},
    )
    measure: str = field(default="nDCG@20", metadata={"help": "What is tuned, by its name in ir_measures."})
    seed: int = field(default=42, metadata={"help": "Of random folds."})


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
    args: Arguments,
    collection_args: CollectionArguments,
    scoring_args: ScoringArguments,
    tuning_args: TuningArguments,
) -> dict:
    """Scores, tunes, tests, and prints a table."""
    options = BertQeOptions(skip_missing=collection_args.skip_missing, **asdict(scoring_args))
    results = run_bert_qe(
        collection_args.open(),
        args.run,
        args.output,
        options,
        TuningOptions(**asdict(tuning_args)),
        source=collection_args.source(),
    )
    if PartialState().is_main_process:
        print(f"{args.output}/result/run.trec\n{to_terminal(results_table(results))}")
    return results


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    classes = (Arguments, CollectionArguments, ScoringArguments, TuningArguments)
    try:
        main(*HfArgumentParser(classes).parse_args_into_dataclasses())
    except (ValueError, OSError, ImportError) as error:
        sys.exit(f"error: {error}")
