"""Scores for the passages of a shard of queries, by each kind of selector: those that `model.rerank` uses."""

import hashlib
import math
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import AutoTokenizer

from ..passages_cobert import CutDocument, PairTokenizer, cut_documents
from ..selection_cobert import (
    BiEncoderSelector,
    CrossEncoderSelector,
    by_document,
    count_terms,
    counted_scores,
    load_selector,
)
from ..steps.files import atomic_open

Queries = Mapping[str, str]
Ranked = Mapping[str, Sequence[str]]
Documents = Mapping[str, CutDocument]

# Passages whose vectors are in memory together, and in one file.
_VECTORS_A_FILE = 4096


@dataclass(frozen=True)
class CountedDocument(CutDocument):
    """A document with the terms of each passage counted, once for all queries."""

    counts: list[tuple[int, Counter]]


class WordScorer:
    """
    The selectors without a model: `"lexical"` (BM25 among the passages of a query's candidates) and `"first-stage"`.

    Args:
        selector (`str`): which of the two.
        tokenizer (`PairTokenizer`, *optional*): whose tokens are counted to tell which passages will be truncated.
    """

    def __init__(self, selector: str, tokenizer: PairTokenizer | None = None):
        self.kind = selector
        self.pairs = tokenizer
        self.sha256 = None

    def cut(self, documents: Sequence[Mapping], *window) -> list[CutDocument]:
        cut = self.pairs.cut(documents, *window) if self.pairs else cut_documents(documents, *window)
        if self.kind != "lexical":
            return cut
        return [
            CountedDocument(d.title, d.body, d.spans, [count_terms(d.text(i)) for i in range(len(d.spans))])
            for d in cut
        ]

    def score(self, queries: Queries, ranked: Ranked, documents: Documents, advance: Callable) -> Iterator:
        """Yields, for each query, one list a candidate with the scores of its passages."""
        for query_id, query in queries.items():
            cut = [documents[doc_id] for doc_id in ranked[query_id]]
            if self.kind == "lexical":
                counts = [passage for document in cut for passage in document.counts]
                yield by_document(counted_scores(query, counts), cut)
            else:
                yield [[float(-rank)] + [-math.inf] * (len(d.spans) - 1) for rank, d in enumerate(cut)]
            advance(sum(len(document.spans) for document in cut))

    def truncated(self, query_tokens: int, doc_id: str, document: CutDocument) -> int | None:
        """How many of a document's passages do not fit beside the query; `None` where nothing counts tokens."""
        return None if self.pairs is None else _truncated_pairs(self.pairs, query_tokens, document)


class CrossEncoderScorer:
    """The paper's selector over a whole shard: all pairs of all its queries, sorted by length into batches."""

    def __init__(self, selector: CrossEncoderSelector, batch_tokens: int, workers: int = 1):
        self.kind = selector.kind
        self.workers = workers
        self.selector = selector
        self.pairs = selector.pairs
        self.batch_tokens = batch_tokens
        self.sha256 = model_sha256(selector)

    def cut(self, documents: Sequence[Mapping], *window) -> list[CutDocument]:
        return self.pairs.cut(documents, *window)

    def score(self, queries: Queries, ranked: Ranked, documents: Documents, advance: Callable) -> Iterator:
        """Yields, for each query, one list a candidate with the scores of its passages."""
        rows = []
        for query_id, query in queries.items():
            query_ids = self.pairs.query(query)
            for document in (documents[doc_id] for doc_id in ranked[query_id]):
                rows += [self.pairs.pair(query_ids, document.tokens(i)) for i in range(len(document.spans))]
        done = 0

        def count(number: int) -> None:
            nonlocal done
            done += number
            advance(number)

        scores = iter(self.selector.score_rows(rows, self.batch_tokens, count, self.workers))
        advance(len(rows) - done)  # equal rows are scored once
        for query_id in queries:
            yield [[next(scores) for _ in documents[doc_id].spans] for doc_id in ranked[query_id]]

    def truncated(self, query_tokens: int, doc_id: str, document: CutDocument) -> int:
        """How many of a document's passages do not fit beside the query."""
        return _truncated_pairs(self.pairs, query_tokens, document)


