"""What the words of documents have in common: against plain loops, and at the edges of what a document can be."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from modeling_cobert.data.words import KeptWords, list_words
from modeling_cobert.words_cobert import document_text, word_vectors

TEXTS = ["Bees see ultra-violet light.", "bees bees make honey", "", "honey!", "the SKY is blue", "make honey, bees"]
CLOSE = {"atol": 1e-6, "rtol": 0}


def by_hand(texts: list[str]) -> list[list[float]]:
    counts = [Counter("".join(c if c.isalnum() or c == "_" else " " for c in t.lower()).split()) for t in texts]
    frequencies = Counter(word for words in counts for word in words)
    vectors = [
        {w: (1 + math.log(n)) * math.log((len(texts) + 1) / frequencies[w]) for w, n in words.items()}
        for words in counts
    ]
    lengths = [math.sqrt(sum(x * x for x in vector.values())) or 1.0 for vector in vectors]
    return [
        [sum(x * b.get(w, 0.0) for w, x in a.items()) / la / lb for b, lb in zip(vectors, lengths, strict=True)]
        for a, la in zip(vectors, lengths, strict=True)
    ]


def test_likeness_and_votes_equal_plain_loops():
    words, expected = word_vectors(TEXTS), torch.tensor(by_hand(TEXTS))
    assert_close(words.likeness(), expected, **CLOSE)
    assert_close(words.likeness(1, 4), expected[1:4, 1:4], **CLOSE)
    shares = torch.tensor([0.5, 0.0, 0.1, 0.4, 0.0, 0.0])
    assert_close(words.votes(shares), expected @ shares, **CLOSE)
    order = [4, 1, 0]
    assert_close(words.take(order).likeness(), expected[order][:, order], **CLOSE)


def test_documents_without_a_word_in_common():
    """Words that one document alone has are left out of the product, and not out of its length."""
    texts = ["red blue", "", "green", "red sky sky"]
    likeness = word_vectors(texts).likeness()
    assert_close(likeness, torch.tensor(by_hand(texts)), **CLOSE)
    assert likeness.diagonal().tolist() == pytest.approx([1, 0, 1, 1]) and likeness[2, :2].tolist() == [0, 0]
    assert_close(word_vectors(["a b", "c"]).likeness(), torch.eye(2), **CLOSE)
    assert word_vectors(["", ""]).likeness().tolist() == [[0, 0], [0, 0]]


def test_shared_words_are_those_that_a_vote_comes_from():
    words = word_vectors(TEXTS)
    best = torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0, 0.0])
    # The rarest first; of the two others, the one that the prototype has twice.
    assert words.shared(5, best) == ["make", "bees", "honey"]
    assert words.shared(5, best, limit=2) == ["make", "bees"]
    assert words.shared(4, best) == [] and words.shared(2, best) == []


@given(st.lists(st.text(max_size=40), max_size=8))
def test_any_texts(texts):
    words = word_vectors(texts)
    like = words.likeness()
    assert like.shape == (len(texts), len(texts)) and torch.isfinite(like).all()
    assert (like >= 0).all() and (like <= 1 + 1e-5).all()
    shares = torch.full((len(texts),), 0.5)
    assert_close(words.votes(shares), like @ shares, atol=1e-5, rtol=0)


def test_one_document_and_none():
    assert word_vectors([]).likeness().shape == (0, 0)
    assert word_vectors(["bees"]).likeness().tolist() == [[1.0]]
    assert word_vectors(["", "..."]).votes(torch.ones(2)).tolist() == [0.0, 0.0]


def test_a_documents_words_are_those_of_title_and_text():
    assert document_text("plain") == "plain"
    assert document_text({"title": "A", "text": "b"}) == "A b"
    assert document_text({"title": "", "text": "b"}) == document_text({"text": "b"}) == "b"
    with pytest.raises(TypeError, match="document 3 must be"):
        document_text(7, 3)


def test_what_is_kept_is_the_same_and_found_out_once():
    plain = list_words(TEXTS)
    kept = KeptWords(**vars(plain))
    for span in ((0, None), (0, 6), (1, 4), (3, 3), (0, None)):
        assert torch.equal(kept.likeness(*span), plain.likeness(*span))
        assert kept.likeness(*span) is kept.likeness(*span)
    assert kept.likeness() is kept.likeness(0, 6)
    assert kept.shared(0, torch.ones(6)) == plain.shared(0, torch.ones(6))
