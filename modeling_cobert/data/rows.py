"""Rows: a query with its ranked candidates and their grades, in parquet that `datasets.load_dataset` opens."""

import os
from collections.abc import Collection as Ids
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq

from ..collections.collection import Collection
from ..collections.folds import Fold, read_folds, write_folds
from ..collections.judgments import check_found_documents, check_grades, known_judgments
from ..collections.options import SplitOptions
from ..collections.splits import SplitPlan, plan_splits
from ..collections.trec import read_qrels, write_qrels
from ..steps.files import atomic_open
from ..steps.folders import SETTINGS, claim_folder, claims_end, read_settings, write_settings
from ..steps.hashing import file_sha256, json_sha256
from ..steps.shards import PARQUET, QueryShards, read_parquet
from .row_checks import check_query_ids, check_rows, check_settings
from .rows_card import dataset_card, split_file
from .rows_copy import open_unpacked
from .selection import keeps_texts, read_selected, read_selection, with_texts

STEP, FORMAT, MADE_BY = "rows", 1, "cobert prepare (or, from selected passages, cobert rows)"
SCHEMA = pa.schema(
    [
        ("query_id", pa.string()),
        ("query", pa.string()),
        ("doc_ids", pa.list_(pa.string())),  # in first-stage order; once for each passage, where there are several
        ("passages", pa.list_(pa.string())),  # what stands for the document
        ("ranks", pa.list_(pa.int32())),  # in the first-stage run, from 1
        ("first_stage_scores", pa.list_(pa.float64())),
        ("selector_scores", pa.list_(pa.float64())),
        ("grades", pa.list_(pa.int32())),  # 0 where nobody judged; null where the collection has no judgments at all
    ]
)


@dataclass(frozen=True)
class RowsFolder:
    """
    A folder of rows, open for training and evaluation; see [`load_rows`].

    Args:
        folder (`Path`): where it is.
        settings (`dict`): how it was made: `selector`, `passage_words`, `k`, .., and `counts`.
        splits (`dict[str, tuple[str, ...]]`): the query ids of each split, in file order.
        folds (`list[Fold]` or `None`): the cross-validation, over queries that have rows.
    """

    folder: Path
    settings: dict
    splits: dict[str, tuple[str, ...]]
    folds: list[Fold] | None

    @property
    def name(self) -> str:
        """Of the collection."""
        return str(self.settings["collection"])

    @property
    def fingerprint(self) -> str:
        """What the rows are, not in what portions and how fast they were made."""
        passing = ("counts", "batch_tokens", "shard_queries")
        return json_sha256({key: value for key, value in self.settings.items() if key not in passing})

    @cached_property
    def files_sha256(self) -> dict[str, str]:
        """The fingerprint of each split's file."""
        return {split: file_sha256(self.folder / split_file(split)) for split in self.splits}

    @property
    def qrels_sha256(self) -> dict[str, str]:
        """The fingerprint of the judgments' file, where there is one."""
        return {"qrels.trec": file_sha256(self.folder / "qrels.trec")} if self.judged else {}

    @property
    def judged(self) -> bool:
        """Whether the collection has judgments."""
        return bool(self.settings.get("judged", True))

    @property
    def has_texts(self) -> bool:
        """Whether rows have `texts`, the whole documents."""
        return keeps_texts(self.settings)

    @cached_property
    def qrels(self) -> dict[str, dict[str, int]]:
        """All judgments of the queries here, also of documents that the first stage did not find."""
        return read_qrels(self.folder / "qrels.trec") if self.judged else {}

    @cached_property
    def run(self) -> dict[str, dict[str, float]]:
        """The first stage, documents best first."""
        columns = self.dataset().select_columns(["query_id", "doc_ids", "first_stage_scores"])
        return {row["query_id"]: dict(zip(row["doc_ids"], row["first_stage_scores"], strict=True)) for row in columns}

    def check_judgments(self, qrels: Mapping[str, Mapping[str, int]], source: str | os.PathLike | None = None) -> None:
        """Some document must be relevant, and some judged one a candidate; `source` says whose judgments they are."""
        check_grades(qrels, str(source or self.folder / "qrels.trec"))
        check_found_documents(qrels, [self.run], str(source or self.folder / "qrels.trec"), str(self.folder))

    def check_testable(self) -> None:
        """Raises where which passages there are tells what is relevant, as in the rows that MaxP trains on."""
        if self.settings.get("chosen_by") == "judgments":
            raise ValueError(
                f"{self.folder}: its passages were chosen by the judgments, to train on; a test on them would mean "
                "nothing: give the folder beside it, test"
            )

    @cached_property
    def _dataset(self) -> datasets.Dataset:
        files = {split_file(split): self.files_sha256[split] for split in self.splits}
        found = open_unpacked(self.folder, files, with_texts(SCHEMA, self.has_texts))
        check_rows(self.folder, found.data.table, by_passage="chosen_by" in self.settings)
        return found

    @cached_property
    def _places(self) -> dict[str, int]:
        return {q: place for place, q in enumerate(q for split in self.splits.values() for q in split)}

    def dataset(self, query_ids: Ids[str] | None = None) -> datasets.Dataset:
        """
        The rows of some queries (all by default), in file order, from all splits.

        A query that has no row is an error: whoever asks for it would train or report on less than they think.
        """
        if query_ids is None:
            return self._dataset
        unknown = set(query_ids) - self._places.keys()
        if unknown:
            raise ValueError(f"{self.folder}: no rows for {len(unknown)} queries, such as {min(unknown)!r}")
        return self._dataset.select(sorted(self._places[query_id] for query_id in set(query_ids)))

    def row(self, query_id: str) -> dict:
        """One query's row."""
        return self._dataset[self._places[query_id]]


