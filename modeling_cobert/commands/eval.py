"""Re-ranks a query set with a Co-BERT, and measures the result beside the first stage.

Rows, as training uses them (the passages in them are taken as they are); here with what `make demo` leaves:

    cobert eval --model outputs/demo/start-promising/seed-42/fold-1 --rows outputs/demo/prepared/rows --fold 1 \\
        --output results/fold_1

Another collection and a run (the model's own selector chooses passages and prototypes, as `model.rerank` does):

    cobert retrieve --collection data/cranfield --output runs/cranfield.trec
    cobert eval --model outputs/demo/start-promising/seed-42/fold-1 --collection data/cranfield \\
        --run runs/cranfield.trec --output results/cranfield

On several processes: `torchrun --nproc_per_node 2 -- eval_cobert.py ...` (without the `--`, torchrun takes `--run` for
an option of its own) or `accelerate launch`. With equal `--threads` the run is the same to the byte on one process and
on many. Killed, the same command goes on.

The output folder has `run.trec`, `measures.json`, `per_query.json` and `per_query.tsv`; scores in the run are the
model's logits, lowered in the last digit where trec_eval would break a tie in another way than the model.
"""

from dataclasses import dataclass, field
from pathlib import Path

from ..collections.trec import write_run
from ..data.groups import GroupOptions
from ..evaluation.measures import DEFAULT_MEASURES, parse_measures
from ..evaluation.results import Results, evaluate_ranking, write_results
from ..evaluation.tables import to_terminal
from ..ranking.options import InputOptions, RankerOptions
from ..ranking.ranker import rerank_queries
from ..ranking.seen import refuse_seen, seen_queries
from ..selection_cobert import BUILT_IN
from ..steps.folders import SETTINGS
from ..steps.processes import process_state
from .options import OutputOptions, check_tag

FILES = ("run.trec", "measures.json", "per_query.json", "per_query.tsv")
CURE = (
    "Evaluate on others (--split, --fold, --query_ids; where the collection has no folds of its own, the rows that it "
    "was trained on have them: --rows ROWS --fold N), or say --allow_seen if you know what such a result is worth, or "
    "if these are queries of another collection."
)


@dataclass(frozen=True)
class SeenOptions:
    """Whether a test may be one on known queries."""

    allow_seen: bool = field(
        default=False, metadata={"help": "Go on even with queries that the model was trained on or selected by."}
    )

    def check(self, ranker: RankerOptions, collection: str, query_ids) -> None:
        """Of the model, and of a selector that is given beside it."""
        selector = None if ranker.selector in BUILT_IN else ranker.selector
        for name in dict.fromkeys((ranker.model, selector)):
            if not self.allow_seen:
                refuse_seen(seen_queries(name), collection, query_ids, str(name), CURE)


@dataclass(frozen=True)
class EvalOptions(OutputOptions):
    """What comes out."""

    measures: list[str] = field(
        default_factory=lambda: list(DEFAULT_MEASURES), metadata={"help": "Any measures of ir_measures."}
    )
    tag: str = field(default="co-bert", metadata={"help": "The system's name in the run and the table."})

    def __post_init__(self):
        check_tag(self.tag)


ARGUMENTS = (RankerOptions, InputOptions, GroupOptions, EvalOptions, SeenOptions)


def check_output(output: Path, judged: bool = True) -> None:
    """Files that this command would overwrite must be its own; those that it would not must not pass for its own."""
    if not judged:
        there = [name for name in FILES[1:] if (output / name).exists()]
        if there:
            raise ValueError(
                f"{output}: has a {there[0]}, measured when there were judgments; now there are none: give another "
                "--output, or the judgments (--qrels)"
            )
    if not (output / ".parts" / SETTINGS).exists():
        there = [name for name in FILES if (output / name).exists()]
        if there:
            raise ValueError(f"{output}: has a {there[0]} that this command has not made: give another --output")


def main(
    ranker_options: RankerOptions,
    input_options: InputOptions,
    groups: GroupOptions,
    options: EvalOptions,
    seen: SeenOptions,
) -> Results | None:
    """Re-ranks, writes, prints; returns the results (`None` without judgments, and in all but the main process)."""
    output = Path(options.output)
    parse_measures(options.measures)
    check_output(output)
    state = process_state(ranker_options.use_cpu)
    inputs = input_options.open_inputs(groups, progress=state.is_main_process)
    check_output(output, judged=inputs.qrels is not None)
    seen.check(ranker_options, inputs.name, inputs.queries)
    ranker = ranker_options.load(input_options, state.device)
    run = rerank_queries(ranker, inputs, output, state)
    results = None
    if state.is_main_process:
        write_run(output / "run.trec", run, options.tag)
        results = evaluate_ranking(options.tag, inputs, run, options.measures)
        if results is None:
            print(f"{len(run)} queries re-ranked; no judgments, so nothing is measured")
        else:
            write_results(results, output)
            print(to_terminal(results.table()))
        print(f"written to {output}: {', '.join(name for name in FILES if (output / name).exists())}")
    state.wait_for_everyone()
    return results
