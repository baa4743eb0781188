# Copyright 2026 The Co-BERT authors.
# SPDX-License-Identifier: Apache-2.0
"""A Co-BERT from BERT checkpoints: which weight comes from where, and which starts fresh."""

import os
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from transformers import BertForSequenceClassification, BertModel, PreTrainedConfig
from transformers.utils import logging

from .checkpoint_cobert import check_config, check_weights, load_config
from .configuration_cobert import context_config

logger = logging.get_logger(__name__)

# The parts that say what a model starts from.
STARTS = ("start.", "feedback.", "neighbours.")


def bert_weights(cls, encoder: str | os.PathLike, calibrator, scorer, fields: dict):
    """Does the work of [`CoBertForGroupwiseRanking.from_bert_pretrained`]."""
    if "encoder_config" in fields:
        raise ValueError("`encoder_config` comes from the encoder's checkpoint: pass the other fields only")
    unknown = sorted(fields.keys() - cls.config_class.__annotations__.keys())
    if unknown:
        raise TypeError(
            f"CoBertConfig has no field {', '.join(unknown)}: correct the name, and give what concerns the loaded "
            "model, such as its dtype and device, to the model (`.to(..)`)"
        )
    is_cobert = check_config(encoder).get("model_type") == cls.config_class.model_type
    source = _cobert_source(cls, encoder) if is_cobert else _bert_source(encoder)
    config = _build_config(cls, source.config, calibrator, scorer, source.fields | fields)

    # A head was trained on what its encoder gave it: on the other kind of vector its row would mean nothing.
    fits = config.encoder_pooling == source.fields.get("encoder_pooling")
    head = source.head if fits and (config.has_relevance_head or not config.has_context) else None
    if head is not None and "selector" not in source.fields | fields:
        config.selector = "self"
    model = cls(config)
    pooled = config.encoder_pooling == "pooler"
    state = {f"encoder.{k}": v for k, v in source.encoder.items() if pooled or not k.startswith("pooler.")}
    if head is not None:
        # With a start of its own the head on the last part is for what the context adds, and begins at nothing.
        scores_pairs = not config.has_context or (not config.use_scorer and config.starting_weights is None)
        heads = ["prototype_weight"] * config.has_relevance_head + ["classifier"] * scores_pairs
        state |= {f"{h}.{k}": v.clone() for h in heads for k, v in zip(("weight", "bias"), head, strict=True)}
    for name, path in (("calibrator", calibrator), ("scorer", scorer)):
        part = getattr(model, name)
        if part is not None:
            layers = source.encoder if path is None else _load(path)
            state |= {f"{name}.{k}": v for k, v in context_state(layers, part.config).items()}
    if not {"starting_weights", "feedback_weight", "neighbour_weight", "content_size"} & set(fields):
        state |= {k: v.clone() for k, v in source.start.items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    if unexpected:
        raise ValueError(f"the checkpoints hold weights that this Co-BERT has no place for: {', '.join(unexpected)}")
    # What a model starts from is in its config.
    fresh = [name for name in missing if not name.startswith(STARTS)]
    logger.warning(f"Starting fresh, to be trained: {', '.join(fresh) if fresh else 'nothing'}.")
    model.remember_source(encoder)
    return model.eval()


@dataclass
class _Source:
    """
    An encoder's config and weights, the relevance row on top of it, if any, config fields that come with it, and the
    weights of what it starts from.
    """

    config: PreTrainedConfig
    encoder: dict[str, Tensor]
    head: tuple[Tensor, Tensor] | None
    fields: dict
    start: dict[str, Tensor] = field(default_factory=dict)


def _bert_source(path: str | os.PathLike) -> _Source:
    config = _bert_config("encoder", path)
    has_head = "BertForSequenceClassification" in (config.architectures or [])
    if has_head and config.num_labels not in (1, 2):
        raise ValueError(
            f"encoder {str(path)!r} is a classifier with {config.num_labels} labels: a cross-encoder has 1 or 2"
        )
    state = _load(path, BertForSequenceClassification if has_head else BertModel)
    encoder = {k.removeprefix("bert."): v for k, v in state.items() if not k.startswith("classifier.")}
    head = relevance_row(state["classifier.weight"], state["classifier.bias"]) if has_head else None
    plain = _plain(config, "" if os.path.isdir(path) else str(path))
    return _Source(plain, encoder, head, {"encoder_pooling": "pooler"} if has_head else {})


def _cobert_source(cls, path: str | os.PathLike) -> _Source:
    """The encoder of a trained Co-BERT, such as a pointwise one that is to get its context parts."""
    model = cls.from_pretrained(path, dtype=torch.float32, use_safetensors=True)
    head = model.prototype_weight
    if head is None and model.scorer is None:
        head = model.classifier
    row = None if head is None else (head.weight.detach(), head.bias.detach())
    kept = ("encoder_pooling", "max_length", "passage_words", "passage_overlap", "passage_title", "selector")
    fields = {name: getattr(model.config, name) for name in kept}
    # What a pointwise model has learned to start from is where its context parts begin.
    start = {k: v for k, v in model.state_dict().items() if k.startswith(STARTS)}
    if model.start is not None:
        fields["starting_weights"] = model.start.weight.tolist()
    if model.feedback is not None:
        # A weight of 0 would leave the part out, whatever training made of it.
        weight = model.feedback.weight.item() or model.config.feedback_weight
        fields |= {"feedback_weight": weight, "num_prototypes": model.config.num_prototypes}
    if model.neighbours is not None:
        weight = model.neighbours.weight.item() or model.config.neighbour_weight
        kept = ("content_size", *(("neighbour_likeness", "neighbour_voters") if weight else ()))
        fields |= {"neighbour_weight": weight, **{name: getattr(model.config, name) for name in kept}}
    plain = _plain(model.config.encoder_config, model.config.encoder_config.name_or_path)
    return _Source(plain, model.encoder.state_dict(), row, fields, start)


def loading_faults(name: str | os.PathLike, info: dict) -> str:
    """How a checkpoint's weights differ from the model's, as `output_loading_info` tells; empty if they do not."""
    shapes = [f"{key} {tuple(found)} for {tuple(wanted)}" for key, found, wanted in info["mismatched_keys"]]
    kinds = {"missing": info["missing_keys"], "too many": info["unexpected_keys"], "of another shape": shapes}
    found = [f"{len(keys)} {kind}, such as {min(keys)}" for kind, keys in kinds.items() if keys]
    return f"{name}: the checkpoint's weights are not those of its config: {'; '.join(found)}" if found else ""


def weights_that_are_none(name: str | os.PathLike, model: nn.Module) -> str:
    """
    Which of a loaded model's weights are not finite, as damage or a half precision leaves them; empty if all are.
    Attention on a CPU takes a query that is not a number for one that looks at nothing, so that no score would tell.
    """
    kinds = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    known = [(key, value) for key, value in model.state_dict().items() if not value.is_meta and value.dtype in kinds]
    found = [key for key, value in known if not torch.isfinite(value).all()]
    return f"{name}: {len(found)} of its weights hold numbers that are not finite, such as {found[0]}" if found else ""


def context_state(state: dict[str, Tensor], config) -> dict[str, Tensor]:
    """What a calibrator or scorer of this config takes of a BertModel's weights: layers, and table rows in use."""
    rows = {
        "embeddings.position_embeddings.weight": config.max_position_embeddings,
        "embeddings.token_type_embeddings.weight": config.type_vocab_size,
    }
    taken = {name: state[name][:count].clone() for name, count in rows.items()}
    layers = {f"encoder.layer.{i}." for i in range(config.num_hidden_layers)}
    for name, value in state.items():
        if name.startswith("embeddings.LayerNorm.") or any(name.startswith(layer) for layer in layers):
            taken[name] = value.clone()
    return taken


def relevance_row(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """A head with classes (not relevant, relevant) as one logit; sigmoid of it is the two-class softmax."""
    return (weight, bias) if weight.shape[0] == 1 else (weight[1:] - weight[:1], bias[1:] - bias[:1])


def _bert_config(part: str, path: str | os.PathLike):
    config = load_config(path)
    if config.model_type != "bert":
        raise ValueError(f"{part} {str(path)!r} is not a BERT checkpoint: its model_type is {config.model_type!r}")
    return config


def _plain(config, name: str):
    """The config without what its own head and place added; `name` is a Hub id, since that names the base model."""
    fields = {
        k: v
        for k, v in config.to_dict().items()
        if k not in ("architectures", "id2label", "label2id", "_name_or_path")
    }
    return type(config)(**fields, name_or_path=name)


def _build_config(cls, encoder_config, calibrator, scorer, fields: dict):
    fields = dict(fields)
    for part, path in (("calibrator", calibrator), ("scorer", scorer)):
        given = fields.get(f"{part}_config")
        if path is None:
            if isinstance(given, dict):  # a few fields, such as the number of layers; the rest is as in the encoder
                layers = {"calibrator": 2, "scorer": 4}[part]
                fields[f"{part}_config"] = context_config(encoder_config, **{"num_hidden_layers": layers, **given})
            continue
        if given is not None:
            raise ValueError(f"`{part}_config` comes from the {part}'s checkpoint: pass one of the two")
        config = _bert_config(part, path)
        if config.hidden_size != encoder_config.hidden_size:
            raise ValueError(
                f"{part} {str(path)!r} has hidden size {config.hidden_size}, but the encoder has "
                f"{encoder_config.hidden_size}: take one of that size, or leave it out to start from the encoder"
            )
        fields[f"{part}_config"] = config
    config = cls.config_class(encoder_config=encoder_config, **fields)
    for part, path, used in (
        ("calibrator", calibrator, config.use_calibrator),
        ("scorer", scorer, config.use_scorer),
    ):
        layers = getattr(config, f"{part}_config").num_hidden_layers
        if used and path is None and layers > encoder_config.num_hidden_layers:
            raise ValueError(
                f"the {part} wants the encoder's first {layers} layers, but it has "
                f"{encoder_config.num_hidden_layers}: name a {part} checkpoint, or pass {part}_config with fewer "
                "num_hidden_layers"
            )
    return config


def _load(path: str | os.PathLike, cls=BertModel) -> dict[str, Tensor]:
    config = load_config(path)
    check_weights(path, config, lambda: cls(config))
    model, info = cls.from_pretrained(
        path, dtype=torch.float32, use_safetensors=True, trust_remote_code=False, output_loading_info=True
    )
    absent = set(info["missing_keys"])
    needed = sorted(name for name in absent if "pooler." not in name)  # a pooler may start fresh, and is named
    if needed:
        raise ValueError(
            f"{path}: its config.json names {len(needed)} weights that it does not have, such as {needed[0]}: take "
            "the config.json that they were saved with"
        )
    return {name: value for name, value in model.state_dict().items() if name not in absent}
