"""
Counts what re-ranking costs, in multiply-accumulates, from sizes alone.

The paper's table, with the published figures beside ours:

    python data_scripts/flops.py --paper robust04

Your own counts (or --prepared, a folder of groups), a model's own sizes, real lengths, attention products included:

    python data_scripts/flops.py --queries 225 --documents 1000 --passages 360000 --mean_tokens 180 --attention
"""

import json
import sys
from dataclasses import asdict, dataclass, field

from transformers import AutoConfig, HfArgumentParser

from modeling_cobert.cost.folders import model_sizes, prepared_workload
from modeling_cobert.cost.macs import MINILM, PAPER_SHAPE, Workload, convention_costs, own_costs
from modeling_cobert.cost.paper import DOCUMENTS, PAPER, paper_costs, paper_remarks
from modeling_cobert.cost.tables import cost_table
from modeling_cobert.evaluation.tables import to_terminal


@dataclass
class FlopsArguments:
    """What is counted."""

    paper: str | None = field(
        default=None,
        metadata={"help": "A collection of the paper's cost table: robust04 or gov2.", "choices": [*PAPER]},
    )
    prepared: str | None = field(
        default=None, metadata={"help": "Folder of groups that build_groups.py finished: its counts and group sizes."}
    )
    queries: int = field(default=1, metadata={"help": "Number of queries."})
    documents: int = field(default=1000, metadata={"help": "Candidates of each query."})
    passages: int | None = field(
        default=None, metadata={"help": "Query-passage pairs over all queries; one for each document by default."}
    )
    chunks: int = field(default=1200, metadata={"help": "BERT-QE: chunks of the ten feedback documents of a query."})
    qe_passages: int | None = field(
        default=None, metadata={"help": "BERT-QE: pairs with its passages of 100 words; 3/2 of --passages by default."}
    )
    model: str | None = field(
        default=None, metadata={"help": "Folder of a Co-BERT whose sizes are taken; the paper's sizes by default."}
    )
    bi_encoder: str | None = field(
        default=None,
        metadata={"help": "Folder of a BERT bi-encoder for selection; all-MiniLM-L6-v2's sizes by default."},
    )
    mean_tokens: float | None = field(
        default=None, metadata={"help": "Mean real length of a sequence, for our way; the maximum length by default."}
    )
    attention: bool = field(default=False, metadata={"help": "Count attention products too. The paper does not."})
    json: bool = field(default=False, metadata={"help": "Print JSON, in single multiply-accumulates."})


def main(args: FlopsArguments) -> dict:
    """Returns and prints the tables."""
    shape = model_sizes(args.model) if args.model else PAPER_SHAPE
    bi_encoder = AutoConfig.from_pretrained(args.bi_encoder) if args.bi_encoder else MINILM
    counting = "attention products counted" if args.attention else "attention products not counted, as in the paper"
    if args.paper:
        paper = PAPER[args.paper]
        work = Workload(paper.queries, DOCUMENTS, paper.passages)
        rows, remarks = paper_costs(args.paper, attention=args.attention), paper_remarks(args.paper)
        title = f"The paper's cost table, {args.paper} ({counting})"
    elif args.prepared:
        work, shape = prepared_workload(args.prepared, shape)
        rows, remarks = convention_costs(work, shape, attention=args.attention), []
        title = f"{work.queries} queries, {work.documents} candidates each, the paper's way ({counting})"
    else:
        passages = args.passages if args.passages is not None else args.queries * args.documents
        work = Workload(args.queries, args.documents, passages, args.chunks, args.qe_passages)
        rows, remarks = convention_costs(work, shape, attention=args.attention), []
        title = f"The paper's way of running ({counting})"
    own = own_costs(work, shape, mean_tokens=args.mean_tokens, bi_encoder=bi_encoder, attention=args.attention)
    tokens = args.mean_tokens if args.mean_tokens is not None else shape.max_length
    own_title = f"Our way of running: every pair encoded once, {tokens:g} tokens on average"
    if args.json:
        result = {
            "workload": asdict(work),
            "convention": [row.to_dict() for row in rows],
            "ours": [row.to_dict() for row in own],
            "remarks": remarks,
        }
        print(json.dumps(result, indent=2))
        return result
    print(to_terminal(cost_table(title, rows, remarks)))
    print(to_terminal(cost_table(own_title, own)))
    return {"convention": rows, "ours": own}


if __name__ == "__main__":
    try:
        main(*HfArgumentParser(FlopsArguments).parse_args_into_dataclasses())
    except ValueError as error:
        sys.exit(f"error: {error}")
