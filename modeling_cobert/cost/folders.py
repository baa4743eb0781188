"""Counts and sizes from what is on disk: a folder of selected passages or of rows, a model."""

import os
from collections.abc import Mapping
from pathlib import Path

from ..checkpoint_cobert import load_config
from ..data.rows import load_rows
from ..steps.folders import SETTINGS, read_settings
from .macs import BertLike, CoBertShape, Workload

ENCODER_SIZES = ("num_hidden_layers", "hidden_size", "intermediate_size")


def selected_workload(folder: str | os.PathLike) -> Workload | None:
    """The counts of a folder of selected passages, `None` where selection is not finished."""
    if not (Path(folder) / SETTINGS).exists():
        return None
    counts = read_settings(folder)["counts"]
    return None if counts is None else _workload(counts, folder)


def prepared_workload(folder: str | os.PathLike) -> Workload:
    """The counts of a folder of rows."""
    return _workload(load_rows(folder).settings["counts"], folder, "selected_")


def _workload(counts: Mapping[str, int], folder: str | os.PathLike, prefix: str = "") -> Workload:
    """Candidates are the mean over queries, rounded down."""
    names = [prefix + name for name in ("queries", "pairs", "pair_passages")]
    if not all(counts.get(name) for name in names):
        raise ValueError(f"{Path(folder) / SETTINGS}: no counts of {', '.join(names)}: make the folder anew")
    queries, pairs, passages = (counts[name] for name in names)
    return Workload(queries, pairs // queries, passages)


def encoder_sizes(path: str | os.PathLike) -> BertLike:
    """The sizes of an encoder that embeds passages one by one, from its configuration alone."""
    config = load_config(path)
    lacking = [name for name in ENCODER_SIZES if not hasattr(config, name)]
    if lacking:
        raise ValueError(f"{path}: a BERT is needed, this is a {config.model_type!r}, without {', '.join(lacking)}")
    return config


def model_sizes(path: str | os.PathLike) -> CoBertShape:
    """The sizes of a Co-BERT, from its configuration alone."""
    config = load_config(path)
    if config.model_type != "cobert":
        raise ValueError(f"{path}: a Co-BERT is needed, this is a {config.model_type!r}")
    return CoBertShape.from_config(config)
