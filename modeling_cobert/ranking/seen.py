"""Queries that a model has learned from or was selected by: a test on them would mean nothing."""

import json
import os
from collections.abc import Iterable
from pathlib import Path

from transformers.utils import cached_file

# Where trainings note them: {"train": [..], "validation": [..]}, perhaps with "collection", or {"seen": {name: [..]}}.
NOTES = ("training_queries.json", "settings.json", "complete.json")


def seen_queries(model: str, collection: str) -> set[str]:
    """
    The queries that a model has seen, as its training noted beside the checkpoint; nothing, where there is no note.

    Args:
        model (`str`): folder or Hub id.
        collection (`str`): the collection that is to be tested on. A note that names collections counts only where it
            names this one, since "1" is a query of many.
    """
    seen: set[str] = set()
    for name in NOTES:
        content = _read_note(model, name)
        if not isinstance(content, dict):
            continue
        if isinstance(content.get("seen"), dict):
            seen.update(map(str, content["seen"].get(collection, ())))
        if name == NOTES[0] and content.get("collection", collection) == collection:
            seen.update(str(query_id) for part in ("train", "validation") for query_id in content.get(part, ()))
    return seen


def refuse_seen(model: str, collection: str, query_ids: Iterable[str]) -> None:
    """Raises where a model would be tested on queries that it has seen."""
    both = sorted(seen_queries(model, collection) & set(query_ids))
    if both:
        raise ValueError(
            f"{model}: {len(both)} of these queries were in its training or validation, such as {both[0]!r}. Evaluate "
            "on others (--split, --fold, --queries), or say --allow_seen if you know what such a result is worth, or "
            "if these are queries of another collection."
        )


def _read_note(model: str, name: str) -> object:
    if os.path.isdir(model):
        path = Path(model) / name
        if not path.is_file():
            return None
    else:
        found = cached_file(
            model,
            name,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
            _raise_exceptions_for_gated_repo=False,
        )
        if found is None:
            return None
        path = Path(found)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: not JSON ({error})") from None
