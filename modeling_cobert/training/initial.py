"""The model that a training starts from: BERT checkpoints or a Co-BERT, with the fields that the groups decide."""

import logging
import os
from pathlib import Path

import torch

from ..modeling_cobert import CoBertForGroupwiseRanking
from ..steps.folders import file_sha256
from .arguments import VARIANTS, ModelArguments

logger = logging.getLogger(__name__)

# How the groups were made is how the model must cut, select and group when it ranks by itself.
FROM_GROUPS = (
    "selector",
    "passage_words",
    "passage_overlap",
    "passage_title",
    "group_size",
    "group_overlap",
    "num_prototypes",
)


def initial_model(arguments: ModelArguments, settings: dict, fold: int | None = None) -> CoBertForGroupwiseRanking:
    """
    Builds the model, in float32.

    Args:
        arguments ([`ModelArguments`]): where it starts, and which variant it is.
        settings (`dict`): of the groups.
        fold (`int`, *optional*): what `{fold}` stands for in the paths.
    """
    fields = {name: settings[name] for name in FROM_GROUPS if settings.get(name) is not None}
    built = fields.get("num_prototypes")
    if arguments.num_prototypes is not None:
        if built is not None and arguments.num_prototypes > built:
            raise ValueError(f"--num_prototypes {arguments.num_prototypes}: the groups were built with {built}")
        fields["num_prototypes"] = arguments.num_prototypes
    for name in ("max_length", "loss", "overlap_merge", "encoder_pooling"):
        if getattr(arguments, name) is not None:
            fields[name] = getattr(arguments, name)
    if os.path.isdir(str(fields.get("selector"))):
        logger.warning(
            "the groups were selected by %s, a folder of this machine, and the model's config will name it: elsewhere "
            "pass selector=... to rerank, or build the groups with a selector from the Hub",
            fields["selector"],
        )
    if arguments.checkpoint is not None:
        return _whole_model(in_fold(arguments.checkpoint, fold), arguments.variant, fields)
    for part in ("calibrator", "scorer"):
        layers = getattr(arguments, f"{part}_layers")
        if layers is not None:
            if getattr(arguments, part) is not None:
                raise ValueError(f"--{part}_layers is for layers of the encoder: leave it out with --{part}")
            fields[f"{part}_config"] = {"num_hidden_layers": layers}
    paths = {name: in_fold(getattr(arguments, name), fold) for name in ("encoder", "calibrator", "scorer")}
    return CoBertForGroupwiseRanking.from_bert_pretrained(
        **paths, **VARIANTS[arguments.variant or "full"], **_usable(fields, arguments.variant or "full")
    )


def _whole_model(path: str, variant: str | None, fields: dict) -> CoBertForGroupwiseRanking:
    model = CoBertForGroupwiseRanking.from_pretrained(path, dtype=torch.float32, use_safetensors=True)
    found = variant_of(model.config)
    if variant not in (None, found):
        raise ValueError(
            f"--checkpoint {path} is a {found!r} model, not {variant!r}: to give its encoder other context parts, "
            "name it as --encoder"
        )
    changed = {name: value for name, value in _usable(fields, found).items() if getattr(model.config, name) != value}
    if changed:
        logger.warning("the checkpoint's config changes to that of the groups and arguments: %s", changed)
        model = CoBertForGroupwiseRanking.from_pretrained(path, dtype=torch.float32, use_safetensors=True, **changed)
        model.config.validate_groups()
        model.config.validate_lengths()
        model.config.validate_selector()
    return model


def _usable(fields: dict, variant: str) -> dict:
    # A pointwise model is built from groups without prototypes: its config keeps the default, which it never reads.
    without = VARIANTS[variant].get("use_calibrator") is False and not fields.get("num_prototypes")
    return {name: value for name, value in fields.items() if not (without and name == "num_prototypes")}


def variant_of(config) -> str:
    """The name of a config's variant."""
    switches = {name: getattr(config, name) for name in ("use_calibrator", "use_scorer", "use_residual")}
    if not switches["use_calibrator"]:
        switches["use_residual"] = True  # without a calibrator there is nothing to average with
    for name, fields in VARIANTS.items():
        if switches == {"use_calibrator": True, "use_scorer": True, "use_residual": True, **fields}:
            return name
    return "calibrator, no residual"


def in_fold(path: str | None, fold: int | None) -> str | None:
    """A path with the fold's number in the place of `{fold}`."""
    if path is None or "{fold}" not in path:
        return path
    if fold is None:
        raise ValueError(f"{path}: there is no fold whose number could stand for '{{fold}}'")
    return path.replace("{fold}", str(fold))


def source_name(path: str | None) -> str | None:
    """A Hub id as it is; a folder as its own name and a fingerprint of its weights, without where it lies."""
    if path is None or not os.path.isdir(path):
        return path
    weights = sorted(Path(path).glob("*.safetensors"))
    prints = "".join(file_sha256(file) for file in weights)[:12] or "no-safetensors"
    return f"{Path(path).resolve().name}@{prints}"
