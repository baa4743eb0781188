"""Windows over a ranking and back: exact edges, and properties over all small sizes."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modeling_cobert.grouping_cobert import best_first, merge_windows, overlapping_windows

SIZES = st.integers(1, 70).flatmap(lambda size: st.tuples(st.just(size), st.integers(0, size - 1)))


def test_the_papers_groups():
    windows = overlapping_windows(1000, size=200, overlap=5)
    assert windows == [(0, 200), (195, 395), (390, 590), (585, 785), (780, 980), (975, 1000)]
    assert len(overlapping_windows(1000, size=60, overlap=4)) == 18  # DESIGN: 18 groups a query
    assert overlapping_windows(59, 60, 4) == [(0, 59)]
    assert overlapping_windows(60, 60, 4) == [(0, 60)]
    assert overlapping_windows(61, 60, 4) == [(0, 60), (56, 61)]
    assert overlapping_windows(0, 60, 4) == []
    assert overlapping_windows(3, 60, 4) == [(0, 3)]
    assert overlapping_windows(5, 2, 0) == [(0, 2), (2, 4), (4, 5)]


@given(st.integers(0, 500), SIZES)
def test_windows(length, sizes):
    size, overlap = sizes
    windows = overlapping_windows(length, size, overlap)
    if length:
        assert len(windows) == max(1, math.ceil((length - overlap) / (size - overlap)))
    else:
        assert windows == []
    covered = [position for start, end in windows for position in range(start, end)]
    assert sorted(set(covered)) == list(range(length))
    for (start, end), (next_start, next_end) in zip(windows, windows[1:], strict=False):
        assert end - start == size and end - next_start == overlap and next_end > end


@pytest.mark.parametrize(("length", "size", "overlap"), [(5, 0, 0), (5, 3, 3), (5, 3, -1), (-1, 3, 1)])
def test_bad_windows(length, size, overlap):
    with pytest.raises(ValueError, match="overlap|items"):
        overlapping_windows(length, size, overlap)


@pytest.mark.parametrize(
    ("how", "expected"),
    [("max", [1.0, 3.0, 9.0]), ("mean", [1.0, 2.5, 9.0]), ("first", [1.0, 2.0, 9.0]), ("last", [1.0, 3.0, 9.0])],
)
def test_merge(how, expected):
    assert merge_windows([(0, 2), (1, 3)], [[1.0, 2.0], [3.0, 9.0]], how) == expected
    # Padding behind a group's documents is not a score.
    assert merge_windows([(0, 2), (1, 3)], [[1.0, 2.0, 50.0], [3.0, 9.0, 50.0]], how) == expected


@given(st.integers(1, 200), SIZES, st.sampled_from(["max", "mean", "first", "last"]))
def test_merging_equal_scores_gives_them_back(length, sizes, how):
    scores = [float((position * 7919) % 104729) for position in range(length)]
    windows = overlapping_windows(length, *sizes)
    assert merge_windows(windows, [scores[start:end] for start, end in windows], how) == scores


def test_bad_merges():
    with pytest.raises(ValueError, match="not 'min'"):
        merge_windows([(0, 1)], [[1.0]], "min")
    with pytest.raises(ValueError, match="2 windows, but scores for 1"):
        merge_windows([(0, 1), (1, 2)], [[1.0]])
    with pytest.raises(ValueError, match="only 1 scores"):
        merge_windows([(0, 2)], [[1.0]])
    assert merge_windows([], []) == []


@given(st.lists(st.sampled_from([0.0, -0.0, 1.0, 2.5, -3.0, math.inf, -math.inf])))
def test_best_first(scores):
    order = best_first(scores)
    assert sorted(order) == list(range(len(scores)))
    for a, b in zip(order, order[1:], strict=False):
        assert scores[a] > scores[b] or (scores[a] == scores[b] and a < b)
    assert best_first(scores, 2) == order[:2]


def test_nan_has_no_rank():
    with pytest.raises(ValueError, match="position 1 is not a number"):
        best_first([0.0, math.nan])
