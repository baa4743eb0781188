"""Groups: what Co-BERT trains on and re-ranks, one row a group, in parquet that `datasets.load_dataset` opens."""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq

from ..collections.folds import Fold, read_folds, write_folds
from ..collections.splits import plan_splits
from ..collections.trec import read_qrels, read_run, write_qrels, write_run
from ..grouping_cobert import best_first, overlapping_spans
from ..steps.files import atomic_open
from ..steps.folders import claim_folder, json_sha256, read_settings, write_settings
from .candidates import check_judgments
from .groups_card import dataset_card, split_file
from .selection import SelectedQuery, read_selected, selected_queries

STEP = "groups"
PROTOTYPES = ("selector", "first-stage", "none")
_ROLES = ("prototype", "candidate")
# Groups that are in memory, and in a row group of a file, together: some 6 MB of text.
_ROWS = 100
SCHEMA = pa.schema(
    [("query_id", pa.string()), ("query", pa.string()), ("group", pa.int32())]
    + [
        (f"{role}_{name}", pa.list_(type_))
        for role in _ROLES
        for name, type_ in (
            ("ids", pa.string()),
            ("passages", pa.string()),
            ("ranks", pa.int32()),  # in the first-stage run, from 1
            ("scores", pa.float32()),  # the selector's
            ("grades", pa.int32()),  # 0 where nobody judged
        )
    ]
)


@dataclass(frozen=True)
class GroupOptions:
    """
    What the groups depend on, besides the selected passages. The defaults are the paper's.

    Args:
        num_prototypes (`int`, *optional*, defaults to 4): m, the feedback documents of each query.
        group_size (`int`, *optional*, defaults to 60): n, the candidates of a group.
        group_overlap (`int`, *optional*, defaults to 4): o, the candidates that neighbouring groups share.
        prototypes (`str`, *optional*, defaults to `"selector"`): the documents with the best selector scores, those
            that come first in the run (`"first-stage"`), or `"none"`.
        folds (`str`, *optional*, defaults to `"auto"`): see [`plan_splits`].
        seed (`int`, *optional*, defaults to 42): of random folds.
        skip_missing (`bool`, *optional*, defaults to `False`): whether judgments for other queries, and queries
            outside of the folds, are counted and left out instead of being an error.
    """

    num_prototypes: int = 4
    group_size: int = 60
    group_overlap: int = 4
    prototypes: str = "selector"
    folds: str = "auto"
    seed: int = 42
    skip_missing: bool = False

    def __post_init__(self):
        if self.prototypes not in PROTOTYPES:
            raise ValueError(f"prototypes must be one of {', '.join(PROTOTYPES)}, not {self.prototypes!r}")
        if self.num_prototypes < 0:
            raise ValueError(f"num_prototypes must not be negative, got {self.num_prototypes}")
        overlapping_spans(0, self.group_size, self.group_overlap)


@dataclass(frozen=True)
class GroupsFolder:
    """
    A folder of groups, open for training and evaluation; see [`load_groups`].

    Args:
        folder (`Path`): where it is.
        settings (`dict`): how it was made: `selector`, `passage_words`, `k`, `num_prototypes`, .., and `counts`.
        splits (`dict[str, tuple[str, ...]]`): the query ids of each split, in file order.
        folds (`list[Fold]` or `None`): the cross-validation, over queries that have groups.
    """

    folder: Path
    settings: dict
    splits: dict[str, tuple[str, ...]]
    folds: list[Fold] | None

    @cached_property
    def qrels(self) -> dict[str, dict[str, int]]:
        """All judgments of the queries here, also of documents that the first stage did not find."""
        return read_qrels(self.folder / "qrels.trec")

    @cached_property
    def run(self) -> dict[str, dict[str, float]]:
        """The first-stage run that was grouped, documents best first."""
        return read_run(self.folder / "run.trec")

    @cached_property
    def _rows(self) -> datasets.Dataset:
        # By their own names: of a folder with a card, `datasets` caches by the folder's name and the card's list of
        # files alone, and would hand out the groups of another folder of that name.
        files = {split: str(self.folder.resolve() / split_file(split)) for split in self.splits}
        loaded = datasets.load_dataset("parquet", data_files=files)
        return datasets.concatenate_datasets([loaded[split] for split in self.splits])

    def dataset(self, queries: Collection[str] | None = None) -> datasets.Dataset:
        """
        The groups of `queries` (all by default), in file order, from all splits.

        A query that has no groups is an error: whoever asks for it would train or report on less than they think.
        """
        if queries is None:
            return self._rows
        wanted = set(queries)
        unknown = wanted.difference(*self.splits.values())
        if unknown:
            raise ValueError(f"{self.folder}: no groups for {len(unknown)} queries, such as {min(unknown)!r}")
        query_ids = self._rows.data[
            "query_id"
        ].to_pylist()  # the column at once: row by row takes minutes on a large folder
        return self._rows.select([row for row, query_id in enumerate(query_ids) if query_id in wanted])


