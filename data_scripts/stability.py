"""
Measures how much a Co-BERT's ranking depends on the candidates' order, on the groups' edges and on their number.

    python data_scripts/stability.py --model models/cobert --groups groups/cranfield --fold 1 --output stability/fold_1

Every query is encoded once and scored again under each change; a table is printed, all values are in
`stability.json`. Killed, the same command goes on; `torchrun --nproc_per_node 2 -- data_scripts/stability.py ...`
shares the queries among processes.
"""

import logging
import sys
from dataclasses import dataclass, field
from pathlib import Path

from transformers import HfArgumentParser

from modeling_cobert.analysis.stability import StabilityOptions, stability, stability_table
from modeling_cobert.evaluation.measures import DEFAULT_MEASURES
from modeling_cobert.evaluation.results import write_json
from modeling_cobert.evaluation.tables import to_terminal
from modeling_cobert.ranking.arguments import RankingArguments
from modeling_cobert.ranking.seen import refuse_seen
from modeling_cobert.steps.shards import process_state


@dataclass
class StabilityArguments:
    """What to change, and where the result goes."""

    output: str = field(metadata={"help": "A new folder, or one that the same command has begun."})
    seeds: int = field(default=5, metadata={"help": "Shuffles of the whole list, and as many within groups."})
    offsets: list[int] | None = field(
        default=None,
        metadata={"help": "By how many documents to move the groups' edges; by default 1/4, 1/2 and 3/4 of a step."},
    )
    ks: list[int] | None = field(
        default=None, metadata={"help": "Numbers of candidates; by default 1/2 and 1/4 of the longest list."}
    )
    measures: list[str] = field(
        default_factory=lambda: list(DEFAULT_MEASURES), metadata={"help": "Any measures of ir_measures."}
    )

    allow_seen: bool = field(
        default=False, metadata={"help": "Measure even on queries that the model was trained on or selected by."}
    )

    def options(self) -> StabilityOptions:
        offsets, ks = (None if values is None else tuple(values) for values in (self.offsets, self.ks))
        return StabilityOptions(self.seeds, offsets, ks, tuple(self.measures))


def main(ranking_args: RankingArguments, args: StabilityArguments) -> dict:
    """Measures, writes, prints; returns the report."""
    options = args.options()
    state = process_state(ranking_args.use_cpu)
    inputs = ranking_args.open_inputs(progress=state.is_main_process)
    if not args.allow_seen:
        refuse_seen(ranking_args.model, inputs.name, inputs.queries)
    report = stability(ranking_args.load_ranker(state.device), inputs, args.output, options, state)
    if state.is_main_process:
        write_json(Path(args.output) / "stability.json", {"model": ranking_args.model, **report})
        print(to_terminal(stability_table(report)))
        print(f"written to {Path(args.output) / 'stability.json'}")
    state.wait_for_everyone()
    return report


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    try:
        main(*HfArgumentParser((RankingArguments, StabilityArguments)).parse_args_into_dataclasses())
        process_state().destroy_process_group()
    except (ValueError, OSError, ImportError) as error:
        sys.exit(f"error: {error}")
