"""Counts what re-ranking costs, in multiply-accumulates, from sizes alone.

The paper's table, with the published figures beside ours:

    cobert flops --paper robust04

Your own counts (or those of `--groups`), a model's own sizes, real lengths, attention products included:

    cobert flops --num_queries 225 --k 1000 --num_passages 360000 --mean_tokens 180 --attention
"""

import json
from dataclasses import asdict, dataclass, field, replace

from transformers import AutoConfig

from ..cost.macs import (
    MINILM,
    PAPER_SHAPE,
    TERA,
    CoBertShape,
    Cost,
    Workload,
    convention_costs,
    own_costs,
)
from ..cost.paper import DOCUMENTS, PAPER, paper_costs, paper_remarks
from ..evaluation.tables import Table, to_terminal
from ..steps.folders import read_settings


@dataclass
class FlopsArguments:
    """What is counted."""

    paper: str | None = field(
        default=None,
        metadata={"help": "A collection of the paper's cost table: robust04 or gov2.", "choices": [*PAPER]},
    )
    groups: str | None = field(
        default=None, metadata={"help": "A finished folder of groups: its counts and group sizes are taken."}
    )
    num_queries: int = field(default=1, metadata={"help": "Number of queries."})
    k: int = field(default=1000, metadata={"help": "How many documents of each query are re-ranked."})
    num_passages: int | None = field(
        default=None, metadata={"help": "Query-passage pairs over all queries; one for each document by default."}
    )
    chunks: int = field(default=1200, metadata={"help": "BERT-QE: chunks of the ten feedback documents of a query."})
    qe_passages: int | None = field(
        default=None,
        metadata={"help": "BERT-QE: pairs with its windows of 100 words; 3/2 of --num_passages by default."},
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


ARGUMENTS = (FlopsArguments,)


def tera(value: float | None, digits: int = 3) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def cost_table(title: str, rows: list[Cost], remarks: list[str] = ()) -> Table:
    """All costs in 10^12; the columns of published figures only where there are any."""
    published = any(row.published for row in rows)
    columns = ["System", "1st pass T", "2nd pass T", "T a query", "x BERT-Base"]
    columns += ["paper: 1st", "2nd", "a query", "x"] if published else []
    lines, notes = [], list(remarks)
    for row in rows:
        line = [row.system, *(tera(v / TERA) for v in (row.first_pass, row.second_pass, row.per_query))]
        line.append(f"{row.ratio:.3f}x")
        if published:
            line += [tera(row.published.get(name)) for name in ("first_pass", "second_pass", "per_query")]
            line.append(f"{row.published['ratio']:.3f}x" if "ratio" in row.published else "")
        lines.append(line)
        if row.note:
            notes.append(f"{row.system}: {row.note}.")
    return Table(columns, lines, title=title, notes=notes)


def sizes(path: str) -> CoBertShape:
    """The sizes of a Co-BERT."""
    config = AutoConfig.from_pretrained(path)
    if config.model_type != "cobert":
        raise ValueError(f"{path}: a Co-BERT is needed, this is a {config.model_type!r}")
    return CoBertShape.from_config(config)


def prepared(folder: str, shape: CoBertShape) -> tuple[Workload, CoBertShape]:
    """The counts and group sizes of a folder of groups; candidates are the mean over queries, rounded down."""
    settings = read_settings(folder, "groups")
    counts = settings["counts"]
    queries, pairs = counts["selected_queries"], counts["selected_pairs"]
    work = Workload(queries, pairs // queries, counts["selected_pair_passages"])
    sizes = {name: settings[name] for name in ("num_prototypes", "group_size", "group_overlap")}
    return work, replace(shape, **sizes)


def main(args: FlopsArguments) -> dict:
    """Returns and prints the tables."""
    shape = sizes(args.model) if args.model else PAPER_SHAPE
    bi_encoder = AutoConfig.from_pretrained(args.bi_encoder) if args.bi_encoder else MINILM
    counting = "attention products counted" if args.attention else "attention products not counted, as in the paper"
    if args.paper:
        paper = PAPER[args.paper]
        work = Workload(paper.queries, DOCUMENTS, paper.passages)
        rows, remarks = paper_costs(args.paper, attention=args.attention), paper_remarks(args.paper)
        title = f"The paper's cost table, {args.paper} ({counting})"
    elif args.groups:
        work, shape = prepared(args.groups, shape)
        rows, remarks = convention_costs(work, shape, attention=args.attention), []
        title = f"{work.queries} queries, {work.documents} candidates each, the paper's way ({counting})"
    else:
        passages = args.num_passages if args.num_passages is not None else args.num_queries * args.k
        work = Workload(args.num_queries, args.k, passages, args.chunks, args.qe_passages)
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
