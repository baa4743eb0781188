"""First-stage rankings in memory: BM25 and DPH over one sparse index, and the paper's BM25+RM3 and DPH+KL over them.

Every document that holds a query term is scored exactly, and the order is trec_eval's, ties included.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import numpy as np
from tqdm.auto import tqdm

from ..collections.trec import trec_order
from .expansion import rm3, rocchio_kl
from .index import Index

logger = logging.getLogger(__name__)

MODELS = ("bm25", "bm25+rm3", "dph", "dph+kl")
IDFS = ("lucene", "robertson")


@dataclass
class FirstStage:
    """
    A first-stage model with its parameters.

    Args:
        model (`str`, *optional*, defaults to `"dph+kl"`): `"bm25"`, `"bm25+rm3"`, `"dph"` or `"dph+kl"` (the paper's).
        k1 (`float`, *optional*, defaults to 0.9): BM25's saturation of term frequency. Anserini's default.
        b (`float`, *optional*, defaults to 0.4): BM25's share of length normalisation. Anserini's default.
        k3 (`float`, *optional*): BM25's saturation of query term frequency (Terrier's is 8); by default none.
        idf (`str`, *optional*, defaults to `"lucene"`): `"lucene"`, ln(1 + (N - n + 0.5) / (n + 0.5)), which is never
            negative, or `"robertson"`, ln((N - n + 0.5) / (n + 0.5)), which Terrier uses.
        feedback_docs (`int`, *optional*): documents that expansion looks at; by default 10 for RM3 (Anserini) and 3
            for KL (Terrier).
        feedback_terms (`int`, *optional*, defaults to 10): terms that expansion keeps.
        original_weight (`float`, *optional*, defaults to 0.5): the query's share in RM3.
        beta (`float`, *optional*): Rocchio's beta for KL; by default Terrier's parameter-free form.

    Example:

    ```python
    >>> from modeling_cobert.collections.collection import open_collection
    >>> from modeling_cobert.retrieval.index import build_index
    >>> collection = open_collection("data/cranfield")
    >>> stage = FirstStage("dph+kl")
    >>> index = build_index(collection.documents(), Analyzer(stage.default_analyzer))
    >>> ranking = stage.rank(index, "wings in a slipstream", k=1000)
    ```
    """

    model: str = "dph+kl"
    k1: float = 0.9
    b: float = 0.4
    k3: float | None = None
    idf: str = "lucene"
    feedback_docs: int | None = None
    feedback_terms: int = 10
    original_weight: float = 0.5
    beta: float | None = None

    def __post_init__(self):
        if self.model not in MODELS:
            raise ValueError(f"model must be one of {', '.join(MODELS)}, got {self.model!r}")
        if self.idf not in IDFS:
            raise ValueError(f"idf must be one of {', '.join(IDFS)}, got {self.idf!r}")
        if self.feedback_docs is None:
            self.feedback_docs = 3 if self.model == "dph+kl" else 10
        checks = {
            "k1 must be at least 0": self.k1 >= 0,
            "b must be from 0 to 1": 0 <= self.b <= 1,
            "k3 must be at least 0": self.k3 is None or self.k3 >= 0,
            "feedback_docs must be at least 1": self.feedback_docs >= 1,
            "feedback_terms must be at least 1": self.feedback_terms >= 1,
            "original_weight must be from 0 to 1": 0 <= self.original_weight <= 1,
            "beta must be at least 0": self.beta is None or self.beta >= 0,
        }
        for message, holds in checks.items():
            if not holds:
                raise ValueError(message)

    @property
    def default_analyzer(self) -> str:
        """The analyzer of the system that the model's parameters come from: Terrier's for DPH, Anserini's for BM25."""
        return "terrier" if self.model.startswith("dph") else "anserini"

    def rank(self, index: Index, text: str, k: int = 1000) -> dict[str, float]:
        """Returns the k best documents for a query, in trec_eval's order; none if no document holds a term of it."""
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        query = query_terms(index, text)
        if query and "+" in self.model:
            assert self.feedback_docs is not None  # __post_init__ has seen to it
            rows, scores = self._top(index, query, self.feedback_docs)
            query = self.expand(index, query, rows, scores)
        rows, scores = self._top(index, query, k)
        return {index.doc_ids[row]: score for row, score in zip(rows, scores, strict=True)}

    def expand(
        self, index: Index, query: Mapping[int, float], rows: list[int], scores: list[float]
    ) -> dict[int, float]:
        """Returns the query with the terms that the feedback documents `rows` add to it."""
        if self.model == "bm25+rm3":
            return rm3(index, query, rows, scores, self.feedback_terms, self.original_weight)
        return rocchio_kl(index, query, rows, self.feedback_terms, self.beta)

    def score(self, index: Index, query: Mapping[int, float]) -> tuple[np.ndarray, np.ndarray]:
        """Returns a score per document of the index, and whether the document holds a term of the query at all."""
        scores, matched = np.zeros(len(index.doc_ids)), np.zeros(len(index.doc_ids), dtype=bool)
        weigh = self._bm25 if self.model.startswith("bm25") else self._dph
        for term, weight in sorted(query.items()):  # one order of summation, whatever made the query
            rows, frequencies = index.postings(term)
            scores[rows] += weigh(index, term, rows, frequencies, weight)
            matched[rows] = True
        return scores, matched

    def _top(self, index: Index, query: Mapping[int, float], k: int) -> tuple[list[int], list[float]]:
        scores, matched = self.score(index, query)
        rows = np.flatnonzero(matched)
        # trec_eval compares single precision: what ties there must tie here, also at the cut.
        single = scores[rows].astype(np.float32)
        if len(rows) > k:
            least = np.partition(single, len(single) - k)[len(single) - k]
            rows, single = rows[single >= least], single[single >= least]
        row_of = {index.doc_ids[row]: row for row in rows.tolist()}
        score_of = dict(zip(row_of, single.tolist(), strict=True))
        best = trec_order(score_of)[:k]
        return [row_of[doc_id] for doc_id in best], [score_of[doc_id] for doc_id in best]

    def _bm25(self, index: Index, term: int, rows: np.ndarray, frequencies: np.ndarray, weight: float) -> np.ndarray:
        """Robertson and Zaragoza 2009, eq. 3.15; the constant factor k1 + 1 is left out, as Lucene does."""
        holders, documents = len(rows), len(index.doc_ids)
        odds = (documents - holders + 0.5) / (holders + 0.5)
        idf = np.log1p(odds) if self.idf == "lucene" else np.log(odds)
        if self.k3 is not None:
            weight = (self.k3 + 1) * weight / (self.k3 + weight)
        norm = self.k1 * (1 - self.b + self.b / index.average_length * index.doc_lengths[rows])
        return weight * idf * (frequencies / (frequencies + norm))

    def _dph(self, index: Index, term: int, rows: np.ndarray, frequencies: np.ndarray, weight: float) -> np.ndarray:
        """Amati 2006 (DPH, hypergeometric with Popper's normalisation), as Terrier writes it."""
        lengths = index.doc_lengths[rows]
        # A document of nothing but this term would give the logarithm of zero; Terrier's share stops here.
        share = np.minimum(frequencies / lengths, 0.99999)
        expected = index.collection_frequencies[term] / len(index.doc_ids)
        information = frequencies * np.log2(frequencies * (index.average_length / lengths) / expected)
        return (
            weight
            * ((1 - share) ** 2 / (frequencies + 1))
            * (information + 0.5 * np.log2(2 * np.pi * frequencies * (1 - share)))
        )


