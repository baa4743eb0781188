# Copyright 2026 The Co-BERT authors.
# SPDX-License-Identifier: Apache-2.0
"""A ranked list <-> overlapping groups and prototypes: pure functions on positions and scores, no model, no text."""

import math
from collections.abc import Callable, Hashable, Iterable, Sequence

# What to do where a model gave a score that is none.
BROKEN_MODEL = "the model's weights are damaged or, in half precision, its numbers too large: load it in float32"

# What an item's scores become, of which there is at least one. What is not a number stays so, for `best_first` to see.
MERGES: dict[str, Callable[[list[float]], float]] = {
    "max": lambda scores: max(scores, key=lambda score: math.inf if math.isnan(score) else score),
    "mean": lambda scores: math.fsum(scores) / len(scores),
    "first": lambda scores: scores[0],
    "last": lambda scores: scores[-1],
}


def overlapping_spans(length: int, size: int, overlap: int, offset: int = 0) -> list[tuple[int, int]]:
    """
    Cuts `length` items into half-open spans `(start, end)`, neighbours sharing `overlap` items.

    There are `ceil((length + offset - overlap) / (size - overlap))` of them, at least one where there is anything, and
    every span holds items that none before it had. The paper cuts rankings into groups and documents into passages so.

    Args:
        length (`int`): how many items there are.
        size (`int`): the items of a span; the last one may have fewer.
        overlap (`int`): the items that neighbours share.
        offset (`int`, *optional*, defaults to 0): the list is cut as if it had begun so many items earlier, so that
            the first span is shorter by them. Below `size - overlap`, where the cuts would be the same again.

    Example:

    ```python
    >>> overlapping_spans(1000, size=200, overlap=5)
    [(0, 200), (195, 395), (390, 590), (585, 785), (780, 980), (975, 1000)]
    >>> overlapping_spans(3, size=60, overlap=4), overlapping_spans(0, size=60, overlap=4)
    ([(0, 3)], [])
    >>> overlapping_spans(12, size=7, overlap=2, offset=3)
    [(0, 4), (2, 9), (7, 12)]
    ```
    """
    if size < 1 or not 0 <= overlap < size:
        raise ValueError(f"spans need size >= 1 and 0 <= overlap < size, got size {size} and overlap {overlap}")
    if length < 0:
        raise ValueError(f"a list cannot have {length} items")
    step = size - overlap
    if not 0 <= offset < step:
        raise ValueError(f"spans begin every {step} items, so an offset must be from 0 to {step - 1}, got {offset}")
    if length == 0:
        return []
    count = max(1, math.ceil((length + offset - overlap) / step))
    starts = [i * step - offset for i in range(count)]
    return [(max(0, start), min(start + size, length)) for start in starts]


def draw_offset(length: int, size: int, overlap: int, draw: float) -> int:
    """
    An offset for [`overlapping_spans`] from a uniform draw, such that every draw gives the same number of spans.

    Training moves the edges of its groups from epoch to epoch, but an epoch must keep its number of steps. An offset
    leaves the number of spans as it is or adds one: the larger of the two sets of offsets (the first, if they are
    equally large) is drawn from.

    Args:
        length, size, overlap (`int`): as in [`overlapping_spans`].
        draw (`float`): from 0 up to, but not including, 1.

    Example:

    ```python
    >>> draw_offset(1000, size=60, overlap=4, draw=0.0), draw_offset(1000, size=60, overlap=4, draw=0.99)
    (13, 55)
    >>> draw_offset(60, size=60, overlap=4, draw=0.99)
    0
    ```
    """
    if not 0 <= draw < 1:
        raise ValueError(f"a draw must be at least 0 and below 1, got {draw}")
    count = len(overlapping_spans(length, size, overlap))
    if count <= 1:
        return 0
    step = size - overlap
    same = count * step - (length - overlap) + 1  # how many offsets, from 0 on, fit before one more span is needed
    offsets = range(same) if same >= step - same else range(same, step)
    return offsets[int(draw * len(offsets))]


