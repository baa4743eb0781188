"""A trained pointwise Co-BERT as a plain BERT cross-encoder, for BERT-QE, as a selector, and for any other tool."""

import logging
import os
from pathlib import Path

from transformers import BertConfig, BertForSequenceClassification

from ..modeling_cobert import CoBertForGroupwiseRanking
from ..ranking.loading import load_cobert
from ..ranking.seen import seen_queries
from ..steps.files import files_beside, full_disk_named
from ..steps.folders import (
    LOCK,
    SETTINGS,
    check_writable,
    claim_folder,
    claims_end,
    read_settings,
    write_settings,
)
from ..steps.hashing import model_sha256
from ..steps.locks import drop_lock, take_lock

logger = logging.getLogger(__name__)

STEP = "export"


def is_exported(folder: str | os.PathLike) -> bool:
    """Whether a cross-encoder is there, whole; earlier versions wrote no settings, and whole folders only."""
    folder = Path(folder)
    if not (folder / SETTINGS).exists():
        return folder.exists()
    return read_settings(folder)["counts"] is not None


@claims_end()
def export_cross_encoder(checkpoint: str | os.PathLike, output: str | os.PathLike) -> BertForSequenceClassification:
    """
    Saves a Co-BERT of the variant without calibrator and scorer as `BertForSequenceClassification` with one label.

    The logits stay the same. The model must have been trained with `encoder_pooling="pooler"`, since the head of a
    BERT classifier reads the pooler.

    Args:
        checkpoint (`str` or `os.PathLike`): Hub id or folder of the Co-BERT, with its tokenizer.
        output (`str` or `os.PathLike`): a new folder. What the model has seen is noted in it, for whoever goes on
            from it.

    Returns:
        `BertForSequenceClassification`: what was saved.
    """
    output = Path(output)
    _check_output(output)
    source = load_cobert(checkpoint)
    _check_exportable(source, checkpoint)
    settings = _settings(source, checkpoint)
    if claim_folder(output, settings) is not None:  # another process has just made it
        raise ValueError(f"--output {output}: there is something already: give a new folder")
    fields = {key: value for key, value in source.encoder.config.to_dict().items() if key != "architectures"}
    model = BertForSequenceClassification(BertConfig(**(fields | {"num_labels": 1})))
    model.bert.load_state_dict(source.encoder.state_dict())
    model.classifier.load_state_dict(source.classifier.state_dict())
    with full_disk_named(output), files_beside(output) as beside:
        model.eval().save_pretrained(beside)
        source.find_tokenizer().save_pretrained(beside)
        names = [path.name for path in sorted(beside.iterdir())]
    counts = {"parameters": model.num_parameters()}
    write_settings(output, settings, counts, [output / name for name in names])
    return model


def _check_output(output: Path) -> None:
    if output.is_symlink() and not output.exists():
        raise ValueError(f"--output {output}: a link that leads nowhere: give a new folder")
    if output.exists() and not output.is_dir():
        raise ValueError(f"--output {output}: there is something already, a file: give a new folder")
    begun = (output / SETTINGS).exists() and not is_exported(output)
    if output.exists() and any(path.name != LOCK for path in output.iterdir()) and not begun:
        raise ValueError(f"--output {output}: there is something already: give a new folder")
    check_writable(output, "--output")
    if (output / LOCK).exists():
        drop_lock(take_lock(output / LOCK), output / LOCK)  # raises where another process has it


def _check_exportable(source: CoBertForGroupwiseRanking, checkpoint: str | os.PathLike) -> None:
    config = source.config
    if config.use_calibrator or config.use_scorer:
        raise ValueError(
            f"{checkpoint}: it scores documents in context, which no cross-encoder can: train with --variant neither"
        )
    if source.start is not None:
        logger.warning(
            "%s: what is exported is its encoder's own relevance, without the scores of selector and first stage that "
            "it starts from",
            checkpoint,
        )
    if config.encoder_pooling != "pooler":
        raise ValueError(
            f"{checkpoint}: its head reads the raw [CLS] vector, that of a BERT classifier the pooler: train with "
            "--encoder_pooling pooler"
        )


def _settings(source: CoBertForGroupwiseRanking, checkpoint: str | os.PathLike) -> dict:
    """What is exported, and what the guard against seen queries reads; no library looks into this file."""
    name = Path(checkpoint).resolve().name if os.path.isdir(checkpoint) else os.fspath(checkpoint)
    made_of = model_sha256(source, source.find_tokenizer())
    return {"step": STEP, "model": name, "sha256": made_of, "seen": seen_queries(checkpoint)}
