# Copyright 2026 The Co-BERT authors.
# SPDX-License-Identifier: Apache-2.0
"""What the words of documents have in common: tf-idf among the documents of one list, nothing else to be known."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .passages_cobert import count_terms, split_document


def document_text(document: str | Mapping, position: int | None = None) -> str:
    """Title and whole text of a document, which is what its words are counted in."""
    title, text = split_document(document, position)
    return f"{title} {text}" if title else text


def count_words(text: str) -> Counter:
    """How often each word is in a text."""
    return count_terms(text)[1]


@dataclass(frozen=True)
class WordVectors:
    """
    Unit vectors of a list's documents over all their words, by (1 + log tf) log((N + 1) / df); see [`word_vectors`].

    Args:
        documents, columns (`torch.LongTensor` of shape `(numbers,)`): where the numbers stand that are not 0.
        values (`torch.Tensor` of shape `(numbers,)`): the numbers.
        count (`int`): how many documents there are.
        words (`list[str]`): what each column stands for.
    """

    documents: Tensor
    columns: Tensor
    values: Tensor
    count: int
    words: Sequence[str]

    def likeness(self, start: int = 0, end: int | None = None) -> Tensor:
        """The cosines of all pairs of documents, or of those of a span, `(documents, documents)`."""
        end = self.count if end is None else end
        inside = (self.documents >= start) & (self.documents < end)
        documents, columns, values = self.documents[inside] - start, self.columns[inside], self.values[inside]
        own = torch.zeros(end - start, dtype=values.dtype).index_add(0, documents, values.square())
        # Words of one document alone, which are most, say nothing of two; without them the product is a fraction.
        shared = torch.bincount(columns, minlength=len(self.words)) > 1
        kept, places = shared[columns], shared.cumsum(0) - 1
        rows = torch.zeros(end - start, int(shared.sum()), dtype=values.dtype)
        rows[documents[kept], places[columns[kept]]] = values[kept]
        return (rows @ rows.T).diagonal_scatter(own)

    def votes(self, shares: Tensor) -> Tensor:
        """`likeness() @ shares`, `(documents,)` -> `(documents,)`, without the square matrix: a list may be long."""
        votes = self.values * self._centre(shares)[self.columns]
        return torch.zeros(self.count, dtype=votes.dtype).index_add(0, self.documents, votes).to(shares.device)

    def shared(self, place: int, shares: Tensor, limit: int = 5) -> list[str]:
        """The words by which a document's vote comes about, those that count most first."""
        own = self.documents == place
        columns, votes = self.columns[own], self.values[own] * self._centre(shares)[self.columns[own]]
        order = votes.argsort(descending=True, stable=True)[:limit]
        return [self.words[int(columns[i])] for i in order if votes[i] > 0]

    def keys(self) -> list[bytes]:
        """One for each document; equal ones have the same words, each as often."""
        order = self.documents.argsort(stable=True)
        numbers = torch.stack((self.columns.double(), self.values.double()), dim=1)[order]
        ends = torch.bincount(self.documents, minlength=self.count).cumsum(0)[:-1]
        return [part.numpy().tobytes() for part in numbers.tensor_split(ends)]

    def take(self, places: Sequence[int]) -> "WordVectors":
        """Those of some documents, in this order."""
        new = torch.full((self.count,), -1)
        new[torch.tensor(places, dtype=torch.long)] = torch.arange(len(places))
        kept = new[self.documents] >= 0
        return WordVectors(new[self.documents][kept], self.columns[kept], self.values[kept], len(places), self.words)

    def _centre(self, shares: Tensor) -> Tensor:
        votes = self.values * shares.float().cpu()[self.documents]
        return torch.zeros(len(self.words), dtype=votes.dtype).index_add(0, self.columns, votes)


def word_vectors(texts: Sequence[str], count: Callable[[str], Counter] = count_words) -> WordVectors:
    """
    The word vectors of a list of texts.

    Document frequencies are those of the list at hand. So what all candidates share, the query's own words first of
    all, counts for little, and no collection needs to be known. No stemming and no stop list, as in lexical selection.

    Args:
        texts (`list[str]`): whole documents.
        count (`Callable`, *optional*): how often each word is in a text; another one may remember texts.

    Example:

    ```python
    >>> word_vectors(["bees see colour", "bees make honey", "honey"]).likeness()[1]
    tensor([0.1361, 1.0000, 0.4082])
    ```
    """
    counts = [count(text) for text in texts]
    frequencies = Counter(word for words in counts for word in words)
    idf = {word: math.log((len(texts) + 1) / frequency) for word, frequency in frequencies.items()}
    places = {word: place for place, word in enumerate(idf)}
    rows: list[int] = []
    columns: list[int] = []
    values: list[float] = []
    for row, words in enumerate(counts):
        weights = [(1 + math.log(count)) * idf[word] for word, count in words.items()]
        length = math.sqrt(math.fsum(weight * weight for weight in weights))
        rows += [row] * len(words)
        columns += [places[word] for word in words]
        values += [weight / length for weight in weights]
    where = torch.tensor(rows, dtype=torch.long), torch.tensor(columns, dtype=torch.long)
    return WordVectors(*where, torch.tensor(values, dtype=torch.float32), len(texts), list(places))
