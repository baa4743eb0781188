"""The words of whole documents, of which queries have many in common: each is read once for some time."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from torch import Tensor

from ..words_cobert import WordVectors, count_words, word_vectors

# Documents whose words stay in memory: some 10 KB each, of a hundred words.
KEPT_DOCUMENTS = 16_384

_remembered = lru_cache(KEPT_DOCUMENTS)(count_words)


def list_words(texts: Sequence[str]) -> WordVectors:
    """What [`~words_cobert.word_vectors`] gives for the documents of a row."""
    return word_vectors(texts, _remembered)


@dataclass(frozen=True)
class KeptWords(WordVectors):
    """Word vectors of a list that is ranked again and again: how alike its documents are is found out once."""

    _kept: dict[tuple[int, int], Tensor] = field(default_factory=dict, repr=False, compare=False)

    def likeness(self, start: int = 0, end: int | None = None) -> Tensor:
        span = (start, self.count if end is None else end)
        if span not in self._kept:
            self._kept[span] = super().likeness(*span)
        return self._kept[span]