def load_rows(folder: str | os.PathLike) -> RowsFolder:
    """
    Opens a folder that `cobert prepare` or `cobert rows` has made.

    Args:
        folder (`str` or `os.PathLike`): the folder, finished.

    Example:

    ```python
    >>> rows = load_rows("prepared/demo/rows")
    >>> row = rows.dataset(rows.folds[0].train)[0]
    >>> len(row["doc_ids"]) == len(row["passages"]) == len(row["grades"])
    True
    ```
    """
    folder = Path(folder)
    settings = read_settings(folder, STEP, MADE_BY, FORMAT)
    schema = with_texts(SCHEMA, keeps_texts(settings))
    check_settings(folder, settings)
    _check_splits(folder, settings)
    splits = {
        split: tuple(read_parquet(folder / split_file(split), schema, ["query_id"])["query_id"].to_pylist())
        for split in settings["splits"]
    }
    check_query_ids(folder, splits)
    folds = folder / "folds.json"
    return RowsFolder(folder, settings, splits, read_folds(folds) if folds.exists() else None)


def _check_splits(folder: Path, settings: Mapping) -> None:
    splits = settings.get("splits")
    if not isinstance(splits, list) or not all(isinstance(split, str) for split in splits):
        raise ValueError(f"{folder / SETTINGS}: 'splits' is no list of names: make the folder anew")
    try:
        for split in splits:
            split_file(split)
    except ValueError as error:
        raise ValueError(f"{folder / SETTINGS}: {error}") from None


@claims_end()
def build_rows(
    selected: str | os.PathLike,
    output: str | os.PathLike,
    collection: Collection,
    options: SplitOptions | None = None,
    qrels: Mapping[str, Mapping[str, int]] | None = None,
) -> dict:
    """
    Joins selected passages with grades and splits them, one file a split; see [`load_rows`].

    Args:
        selected (`str` or `os.PathLike`): the folder that [`select_passages`] finished.
        output (`str` or `os.PathLike`): a new folder, or one begun with the same settings.
        collection ([`Collection`]): whose judgments and folds are used.
        options ([`SplitOptions`], *optional*): how to split.
        qrels (`Mapping`, *optional*): what [`known_judgments`] gave for the collection, where it was asked before.

    Returns:
        `dict`: the settings and, under `counts`, what was done; also in `output/settings.json`.
    """
    options, output = options or SplitOptions(), Path(output)
    selection, shards = read_selection(selected), read_selected(selected)
    query_ids, queries = selection["counts"]["query_ids"], collection.queries()
    _check_queries(selection, shards, queries, str(selected), collection.name)
    known = known_judgments(collection) if qrels is None else qrels
    plan = plan_splits(collection, query_ids, options, judged=bool(known))
    qrels = {q: known[q] for q in query_ids if q in plan.split_of and known.get(q)}
    if known and not qrels:
        raise ValueError(f"{selected}: none of its queries is judged in {collection.name}")
    settings = _settings(selection, options, plan, qrels)
    done = claim_folder(output, settings)
    if done is not None:
        return done
    written = _write_splits(shards, output, plan, qrels, with_texts(SCHEMA, keeps_texts(settings)))
    if qrels:
        write_qrels(output / "qrels.trec", qrels)
    if plan.folds is not None:
        write_folds(output / "folds.json", plan.folds)
    counts = {
        **_inherited(selection["counts"]),
        **written,
        "relevant_judged": sum(grade > 0 for grades in qrels.values() for grade in grades.values()),
        "skipped": {
            **selection["counts"]["skipped"],
            "judged_queries_unknown": len(known.keys() - queries.keys()),
            **plan.skipped,
        },
    }
    with atomic_open(output / "README.md") as file:
        file.write(dataset_card(settings, counts))
    files = [split_file(split) for split in plan.splits]
    files += [name for name, there in (("qrels.trec", qrels), ("folds.json", plan.folds)) if there]
    # last: it is the mark that all is done
    return write_settings(output, settings, counts, [output / name for name in files])


