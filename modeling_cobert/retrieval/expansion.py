"""Query expansion from the top documents of a first ranking: RM3 as in Anserini, Rocchio-KL as in Terrier.

Both take a query as `{term: weight}` over the columns of an [`Index`] and return another such query.
"""

import re
from collections.abc import Mapping, Sequence

import numpy as np

from .index import Index

_WORD = re.compile(r"[a-z0-9]{2,20}")


def rm3(
    index: Index,
    query: Mapping[int, float],
    rows: Sequence[int],
    scores: Sequence[float],
    terms: int = 10,
    original_weight: float = 0.5,
    max_doc_share: float = 0.1,
) -> dict[int, float]:
    """
    The relevance model RM3 (Lavrenko and Croft 2001; Abdul-Jaleel et al., TREC 2004) with Anserini's choices.

    p(t|R) is proportional to the sum over the feedback documents d of score(d) * tf(t, d) / sum_t' tf(t', d). Each
    document is first reduced to its `terms` most frequent candidates, then the sum to its `terms` heaviest, scaled to
    sum one, and mixed with the query, also scaled to sum one.

    Args:
        index (`Index`): the collection.
        query (`Mapping[int, float]`): term to weight.
        rows (`Sequence[int]`): the feedback documents.
        scores (`Sequence[float]`): their scores in the first ranking.
        terms (`int`, *optional*, defaults to 10): how many terms the model keeps.
        original_weight (`float`, *optional*, defaults to 0.5): the query's share in the mixture.
        max_doc_share (`float`, *optional*, defaults to 0.1): a term in more than this share of the documents, or not
            of 2 to 20 ASCII letters and digits, is no candidate.
    """
    model: dict[int, float] = {}
    for row, score in zip(rows, scores, strict=True):
        candidates = {
            int(term): float(count)
            for term, count in zip(*index.document(row), strict=True)
            if index.doc_frequencies[term] <= max_doc_share * len(index.doc_ids)
            and _WORD.fullmatch(index.vocabulary[term])
        }
        kept = _heaviest(index, candidates, terms)
        length = sum(kept.values())
        for term, count in kept.items():
            model[term] = model.get(term, 0.0) + score * count / length
    # With negative scores (an idf below zero) the sum of a term may be no weight at all.
    model = _scale(_heaviest(index, {term: weight for term, weight in model.items() if weight > 0}, terms))
    if not model:
        return dict(query)
    mixed = {term: original_weight * weight for term, weight in _scale(query).items()}
    for term, weight in model.items():
        mixed[term] = mixed.get(term, 0.0) + (1 - original_weight) * weight
    return {term: weight for term, weight in mixed.items() if weight > 0}


def rocchio_kl(
    index: Index,
    query: Mapping[int, float],
    rows: Sequence[int],
    terms: int = 10,
    beta: float | None = None,
    min_docs: int = 2,
) -> dict[int, float]:
    """
    Rocchio's expansion with Kullback-Leibler term weights (Carpineto et al. 2001; Amati's thesis 2003, ch. 7).

    The feedback documents are one bag of l_x terms. A term with frequency tf_x in it and F in the collection of l
    terms weighs w(t) = p_x log2(p_x / p_c), with p_x = tf_x / l_x and p_c = F / l, and nothing where p_x < p_c. The
    new query is qtf / max qtf + w(t) / w_max, where the parameter-free w_max = tf_x(t*) log2(l / l_x) / l_x is the
    most that the heaviest term t* could have weighed.

    Args:
        index (`Index`): the collection.
        query (`Mapping[int, float]`): term to weight.
        rows (`Sequence[int]`): the feedback documents.
        terms (`int`, *optional*, defaults to 10): how many terms are added or re-weighted.
        beta (`float`, *optional*): by default the parameter-free form; with a number, that times w(t) / max w.
        min_docs (`int`, *optional*, defaults to 2): a term that is not in the query must be in so many of the feedback
            documents, if there are so many.
    """
    expanded = {term: weight / max(query.values()) for term, weight in query.items()}
    frequencies: dict[int, int] = {}
    holders: dict[int, int] = {}
    for row in rows:
        for term, count in zip(*(part.tolist() for part in index.document(row)), strict=True):
            frequencies[term] = frequencies.get(term, 0) + count
            holders[term] = holders.get(term, 0) + 1
    bag = sum(frequencies.values())
    weights = {}
    for term, frequency in frequencies.items():
        if len(rows) < min_docs or holders[term] >= min_docs or term in query:
            ratio = (frequency / bag) / (index.collection_frequencies[term] / index.collection_length)
            if ratio > 1:
                weights[term] = frequency / bag * float(np.log2(ratio))
    if not weights:
        return expanded
    added = _heaviest(index, weights, terms)
    heaviest = next(iter(added))
    if beta is None:
        normaliser = frequencies[heaviest] / bag * float(np.log2(index.collection_length / bag))
    else:
        normaliser = weights[heaviest] / beta if beta else np.inf
    for term, weight in added.items():
        expanded[term] = expanded.get(term, 0.0) + weight / normaliser
    return expanded


def _heaviest(index: Index, weights: Mapping[int, float], count: int) -> dict[int, float]:
    """The `count` heaviest terms, heaviest first; ties in alphabetical order, the same every time."""
    order = sorted(weights, key=lambda term: (-weights[term], index.vocabulary[term]))
    return {term: weights[term] for term in order[:count]}


def _scale(weights: Mapping[int, float]) -> dict[int, float]:
    total = sum(weights.values())
    return {term: weight / total for term, weight in weights.items()}
