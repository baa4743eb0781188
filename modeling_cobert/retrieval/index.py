"""One sparse in-memory index of term frequencies, built in batches and read by document or by term."""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain

import numpy as np
from scipy import sparse

from ..collections.collection import Document
from ..steps.progress import progress_bar
from .analysis import Analyzer

# Text is indexed in batches of about this many characters: large enough for numpy, small enough for memory.
_BATCH_CHARACTERS = 8_000_000


@dataclass
class Index:
    """
    Term frequencies of a collection.

    Args:
        doc_ids (`list[str]`): the documents, in the order of the rows.
        terms (`dict[str, int]`): term to column.
        by_doc (`scipy.sparse.csr_array`): integer frequencies, documents x terms.
        analyzer (`Analyzer`): what made the terms; queries must go through it too.
    """

    doc_ids: list[str]
    terms: dict[str, int]
    by_doc: sparse.csr_array
    analyzer: Analyzer = field(repr=False)

    @cached_property
    def by_term(self) -> sparse.csc_array:
        """The same frequencies, to be read by term."""
        return self.by_doc.tocsc()

    @cached_property
    def doc_lengths(self) -> np.ndarray:
        """Terms in each document, stop words not counted."""
        sums = np.concatenate([[0], np.cumsum(self.by_doc.data, dtype=np.int64)])
        return np.diff(sums[self.by_doc.indptr])

    @cached_property
    def doc_frequencies(self) -> np.ndarray:
        """In how many documents each term occurs."""
        return np.diff(self.by_term.indptr)

    @cached_property
    def collection_frequencies(self) -> np.ndarray:
        """How often each term occurs in the whole collection."""
        sums = np.concatenate([[0], np.cumsum(self.by_term.data, dtype=np.int64)])
        return np.diff(sums[self.by_term.indptr])

    @cached_property
    def collection_length(self) -> int:
        return int(self.doc_lengths.sum())

    @cached_property
    def average_length(self) -> float:
        return self.collection_length / len(self.doc_ids)

    @cached_property
    def vocabulary(self) -> list[str]:
        """Column to term."""
        return list(self.terms)

    def postings(self, term: int) -> tuple[np.ndarray, np.ndarray]:
        """The rows of the documents that hold a term, and how often each does."""
        start, end = self.by_term.indptr[term], self.by_term.indptr[term + 1]
        return self.by_term.indices[start:end], self.by_term.data[start:end]

    def document(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        """The terms of a document, and how often it holds each."""
        start, end = self.by_doc.indptr[row], self.by_doc.indptr[row + 1]
        return self.by_doc.indices[start:end], self.by_doc.data[start:end]


class _Chunks(dict):
    """Chunk to number, and for each number the terms that the chunk holds; unseen chunks are analysed on access."""

    def __init__(self, analyzer: Analyzer):
        super().__init__()
        self.analyzer = analyzer
        self.terms: dict[str, int] = {}
        self.starts = array("q", [0])
        self.flat = array("i")

    def __missing__(self, chunk: str) -> int:
        self[chunk] = number = len(self)
        self.flat.extend(self.terms.setdefault(term, len(self.terms)) for term in self.analyzer.terms(chunk))
        self.starts.append(len(self.flat))
        return number


def build_index(documents: Iterable[Document], analyzer: Analyzer) -> Index:
    """
    Indexes title and text of every document.

    Args:
        documents (`Iterable[Document]`): the collection; its text is not kept.
        analyzer (`Analyzer`): makes the terms.
    """
    chunks = _Chunks(analyzer)
    doc_ids: list[str] = []
    terms: list[np.ndarray] = []
    counts: list[np.ndarray] = []
    sizes: list[np.ndarray] = []

    def flush(batch: list[list[str]]) -> None:
        for whole, part in zip((terms, counts, sizes), _count_batch(chunks, batch), strict=True):
            whole.append(part)

    batch, characters = [], 0
    for document in progress_bar(documents, desc="Indexing", unit="documents"):
        doc_ids.append(document.doc_id)
        text = document.full_text
        batch.append(analyzer.chunks(text))
        characters += len(text)
        if characters >= _BATCH_CHARACTERS:
            flush(batch)
            batch, characters = [], 0
    if not doc_ids:
        raise ValueError("there are no documents to index")
    flush(batch)
    indptr = np.concatenate([[0], np.cumsum(np.concatenate(sizes), dtype=np.int64)])
    arrays = _concatenate(counts), _concatenate(terms), indptr
    by_doc = sparse.csr_array(arrays, shape=(len(doc_ids), len(chunks.terms)))
    return Index(doc_ids, chunks.terms, by_doc, analyzer)


def _concatenate(parts: list[np.ndarray]) -> np.ndarray:
    """`np.concatenate`, letting go of each part as it is copied, so that no two copies of the whole exist."""
    whole = np.empty(sum(map(len, parts)), dtype=parts[0].dtype)
    end = len(whole)
    while parts:
        part = parts.pop()
        whole[end - len(part) : end] = part
        end -= len(part)
    return whole


def _count_batch(chunks: _Chunks, batch: list[list[str]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns, document after document in the batch, its distinct terms, their counts, and how many there are."""
    lengths = np.fromiter(map(len, batch), dtype=np.int64, count=len(batch))
    numbers = np.fromiter(
        map(chunks.__getitem__, chain.from_iterable(batch)), dtype=np.int32, count=int(lengths.sum())
    )
    starts, flat = np.array(chunks.starts), np.array(chunks.flat, dtype=np.int64)
    # A chunk holds no term (a stop word), one, or now and then several: `held` of them from `first` on in `flat`.
    first, held = starts[numbers], np.diff(starts)[numbers]
    docs = np.repeat(np.repeat(np.arange(len(batch)), lengths), held)
    within = np.arange(len(docs)) - np.repeat(np.cumsum(held) - held, held)
    # Document and term in one integer: sorting brings equal pairs together, and keeps documents in order.
    pairs = (docs << 32) | flat[np.repeat(first, held) + within]
    pairs.sort()
    new = np.flatnonzero(np.diff(pairs, prepend=-1))
    counts = np.diff(new, append=len(pairs)).astype(np.int32)
    distinct = pairs[new]
    sizes = np.bincount(distinct >> 32, minlength=len(batch))
    return (distinct & 0xFFFFFFFF).astype(np.int32), counts, sizes
