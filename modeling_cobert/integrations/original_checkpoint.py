"""The authors' release -> a Co-BERT checkpoint that gives the same scores."""

import os
import pickle

import torch
from torch import Tensor
from transformers import BertConfig

from modeling_cobert.configuration_cobert import CoBertConfig
from modeling_cobert.initialization_cobert import context_state, relevance_row
from modeling_cobert.modeling_cobert import CoBertForGroupwiseRanking
from modeling_cobert.passages_cobert import load_tokenizer

VARIANTS = {
    "cobert": {},
    "prf_only": {"use_scorer": False},
    "group_only": {"use_calibrator": False},
    "no_resi": {"use_residual": False},
}


def convert(
    weights: str | os.PathLike,
    encoder: str | os.PathLike,
    calibrator: str | os.PathLike | None,
    scorer: str | os.PathLike | None,
    variant: str = "cobert",
    **fields,
) -> CoBertForGroupwiseRanking:
    """
    Loads the authors' `weights.pt` into a [`CoBertForGroupwiseRanking`] that computes as their code does.

    What their code does beside the paper is switched on in the config: the encoder's pooler, its own relevance logit
    as prototype weight, positions and a marked overlap in the scorer.

    Args:
        weights (`str` or `os.PathLike`): their state dict, read with `weights_only=True`.
        encoder, calibrator, scorer (`str` or `os.PathLike`): folders with the BERTs' configs; the encoder's also holds
            the tokenizer. The calibrator's or scorer's may be `None` where the variant has none.
        variant (`str`, *optional*, defaults to `"cobert"`): `"cobert"`, `"prf_only"`, `"group_only"` or `"no_resi"`.
        fields: further fields of [`CoBertConfig`], such as `group_size`.
    """
    if variant not in VARIANTS:
        raise ValueError(f"unknown variant {variant!r}: one of {', '.join(VARIANTS)}")
    switches = VARIANTS[variant]
    folders: dict[str, str | os.PathLike | None] = {"encoder_config": encoder}
    if switches.get("use_calibrator", True):
        folders["calibrator_config"] = calibrator
    if switches.get("use_scorer", True):
        folders["scorer_config"] = scorer
    config = CoBertConfig(
        **{
            **{name: _bert_config(name, folder) for name, folder in folders.items()},
            "encoder_pooling": "pooler",
            "scorer_positions": True,
            "mark_overlap": True,
            "selector": "lexical" if variant == "group_only" else "self",
            **switches,
            **fields,
        },
    )
    model = CoBertForGroupwiseRanking(config)
    try:
        model.load_state_dict(_translate(_read(weights), model, str(weights)))
    except KeyError as error:
        raise ValueError(f"{weights}: no weights for {error.args[0]!r}; is this another variant?") from error
    except (RuntimeError, IndexError) as error:
        raise ValueError(f"{weights}: does not fit the configs of encoder, calibrator and scorer: {error}") from error
    model.tokenizer = load_tokenizer(encoder, config.get_text_config().vocab_size, config=config.encoder_config)
    return model.eval()


def _bert_config(name: str, folder: str | os.PathLike | None) -> BertConfig:
    if folder is None:
        raise ValueError(f"this variant has a {name.removesuffix('_config')}: name the folder of its BERT config")
    config = BertConfig.from_pretrained(folder)
    fields = {k: v for k, v in config.to_dict().items() if k not in ("architectures", "_name_or_path")}
    return BertConfig(**fields)


def _read(weights: str | os.PathLike) -> dict[str, Tensor]:
    try:
        state = torch.load(weights, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{weights}: no file of torch.save, or one that holds more than tensors, such as code, which is not run: "
            f"give the authors' state dict ({str(error).splitlines()[0]})"
        ) from error
    except (OSError, MemoryError):
        raise
    except Exception as error:  # of other files, whatever its reader stumbles over
        raise ValueError(
            f"{weights}: no file of torch.save, or a damaged one: give the authors' state dict "
            f"({type(error).__name__}: {error})"
        ) from error
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise ValueError(f"{weights}: not a state dict of tensors")
    if not all(isinstance(name, str) for name in state):
        raise ValueError(f"{weights}: not a state dict: its tensors have no names")
    for name, value in state.items():
        _check_numbers(name, value, weights)
    # A model saved under DataParallel has this before every key.
    return {name.removeprefix("module."): value.float() for name, value in state.items()}


def _check_numbers(name: str, value: Tensor, source: str | os.PathLike) -> None:
    plain = value.layout == torch.strided and not value.is_quantized and not value.is_meta
    if not plain or value.is_complex():
        raise ValueError(f"{source}: {name} is no dense tensor of real numbers: give the authors' state dict")
    if not value.float().isfinite().all():
        raise ValueError(f"{source}: {name} has numbers that are not finite: take the weights of a whole training")


def _check_parts(theirs: dict[str, Tensor], model: CoBertForGroupwiseRanking, source: str) -> None:
    """A part that the file has and the variant has not would be dropped."""
    there = {part for part in ("ATTN_BERT", "QB_BERT") if any(name.startswith(f"{part}.") for name in theirs)}
    kept = {part for part, ours in (("ATTN_BERT", model.calibrator), ("QB_BERT", model.scorer)) if ours is not None}
    dropped = sorted(there - kept)
    if dropped:
        right = {"ATTN_BERT": "prf_only", "QB_BERT": "group_only"}
        others = [right[part] for part in dropped] if len(there) == 1 else ["cobert", "no_resi"]
        raise ValueError(
            f"{source}: has weights under {dropped[0]}.*, which this variant has no place for: take --variant "
            f"{' or '.join(others)}"
        )


def _translate(theirs: dict[str, Tensor], model: CoBertForGroupwiseRanking, source: str) -> dict[str, Tensor]:
    _check_parts(theirs, model, source)

    def part(prefix: str) -> dict[str, Tensor]:
        found = {name[len(prefix) :]: value for name, value in theirs.items() if name.startswith(prefix)}
        if not found:
            raise ValueError(f"{source}: no weights under {prefix}*; is this another variant?")
        return found

    def head(prefix: str) -> tuple[Tensor, Tensor]:
        found = part(prefix)
        shapes = {key: tuple(value.shape[:1]) for key, value in found.items()}
        if shapes != {"weight": (2,), "bias": (2,)}:
            raise ValueError(f"{source}: expected a head of two classes under {prefix}*")
        return found["weight"], found["bias"]

    # Older transformers saved this buffer; it holds no weight.
    encoder = {name: value for name, value in part("QT_BERT.bert.").items() if name != "embeddings.position_ids"}
    ours = {f"encoder.{name}": value for name, value in encoder.items()}
    if model.calibrator is not None:
        # The logit of class 1 itself, not its difference to class 0, weighs the prototypes.
        weight, bias = head("QT_BERT.classifier.")
        ours |= {"prototype_weight.weight": weight[1:], "prototype_weight.bias": bias[1:]}
        ours |= _context("calibrator", part("ATTN_BERT.bert."), model.calibrator.config)
    if model.scorer is not None:
        ours |= _context("scorer", part("QB_BERT.bert."), model.scorer.config)
    weight, bias = relevance_row(*head("QB_BERT.classifier." if model.scorer is not None else "classifier."))
    return ours | {"classifier.weight": weight, "classifier.bias": bias}


def _context(name: str, state: dict[str, Tensor], config: BertConfig) -> dict[str, Tensor]:
    return {f"{name}.{key}": value for key, value in context_state(state, config).items()}