def query_terms(index: Index, text: str) -> dict[int, float]:
    """Returns the query's terms that the index knows, each with its frequency in the query."""
    query: dict[int, float] = {}
    for term in index.analyzer.query(text):
        number = index.terms.get(term)
        if number is not None:
            query[number] = query.get(number, 0.0) + 1.0
    return query


def leave_out(queries: Mapping[str, str], unfit: list[str], reason: str, skip_missing: bool) -> dict[str, str]:
    """
    Returns `queries` without the `unfit` ones: an error by default, a counted warning with `skip_missing`.

    Args:
        queries (`Mapping[str, str]`): query id to text.
        unfit (`list[str]`): the ids of those that cannot be run.
        reason (`str`): what is wrong with them, after "query ...".
        skip_missing (`bool`): whether to go on without them.
    """
    if unfit and not skip_missing:
        raise ValueError(
            f"query {unfit[0]!r} ({queries[unfit[0]]!r}) {reason}, and {len(unfit) - 1} more; correct them, or skip "
            "them with --skip_missing"
        )
    if unfit:
        logger.warning("skipped: query %s %s (%d queries)", ", ".join(unfit[:10]), reason, len(unfit))
    dropped = set(unfit)
    return {query_id: text for query_id, text in queries.items() if query_id not in dropped}


def check_queries(
    queries: Mapping[str, str], analyze: Callable[[str], Collection], skip_missing: bool = False
) -> dict[str, str]:
    """
    Returns the queries that have at least one term; call it before the work starts.

    Args:
        queries (`Mapping[str, str]`): query id to text.
        analyze (`Callable[[str], Collection]`): text to terms, such as an analyzer's `query`.
        skip_missing (`bool`, *optional*, defaults to `False`): a query that is empty, or made of stop words, is an
            error; with this it is left out, and counted in a warning.
    """
    empty = [query_id for query_id, text in queries.items() if not analyze(text)]
    return leave_out(queries, empty, "has no terms (stop words do not count)", skip_missing)


def rank_all(
    stage: FirstStage, index: Index, queries: Mapping[str, str], k: int = 1000, skip_missing: bool = False
) -> dict[str, dict[str, float]]:
    """
    Ranks the documents of the index for every query.

    Args:
        stage (`FirstStage`): the model.
        index (`Index`): the collection.
        queries (`Mapping[str, str]`): query id to text.
        k (`int`, *optional*, defaults to 1000): the most documents per query.
        skip_missing (`bool`, *optional*, defaults to `False`): a query that has no terms, or for which no document is
            found, is an error; with this it is left out, and counted in a warning.

    Returns:
        `dict[str, dict[str, float]]`: query id to document id to score, both in order.
    """
    queries = check_queries(queries, index.analyzer.query, skip_missing)
    unknown = [query_id for query_id, text in queries.items() if not query_terms(index, text)]
    queries = leave_out(queries, unknown, "matches no document", skip_missing)
    progress = tqdm(queries.items(), desc=stage.model, unit=" queries", disable=None)
    return {query_id: stage.rank(index, text, k) for query_id, text in progress}
