"""Spans over a ranking and back: exact edges, and properties over all small sizes."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modeling_cobert.grouping_cobert import best_first, draw_offset, merge_spans, overlapping_spans, standardize

SIZES = st.integers(1, 70).flatmap(lambda size: st.tuples(st.just(size), st.integers(0, size - 1)))


def test_the_papers_groups():
    spans = overlapping_spans(1000, size=200, overlap=5)
    assert spans == [(0, 200), (195, 395), (390, 590), (585, 785), (780, 980), (975, 1000)]
    assert len(overlapping_spans(1000, size=60, overlap=4)) == 18  # DESIGN: 18 groups a query
    assert overlapping_spans(59, 60, 4) == [(0, 59)]
    assert overlapping_spans(60, 60, 4) == [(0, 60)]
    assert overlapping_spans(61, 60, 4) == [(0, 60), (56, 61)]
    assert overlapping_spans(0, 60, 4) == []
    assert overlapping_spans(3, 60, 4) == [(0, 3)]
    assert overlapping_spans(5, 2, 0) == [(0, 2), (2, 4), (4, 5)]


@given(st.integers(0, 500), SIZES)
def test_spans(length, sizes):
    size, overlap = sizes
    spans = overlapping_spans(length, size, overlap)
    if length:
        assert len(spans) == max(1, math.ceil((length - overlap) / (size - overlap)))
    else:
        assert spans == []
    covered = [position for start, end in spans for position in range(start, end)]
    assert sorted(set(covered)) == list(range(length))
    for (start, end), (next_start, next_end) in zip(spans, spans[1:], strict=False):
        assert end - start == size and end - next_start == overlap and next_end > end


@st.composite
def moved_lists(draw):
    """A list's length, the size and overlap of its spans, and an offset."""
    size, overlap = draw(SIZES)
    return draw(st.integers(0, 500)), size, overlap, draw(st.integers(0, size - overlap - 1))


@given(moved_lists())
def test_an_offset_moves_the_edges(moved):
    """Spans are those of a list that began `offset` items earlier, without the items that are not there."""
    length, size, overlap, offset = moved
    spans = overlapping_spans(length, size, overlap, offset)
    if length == 0:
        assert spans == []
        return
    longer = overlapping_spans(length + offset, size, overlap)
    assert spans == [(max(0, start - offset), end - offset) for start, end in longer]
    assert sorted({place for start, end in spans for place in range(start, end)}) == list(range(length))
    for (start, end), (next_start, next_end) in zip(spans, spans[1:], strict=False):
        assert start < next_start and end - next_start == overlap and next_end > end
    assert spans[0][1] == min(size - offset, length)
    assert all(end - start == size for start, end in spans[1:-1])


@given(st.integers(0, 500), SIZES, st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=5))
def test_drawn_offsets_keep_the_number_of_spans(length, sizes, draws):
    size, overlap = sizes
    counts = [len(overlapping_spans(length, size, overlap, offset)) for offset in range(size - overlap)]
    offsets = [draw_offset(length, size, overlap, draw) for draw in draws]
    if counts[0] <= 1:
        assert set(offsets) == {0}
        return
    same = [offset for offset, count in enumerate(counts) if count == counts[0]]
    more = [offset for offset, count in enumerate(counts) if count == counts[0] + 1]
    assert len(same) + len(more) == len(counts)
    larger = same if len(same) >= len(more) else more
    # Every offset of the larger set has the same share of the draws.
    assert [draw_offset(length, size, overlap, (i + 0.5) / len(larger)) for i in range(len(larger))] == larger
    assert set(offsets) <= set(larger)


def test_bad_offsets():
    with pytest.raises(ValueError, match="begin every 5 items, so an offset must be from 0 to 4, got 5"):
        overlapping_spans(12, 7, 2, 5)
    with pytest.raises(ValueError, match="got -1"):
        overlapping_spans(0, 7, 2, -1)
    for draw in (1.0, -0.1, math.nan):
        with pytest.raises(ValueError, match="a draw must be"):
            draw_offset(12, 7, 2, draw)


@pytest.mark.parametrize(("length", "size", "overlap"), [(5, 0, 0), (5, 3, 3), (5, 3, -1), (-1, 3, 1)])
def test_bad_spans(length, size, overlap):
    with pytest.raises(ValueError, match="overlap|items"):
        overlapping_spans(length, size, overlap)


@pytest.mark.parametrize(
    ("how", "expected"),
    [("max", [1.0, 3.0, 9.0]), ("mean", [1.0, 2.5, 9.0]), ("first", [1.0, 2.0, 9.0]), ("last", [1.0, 3.0, 9.0])],
)
def test_merge(how, expected):
    assert merge_spans([(0, 2), (1, 3)], [[1.0, 2.0], [3.0, 9.0]], how) == expected
    # Padding behind a group's documents is not a score.
    assert merge_spans([(0, 2), (1, 3)], [[1.0, 2.0, 50.0], [3.0, 9.0, 50.0]], how) == expected


@given(st.integers(1, 200), SIZES, st.sampled_from(["max", "mean", "first", "last"]))
def test_merging_equal_scores_gives_them_back(length, sizes, how):
    scores = [float((position * 7919) % 104729) for position in range(length)]
    spans = overlapping_spans(length, *sizes)
    assert merge_spans(spans, [scores[start:end] for start, end in spans], how) == scores


def test_bad_merges():
    with pytest.raises(ValueError, match="not 'min'"):
        merge_spans([(0, 1)], [[1.0]], "min")
    with pytest.raises(ValueError, match="2 spans, but scores for 1"):
        merge_spans([(0, 1), (1, 2)], [[1.0]])
    with pytest.raises(ValueError, match="only 1 scores"):
        merge_spans([(0, 2)], [[1.0]])
    assert merge_spans([], []) == []


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


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=30))
def test_standard_scores_have_mean_0_and_deviation_1_and_keep_the_order(scores):
    standard = standardize(scores)
    assert abs(math.fsum(standard)) < 1e-6 * len(scores)
    square = math.fsum(score**2 for score in standard) / len(scores)
    assert standard == [0.0] * len(scores) or math.isclose(square, 1, rel_tol=1e-6)
    order = sorted(range(len(scores)), key=lambda i: scores[i])
    assert all(standard[a] <= standard[b] for a, b in zip(order, order[1:], strict=False))


def test_standard_scores_by_hand():
    assert standardize([]) == [] and standardize([7.0]) == [0.0] and standardize([0.1] * 3) == [0.0] * 3
    assert standardize([1.0, 2.0, 3.0]) == pytest.approx([-math.sqrt(1.5), 0.0, math.sqrt(1.5)])
    assert standardize([10.0, 20.0, 30.0]) == pytest.approx(standardize([-3.0, -2.0, -1.0]))
    with pytest.raises(ValueError, match="position 1 is inf"):
        standardize([0.0, math.inf])
