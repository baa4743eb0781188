"""The rows of the paper's tables: what each is made of, what it needs first, and how it is called in `--only`."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from ..data.groups import Grouping

COST = "cost"
STUDY = {"batch": "batch size", "m": "m, prototypes of a query", "o": "o, candidates that two groups share"}


def grouping(row: str, size: int, prototypes: int, overlap: int) -> Grouping:
    """Groups of n candidates, m prototypes (0 for none) and o shared candidates; an error names the row."""
    try:
        return Grouping(prototypes, size, overlap, "selector" if prototypes else "none")
    except ValueError as error:
        raise ValueError(f"row {row}: {error}") from None


@dataclass(frozen=True)
class Row:
    """
    One system of the paper.

    Args:
        name (`str`): in `--only`, and the row's folder.
        label (`str`): in tables.
        kind (`str`): `"first-stage"`, `"maxp"` (training on many passages of a document), `"groups"` (training on
            best passages), or `"bert-qe"`.
        model (`str`, *optional*): the first-stage model.
        variant, feed_order (`str`, *optional*): as for `train_cobert.py`.
        groups ([`Grouping`], *optional*): what it trains on.
        start (`str`, *optional*): the option with the checkpoint that its encoder starts from.
        expanded (`bool`, *optional*, defaults to `False`): whether it reads the expanded queries.
        needs (`tuple[str, ...]`, *optional*): rows that must be done before.
        study (`tuple[str, int]`, *optional*): the hyper-parameter that it varies, and the value.
    """

    name: str
    label: str
    kind: str
    model: str | None = None
    variant: str | None = None
    feed_order: str = "shuffled"
    groups: Grouping | None = None
    start: str = "encoder"
    expanded: bool = False
    needs: tuple[str, ...] = ()
    study: tuple[str, int] | None = None


@dataclass(frozen=True)
class TrainedRow(Row):
    """One of kind `"maxp"` or `"groups"`."""

    variant: str = field(kw_only=True)
    groups: Grouping = field(kw_only=True)


def effectiveness_rows(batch: int, prototypes: int, overlap: int) -> list[Row]:
    """The rows of the main table, in the paper's order; a batch is m prototypes and n candidates."""
    paper = grouping("calibrator", batch - prototypes, prototypes, overlap)
    # Without prototypes a batch is all candidates. The paper's cost table has 1,024 sequences a query for its
    # scorer-only row, which is 16 groups of 64 that share nothing.
    alone = grouping("bert-base", batch, 0, 0)
    maxp = TrainedRow("bert-base-maxp", "BERT-Base MaxP", "maxp", variant="neither", groups=alone, start="bert")
    cobert = TrainedRow("cobert", "Co-BERT", "groups", variant="full", groups=paper)
    return [
        Row("bm25+rm3", "BM25+RM3", "first-stage", model="bm25+rm3"),
        Row("dph+kl", "DPH+KL", "first-stage", model="dph+kl"),
        replace(maxp, name="filtered-google-questions", label="FilteredGoogleQuestions", expanded=True),
        maxp,
        TrainedRow("bert-base", "BERT-Base (MS Marco)", "groups", variant="neither", groups=alone),
        Row("bert-qe", "BERT-QE-BBB", "bert-qe", needs=("bert-base",)),
        TrainedRow("calibrator", "Co-BERT, calibrator only", "groups", variant="calibrator", groups=paper),
        TrainedRow("scorer", "Co-BERT, scorer only", "groups", variant="scorer", groups=alone),
        cobert,
        TrainedRow("no-residual", "Co-BERT without residual", "groups", variant="no_residual", groups=paper),
        replace(cobert, name="initial-order", label="Co-BERT, fed in initial order", feed_order="initial"),
        replace(cobert, name="reversed-order", label="Co-BERT, fed in reversed order", feed_order="reversed"),
    ]


def study_groupings(
    batch: int, prototypes: int, overlap: int, batches: Iterable[int], ms: Iterable[int], overlaps: Iterable[int]
) -> dict[str, dict[int, Grouping]]:
    """Hyper-parameter to value to groups: one value is varied, the others (the batch size for m too) stay."""
    return {
        "batch": {value: grouping(f"batch-{value}", value - prototypes, prototypes, overlap) for value in batches},
        "m": {value: grouping(f"m-{value}", batch - value, value, overlap) for value in ms},
        "o": {value: grouping(f"o-{value}", batch - prototypes, prototypes, value) for value in overlaps},
    }


def study_rows(studied: Mapping[str, Mapping[int, Grouping]], paper: Grouping) -> list[TrainedRow]:
    """The trainings of the hyper-parameter study; the one with the paper's own values is the row `cobert`."""
    return [
        TrainedRow(
            f"{name}-{value}",
            f"Co-BERT, {name} = {value}",
            "groups",
            variant="full",
            groups=groups,
            study=(name, value),
        )
        for name, values in studied.items()
        for value, groups in values.items()
        if groups != paper
    ]


def chosen_rows(rows: Mapping[str, Row], only: Iterable[str] | None) -> list[str]:
    """The names of the rows to do, in the tables' order, each after those that it needs; a wrong name is an error."""
    only = list(only or [])
    unknown = [name for name in only if name not in rows and name != COST]
    if unknown:
        raise ValueError(f"--only {unknown[0]}: there is no such row; the rows are {', '.join([*rows, COST])}")
    wanted = set(only) if only else {*rows, COST}
    for name in list(wanted):
        wanted.update(rows[name].needs if name in rows else ())
    return [name for name in (*rows, COST) if name in wanted]
