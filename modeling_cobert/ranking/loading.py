"""The one way to load a Co-BERT that is to be used or trained on: whole, in a known precision, or not at all."""

import os

import torch
from transformers import AutoConfig

from ..modeling_cobert import CoBertForGroupwiseRanking


def load_cobert(name: str | os.PathLike, dtype: torch.dtype = torch.float32, **fields) -> CoBertForGroupwiseRanking:
    """
    Loads a folder or Hub id. Weights that the checkpoint lacks are an error: they would be random.

    Args:
        name (`str` or `os.PathLike`): the checkpoint.
        dtype (`torch.dtype`, *optional*, defaults to `torch.float32`): the numbers to compute in.
        fields: fields of the config to change.
    """
    config = AutoConfig.from_pretrained(name, trust_remote_code=False)
    if config.model_type != "cobert":
        raise ValueError(f"{name}: a Co-BERT is needed, this is a {config.model_type!r}")
    model, info = CoBertForGroupwiseRanking.from_pretrained(
        name, dtype=dtype, use_safetensors=True, output_loading_info=True, **fields
    )
    if info["missing_keys"]:
        missing = sorted(info["missing_keys"])
        raise ValueError(f"{name}: the checkpoint lacks {len(missing)} weights, such as {missing[0]!r}")
    return model
