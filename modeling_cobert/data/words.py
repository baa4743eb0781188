"""The words of whole documents, of which queries have many in common: each is read once for some time."""

from collections.abc import Sequence
from functools import lru_cache

from ..words_cobert import WordVectors, count_words, word_vectors

# Documents whose words stay in memory: some 10 KB each, of a hundred words.
KEPT_DOCUMENTS = 16_384

_remembered = lru_cache(KEPT_DOCUMENTS)(count_words)


def list_words(texts: Sequence[str]) -> WordVectors:
    """What [`~words_cobert.word_vectors`] gives for the documents of a row."""
    return word_vectors(texts, _remembered)
