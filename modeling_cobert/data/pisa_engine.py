"""The same first stages on PISA, for collections that are too large for memory; Linux, `pip install pyterrier-pisa`.

PISA tokenises and stems (Porter 2) itself, keeps its index on disk and finds the top k without scoring every document.
Expansion is ours: the index's files are read through memory maps with the methods of our own [`Index`], and the new
query goes back to PISA as weighted terms. Its BM25 has Robertson's idf, not below zero; which of equal scores make the
cut is PISA's choice.
"""

import json
import logging
import os
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path

import numpy as np
from tqdm.auto import tqdm

from .analysis import load_stopwords
from .collections import Document
from .first_stage import FirstStage, check_queries, leave_out
from .trec import trec_order

logger = logging.getLogger(__name__)

# PISA truncates the weight of a query term to an integer.
_WEIGHT_SCALE = 10_000
# A file in the folder that says which collection it indexes.
_NOTE = "source.json"


class _Lazy:
    """A statistic per term, computed when it is asked for: a sum over the postings of one term out of millions."""

    def __init__(self, compute):
        self.compute = compute

    def __getitem__(self, term: int) -> int:
        return self.compute(term)


class PisaStatistics:
    """What expansion asks of an [`Index`], from the files of a PISA index: uint32 lists, each after its length."""

    def __init__(self, folder: Path):
        self.doc_lengths = np.fromfile(folder / "inv.sizes", dtype=np.uint32)[1:].astype(np.int64)
        self.collection_length = int(self.doc_lengths.sum())
        self.doc_ids = range(len(self.doc_lengths))  # only their number matters here
        self.vocabulary = (folder / "fwd.terms").read_text(encoding="utf-8").splitlines()
        self.terms = {term: number for number, term in enumerate(self.vocabulary)}
        self._forward = np.memmap(folder / "fwd", dtype=np.uint32, mode="r")
        self._frequencies = np.memmap(folder / "inv.freqs", dtype=np.uint32, mode="r")
        self._forward_starts = 2 + np.cumsum(self.doc_lengths + 1) - self.doc_lengths
        self.doc_frequencies = _Lazy(lambda term: int(self._frequencies[self._inverted_starts[term] - 1]))
        self.collection_frequencies = _Lazy(self._collection_frequency)

    @cached_property
    def _inverted_starts(self) -> np.ndarray:
        starts = np.empty(len(self.vocabulary), dtype=np.int64)
        position = 0
        for term in range(len(starts)):
            starts[term] = position + 1
            position += 1 + int(self._frequencies[position])
        return starts

    def _collection_frequency(self, term: int) -> int:
        start = self._inverted_starts[term]
        return int(self._frequencies[start : start + self.doc_frequencies[term]].sum(dtype=np.int64))

    def document(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        start = self._forward_starts[row]
        return np.unique(self._forward[start : start + self.doc_lengths[row]], return_counts=True)


class PisaEngine:
    """
    A PISA index of a collection in a folder, and rankings from it.

    Args:
        folder (`str` or `os.PathLike`): where the index is, or will be.
        source (`str`): the name of the collection; an index of another one is refused.
    """

    def __init__(self, folder: str | os.PathLike, source: str):
        try:
            import pyterrier_pisa
        except ImportError:
            raise ImportError("the engine pisa needs PISA (Linux only): pip install pyterrier-pisa") from None
        self._pisa = pyterrier_pisa
        self._stopwords = load_stopwords("terrier")
        self.folder = Path(folder)
        self.source = source

    def build(self, documents: Iterable[Document]) -> None:
        """Indexes title and text of every document, unless the folder holds this index already."""
        if self.folder.exists():
            self._check_folder()
            return
        # Made under another name: the folder is a whole index or not there.
        partial = self.folder.with_name(f".{self.folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        failures: list[Exception] = []

        def feed() -> Iterator[dict[str, str]]:
            # PISA reads this in a thread of its own, where an error would only end the collection early.
            try:
                for document in tqdm(documents, desc="indexing", unit=" documents", disable=None):
                    yield {"docno": document.doc_id, "text": document.full_text}
            except Exception as error:
                failures.append(error)

        self._pisa.PisaIndex(str(partial), text_field="text", stemmer="porter2", stops="none").index(feed())
        if failures:
            shutil.rmtree(partial)
            raise failures[0]
        (partial / _NOTE).write_text(json.dumps({"source": self.source}), encoding="utf-8")
        os.replace(partial, self.folder)

    def _check_folder(self) -> None:
        note = self.folder / _NOTE
        if not note.is_file():
            raise ValueError(f"{self.folder}: is there, but is no index made here; take another folder")
        noted = json.loads(note.read_text(encoding="utf-8")).get("source")
        if noted != self.source:
            raise ValueError(
                f"{self.folder}: holds an index of {noted!r}, not of {self.source!r}; take another folder"
            )
        logger.info("%s: the index that is there is used", self.folder)

    def analyze(self, text: str) -> dict[str, float]:
        """The terms of a query with their frequencies: PISA's tokens without Terrier's stop words, stemmed."""
        query: dict[str, float] = {}
        for token in self._pisa.tokenize(text.lower()):
            for term in self._pisa.tokenize(token, "porter2") if token not in self._stopwords else ():
                query[term] = query.get(term, 0.0) + 1.0
        return query

    def rank_all(
        self, stage: FirstStage, queries: Mapping[str, str], k: int = 1000, skip_missing: bool = False
    ) -> dict[str, dict[str, float]]:
        """Ranks for every query, as [`~first_stage.rank_all`] does."""
        queries = check_queries(queries, self.analyze, skip_missing)
        weighted = {query_id: self.analyze(text) for query_id, text in queries.items()}
        if "+" in stage.model:
            first = self._search(stage, weighted, stage.feedback_docs)
            weighted = {**weighted, **self._expand(stage, weighted, first)}
        run = self._search(stage, weighted, k)
        missing = [query_id for query_id in queries if query_id not in run]
        return {
            query_id: run[query_id] for query_id in leave_out(queries, missing, "matches no document", skip_missing)
        }

    def _search(
        self, stage: FirstStage, queries: Mapping[str, Mapping[str, float]], k: int
    ) -> dict[str, dict[str, float]]:
        import pandas

        options = {"num_results": k, "query_weighted": True, "toks_scale": _WEIGHT_SCALE}
        with warnings.catch_warnings():
            # PISA would stem our stems again ("exospher" to "exosph"), and warns that the index itself was stemmed.
            warnings.filterwarnings("ignore", message="requested stemmer")
            index = self._pisa.PisaIndex(str(self.folder), stemmer="none", stops="none")
        if stage.model.startswith("bm25"):
            engine = index.bm25(k1=stage.k1, b=stage.b, **options)
        else:
            engine = index.dph(**options)
        asked = [{"qid": query_id, "query_toks": dict(terms)} for query_id, terms in queries.items() if terms]
        if not asked:
            return {}
        result = engine(pandas.DataFrame(asked))
        run: dict[str, dict[str, float]] = {}
        for query_id, doc_id, score in zip(result.qid, result.docno, result.score, strict=True):
            run.setdefault(query_id, {})[doc_id] = float(score) / _WEIGHT_SCALE
        return {
            query_id: {doc_id: scores[doc_id] for doc_id in trec_order(scores)} for query_id, scores in run.items()
        }

    def _expand(self, stage: FirstStage, queries: Mapping, run: Mapping) -> dict[str, dict[str, float]]:
        wanted = {doc_id for scores in run.values() for doc_id in scores}
        with open(self.folder / "fwd.documents", encoding="utf-8") as file:
            rows = {line.rstrip("\n"): row for row, line in enumerate(file) if line.rstrip("\n") in wanted}
        statistics = PisaStatistics(self.folder)
        expanded = {}
        for query_id, scores in run.items():
            terms = {
                statistics.terms[term]: weight
                for term, weight in queries[query_id].items()
                if term in statistics.terms
            }
            mixed = stage.expand(statistics, terms, [rows[doc_id] for doc_id in scores], list(scores.values()))
            expanded[query_id] = {statistics.vocabulary[term]: weight for term, weight in mixed.items()}
        return expanded