def load_groups(folder: str | os.PathLike) -> GroupsFolder:
    """
    Opens a folder that `data_scripts/build_groups.py` or `data_scripts/prepare.py` has made.

    Args:
        folder (`str` or `os.PathLike`): the folder, finished.

    Example:

    ```python
    >>> groups = load_groups("groups/cranfield")
    >>> fold = groups.folds[0]
    >>> train, test = groups.dataset(fold.train), groups.dataset(fold.test)
    >>> train[0]["candidate_passages"], train[0]["candidate_grades"], train[0]["prototype_passages"]
    ```
    """
    folder = Path(folder)
    settings = read_settings(folder, STEP)
    splits = {split: _split_queries(folder, split) for split in settings["splits"]}
    folds = folder / "folds.json"
    return GroupsFolder(folder, settings, splits, read_folds(folds) if folds.exists() else None)


def build_groups(
    selected: str | os.PathLike, output: str | os.PathLike, collection, options: GroupOptions | None = None
) -> dict:
    """
    Turns selected passages into groups with prototypes and grades, one file a split; see [`load_groups`].

    Args:
        selected (`str` or `os.PathLike`): the folder that [`select_passages`] finished.
        output (`str` or `os.PathLike`): a new folder, or one begun with the same settings.
        collection ([`~modeling_cobert.collections.collection.Collection`]): whose judgments and folds are used.
        options ([`GroupOptions`], *optional*): how to group.

    Returns:
        `dict`: the settings and, under `counts`, what was done; also in `output/settings.json`.
    """
    options = options or GroupOptions()
    selected, output = Path(selected), Path(output)
    selection = read_settings(selected, "selection")
    query_ids, qrels = selected_queries(selected), collection.qrels()
    unknown = check_judgments(qrels, collection.queries(), options.skip_missing, f"judgments of {collection.name}")
    plan = plan_splits(collection, query_ids, options.folds, options.seed, options.skip_missing)
    qrels = {query_id: qrels[query_id] for query_id in query_ids if query_id in plan.split_of and qrels.get(query_id)}
    if not qrels:
        raise ValueError(f"{selected}: none of its queries is judged in {collection.name}")
    settings = {
        **{key: value for key, value in selection.items() if key != "counts"},
        **asdict(options),
        "step": STEP,
        "split_by": plan.source,
        "splits": list(plan.splits),
        "sha256": {
            **selection["sha256"],
            "qrels": json_sha256([[query_id, list(grades.items())] for query_id, grades in qrels.items()]),
            "splits": json_sha256([plan.splits, [asdict(fold) for fold in plan.folds or ()]]),
        },
    }
    done = claim_folder(output, settings)
    if done is not None:
        return done
    counter = _Counter(qrels)
    run = _write_splits(selected, output, plan.split_of, list(plan.splits), counter, options)
    write_run(output / "run.trec", run, selection["first_stage"])
    write_qrels(output / "qrels.trec", qrels)
    if plan.folds is not None:
        write_folds(output / "folds.json", plan.folds)
    skipped = {**selection["counts"]["skipped"], "judged_queries_unknown": unknown, **plan.skipped}
    counts = {**_inherited(selection["counts"]), **counter.counts(), "skipped": skipped}
    with atomic_open(output / "README.md") as file:
        file.write(dataset_card(settings, counts))
    return write_settings(output, settings, counts)  # last: it is the mark that all is done


