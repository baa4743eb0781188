"""Queries that a model has learned from or was selected by: a test on them would mean nothing."""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from transformers.utils import cached_file

from ..checkpoint_cobert import check_config
from ..steps.folders import SETTINGS

# The last file of a training's checkpoint: one without it is what a killed process left behind.
COMPLETE = "complete.json"


def seen_queries(model: str | os.PathLike | None) -> dict[str, list[str]]:
    """
    The queries that a model has seen, as its training noted beside the weights: collection to query ids.

    Args:
        model (`str` or `os.PathLike`, *optional*): folder or Hub id, of a final model or of a checkpoint. Where there
            is no such note, as beside foreign models, nothing is known; one that cannot be read is an error.
    """
    if model is None:
        return {}
    if not os.path.isdir(model) and len(Path(model).parts) > 2:  # no name that the Hub could know
        check_config(model)  # raises, as wherever there is no such checkpoint
    for name in (SETTINGS, COMPLETE):
        path, content = _read_note(os.fspath(model), name)
        if isinstance(content, dict) and "seen" in content:
            return _checked(path, content["seen"])
    return {}


def _checked(path: Path, seen: object) -> dict[str, list[str]]:
    """Of what is damaged nobody knows which queries it stood for."""
    if not isinstance(seen, dict) or not all(_is_list_of_names(query_ids) for query_ids in seen.values()):
        raise ValueError(
            f"{path}: damaged, 'seen' must be the query ids of each collection that the model has learned from, so "
            "nothing can be tested: take the file that was saved with the model"
        )
    return seen


def _is_list_of_names(query_ids: object) -> bool:
    return isinstance(query_ids, list) and all(isinstance(query_id, str) for query_id in query_ids)


def add_seen(seen: Mapping[str, list[str]], collection: str, query_ids: Iterable[str]) -> dict[str, list[str]]:
    """`seen` with the queries that a training will add."""
    return {**seen, collection: sorted({*seen.get(collection, ()), *query_ids})}


def refuse_seen(
    seen: Mapping[str, Iterable[str]], collection: str, query_ids: Iterable[str], where: str, cure: str
) -> None:
    """
    Raises where a model would be tested on queries that it has seen.

    Args:
        seen (`Mapping[str, Iterable[str]]`): from [`seen_queries`].
        collection (`str`): the collection that is to be tested on, since "1" is a query of many.
        query_ids (`Iterable[str]`): the queries of the test.
        where, cure (`str`): the beginning and the end of the message.
    """
    both = sorted(set(seen.get(collection, ())) & set(query_ids))
    if both:
        few = f"{', '.join(both[:5])}{', ...' if len(both) > 5 else ''}"
        raise ValueError(
            f"{where}: the model has seen {len(both)} of the queries that it is to be tested on ({few}). {cure}"
        )


def _read_note(model: str, name: str) -> tuple[Path, object]:
    if os.path.isdir(model):
        path = Path(model) / name
    else:
        found = cached_file(
            model,
            name,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
            _raise_exceptions_for_gated_repo=False,
        )
        path = Path(found or "")
    if not path.is_file():
        return path, None
    try:
        return path, json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: not JSON ({error})") from None