def merge_spans(spans: Sequence[tuple[int, int]], scores: Sequence[Sequence[float]], how: str = "max") -> list[float]:
    """
    The inverse: one score for every item, from the scores that its spans gave it.

    Args:
        spans (`list[tuple[int, int]]`): as [`overlapping_spans`] returns them.
        scores (`list[list[float]]`): one list a span, one score an item; longer lists (padding) are cut.
        how (`str`, *optional*, defaults to `"max"`): which score an item in several spans gets: `"max"` (what the
            authors' release does), `"mean"`, `"first"` or `"last"`.

    Example:

    ```python
    >>> merge_spans([(0, 2), (1, 3)], [[0.5, 0.1], [0.7, -2.0]])
    [0.5, 0.7, -2.0]
    ```
    """
    if how not in MERGES:
        raise ValueError(f"overlapping scores merge by one of {', '.join(MERGES)}, not {how!r}")
    if len(spans) != len(scores):
        raise ValueError(f"{len(spans)} spans, but scores for {len(scores)}")
    given: list[list[float]] = [[] for _ in range(max((end for _, end in spans), default=0))]
    for (start, end), of_span in zip(spans, scores, strict=True):
        if len(of_span) < end - start:
            raise ValueError(f"span {start}-{end} holds {end - start} items, but only {len(of_span)} scores")
        for position in range(start, end):
            given[position].append(float(of_span[position - start]))
    return [MERGES[how](item) for item in given]


def best_first(scores: Sequence[float], limit: int | None = None) -> list[int]:
    """
    Positions by descending score; ties keep the given (first-stage) order, so that the result is deterministic.

    Example:

    ```python
    >>> best_first([0.1, 0.9, 0.9, 0.3], limit=3)
    [1, 2, 3]
    ```
    """
    for position, score in enumerate(scores):
        if math.isnan(score):
            raise ValueError(
                f"the score at position {position} is not a number: the ranking would be arbitrary. If it is a "
                f"model's, {BROKEN_MODEL}"
            )
    order = sorted(range(len(scores)), key=lambda position: -scores[position])
    return order if limit is None else order[:limit]


def first_alike(keys: Iterable[Hashable]) -> list[int]:
    """
    For each key the position of the first one that equals it.

    Example:

    ```python
    >>> first_alike("abca")
    [0, 1, 2, 0]
    ```
    """
    firsts: dict[Hashable, int] = {}
    return [firsts.setdefault(key, position) for position, key in enumerate(keys)]


def standardize(scores: Sequence[float]) -> list[float]:
    """
    A list's scores with mean 0 and standard deviation 1, so that scores of different kinds can be added up. Where all
    are equal, to the digits of single precision, they say nothing and become 0.

    Example:

    ```python
    >>> standardize([2.0, 1.0, 2.0, 1.0])
    [1.0, -1.0, 1.0, -1.0]
    ```
    """
    for position, score in enumerate(scores):
        if not math.isfinite(score):
            raise ValueError(f"the score at position {position} is {score}: only finite scores can be standardised")
    if not scores:
        return []
    # Scaled first, so that no square of a large or small score leaves the range of floats.
    largest = max(abs(score) for score in scores)
    scaled = [score / largest if largest else 0.0 for score in scores]
    mean = math.fsum(scaled) / len(scaled)
    deviation = math.sqrt(math.fsum((score - mean) ** 2 for score in scaled) / len(scaled))
    # Equal scores may differ by rounding, of single precision where a model gave them, which must not be blown up.
    if deviation <= 1e-6:
        return [0.0] * len(scaled)
    return [(score - mean) / deviation for score in scaled]


def starting_scores(
    selector_scores: Sequence[float], first_stage_scores: Sequence[float] | None = None
) -> list[tuple[float, float]]:
    """
    What is known of each document of a list before a model looks at it: the selector's and the first stage's score,
    standardised. Where there are no first-stage scores the order serves, as -log of the rank.

    Example:

    ```python
    >>> starting_scores([0.5, 1.0], [2.0, 1.0])
    [(-1.0, 1.0), (1.0, -1.0)]
    ```
    """
    if first_stage_scores is None:
        first_stage_scores = [-math.log(rank) for rank in range(1, len(selector_scores) + 1)]
    return list(zip(standardize(selector_scores), standardize(first_stage_scores), strict=True))
