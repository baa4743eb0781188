"""The one tie rule: equal scores keep the first stage's order, in memory and in every file that is written."""

from collections.abc import Sequence

import numpy as np

from ..grouping_cobert import BROKEN_MODEL, best_first

_TINY = np.finfo(np.float32).tiny
_FLOAT32_MAX = float(np.finfo(np.float32).max)


def strict_scores(doc_ids: Sequence[str], scores: Sequence[float]) -> dict[str, float]:
    """
    Scores that any TREC tool ranks as the model did: falling strictly, in single precision.

    The model's ties keep the first stage's order, while trec_eval breaks ties by document id and sees ties where
    scores agree in single precision. So, from the best document down, a score that is not below the one before it is
    lowered to the next smaller single-precision number (in the seventh digit; by 1e-38 around zero). All other scores
    are written as they are, in single precision. A document that is there several times, with one passage each, has
    the best passage's score.

    Args:
        doc_ids (`list[str]`): in first-stage order.
        scores (`list[float]`): one each.

    Returns:
        `dict[str, float]`: document id, best first, to score.

    Example:

    ```python
    >>> list(strict_scores(["b", "a", "c"], [0.5, 0.5, 2.0]))
    ['c', 'b', 'a']
    ```
    """
    for doc_id, score in zip(doc_ids, scores, strict=True):
        if not abs(score) <= _FLOAT32_MAX:
            raise ValueError(f"document {doc_id!r} has the score {score}: {BROKEN_MODEL}")
    strict: dict[str, float] = {}
    last = np.float32(np.inf)
    for place in best_first(scores):
        if doc_ids[place] in strict:
            continue
        score = np.float32(scores[place])
        if score >= last:
            if last <= -_FLOAT32_MAX:
                raise ValueError(f"document {doc_ids[place]!r}: no score is below {last}: {BROKEN_MODEL}")
            score = min(np.nextafter(last, np.float32(-np.inf)), last - _TINY)
        strict[doc_ids[place]] = float(score)
        last = score
    return strict
