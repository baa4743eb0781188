# Copyright 2026 The Co-BERT authors.
# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint says of itself, read before anything is built of it: its numbers, and the names of its files."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import nn
from transformers import AutoConfig, PreTrainedConfig
from transformers.initialization import no_init_weights
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, cached_file

from .configuration_cobert import CoBertConfig

# Numbers of a config that nothing real comes near. Of what is counted (layers, labels, heads), things are made one by
# one, some of them as soon as the config is read.
MOST, MOST_COUNTED = 2**31, 100_000
# Parameters that need no weight in the file: a new head, a pooler.
SPARE = 2**24


def load_config(name: str | os.PathLike, **options):
    """
    The config of a checkpoint, never with remote code; numbers that would fill the memory are an error.

    Args:
        name (`str` or `os.PathLike`): folder or Hub id.
        options: `revision`, `cache_dir` and what else says where it is.
    """
    if os.path.isfile(name):
        raise NotADirectoryError(f"{name}: is a file: give the folder of a checkpoint, or its name on the Hub")
    content = check_config(name, **options)
    if content.get("model_type") == CoBertConfig.model_type:  # which AutoConfig knows only where it was told
        return CoBertConfig.from_pretrained(name, **options)
    return AutoConfig.from_pretrained(name, trust_remote_code=False, **options)


def check_config(name: str | os.PathLike, **options) -> dict:
    """What config.json says; numbers that no model has are an error, before a config is made of them."""
    try:
        content, _ = PreTrainedConfig.get_config_dict(name, **options)
    except RecursionError:
        raise ValueError(f"{name}: its config.json is nested too deeply") from None
    except OSError as error:
        if os.path.isdir(name):
            raise
        reason = " ".join(str(error).split())  # which may name the Hub alone
        raise OSError(f"{name}: there is no such folder here, nor could it be had from the Hub ({reason})") from error
    for key, value in _numbers(content):
        if abs(value) > (MOST_COUNTED if key.startswith("num_") or "layer" in key else MOST):
            raise ValueError(f"{name}: its config.json says {key} {value}, which is no model's: the file is damaged")
    return content


def check_weights(name: str | os.PathLike, config, build: Callable[[], nn.Module], **options) -> None:
    """
    Raises where a config asks for more than the weights beside it can hold, before memory is taken for it, and where
    the weights are not beside it. Where there are no safetensors, whoever loads them says so.

    Args:
        name (`str` or `os.PathLike`): folder or Hub id.
        config (`PreTrainedConfig`): the checkpoint's.
        build (`Callable`): makes the model of a config of its own; it is called where tensors have no memory.
        options: `revision`, `cache_dir` and what else says where it is.
    """
    files = _weight_files(name, options)
    if not files:
        return
    tensors, there = sum(map(_count_tensors, files)), sum(map(os.path.getsize, files))
    layers = max((value for key, value in _numbers(config.to_dict()) if "layer" in key), default=0)
    if layers > tensors:
        raise ValueError(f"{name}: its config.json says {layers} layers, but its weights are {tensors} tensors")
    try:
        with torch.device("meta"), no_init_weights():
            wanted = sum(parameter.numel() for parameter in build().parameters())
    except RuntimeError as error:  # sizes that not even their product can be told of
        raise ValueError(f"{name}: no model can be made of its config.json ({error})") from error
    # The tightest packing has half a byte a number.
    if wanted > 2 * there + SPARE:
        raise ValueError(
            f"{name}: its config.json asks for {wanted:,} numbers, but its weights have {there:,} bytes: take the "
            "config.json that they were saved with"
        )


def _weight_files(name: str | os.PathLike, options: dict) -> list[str]:
    whole = find_file(name, SAFE_WEIGHTS_NAME, **options)
    if whole is not None:
        return [whole]
    index = find_file(name, SAFE_WEIGHTS_INDEX_NAME, **options)
    if index is None:
        return []
    content = read_json(index)
    shards = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(shards, dict) or not isinstance(content.get("metadata"), dict):
        raise ValueError(f"{index}: no index of weights")
    for shard in shards.values():
        if not isinstance(shard, str) or not shard.endswith(".safetensors") or Path(shard).name != shard:
            raise ValueError(f"{index}: names {shard!r}, which is no safetensors file beside it: it is not loaded")
    found = [find_file(name, shard, **options) for shard in sorted(set(shards.values()))]
    return [path for path in found if path is not None]


def _count_tensors(path: str) -> int:
    if not os.path.getsize(path):
        raise ValueError(f"{path}: damaged, or no safetensors: it is empty")
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > os.path.getsize(path):
            raise ValueError(f"{path}: damaged, or no safetensors: its header would be longer than the file")
        try:
            head = json.loads(file.read(length))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}: damaged, or no safetensors ({error})") from None
    if not isinstance(head, dict):
        raise ValueError(f"{path}: damaged, or no safetensors: no table of tensors in its header")
    return len(head)


def find_file(name: str | os.PathLike, file: str, **options) -> str | None:
    """The path of a checkpoint's file, `None` if it has none of that name."""
    return cached_file(
        name,
        file,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
        _raise_exceptions_for_gated_repo=False,
        **options,
    )


def read_json(path: str | os.PathLike):
    """What a JSON file says; one that is damaged is an error that names it."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON ({error})") from None


def _numbers(content: object, key: str = "") -> Iterator[tuple[str, int]]:
    """The whole numbers of a config, wherever they stand, each with its innermost key."""
    if isinstance(content, dict):
        for name, value in content.items():
            yield from _numbers(value, str(name))
    elif isinstance(content, list | tuple):
        for value in content:
            yield from _numbers(value, key)
    elif isinstance(content, int):
        yield key, content
