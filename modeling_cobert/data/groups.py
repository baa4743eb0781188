"""Groups: what Co-BERT reads at once, cut from rows when they are read; nothing of it is stored."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

import pyarrow.compute as pc
import torch
from torch.utils.data import Dataset

from ..grouping_cobert import best_first, draw_offset, overlapping_spans, starting_scores
from ..steps.limits import check_numbers
from .words import list_words

PROTOTYPES = ("selector", "first-stage", "none")
# There is room for so many in every group that is fed, whether a list has them or not.
MOST_PROTOTYPES = 10_000
# Up to so many bytes, what compares the words of all lists stays in memory from epoch to epoch.
KEPT_BYTES = 2**30


@dataclass(frozen=True)
class GroupOptions:
    """How a ranked list is cut into groups, and which documents serve as feedback. Left out, the model's own say."""

    num_prototypes: int | None = field(
        default=None,
        metadata={"help": "m, the feedback documents of each query. Default: the model's, 4 in a new one."},
    )
    group_size: int | None = field(
        default=None, metadata={"help": "n, the candidates of a group. Default: the model's, 60 in a new one."}
    )
    group_overlap: int | None = field(
        default=None,
        metadata={"help": "o, the candidates that neighbouring groups share. Default: the model's, 4 in a new one."},
    )
    prototypes: str = field(
        default="selector",
        metadata={"help": "The best by the selector, the first of the run, or none.", "choices": list(PROTOTYPES)},
    )
    first_edge: int = field(
        default=0,
        metadata={"help": "By how many documents the first group is shorter, so that all edges lie elsewhere."},
    )

    def __post_init__(self):
        if self.prototypes not in PROTOTYPES:
            raise ValueError(f"--prototypes must be one of {', '.join(PROTOTYPES)}, not {self.prototypes!r}")
        check_numbers(self, 0, "num_prototypes", most=MOST_PROTOTYPES)
        check_numbers(self, 1, "group_size")
        if self.group_size is not None and self.group_overlap is not None:
            # raises what cannot be; where the model's own are to fill in, `of_model` does
            if not 0 <= self.group_overlap < self.group_size:
                raise ValueError(
                    f"--group_overlap must be at least 0 and below --group_size, got size {self.group_size} and "
                    f"overlap {self.group_overlap}"
                )
            overlapping_spans(0, self.group_size, self.group_overlap, self.first_edge)

    def of_model(self, config) -> "Grouping":
        """The same with the model's own sizes where none are given."""
        given = asdict(self).items()
        return Grouping(**{name: getattr(config, name) if value is None else value for name, value in given})


@dataclass(frozen=True)
class Grouping(GroupOptions):
    """[`GroupOptions`] with all sizes given, which is what a list can be cut by."""

    num_prototypes: int = field()
    group_size: int = field()
    group_overlap: int = field()

    def spans(self, length: int, offset: int | None = None) -> list[tuple[int, int]]:
        """The groups of a list; `offset` says where the first edge lies, in place of `first_edge`."""
        offset = self.first_edge if offset is None else offset
        return overlapping_spans(length, self.group_size, self.group_overlap, offset)

    def choose_prototypes(self, selector_scores: Sequence[float]) -> list[int]:
        """The places of the feedback documents, best first."""
        if self.prototypes == "none":
            return []
        order = range(len(selector_scores)) if self.prototypes == "first-stage" else best_first(selector_scores)
        return list(order[: self.num_prototypes])


