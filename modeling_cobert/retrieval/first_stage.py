"""First-stage rankings in memory: BM25 and DPH over one sparse index, and the paper's BM25+RM3 and DPH+KL over them.

Every document that holds a query term is scored exactly, and the order is trec_eval's, ties included.
"""

import logging
from collections.abc import Callable, Collection, Mapping

import numpy as np

from ..collections.trec import trec_order
from ..steps.progress import progress_bar
from .expansion import rm3, rocchio_kl
from .index import Index
from .options import RetrievalOptions

logger = logging.getLogger(__name__)


class FirstStage:
    """
    A first-stage model.

    Args:
        options ([`RetrievalOptions`], *optional*): the model and its parameters; the paper's DPH+KL by default.

    Example:

    ```python
    >>> from modeling_cobert.collections.collection import open_collection
    >>> from modeling_cobert.retrieval.index import build_index
    >>> stage = FirstStage(RetrievalOptions("bm25+rm3"))
    >>> index = build_index(open_collection("demo").documents(), stage.options.make_analyzer())
    >>> ranking = stage.rank(index, "how is a class made", k=10)
    ```
    """

    def __init__(self, options: RetrievalOptions | None = None):
        self.options = (options or RetrievalOptions()).resolved()

    def rank(self, index: Index, text: str, k: int = 1000) -> dict[str, float]:
        """Returns the k best documents for a query, in trec_eval's order; none if no document holds a term of it."""
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        query = query_terms(index, text)
        if query and "+" in self.options.first_stage:
            rows, scores = self._top(index, query, self.options.feedback_docs)
            query = self.expand(index, query, rows, scores)
        rows, scores = self._top(index, query, k)
        return {index.doc_ids[row]: score for row, score in zip(rows, scores, strict=True)}

    def expand(
        self, index: Index, query: Mapping[int, float], rows: list[int], scores: list[float]
    ) -> dict[int, float]:
        """Returns the query with the terms that the feedback documents `rows` add to it."""
        if self.options.first_stage == "bm25+rm3":
            return rm3(index, query, rows, scores, self.options.feedback_terms, self.options.original_weight)
        return rocchio_kl(index, query, rows, self.options.feedback_terms, self.options.beta)

    def score(self, index: Index, query: Mapping[int, float]) -> tuple[np.ndarray, np.ndarray]:
        """Returns a score per document of the index, and whether the document holds a term of the query at all."""
        scores, matched = np.zeros(len(index.doc_ids)), np.zeros(len(index.doc_ids), dtype=bool)
        weigh = self._bm25 if self.options.first_stage.startswith("bm25") else self._dph
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
        options, holders, documents = self.options, len(rows), len(index.doc_ids)
        odds = (documents - holders + 0.5) / (holders + 0.5)
        # Lucene's 1 + odds keeps the weight of a term in more than half of the documents above zero.
        idf = np.log1p(odds) if options.idf == "lucene" else np.log(odds)
        if options.k3 is not None:
            weight = (options.k3 + 1) * weight / (options.k3 + weight)
        norm = options.k1 * (1 - options.b + options.b / index.average_length * index.doc_lengths[rows])
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
    progress = progress_bar(queries.items(), desc=stage.options.first_stage, unit="queries", total=len(queries))
    return {query_id: stage.rank(index, text, k) for query_id, text in progress}
