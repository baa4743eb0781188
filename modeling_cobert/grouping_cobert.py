"""A ranked list <-> overlapping groups and prototypes: pure functions on positions and scores, no model, no text."""

import math
from collections.abc import Sequence

MERGES = ("max", "mean", "first", "last")


def overlapping_windows(length: int, size: int, overlap: int) -> list[tuple[int, int]]:
    """
    Cuts `length` items into half-open windows `(start, end)`, neighbours sharing `overlap` items.

    There are `ceil((length - overlap) / (size - overlap))` of them, at least one where there is anything, and every
    window holds items that none before it had. The paper cuts rankings into groups and documents into passages so.

    Example:

    ```python
    >>> overlapping_windows(1000, size=200, overlap=5)
    [(0, 200), (195, 395), (390, 590), (585, 785), (780, 980), (975, 1000)]
    >>> overlapping_windows(3, size=60, overlap=4), overlapping_windows(0, size=60, overlap=4)
    ([(0, 3)], [])
    ```
    """
    if size < 1 or not 0 <= overlap < size:
        raise ValueError(f"windows need size >= 1 and 0 <= overlap < size, got size {size} and overlap {overlap}")
    if length < 0:
        raise ValueError(f"a list cannot have {length} items")
    if length == 0:
        return []
    step = size - overlap
    count = max(1, math.ceil((length - overlap) / step))
    return [(i * step, min(i * step + size, length)) for i in range(count)]


def merge_windows(
    windows: Sequence[tuple[int, int]], scores: Sequence[Sequence[float]], how: str = "max"
) -> list[float]:
    """
    The inverse: one score for every item, from the scores that its windows gave it.

    Args:
        windows (`list[tuple[int, int]]`): as [`overlapping_windows`] returns them.
        scores (`list[list[float]]`): one list a window, one score an item; longer lists (padding) are cut.
        how (`str`, *optional*, defaults to `"max"`): which score an item in several windows gets: `"max"` (what the
            authors' release does), `"mean"`, `"first"` or `"last"`.

    Example:

    ```python
    >>> merge_windows([(0, 2), (1, 3)], [[0.5, 0.1], [0.7, -2.0]])
    [0.5, 0.7, -2.0]
    ```
    """
    if how not in MERGES:
        raise ValueError(f"overlapping scores merge by one of {', '.join(MERGES)}, not {how!r}")
    if len(windows) != len(scores):
        raise ValueError(f"{len(windows)} windows, but scores for {len(scores)}")
    given: list[list[float]] = [[] for _ in range(max((end for _, end in windows), default=0))]
    for (start, end), window_scores in zip(windows, scores, strict=True):
        if len(window_scores) < end - start:
            raise ValueError(f"window {start}-{end} holds {end - start} items, but only {len(window_scores)} scores")
        for position in range(start, end):
            given[position].append(float(window_scores[position - start]))
    merge = {"max": max, "mean": lambda s: math.fsum(s) / len(s), "first": lambda s: s[0], "last": lambda s: s[-1]}[
        how
    ]
    return [merge(item) for item in given]


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
            raise ValueError(f"the score at position {position} is not a number: the ranking would be arbitrary")
    order = sorted(range(len(scores)), key=lambda position: -scores[position])
    return order if limit is None else order[:limit]
