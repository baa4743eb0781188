"""Selectors: lexical by hand, cross- and bi-encoder against the models themselves."""

import json
import math

import pytest
import tiny
import torch
from torch.testing import assert_close
from transformers import AutoTokenizer, BertForSequenceClassification, BertModel

from modeling_cobert.selection_cobert import (
    BiEncoderSelector,
    CrossEncoderSelector,
    by_document,
    lexical_scores,
    load_selector,
)

DOCUMENTS = ["bees see light honey flower red blue green colour car road wheel", "", "car road", "bees bees"]


def test_lexical_by_hand():
    passages = ["Bees see; bees fly", "see the sky", "nothing here at all"]
    lengths, mean = [4, 3, 4], 11 / 3

    def part(tf, df, length):
        return math.log(1 + (3 - df + 0.5) / (df + 0.5)) * tf / (tf + 0.9 * (0.6 + 0.4 * length / mean))

    expected = [part(2, 1, lengths[0]) + part(1, 2, lengths[0]), part(1, 2, lengths[1]), 0.0]
    assert lexical_scores("bees SEE see", passages) == pytest.approx(expected)
    assert lexical_scores("", passages) == [0, 0, 0]
    assert lexical_scores("bees", []) == [] and lexical_scores("bees", ["", ""]) == [0, 0]


@pytest.mark.parametrize("labels", [1, 2])
@torch.no_grad()
def test_cross_encoder(tmp_path, labels):
    folder = tiny.bert_checkpoint(tmp_path, labels=labels)
    selector = load_selector(str(folder), max_length=32)
    assert isinstance(selector, CrossEncoderSelector)
    cut = selector.pairs.cut(DOCUMENTS, 5, 2)
    scores = selector.score("bees see colour", cut, batch_tokens=64)
    assert [len(s) for s in scores] == [4, 1, 1, 1]
    model, tokenizer = BertForSequenceClassification.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    for document, of_document in zip(cut, scores, strict=True):
        for passage, score in enumerate(of_document):
            # As lists: a bare empty string as second text would be taken for none at all.
            inputs = tokenizer(["bees see colour"], [document.text(passage)], return_tensors="pt")
            logits = model(**inputs).logits[0]
            assert score == pytest.approx(float(logits[-1] if labels == 1 else logits[1] - logits[0]), abs=1e-5)


@pytest.mark.parametrize("pooling", ["plain", "mean", "cls", "new-style"])
@torch.no_grad()
def test_bi_encoder(tmp_path, pooling):
    folder = tiny.bert_checkpoint(tmp_path)
    if pooling != "plain":
        kinds = ["Transformer", "Pooling", "Normalize"]
        modules = [
            {"path": f"{i}_{kind}", "type": f"sentence_transformers.models.{kind}"} for i, kind in enumerate(kinds)
        ]
        (folder / "modules.json").write_text(json.dumps(modules))
        (folder / "1_Pooling").mkdir()
        settings = {"pooling_mode_mean_tokens": pooling == "mean", "pooling_mode_cls_token": pooling == "cls"}
        if pooling == "new-style":
            settings = {"pooling_mode": "cls"}
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(settings))
    selector = load_selector(str(folder), max_length=32)
    assert isinstance(selector, BiEncoderSelector)
    cut = selector.pairs.cut(DOCUMENTS, 5, 2)
    scores = selector.score("bees see colour", cut, batch_tokens=64)
    model, tokenizer = BertModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)

    def embed(text):
        hidden = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        return hidden[0] if pooling in ("cls", "new-style") else hidden.mean(dim=0)

    query = embed("bees see colour")
    for document, of_document in zip(cut, scores, strict=True):
        for passage, score in enumerate(of_document):
            expected = torch.cosine_similarity(query, embed(document.text(passage)), dim=0)
            assert_close(torch.tensor(score), expected, rtol=1e-5, atol=1e-5)


def test_what_is_no_selector(tmp_path):
    with pytest.raises(ValueError, match="3 labels: a cross-encoder has 1 or 2"):
        load_selector(str(tiny.bert_checkpoint(tmp_path / "three", labels=3)))
    folder = tiny.bert_checkpoint(tmp_path / "dense")
    (folder / "modules.json").write_text(
        json.dumps([{"path": "", "type": "x.Transformer"}, {"path": "2", "type": "x.Dense"}])
    )
    with pytest.raises(ValueError, match="not known here: Dense"):
        load_selector(str(folder))
    (folder / "modules.json").write_text(json.dumps([{"path": "1_Pooling", "type": "x.Pooling"}]))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_max_tokens": True}))
    with pytest.raises(ValueError, match="pools by pooling_mode_max_tokens"):
        load_selector(str(folder))
    with pytest.raises(OSError):
        load_selector(str(tmp_path / "absent"))


def test_by_document(tmp_path):
    pairs = load_selector(str(tiny.bert_checkpoint(tmp_path))).pairs
    assert by_document([1.0, 2.0, 3.0, 4.0], pairs.cut(["a b c", "", "d"], 2, 1)) == [[1.0, 2.0], [3.0], [4.0]]
