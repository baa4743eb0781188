"""The one way to load a Co-BERT that is to be used or trained on: whole, in a known precision, or not at all."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ..checkpoint_cobert import load_config
from ..initialization_cobert import weights_that_are_none
from ..modeling_cobert import CoBertForGroupwiseRanking


def load_cobert(name: str | os.PathLike, dtype: torch.dtype = torch.float32, **fields) -> CoBertForGroupwiseRanking:
    """
    Loads a folder or Hub id. Weights that the checkpoint lacks are an error: they would be random. So are weights that
    the model has no place for, unless `fields` take some of its parts away. What is damaged is a `ValueError` too.

    Args:
        name (`str` or `os.PathLike`): the checkpoint.
        dtype (`torch.dtype`, *optional*, defaults to `torch.float32`): the numbers to compute in.
        fields: fields of the config to change.
    """
    with _named(name, "its config.json cannot be used"):
        config = load_config(name)
    if config.model_type != "cobert":
        raise ValueError(f"{name}: a Co-BERT is needed, this is a {config.model_type!r}")
    with _named(name, "it cannot be loaded, so its weights or its config.json are damaged"), _no_report():
        model, info = CoBertForGroupwiseRanking.from_pretrained(
            name,
            dtype=dtype,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are told below, by name
            **fields,
        )
    faults = model.loading_faults
    if fields and not info["missing_keys"] and not info["mismatched_keys"]:  # of parts that are taken away too many
        faults = weights_that_are_none(name, model)
    if faults:
        raise ValueError(f"{faults}. Load a whole checkpoint, with the config.json it was saved with")
    model.loading_faults = ""
    return model


@contextmanager
def _no_report() -> Iterator[None]:
    """Without transformers' table of weights that are not there or too many: what is wrong with them is an error."""

    def is_none(record: logging.LogRecord) -> bool:
        return "LOAD REPORT" not in record.getMessage()

    logger = logging.getLogger("transformers.modeling_utils")
    logger.addFilter(is_none)
    try:
        yield
    finally:
        logger.removeFilter(is_none)


@contextmanager
def _named(name: str | os.PathLike, fault: str) -> Iterator[None]:
    """Errors of a damaged folder, which have no class in common, as a `ValueError` that names it."""
    try:
        yield
    except (OSError, ImportError, MemoryError):  # these name the file, or what is not installed, or are no damage
        raise
    except Exception as error:
        if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error):  # torch's, on a CPU
            raise MemoryError(f"while loading {name}: {error}") from error
        raise ValueError(f"{name}: {fault} ({type(error).__name__}: {error})") from error
