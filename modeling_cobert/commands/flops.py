"""Counts what re-ranking costs, in multiply-accumulates, from sizes alone.

The paper's table, with the published figures beside ours:

    cobert flops --paper robust04

Your own counts (or those of `--rows`), a model's own sizes, real lengths, attention products included:

    cobert flops --num_queries 225 --k 1000 --num_passages 360000 --mean_tokens 180 --attention
"""

import json
from dataclasses import asdict, dataclass, field, replace

from ..cost.folders import encoder_sizes, model_sizes, prepared_workload
from ..cost.macs import MINILM, PAPER_SHAPE, Workload, convention_costs, own_costs
from ..cost.paper import DOCUMENTS, PAPER, paper_costs, paper_remarks
from ..cost.tables import cost_table
from ..data.groups import GroupOptions
from ..evaluation.tables import to_terminal

# What a folder of rows and a collection of the paper bring themselves.
COUNTS = ("num_queries", "k", "num_passages", "chunks", "qe_passages")
SIZES = ("num_prototypes", "group_size", "group_overlap")


@dataclass
class FlopsArguments:
    """What is counted."""

    paper: str | None = field(
        default=None,
        metadata={"help": "A collection of the paper's cost table: robust04 or gov2.", "choices": [*PAPER]},
    )
    rows: str | None = field(default=None, metadata={"help": "A folder of rows: its counts are taken."})
    num_queries: int | None = field(default=None, metadata={"help": "Number of queries. Default: 1."})
    k: int | None = field(
        default=None, metadata={"help": "How many documents of each query are re-ranked. Default: 1000."}
    )
    num_passages: int | None = field(
        default=None, metadata={"help": "Query-passage pairs over all queries; one for each document by default."}
    )
    chunks: int | None = field(
        default=None, metadata={"help": "BERT-QE: chunks of the ten feedback documents of a query. Default: 1200."}
    )
    qe_passages: int | None = field(
        default=None,
        metadata={"help": "BERT-QE: pairs with its passages of 100 words; 3/2 of --num_passages by default."},
    )
    model: str | None = field(
        default=None,
        metadata={"help": "Folder or Hub id of a Co-BERT whose sizes are taken; the paper's sizes by default."},
    )
    bi_encoder: str | None = field(
        default=None,
        metadata={"help": "Folder of a BERT bi-encoder for selection; all-MiniLM-L6-v2's sizes by default."},
    )
    mean_tokens: float | None = field(
        default=None, metadata={"help": "Mean real length of a sequence, for our way; the maximum length by default."}
    )
    attention: bool = field(default=False, metadata={"help": "Count attention products too. The paper does not."})
    format: str = field(
        default="text",
        metadata={"help": "Tables, or JSON in single multiply-accumulates.", "choices": ["text", "json"]},
    )

    def __post_init__(self):
        sources = [name for name in ("paper", "rows") if getattr(self, name) is not None]
        counts = [name for name in COUNTS if getattr(self, name) is not None]
        if len(sources) == 2:
            raise ValueError("--paper and --rows are two workloads: leave out one of them")
        if sources and counts:
            raise ValueError(f"--{sources[0]} brings its own counts: leave out --{', --'.join(counts)}")


ARGUMENTS = (FlopsArguments, GroupOptions)


def own_workload(args: FlopsArguments) -> Workload:
    """The counts that the options name; of others, the defaults."""
    queries = 1 if args.num_queries is None else args.num_queries
    k = 1000 if args.k is None else args.k
    passages = queries * k if args.num_passages is None else args.num_passages
    return Workload(queries, k, passages, 1200 if args.chunks is None else args.chunks, args.qe_passages)


def main(args: FlopsArguments, groups: GroupOptions) -> dict:
    """Returns and prints the tables."""
    for name in ("prototypes", "first_edge"):
        if getattr(groups, name) != getattr(GroupOptions(), name):
            raise ValueError(f"--{name} does not change what is counted: leave it out")
    shape = model_sizes(args.model) if args.model else PAPER_SHAPE
    shape = replace(shape, **{name: size for name in SIZES if (size := getattr(groups, name)) is not None})
    bi_encoder = encoder_sizes(args.bi_encoder) if args.bi_encoder else MINILM
    counting = "attention products counted" if args.attention else "attention products not counted, as in the paper"
    if args.paper:
        paper = PAPER[args.paper]
        work = Workload(paper.queries, DOCUMENTS, paper.passages)
        rows, remarks = paper_costs(args.paper, attention=args.attention), paper_remarks(args.paper)
        title = f"The paper's cost table, {args.paper} ({counting})"
    elif args.rows:
        work = prepared_workload(args.rows)
        rows, remarks = convention_costs(work, shape, attention=args.attention), []
        title = f"{work.queries} queries, {work.documents} candidates each, the paper's way ({counting})"
    else:
        work = own_workload(args)
        rows, remarks = convention_costs(work, shape, attention=args.attention), []
        title = f"The paper's way of running ({counting})"
    own = own_costs(work, shape, mean_tokens=args.mean_tokens, bi_encoder=bi_encoder, attention=args.attention)
    tokens = args.mean_tokens if args.mean_tokens is not None else shape.max_length
    own_title = f"Our way of running: every pair encoded once, {tokens:g} tokens on average"
    if args.format == "json":
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
