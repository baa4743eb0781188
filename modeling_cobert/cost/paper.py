"""The paper's cost table: its counts, its published figures, and where these do not agree with each other."""

import math
from dataclasses import dataclass
from functools import partial

from .macs import PAPER_SHAPE, QE_TOKENS, TERA, VARIANTS, Cost, cost_of, group_macs, passage_macs

DOCUMENTS = 1000
BATCH = 64
ROBUST04_QE_PASSAGES = 3_904_616


@dataclass(frozen=True)
class PaperCounts:
    """
    The counts behind one column of the paper's cost table, and the figures that it prints, in 10^12.

    Args:
        queries (`int`): what the cost a query is divided by.
        passages (`int`): query-passage pairs of the first pass.
        second_pass_queries (`int`): the queries whose groups are counted.
        published (`dict[str, dict[str, float]]`): system to figures, under the names of [`Cost`].
        qe_passages (`int`, *optional*): query-passage pairs of BERT-QE's first pass, where the paper gives them.
    """

    queries: int
    passages: int
    second_pass_queries: int
    published: dict[str, dict[str, float]]
    qe_passages: int | None = None


PAPER = {
    "robust04": PaperCounts(
        queries=249,
        passages=2_729_808,
        second_pass_queries=250,
        qe_passages=ROBUST04_QE_PASSAGES,
        published={
            "BERT-Base": {"first_pass": 59_356.224},
            "BERT-QE-BBB": {"first_pass": 255_739.021, "ratio": 7.389},
            "Co-BERT": {"second_pass": 6_301.095, "per_query": 263.684, "ratio": 1.106},
        },
    ),
    "gov2": PaperCounts(
        queries=150,
        passages=7_375_231,
        second_pass_queries=150,
        published={
            "BERT-Base": {"first_pass": 160_364.645},
            "BERT-QE-BBB": {"ratio": 5.160},
            "Co-BERT": {"second_pass": 3_780.657, "per_query": 1_094.302, "ratio": 1.024},
        },
    ),
}


def paper_costs(collection: str, *, attention: bool = False) -> list[Cost]:
    """
    The rows of the paper's cost table for `"robust04"` or `"gov2"`, the published figures beside ours.

    The first pass is counted in whole batches of 64 passages, the last incomplete one left out, as by a loader that
    drops it. That, and the two logits of the head, bring out the published totals to the last digit.

    Args:
        collection (`str`): `"robust04"` or `"gov2"`.
        attention (`bool`, *optional*, defaults to `False`): count attention products, which the paper does not.
    """
    if collection not in PAPER:
        raise ValueError(f"the paper's cost table has {' and '.join(PAPER)}, not {collection!r}")
    paper = PAPER[collection]
    base = paper.passages // BATCH * BATCH * passage_macs(PAPER_SHAPE.encoder, PAPER_SHAPE.max_length, attention)
    make_row = partial(cost_of, queries=paper.queries, base=base)
    rows = [
        make_row("BERT-Base", base, 0, 0, published=paper.published["BERT-Base"]),
        _bert_qe(paper, base, attention),
    ]
    for name, parts in VARIANTS.items():
        if parts["use_calibrator"]:
            # every group is a full batch, the last one too: 18 groups of 4 prototypes and 60 candidates
            groups, candidates = len(PAPER_SHAPE.group_sizes(DOCUMENTS)), PAPER_SHAPE.group_size
        else:
            # no prototypes: 16 groups of 64 candidates are the paper's 1,024 sequences a query
            groups, candidates = math.ceil(DOCUMENTS / BATCH), BATCH
        groups *= paper.second_pass_queries
        second = groups * group_macs(PAPER_SHAPE, candidates, attention=attention, **parts)
        note = "" if parts["use_calibrator"] else _scorer_note(groups)
        rows.append(make_row(name, base, second, groups * BATCH, published=paper.published.get(name), note=note))
    return rows


def _scorer_note(groups: int) -> str:
    scorer = group_macs(PAPER_SHAPE, BATCH, **VARIANTS["Co-BERT, scorer only"]) / BATCH
    calibrator = group_macs(PAPER_SHAPE, PAPER_SHAPE.group_size, **VARIANTS["Co-BERT, calibrator only"]) / BATCH
    return (
        f"the paper's scorer-only row (1,024 sequences a query) has the calibrator's cost per sequence, "
        f"{calibrator / 1e9:.4f} G, which would be {groups * BATCH * calibrator / TERA:,.3f} T; with a scorer and no "
        f"calibrator it is {scorer / 1e9:.4f} G"
    )


def _bert_qe(paper: PaperCounts, base: float, attention: bool) -> Cost:
    """
    BERT-QE with the sequences that the paper's ratio implies, each counted as in the other rows.

    The paper does not say how many chunks a query has. Its ratio, divided by its own cost per sequence (that of the
    Robust04 first pass), gives the sequences of all three phases.
    """
    published, robust = paper.published["BERT-QE-BBB"], PAPER["robust04"].published["BERT-QE-BBB"]
    theirs = robust["first_pass"] * TERA / ROBUST04_QE_PASSAGES
    sequences = published["ratio"] * paper.published["BERT-Base"]["first_pass"] * TERA / theirs
    once = passage_macs(PAPER_SHAPE.encoder, QE_TOKENS)
    note = (
        f"the paper's BERT-QE rows take {theirs / 1e9:.3f} G a sequence of {QE_TOKENS} tokens, {theirs / once:.3f} "
        f"times the {once / 1e9:.3f} G of the other rows' convention: they seem to count two operations for each "
        f"multiply-accumulate. The published {published['ratio']:.3f}x means {sequences / paper.queries:,.0f} "
        "sequences a query, counted here once each"
    )
    if paper.qe_passages is None:
        note += "; the paper gives no number of first-pass passages, so all phases stand in the second pass"
    ours = passage_macs(PAPER_SHAPE.encoder, QE_TOKENS, attention)
    in_first = paper.qe_passages or 0
    first, second = in_first * ours, (sequences - in_first) * ours
    return cost_of(
        "BERT-QE-BBB",
        first,
        second,
        sequences - in_first,
        queries=paper.queries,
        base=base,
        published=published,
        note=note,
    )


def paper_remarks(collection: str) -> list[str]:
    """What else the published totals reveal about how they were counted."""
    paper = PAPER[collection]
    remarks = [
        f"First pass: the paper names {paper.passages:,} passages; its total is that of whole batches of {BATCH}, "
        f"{paper.passages // BATCH * BATCH:,} passages, so the last {paper.passages % BATCH} are not counted."
    ]
    if paper.second_pass_queries != paper.queries:
        remarks.append(
            f"Second pass: the total is that of {paper.second_pass_queries} queries, but the cost a query is divided "
            f"by {paper.queries}."
        )
    return remarks