class BiEncoderScorer:
    """
    A sentence encoder: each passage of each document is embedded once, to a file, and serves all queries.

    Args:
        selector ([`BiEncoderSelector`]): the encoder.
        batch_tokens (`int`): the most tokens of a batch.
        windows (`Mapping[str, int]`): every document and its number of passages.
        folder (`Path`): where the vectors are kept until all queries are done.
        workers (`int`, *optional*, defaults to 1): how many batches are worked on at the same time.
    """

    def __init__(
        self,
        selector: BiEncoderSelector,
        batch_tokens: int,
        windows: Mapping[str, int],
        folder: Path,
        workers: int = 1,
    ):
        self.kind = selector.kind
        self.workers = workers
        self.selector = selector
        self.pairs = selector.pairs
        self.batch_tokens = batch_tokens
        self.sha256 = model_sha256(selector)
        self.folder = Path(folder)
        self._truncated: dict[int, np.ndarray] = {}
        # Files are made of the same documents in every run, so that a vector never depends on where a run was killed.
        self.files: list[list[str]] = [[]]
        self.places: dict[str, tuple[int, int, int, int]] = {}
        start = 0
        for doc_id, count in windows.items():
            if start + count > _VECTORS_A_FILE and start:
                self.files.append([])
                start = 0
            self.places[doc_id] = (len(self.files) - 1, len(self.files[-1]), start, start + count)
            self.files[-1].append(doc_id)
            start += count

    def path(self, number: int, what: str) -> Path:
        return self.folder / f"{number:05d}.{what}.npy"

    def missing(self) -> list[int]:
        """The files that are still to be made."""
        return [number for number in range(len(self.files)) if not self.path(number, "vectors").exists()]

    def embed(self, number: int, documents: Sequence[CutDocument], advance: Callable) -> None:
        """Makes one file, from its documents in order."""
        tokens = [document.tokens(i) for document in documents for i in range(len(document.spans))]
        rows = [self.pairs.single(ids) for ids in tokens]
        vectors = self.selector.embed_rows(rows, self.batch_tokens, workers=self.workers).cpu().numpy()
        room = self.pairs.max_length - len(self.pairs.prefix) - len(self.pairs.suffix)
        cut_short = by_document([len(ids) > room for ids in tokens], documents)
        self._save(self.path(number, "truncated"), np.array([sum(flags) for flags in cut_short], dtype=np.int32))
        self._save(self.path(number, "vectors"), vectors)  # last: it is the mark that the file is done
        advance(len(rows))

    def _save(self, path: Path, array: np.ndarray) -> None:
        with atomic_open(path, "wb") as file:
            np.save(file, array, allow_pickle=False)

    def cut(self, documents: Sequence[Mapping], *window) -> list[CutDocument]:
        return cut_documents(documents, *window)  # by now only the text of the best passage is wanted

    def score(self, queries: Queries, ranked: Ranked, documents: Documents, advance: Callable) -> Iterator:
        """Yields, for each query, one list a candidate with the scores of its passages."""
        opened: dict[int, np.ndarray] = {}
        for query_id, query in queries.items():
            row = self.pairs.single(self.pairs.query(query))
            vector = self.selector.embed_rows([row], self.batch_tokens).cpu()[0]
            parts = []
            for doc_id in ranked[query_id]:
                number, _, start, end = self.places[doc_id]
                if number not in opened:
                    opened[number] = np.load(self.path(number, "vectors"), mmap_mode="r", allow_pickle=False)
                parts.append(opened[number][start:end])
            scores = torch.from_numpy(np.concatenate(parts)) @ vector
            yield by_document(scores.tolist(), [documents[doc_id] for doc_id in ranked[query_id]])
            advance(len(scores))

    def truncated(self, query_tokens: int, doc_id: str, document: CutDocument) -> int:
        """How many of a document's passages did not fit."""
        number, position, _, _ = self.places[doc_id]
        if number not in self._truncated:
            self._truncated[number] = np.load(self.path(number, "truncated"), allow_pickle=False)
        return int(self._truncated[number][position])

    def clean_up(self) -> None:
        """Removes the vectors, which nothing needs once every query is done."""
        shutil.rmtree(self.folder, ignore_errors=True)


def load_scorer(
    selector: str,
    max_length: int,
    batch_tokens: int,
    windows: Mapping[str, int],
    vectors: Path,
    device: torch.device | str = "cpu",
    tokenizer: str | None = None,
    workers: int = 1,
) -> WordScorer | CrossEncoderScorer | BiEncoderScorer:
    """Loads the selector called `selector`, ready to score shards of queries; see [`select_passages`]."""
    if selector == "self":
        raise ValueError("selector 'self' is the trained model: to prepare its training, use another selector")
    if selector in ("lexical", "first-stage"):
        pairs = None
        if tokenizer is not None:
            pairs = PairTokenizer(AutoTokenizer.from_pretrained(tokenizer, trust_remote_code=False), max_length)
        return WordScorer(selector, pairs)
    if tokenizer is not None:
        raise ValueError(f"selector {selector!r} brings its own tokenizer: {tokenizer!r} would not be used")
    loaded = load_selector(selector, max_length, device)
    if loaded.kind == "cross-encoder":
        return CrossEncoderScorer(loaded, batch_tokens, workers)
    return BiEncoderScorer(loaded, batch_tokens, windows, vectors, workers)


def model_sha256(selector: CrossEncoderSelector | BiEncoderSelector) -> str:
    """The fingerprint of a selector's weights and tokenizer, wherever they were loaded from."""
    digest = hashlib.sha256(selector.pairs.tokenizer.backend_tokenizer.to_str().encode())
    for name, tensor in sorted(selector.model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _truncated_pairs(pairs: PairTokenizer, query_tokens: int, document: CutDocument) -> int:
    room = pairs.max_length - pairs.num_special - query_tokens
    return sum(document.num_tokens(i) > room for i in range(len(document.spans)))
