"""What rows, and settings of rows and of selections, must be: edited ones would give wrong figures, or defects."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from ..steps.folders import SETTINGS

# What is read of the settings: kind, the least number, and both in words.
_TEXT, _SWITCH = (str, 0, "a text"), (bool, 0, "true or false")
_KINDS: dict[str, tuple[type, int, str]] = {
    "collection": _TEXT,
    "first_stage": _TEXT,
    "selector": _TEXT,
    "k": (int, 1, "a whole number from 1 on"),
    "passage_words": (int, 1, "a whole number from 1 on"),
    "passage_overlap": (int, 0, "a whole number from 0 on"),
    "passage_title": _SWITCH,
}
_OPTIONAL = {"keep_texts": _SWITCH, "judged": _SWITCH, "chosen_by": _TEXT}
# Of selected passages, beside that.
_OF_SELECTIONS = {"shard_queries": (int, 1, "a whole number from 1 on")}
_COUNTED = ("queries", "documents", "passages", "pairs", "pair_passages")
_ANEW = "make the folder anew"


def check_settings(folder: Path, settings: Mapping) -> None:
    """Raises where a value in the settings of rows is of another kind than the one that is written."""
    _check_kinds(folder, settings, _KINDS)
    counts = settings["counts"]
    if not isinstance(counts, dict) or not isinstance(counts.get("skipped", {}), dict):
        raise ValueError(f"{folder / SETTINGS}: 'counts' must be the numbers of what was made: {_ANEW}")


def check_selection(folder: Path, settings: Mapping) -> None:
    """The same of a folder of selected passages, from which rows are made."""
    _check_kinds(folder, settings, {**_KINDS, **_OF_SELECTIONS})
    prints = settings.get("sha256")
    if not isinstance(prints, dict) or not all(isinstance(value, str | None) for value in prints.values()):
        raise ValueError(f"{folder / SETTINGS}: 'sha256' must be the fingerprints of what was read: {_ANEW}")
    counts = settings["counts"]
    query_ids = counts.get("query_ids") if isinstance(counts, dict) else None
    if not isinstance(query_ids, list) or not query_ids or not all(isinstance(one, str) for one in query_ids):
        raise ValueError(f"{folder / SETTINGS}: 'query_ids' in 'counts' must be a list of query ids: {_ANEW}")
    if len(set(query_ids)) < len(query_ids):
        raise ValueError(f"{folder / SETTINGS}: 'query_ids' in 'counts' names a query twice: {_ANEW}")
    skipped, truncated = counts.get("skipped"), counts.get("truncated")
    numbers = [counts.get(name) for name in _COUNTED] + ([] if truncated is None else [truncated])
    if not isinstance(skipped, dict) or not all(type(one) is int for one in [*numbers, *skipped.values()]):
        raise ValueError(f"{folder / SETTINGS}: 'counts' must be the numbers of what was made: {_ANEW}")


def _check_kinds(folder: Path, settings: Mapping, kinds: Mapping[str, tuple[type, int, str]]) -> None:
    for name, (kind, least, wanted) in {**kinds, **_OPTIONAL}.items():
        if name not in settings:
            if name in _OPTIONAL:
                continue
            raise ValueError(f"{folder / SETTINGS}: {name!r} is missing: {_ANEW}")
        value = settings[name]
        fits = type(value) is kind  # a bool is an int too
        if not fits or (kind is int and value < least):
            raise ValueError(f"{folder / SETTINGS}: {name!r} must be {wanted}, not {value!r}: {_ANEW}")


def check_query_ids(folder: Path, splits: Mapping[str, tuple[str | None, ...]]) -> None:
    """Every row has a query id, and no two rows have the same."""
    found: dict[str, str] = {}
    for split, query_ids in splits.items():
        for query_id in query_ids:
            if query_id is None:
                raise ValueError(f"{folder}: a row of split {split!r} has no query_id: {_ANEW}")
            if query_id in found:
                raise ValueError(
                    f"{folder}: query {query_id!r} has two rows, in splits {found[query_id]!r} and {split!r}: {_ANEW}"
                )
            found[query_id] = split


def check_rows(folder: Path, rows: pa.Table, by_passage: bool) -> None:
    """
    Raises where a row is not one query with lists of equal length.

    Args:
        folder (`Path`): where they are.
        rows (`pa.Table`): all rows.
        by_passage (`bool`): whether a document is there once for each of its passages, as for MaxP.
    """
    for query_id, fault in _faults(rows, by_passage):
        raise ValueError(f"{folder}: the row of query {query_id!r} {fault}: {_ANEW}")


def _faults(rows: pa.Table, by_passage: bool) -> Iterator[tuple[str, str]]:
    query_ids = rows["query_id"].to_pylist()
    for query_id, query in zip(query_ids, rows["query"].to_pylist(), strict=True):
        if not (query or "").strip():
            yield query_id, "has an empty query"
    lists = [field.name for field in rows.schema if pa.types.is_list(field.type)]
    lengths = {name: pc.list_value_length(rows[name]).to_pylist() for name in lists}
    for place, query_id in enumerate(query_ids):
        wanted = lengths["doc_ids"][place]
        if not wanted:
            yield query_id, "has no documents"
        for name in lists:
            if lengths[name][place] != wanted:
                yield query_id, f"has {wanted} doc_ids, but {lengths[name][place] or 0} {name}"
    for name in lists:
        # grades are null where nobody judged; of the others most have none, which takes no time to see
        if name != "grades" and pc.list_flatten(rows[name]).null_count:
            yield from _where(query_ids, rows[name], lambda values: None in values, f"has a null among its {name}")
    if not by_passage:
        repeated = "names a document twice among its doc_ids"
        yield from _where(query_ids, rows["doc_ids"], lambda values: len(set(values)) < len(values), repeated)


def _where(query_ids: list[str], column: pa.ChunkedArray, is_so, fault: str) -> Iterator[tuple[str, str]]:
    lists = (values for chunk in column.chunks for values in chunk.to_pylist())
    yield from ((query_id, fault) for query_id, values in zip(query_ids, lists, strict=True) if is_so(values))