def group_rows(query: SelectedQuery, grades: Mapping[str, int], options: GroupOptions) -> Iterator[dict]:
    """The groups of one query, as rows of [`SCHEMA`]; every one carries the query's prototypes."""
    limit = 0 if options.prototypes == "none" else options.num_prototypes
    order = range(len(query.doc_ids)) if options.prototypes == "first-stage" else best_first(query.scores)
    prototypes = _side("prototype", query, order[:limit], grades)
    windows = overlapping_spans(len(query.doc_ids), options.group_size, options.group_overlap)
    for number, window in enumerate(windows):
        candidates = _side("candidate", query, range(*window), grades)
        yield {"query_id": query.query_id, "query": query.query, "group": number, **prototypes, **candidates}


def _side(role: str, query: SelectedQuery, positions: Iterable[int], grades: Mapping[str, int]) -> dict[str, list]:
    positions = list(positions)
    columns = {
        "ids": [query.doc_ids[i] for i in positions],
        "passages": [query.passages[i] for i in positions],
        "ranks": [query.ranks[i] for i in positions],
        "scores": [query.scores[i] for i in positions],
        "grades": [grades.get(query.doc_ids[i], 0) for i in positions],
    }
    return {f"{role}_{name}": values for name, values in columns.items()}


class _Counter:
    """Counts pairs of query and document, each once, however many groups it is in."""

    def __init__(self, qrels: Mapping[str, Mapping[str, int]]):
        self.qrels = qrels
        self.queries = self.queries_unjudged = self.groups = self.pairs = self.unjudged = self.relevant = 0

    def add(self, query: SelectedQuery, groups: int) -> None:
        grades = self.qrels.get(query.query_id, {})
        self.queries += 1
        self.queries_unjudged += not grades
        self.groups += groups
        self.pairs += len(query.doc_ids)
        self.unjudged += sum(doc_id not in grades for doc_id in query.doc_ids)
        self.relevant += sum(grades.get(doc_id, 0) > 0 for doc_id in query.doc_ids)

    def counts(self) -> dict[str, int]:
        return {
            "queries": self.queries,
            "queries_unjudged": self.queries_unjudged,
            "groups": self.groups,
            "pairs": self.pairs,
            "unjudged": self.unjudged,
            "relevant": self.relevant,
            "relevant_judged": sum(grade > 0 for grades in self.qrels.values() for grade in grades.values()),
        }


def _inherited(counts: Mapping) -> dict:
    """What selection counted; queries outside of all splits are in these numbers."""
    names = ("queries", "documents", "passages", "pairs", "pair_passages", "truncated")
    return {f"selected_{name}": counts[name] for name in names}


def _write_splits(
    selected: Path,
    output: Path,
    split_of: Mapping[str, str],
    splits: Sequence[str],
    counter: _Counter,
    options: GroupOptions,
) -> dict[str, dict[str, float]]:
    """Writes every split's file in one pass over the selected passages, and returns the run that they came from."""
    run = {}
    with ExitStack() as stack:
        writers: dict[str, pq.ParquetWriter] = {}
        for split in splits:
            file = stack.enter_context(atomic_open(output / split_file(split), "wb"))
            writers[split] = stack.enter_context(pq.ParquetWriter(file, SCHEMA, compression="zstd"))
        waiting: dict[str, list[dict]] = {split: [] for split in splits}

        def flush(split: str) -> None:
            writers[split].write_table(pa.Table.from_pylist(waiting[split], schema=SCHEMA))
            waiting[split].clear()

        for query in read_selected(selected):
            split = split_of.get(query.query_id)
            if split is None:
                continue
            groups = list(group_rows(query, counter.qrels.get(query.query_id, {}), options))
            counter.add(query, len(groups))
            run[query.query_id] = dict(zip(query.doc_ids, query.first_stage_scores, strict=True))
            waiting[split] += groups
            if len(waiting[split]) >= _ROWS:
                flush(split)
        for split in splits:
            if waiting[split]:
                flush(split)
    return run


def _split_queries(folder: Path, split: str) -> tuple[str, ...]:
    path = folder / split_file(split)
    file = pq.ParquetFile(path)
    if file.schema_arrow.remove_metadata() != SCHEMA:
        raise ValueError(
            f"{path}: not the columns of groups: {file.schema_arrow.to_string(show_schema_metadata=False)}"
        )
    return tuple(dict.fromkeys(file.read(["query_id"])["query_id"].to_pylist()))
