"""A trained pointwise Co-BERT as a plain BERT cross-encoder, for BERT-QE, as a selector, and for any other tool."""

import logging
import os
import shutil
from pathlib import Path

from transformers import BertConfig, BertForSequenceClassification

from ..ranking.loading import load_cobert
from ..steps.files import full_disk_named

logger = logging.getLogger(__name__)


def export_cross_encoder(checkpoint: str | os.PathLike, output: str | os.PathLike) -> BertForSequenceClassification:
    """
    Saves a Co-BERT of the variant without calibrator and scorer as `BertForSequenceClassification` with one label.

    The logits stay the same. The model must have been trained with `encoder_pooling="pooler"`, since the head of a
    BERT classifier reads the pooler.

    Args:
        checkpoint (`str` or `os.PathLike`): Hub id or folder of the Co-BERT, with its tokenizer.
        output (`str` or `os.PathLike`): a new folder.

    Returns:
        `BertForSequenceClassification`: what was saved.
    """
    output = Path(output)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ValueError(f"{output}: there is something already: give a new folder")
    source = load_cobert(checkpoint)
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
    fields = {key: value for key, value in source.encoder.config.to_dict().items() if key != "architectures"}
    model = BertForSequenceClassification(BertConfig(**(fields | {"num_labels": 1})))
    model.bert.load_state_dict(source.encoder.state_dict())
    model.classifier.load_state_dict(source.classifier.state_dict())
    # Beside its final name first: a folder without half of its files is never taken for a model.
    beside = output.with_name(f".{output.name}.tmp")
    shutil.rmtree(beside, ignore_errors=True)
    with full_disk_named(output.parent):
        model.eval().save_pretrained(beside)
        source.find_tokenizer().save_pretrained(beside)
    if output.exists():
        output.rmdir()
    beside.rename(output)
    return model