def _check_queries(
    selection: Mapping, shards: QueryShards, queries: Mapping[str, str], selected: str, name: str
) -> None:
    """The selected queries must be the collection's: of another's, with the same ids, the grades would be foreign."""
    known = [(query_id, queries.get(query_id)) for query_id in selection["counts"]["query_ids"]]
    if json_sha256(known) == selection["sha256"].get("queries"):
        return
    for row in shards.read():
        query_id, text = row["query_id"], row["query"]
        if queries.get(query_id, text) != text:  # of a split, a collection has only some queries
            raise ValueError(
                f"{selected}: query {query_id!r} is {text!r}, but {queries[query_id]!r} in {name}: give the "
                f"collection that it was selected from ({selection['collection']}), with the same --queries"
            )


def _settings(selection: Mapping, options: SplitOptions, plan: SplitPlan, qrels: Mapping) -> dict:
    return {
        **{key: value for key, value in selection.items() if key != "counts"},
        **asdict(options),
        "step": STEP,
        "format": FORMAT,
        "split_by": plan.source,
        "splits": list(plan.splits),
        **({} if qrels else {"judged": False}),
        "sha256": {
            **selection["sha256"],
            "qrels": json_sha256([[query_id, list(grades.items())] for query_id, grades in qrels.items()]),
            "splits": json_sha256([plan.splits, [asdict(fold) for fold in plan.folds or ()]]),
        },
    }


def _inherited(counts: Mapping) -> dict:
    """What selection counted; queries outside of all splits are in these numbers."""
    names = ("queries", "documents", "passages", "pairs", "pair_passages", "truncated")
    return {f"selected_{name}": counts[name] for name in names}


def _write_splits(
    shards: QueryShards, output: Path, plan: SplitPlan, qrels: Mapping, schema: pa.Schema
) -> dict[str, int]:
    """Writes every split's file in one pass over the selected passages, and counts pairs of query and passage."""
    counts = dict.fromkeys(("queries", "queries_unjudged", "pairs", "unjudged", "relevant"), 0)
    unjudged = 0 if qrels else None  # not judged beside others is not relevant, but where nobody judged nobody knows
    with ExitStack() as stack:
        writers: dict[str, pq.ParquetWriter] = {}
        for split in plan.splits:
            file = stack.enter_context(atomic_open(output / split_file(split), "wb"))
            writers[split] = stack.enter_context(pq.ParquetWriter(file, schema, **PARQUET))
        for selected in shards.read():
            split = plan.split_of.get(selected["query_id"])
            if split is None:
                continue
            grades = qrels.get(selected["query_id"], {})
            row = {name: selected[name] for name in schema.names if name != "grades"}
            row["grades"] = [grades.get(doc_id, unjudged) for doc_id in selected["doc_ids"]]
            writers[split].write_table(pa.Table.from_pylist([row], schema=schema))
            _count(counts, row["doc_ids"], grades)
    return counts


def _count(counts: dict[str, int], doc_ids: Sequence[str], grades: Mapping[str, int]) -> None:
    counts["queries"] += 1
    counts["queries_unjudged"] += not grades
    counts["pairs"] += len(doc_ids)
    counts["unjudged"] += sum(doc_id not in grades for doc_id in doc_ids)
    counts["relevant"] += sum(grades.get(doc_id, 0) > 0 for doc_id in doc_ids)
