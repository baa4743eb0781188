"""Fingerprints: of files, of anything that JSON can say, and of models with their tokenizers."""

import hashlib
import json
import os

import torch
from torch import nn


class Fingerprint:
    """A fingerprint that grows: `add` takes anything that JSON can say, in an order that counts."""

    def __init__(self):
        self._digest = hashlib.sha256()

    def add(self, value: object) -> None:
        self._digest.update(json.dumps(value).encode())

    def add_weights(self, model: nn.Module) -> None:
        """Names, shapes, types and bytes of a model's weights, wherever they were loaded from."""
        for name, tensor in sorted(model.state_dict().items()):
            self._digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
            self._digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)

    def add_tokenizer(self, tokenizer) -> None:
        self._digest.update(tokenizer.backend_tokenizer.to_str().encode())

    def __str__(self) -> str:
        return self._digest.hexdigest()


def json_sha256(value: object) -> str:
    """The fingerprint of anything that JSON can say, order of lists and of keys included."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def model_sha256(model: nn.Module, tokenizer) -> str:
    """The fingerprint of a model's weights and of its tokenizer."""
    made = Fingerprint()
    made.add_tokenizer(tokenizer)
    made.add_weights(model)
    return str(made)


def config_sha256(config, leave_out: tuple[str, ...] = ()) -> str:
    """The fingerprint of a model's config, without where it came from; its fields have no fixed order."""
    fields = {
        k: v for k, v in config.to_dict().items() if k not in ("_name_or_path", "transformers_version", *leave_out)
    }
    return hashlib.sha256(json.dumps(fields, sort_keys=True, default=str).encode()).hexdigest()


def file_sha256(path: str | os.PathLike) -> str:
    """The fingerprint of a file's bytes."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
