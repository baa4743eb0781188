"""Groups: what Co-BERT trains on and re-ranks, one row a group, in parquet files that `datasets.load_dataset` opens."""

import os
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq

from .folds import Fold, read_folds
from .steps import read_settings
from .trec import read_qrels, read_run

_ROLES = ("prototype", "candidate")
SCHEMA = pa.schema(
    [("qid", pa.string()), ("query", pa.string()), ("group", pa.int32())]
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
        loaded = datasets.load_dataset(str(self.folder))
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
        return self._rows.select([row for row, qid in enumerate(self._rows["qid"]) if qid in wanted])


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
    settings = read_settings(folder, "groups")
    splits = {split: _split_queries(folder, split) for split in settings["splits"]}
    folds = folder / "folds.json"
    return GroupsFolder(folder, settings, splits, read_folds(folds) if folds.exists() else None)


def split_file(split: str) -> str:
    """The name of a split's file, as `datasets` and the Hub expect it."""
    return f"data/{split}-00000-of-00001.parquet"


def _split_queries(folder: Path, split: str) -> tuple[str, ...]:
    path = folder / split_file(split)
    file = pq.ParquetFile(path)
    if file.schema_arrow.remove_metadata() != SCHEMA:
        raise ValueError(
            f"{path}: not the columns of groups: {file.schema_arrow.to_string(show_schema_metadata=False)}"
        )
    return tuple(dict.fromkeys(file.read(["qid"])["qid"].to_pylist()))
