"""The model that a training starts from: BERT checkpoints or a Co-BERT, with the fields that the rows decide."""

import logging
import os
from functools import cache
from pathlib import Path
from typing import TypeVar

from ..checkpoint_cobert import load_config
from ..data.groups import GroupOptions
from ..modeling_cobert import CoBertForGroupwiseRanking
from ..ranking.loading import load_cobert
from ..steps.hashing import file_sha256
from .arguments import VARIANTS, ModelOptions

logger = logging.getLogger(__name__)

# How the rows were made is how the model must cut and select when it ranks by itself.
FROM_ROWS = ("selector", "passage_words", "passage_overlap", "passage_title")
# What beside the weights is read from a model's folder.
READ_WITH = ("config.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json")
Checkpoint = TypeVar("Checkpoint", str, str | None)
GROUPS = ("num_prototypes", "group_size", "group_overlap")
FROM_OPTIONS = (
    "max_length",
    "loss",
    "overlap_merge",
    "encoder_pooling",
    "starting_weights",
    "learn_starting_weights",
    "feedback_weight",
    "neighbour_weight",
    "neighbour_likeness",
    "neighbour_voters",
)


def initial_model(
    options: ModelOptions, settings: dict, groups: GroupOptions | None = None, fold: int | None = None
) -> CoBertForGroupwiseRanking:
    """
    Builds the model, in float32.

    Args:
        options ([`ModelOptions`]): where it starts, and which variant it is.
        settings (`dict`): of the rows.
        groups ([`GroupOptions`], *optional*): sizes that are to differ from the paper's, or the checkpoint's.
        fold (`int`, *optional*): what `{fold}` stands for in the paths.
    """
    fields = {name: settings[name] for name in FROM_ROWS if settings.get(name) is not None}
    groups = groups or GroupOptions()
    given = {name: getattr(groups, name) for name in GROUPS}
    given |= {name: getattr(options, name) for name in FROM_OPTIONS}
    fields |= {name: value for name, value in given.items() if value is not None}
    if options.content:
        fields["content_size"] = _content_size(settings)
    if os.path.isdir(str(fields.get("selector"))):
        _warn_of_folder(fields["selector"])
    variant = VARIANTS[options.variant or "full"]
    if options.checkpoint is not None:
        return _whole_model(in_fold(options.checkpoint, fold), options.variant, fields)
    for part in ("calibrator", "scorer"):
        layers = getattr(options, f"{part}_layers")
        if layers is not None:
            if getattr(options, part) is not None:
                raise ValueError(f"--{part}_layers is for layers of the encoder: leave it out with --{part}")
            fields[f"{part}_config"] = {"num_hidden_layers": layers}
    paths = {name: in_fold(getattr(options, name), fold) for name in ("encoder", "calibrator", "scorer")}
    return CoBertForGroupwiseRanking.from_bert_pretrained(**paths, **variant, **fields)


@cache  # once a process, not once a fold
def _warn_of_folder(selector: str) -> None:
    logger.warning(
        "the rows were selected by %s, a folder of this machine, and the model's config will name it: elsewhere "
        "pass selector=... to rerank, or prepare the rows with a selector from the Hub",
        selector,
    )


def check_sources(options: ModelOptions, fold: int | None = None) -> None:
    """Whether what the model is made of is there, by the configs alone: of every fold, before the first is trained."""
    for part in ("encoder", "calibrator", "scorer", "checkpoint"):
        path = in_fold(getattr(options, part), fold)
        if path is not None:
            try:
                config = load_config(path)
            except (OSError, ValueError) as error:
                raise ValueError(f"--{part} {path}: give the folder or Hub id of a model ({error})") from error
            if part == "checkpoint" and config.model_type != "cobert":
                raise ValueError(
                    f"--checkpoint {path}: a Co-BERT is needed, this is a {config.model_type!r}: name it as --encoder"
                )


def _content_size(settings: dict) -> int:
    """The width of the vectors of the bi-encoder that the rows were selected by."""
    if settings.get("selector_kind") != "bi-encoder":
        raise ValueError(
            f"--content needs rows that a bi-encoder has selected, whose vectors say what a passage is about; these "
            f"were selected by {settings.get('selector')!r}: prepare others with --selector BI_ENCODER"
        )
    return load_config(settings["selector"]).hidden_size


def _whole_model(path: str, variant: str | None, fields: dict) -> CoBertForGroupwiseRanking:
    model = load_cobert(path)
    found = variant_of(model.config)
    if variant not in (None, found):
        raise ValueError(
            f"--checkpoint {path} is a {found!r} model, not {variant!r}: to give its encoder other context parts, "
            "name it as --encoder"
        )
    changed = {name: value for name, value in fields.items() if getattr(model.config, name) != value}
    if changed:
        logger.warning("the checkpoint's config changes to that of the rows and options: %s", changed)
        model = load_cobert(path, **changed)
        model.config.validate_groups()
        model.config.validate_lengths()
        model.config.validate_selector()
    return model


def variant_of(config) -> str:
    """The name of a config's variant."""
    switches = {name: getattr(config, name) for name in ("use_calibrator", "use_scorer", "use_residual")}
    if not switches["use_calibrator"]:
        switches["use_residual"] = True  # without a calibrator there is nothing to average with
    for name, fields in VARIANTS.items():
        if switches == {"use_calibrator": True, "use_scorer": True, "use_residual": True, **fields}:
            return name
    return "calibrator, no residual"


def in_fold(path: Checkpoint, fold: int | None) -> Checkpoint:
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


def text_files_sha256(folder: str | os.PathLike) -> dict[str, str]:
    """The fingerprints of what a folder's weights are read by: configuration and tokenizer."""
    return {name: file_sha256(path) for name in READ_WITH if (path := Path(folder) / name).is_file()}
