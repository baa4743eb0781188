"""Selectors: lexical by hand, cross- and bi-encoder against the models themselves."""

import json
import math

import pytest
import tiny
import torch
from torch.testing import assert_close
from transformers import AutoTokenizer, BertForSequenceClassification, BertModel

from modeling_cobert.passages_cobert import count_terms
from modeling_cobert.selection_cobert import (
    BiEncoderSelector,
    CrossEncoderSelector,
    FirstStageSelector,
    LexicalSelector,
    by_document,
    choose_passages,
    counted_scores,
    load_selector,
)


def bm25(query, passages):
    return counted_scores(query, [count_terms(passage) for passage in passages])


DOCUMENTS = ["bees see light honey flower red blue green colour car road wheel", "", "car road", "bees bees"]


def test_lexical_by_hand():
    passages = ["Bees see; bees fly", "see the sky", "nothing here at all"]
    lengths, mean = [4, 3, 4], 11 / 3

    def part(tf, df, length):
        return math.log(1 + (3 - df + 0.5) / (df + 0.5)) * tf / (tf + 0.9 * (0.6 + 0.4 * length / mean))

    expected = [part(2, 1, lengths[0]) + part(1, 2, lengths[0]), part(1, 2, lengths[1]), 0.0]
    assert bm25("bees SEE see", passages) == pytest.approx(expected)
    assert bm25("", passages) == [0, 0, 0]
    assert bm25("bees", []) == [] and bm25("bees", ["", ""]) == [0, 0]


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


KINDS = {
    "lexical": LexicalSelector,
    "first-stage": FirstStageSelector,
    "cross-encoder": CrossEncoderSelector,
    "bi-encoder": BiEncoderSelector,
}


@pytest.fixture(scope="module")
def selectors(tmp_path_factory) -> dict:
    folders = {
        "cross-encoder": tiny.bert_checkpoint(tmp_path_factory.mktemp("cross"), labels=1),
        "bi-encoder": tiny.bert_checkpoint(tmp_path_factory.mktemp("bi")),
    }
    return {kind: load_selector(str(folders.get(kind, kind)), max_length=32) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_one_interface(kind, selectors):
    selector = selectors[kind]
    assert type(selector) is KINDS[kind] and selector.kind == kind and selector.to("cpu") is selector
    assert (selector.pairs is None) == (kind in ("lexical", "first-stage"))
    documents = selector.cut([{"title": "the sky", "text": text} for text in DOCUMENTS], 5, 2, True)
    done = []
    scores = selector.score("bees see colour", documents, 64, advance=done.append)
    assert [len(of_document) for of_document in scores] == [len(document.spans) for document in documents]
    assert sum(done) == sum(map(len, scores))  # no two passages are equal here
    again = selector.score("bees see colour", documents, 1)
    for one, other in zip(scores, again, strict=True):
        assert one == pytest.approx(other, abs=1e-5)
    best, chosen = choose_passages(selector, "bees see colour", documents, 64)
    assert chosen == [max(of_document) for of_document in scores]
    assert best == [of_document.index(max(of_document)) for of_document in scores]
    assert selector.score("bees", [], 64) == [] and choose_passages(selector, "bees", [], 64) == ([], [])


def test_ties_go_to_the_first_passage():
    selector = LexicalSelector()
    documents = selector.cut(["car bees bees car", "road road road", ""], passage_words=2, passage_overlap=0)
    best, scores = choose_passages(selector, "bees", documents, 64)
    assert best == [0, 0, 0] and scores[0] > 0 and scores[1:] == [0.0, 0.0]


def test_the_first_stage_keeps_its_order():
    selector = FirstStageSelector()
    best, scores = choose_passages(selector, "x", selector.cut(DOCUMENTS, 5, 2), 64)
    assert best == [0, 0, 0, 0] and scores == [0.0, -1.0, -2.0, -3.0]


def test_terms_are_counted_once_a_document():
    selector = LexicalSelector()
    documents = selector.cut(DOCUMENTS, 5, 2)
    texts = [document.text(i) for document in documents for i in range(len(document.spans))]
    for query in ("bees see", "car"):
        assert selector.score(query, documents, 64) == by_document(bm25(query, texts), documents)
    assert documents[0].term_counts is documents[0].term_counts
    assert documents == selector.cut(DOCUMENTS, 5, 2)  # what was counted is no part of what a document is


def test_embeddings_of_passages_may_be_kept(selectors):
    """A subclass that keeps vectors overrides one method, and scores the same."""
    selector = selectors["bi-encoder"]
    documents = selector.cut(DOCUMENTS, 5, 2)
    kept = selector.embed_passages(documents, 64)
    assert kept.shape == (sum(len(d.spans) for d in documents), tiny.HIDDEN)
    assert_close(kept.norm(dim=-1), torch.ones(len(kept)))
    assert selector.embed_query("bees").shape == (tiny.HIDDEN,)

    class Keeping(BiEncoderSelector):
        def embed_passages(self, documents, batch_tokens, workers=1, advance=None):
            return kept

    keeping = Keeping(selector.model, selector.pairs.tokenizer, 32, selector.pooling)
    assert keeping.score("bees see", documents, 64) == selector.score("bees see", documents, 64)
    for kind in ("bi-encoder", "cross-encoder"):
        with pytest.raises(ValueError, match="the query has 40 tokens"):
            selectors[kind].score("bees " * 40, documents, 64)


def test_the_model_itself_is_no_selector_to_load():
    with pytest.raises(ValueError, match="selector 'self' is the model itself"):
        load_selector("self")
    with pytest.raises(ValueError, match="the selector's name is empty"):
        load_selector(" ")


@pytest.mark.parametrize("count", [2, 3, 5, 6, 17])
def test_equal_passages_have_equal_cosines(tmp_path, count):
    """Also where a product of matrices would give some of them another last bit."""
    tiny.bert_checkpoint(tmp_path, layers=1, hidden_size=384)
    selector = load_selector(str(tmp_path), 32)
    for seed in range(20):
        vector = torch.nn.functional.normalize(torch.randn(384, generator=torch.Generator().manual_seed(seed)), dim=0)
        documents = selector.cut(["bees"] * count, 10, 0)
        scores = selector.score_embedded("how do bees see", documents, vector.repeat(count, 1))
        assert len({score for (score,) in scores}) == 1
