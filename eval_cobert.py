"""
Re-ranks a query set with a Co-BERT, and measures the result beside the first stage.

Groups, as training uses them (the passages, prototypes and groups in them are taken as they are):

    python eval_cobert.py --model models/cobert --groups groups/cranfield --fold 1 --output results/fold_1

A collection and a run (the model's own selector chooses passages and prototypes, as `model.rerank` does):

    python data_scripts/retrieve.py --collection demo --output runs/demo.trec
    python eval_cobert.py --model models/cobert --collection demo --run runs/demo.trec --output results/demo

On several processes: `torchrun --nproc_per_node 2 -- eval_cobert.py ...` (without the `--`, torchrun takes `--run` for
an option of its own) or `accelerate launch`. With equal `--threads` the run is the same to the byte on one process and
on many. Killed, the same command goes on.

The output folder has `run.trec`, `measures.json`, `per_query.json` and `per_query.tsv`; scores in the run are the
model's logits, lowered in the last digit where trec_eval would break a tie in another way than the model.
"""

import logging
import sys
from dataclasses import dataclass, field
from pathlib import Path

from transformers import HfArgumentParser

from modeling_cobert.collections.trec import write_run
from modeling_cobert.evaluation.measures import DEFAULT_MEASURES, parse_measures
from modeling_cobert.evaluation.results import Results, evaluate_ranking, write_results
from modeling_cobert.evaluation.tables import to_terminal
from modeling_cobert.ranking.arguments import RankingArguments
from modeling_cobert.ranking.ranker import rerank_queries
from modeling_cobert.ranking.seen import refuse_seen
from modeling_cobert.steps.folders import SETTINGS
from modeling_cobert.steps.shards import process_state

FILES = ("run.trec", "measures.json", "per_query.json", "per_query.tsv")


@dataclass
class EvalArguments:
    """What comes out."""

    output: str = field(metadata={"help": "A new folder, or one that the same command has begun."})
    measures: list[str] = field(
        default_factory=lambda: list(DEFAULT_MEASURES), metadata={"help": "Any measures of ir_measures."}
    )
    allow_seen: bool = field(
        default=False, metadata={"help": "Evaluate even on queries that the model was trained on or selected by."}
    )
    tag: str = field(default="co-bert", metadata={"help": "The system's name in the run and the table."})


def check_output(output: Path) -> None:
    """Files that this script would overwrite must be its own."""
    if not (output / ".parts" / SETTINGS).exists():
        there = [name for name in FILES if (output / name).exists()]
        if there:
            raise ValueError(f"{output}: has a {there[0]} that this script has not made: give another --output")


def main(ranking_args: RankingArguments, args: EvalArguments) -> Results | None:
    """Re-ranks, writes, prints; returns the results (`None` without judgments, and in all but the main process)."""
    output = Path(args.output)
    parse_measures(args.measures)
    check_output(output)
    state = process_state(ranking_args.use_cpu)
    inputs = ranking_args.open_inputs(progress=state.is_main_process)
    if not args.allow_seen:
        refuse_seen(ranking_args.model, inputs.name, inputs.queries)
    ranker = ranking_args.load_ranker(state.device)
    run = rerank_queries(ranker, inputs, output, state)
    results = None
    if state.is_main_process:
        write_run(output / "run.trec", run, args.tag)
        results = evaluate_ranking(args.tag, inputs, run, args.measures)
        if results is None:
            print(f"{len(run)} queries re-ranked; no judgments, so nothing is measured")
        else:
            write_results(results, output)
            print(to_terminal(results.table()))
        print(f"written to {output}: {', '.join(name for name in FILES if (output / name).exists())}")
    state.wait_for_everyone()
    return results


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    try:
        main(*HfArgumentParser((RankingArguments, EvalArguments)).parse_args_into_dataclasses())
        process_state().destroy_process_group()
    except (ValueError, OSError, ImportError) as error:
        sys.exit(f"error: {error}")
