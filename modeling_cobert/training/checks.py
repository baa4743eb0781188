"""Checks at the door: the output folder and the disk before a training, the queries that a model saw before a test."""

import json
import math
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from torch import nn

from ..steps.files import atomic_open
from ..steps.folders import SETTINGS
from .interruption import COMPLETE


def check_writable(folder: str | os.PathLike) -> None:
    """Writes and removes a small file: what cannot be written must fail before the training, not after."""
    probe = Path(folder) / ".probe"
    try:
        with atomic_open(probe, "wb") as file:
            file.write(b"\0" * 4096)
        probe.unlink()
    except OSError as error:
        raise OSError(
            f"{folder}: cannot write into the output folder ({error}): choose another --output_dir"
        ) from error


def check_space(folder: str | os.PathLike, model: nn.Module, args, steps: int, more: int = 0) -> None:
    """
    Compares the free disk with what a training will write: checkpoints with Adam's two moments, and the final model.

    Args:
        folder (`str` or `os.PathLike`): the output folder, which exists.
        model (`nn.Module`): what is trained; frozen parameters have no moments.
        args (`TrainingArguments`): `save_strategy`, `save_total_limit`, ...
        steps (`int`): how many optimizer steps there will be.
        more (`int`, *optional*, defaults to 0): bytes that are needed beside that.
    """
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    moments = 0 if args.save_only_model else 2 * sum(4 * p.numel() for p in model.parameters() if p.requires_grad)
    saves = {
        "no": 0,
        "epoch": math.ceil(args.num_train_epochs),
        "steps": math.ceil(steps / args.save_steps) if args.save_steps >= 1 else math.ceil(1 / args.save_steps),
        "best": math.ceil(args.num_train_epochs),
    }[str(getattr(args.save_strategy, "value", args.save_strategy))]
    # While a checkpoint is written, those that it will replace are still there.
    kept = saves if not args.save_total_limit else min(saves, args.save_total_limit + 1)
    there = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    needed = weights + kept * (weights + moments) + more - there
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OSError(
            f"{folder}: {free / 2**30:.2f} GiB are free, but up to {needed / 2**30:.2f} GiB will be written ({kept} "
            f"checkpoints of {(weights + moments) / 2**30:.2f} GiB and the model): free some space, choose another "
            "--output_dir, or lower --save_total_limit"
        )


def seen_queries(source: str | os.PathLike | None) -> dict[str, list[str]]:
    """
    The queries that a model has learned from or was selected by: collection to query ids.

    Args:
        source (`str` or `os.PathLike`, *optional*): a folder that this package's training wrote, final or checkpoint.
            Anything else (a Hub id, a foreign checkpoint) has no such note, and nothing is known.
    """
    for name in (SETTINGS, COMPLETE):
        path = Path(source or "") / name
        if source is not None and path.is_file():
            content = json.loads(path.read_text(encoding="utf-8"))
            return {str(k): [str(q) for q in ids] for k, ids in content.get("seen", {}).items()}
    return {}


def add_seen(seen: Mapping[str, Iterable[str]], collection: str, query_ids: Iterable[str]) -> dict[str, list[str]]:
    """`seen` with the queries that a training will add."""
    return {**seen, collection: sorted({*seen.get(collection, ()), *query_ids})}


def refuse_seen(seen: Mapping[str, Iterable[str]], collection: str, query_ids: Iterable[str], where: str) -> None:
    """Raises where a model would be tested on queries that it saw: such a test would mean nothing."""
    both = sorted(set(seen.get(collection, ())) & set(query_ids))
    if both:
        raise ValueError(
            f"{where}: the model has seen {len(both)} of the queries that it is to be tested on ({', '.join(both[:5])}"
            f"{', ...' if len(both) > 5 else ''}). Test it on others; with --folds, start every fold from its own "
            "model ('{fold}' in --encoder or --checkpoint stands for the fold's number)"
        )