class GroupView(Dataset):
    """
    The groups of some rows, each with its query's prototypes: what [`GroupCollator`] makes batches of.

    Args:
        rows (`datasets.Dataset`): queries with their candidates, from [`load_rows`].
        options ([`Grouping`]): how to cut.
        random_edges (`int`, *optional*): a seed. With it, the edges between a query's groups are drawn anew in every
            epoch; how many groups there are stays the same.
        vectors (`Callable`, *optional*): query id to what the encoder gave for its candidates `(documents, hidden)`,
            in place of their passages.
        teacher (`Mapping[str, Mapping[str, float]]`, *optional*): query id to document id to a teacher's score.
        starts (`bool`, *optional*, defaults to `False`): whether groups have what a model with `starting_weights`
            starts from: the selector's and the first stage's scores, standardised over the whole list.
        content (`Callable`, *optional*): query id to what a bi-encoder gave for its passages `(documents, width)`.
        likeness (`bool`, *optional*, defaults to `False`): whether groups have what a model with `feedback_weight`
            reads: how alike the words of the candidates' whole documents are, counted over the whole list.
    """

    def __init__(
        self,
        rows,
        options: Grouping,
        random_edges: int | None = None,
        vectors: Callable[[str], torch.Tensor] | None = None,
        teacher: Mapping[str, Mapping[str, float]] | None = None,
        starts: bool = False,
        content: Callable[[str], torch.Tensor] | None = None,
        likeness: bool = False,
    ):
        self.options, self.random_edges, self.vectors = options, random_edges, vectors
        self.teacher, self.starts, self.content, self.likeness = teacher, starts, content, likeness
        unread = ([] if likeness else ["texts"]) + ([] if vectors is None else ["query", "passages"])
        self.rows = rows.remove_columns([name for name in unread if name in rows.column_names])
        column = rows.select_columns(["doc_ids"]).with_format("arrow")[:]["doc_ids"]
        self.lengths = pc.list_value_length(column).to_pylist()
        self.query_ids = list(rows["query_id"])
        size = sum(4 * length * length for length in self.lengths)
        self._likeness: dict[int, torch.Tensor] | None = {} if size <= KEPT_BYTES else None
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Draws the edges of an epoch, a function of seed and epoch alone, so that any epoch can be resumed."""
        offsets = [None] * len(self.lengths)
        if self.random_edges is not None:
            generator = torch.Generator().manual_seed((self.random_edges * 1_000_003 + epoch) % 2**63)
            draws = torch.rand(len(self.lengths), generator=generator, dtype=torch.float64).tolist()
            sizes = self.options.group_size, self.options.group_overlap
            offsets = [draw_offset(n, *sizes, draw) for n, draw in zip(self.lengths, draws, strict=True)]
        self.groups = [
            (row, number, *span)
            for row, (length, offset) in enumerate(zip(self.lengths, offsets, strict=True))
            for number, span in enumerate(self.options.spans(length, offset))
        ]

    def __len__(self) -> int:
        return len(self.groups)

    def __getitem__(self, index: int) -> dict:
        place, number, start, end = self.groups[index]
        row = self.rows[place]
        if self.teacher is not None:
            scores = self.teacher.get(row["query_id"], {})
            row["teacher_scores"] = [scores.get(doc_id, math.nan) for doc_id in row["doc_ids"]]
        group = {"group": number, **make_group(row, (start, end), self.options, self._content(row))}
        if self.likeness:
            group["likeness"] = self._compare_words(place, row["texts"], start, end)
        return group

    def _compare_words(self, place: int, texts: Sequence[str], start: int, end: int) -> torch.Tensor:
        """How alike the words of a group's documents are `(documents, documents)`, counted over the whole list."""
        if self._likeness is None:
            return list_words(texts).likeness(start, end)
        if place not in self._likeness:
            self._likeness[place] = list_words(texts).likeness()
        return self._likeness[place][start:end, start:end]

    def _content(self, row: Mapping) -> dict[str, Sequence | torch.Tensor]:
        parts: dict[str, Sequence | torch.Tensor] = {}
        if self.vectors is not None:
            parts["vectors"] = self.vectors(row["query_id"])
        else:
            parts["passages"] = row["passages"]
        if self.starts:
            parts["starting_scores"] = torch.tensor(starting_scores(row["selector_scores"], row["first_stage_scores"]))
        if self.content is not None:
            parts["content"] = self.content(row["query_id"])
        return parts

    @property
    def group_queries(self) -> list[str]:
        """The query of each group; a query's groups stand in first-stage order."""
        return [self.query_ids[row] for row, *_ in self.groups]


def make_group(
    row: Mapping, span: tuple[int, int], options: Grouping, content: Mapping[str, Sequence | torch.Tensor]
) -> dict:
    """One group of a row: prototypes and candidates under their names, the candidates' grades, a teacher's scores."""
    start, end = span
    prototypes = options.choose_prototypes(row["selector_scores"])
    group = {"query_id": row["query_id"], "query": row.get("query"), "grades": row["grades"][start:end]}
    if "teacher_scores" in row:
        group["teacher_scores"] = row["teacher_scores"][start:end]
    for name, values in content.items():
        chosen = values[prototypes] if isinstance(values, torch.Tensor) else [values[i] for i in prototypes]
        group |= {f"prototype_{name}": chosen, name: values[start:end]}
    return group
