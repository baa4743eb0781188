"""Groups as a view of rows: by hand, with every kind of prototypes, and with edges that move from epoch to epoch."""

import math
import random

import datasets
import pytest
import torch

from modeling_cobert import CoBertConfig
from modeling_cobert.data import groups as groups_module
from modeling_cobert.data.groups import Grouping, GroupOptions, GroupView, make_group
from modeling_cobert.words_cobert import word_vectors

ROW = {
    "query_id": "q",
    "query": "red",
    "doc_ids": ["a", "b", "c", "d", "e"],
    "passages": ["A", "B", "C", "D", "E"],
    "ranks": [1, 2, 3, 4, 5],
    "first_stage_scores": [9.0, 8.0, 7.0, 6.0, 5.0],
    "selector_scores": [0.5, 2.5, 0.5, 2.5, 4.0],
    "grades": [0, 2, 0, 0, -1],
}
LENGTHS = [1, 4, 5, 9, 17, 30, 31, 32, 33, 60]


def options(**changes):
    return Grouping(**{"num_prototypes": 3, "group_size": 3, "group_overlap": 1, **changes})


def make_rows(lengths=LENGTHS, seed=2):
    """Queries with so many documents each; a passage says which document of which query it is."""
    generator = random.Random(seed)
    return datasets.Dataset.from_list(
        [
            {
                "query_id": f"q{number}",
                "query": f"query {number}",
                "doc_ids": [f"q{number}-d{i}" for i in range(length)],
                "passages": [f"{number}/{i}" for i in range(length)],
                "ranks": list(range(1, length + 1)),
                "first_stage_scores": [float(-i) for i in range(length)],
                "selector_scores": [float(generator.randrange(5)) for _ in range(length)],
                "grades": [generator.randrange(3) for _ in range(length)],
            }
            for number, length in enumerate(lengths)
        ]
    )


def test_groups_by_hand():
    view = GroupView(datasets.Dataset.from_list([ROW]), options())
    common = {"query_id": "q", "query": "red", "prototype_passages": ["E", "B", "D"]}  # ties in first-stage order
    assert list(view) == [
        {"group": 0, **common, "passages": ["A", "B", "C"], "grades": [0, 2, 0]},
        {"group": 1, **common, "passages": ["C", "D", "E"], "grades": [0, 0, -1]},
    ]
    assert len(view) == 2 and view.group_queries == ["q", "q"]


@pytest.mark.parametrize(
    ("changes", "prototypes"),
    [
        ({}, ["E", "B", "D"]),
        ({"num_prototypes": 2, "prototypes": "first-stage"}, ["A", "B"]),
        ({"prototypes": "none"}, []),
        ({"num_prototypes": 0}, []),
        ({"num_prototypes": 9}, ["E", "B", "D", "A", "C"]),
        ({"num_prototypes": 9, "prototypes": "first-stage"}, ["A", "B", "C", "D", "E"]),
    ],
)
def test_prototypes(changes, prototypes):
    group = make_group(ROW, (1, 4), options(**changes), {"passages": ROW["passages"]})
    assert group == {
        "query_id": "q",
        "query": "red",
        "prototype_passages": prototypes,
        "passages": ["B", "C", "D"],
        "grades": [2, 0, 0],
    }


def test_the_first_edge_moves_all_edges():
    rows = make_rows([12])
    cut = options(group_size=7, group_overlap=2, first_edge=3)
    groups = list(GroupView(rows, cut))
    assert [group["passages"] for group in groups] == [
        [f"0/{i}" for i in places] for places in (range(4), range(2, 9), range(7, 12))
    ]
    assert [group["grades"] for group in groups] == [rows[0]["grades"][a:b] for a, b in ((0, 4), (2, 9), (7, 12))]
    assert len({tuple(group["prototype_passages"]) for group in groups}) == 1
    with pytest.raises(ValueError, match="an offset must be from 0 to 4, got 5"):
        options(group_size=7, group_overlap=2, first_edge=5)


def test_a_view_of_many_rows_is_its_rows_cut_one_by_one():
    rows, cut = make_rows(), options(group_size=8, group_overlap=2)
    view = GroupView(rows, cut)
    expected = []
    for row in rows:
        start, number = 0, 0
        best = sorted(range(len(row["passages"])), key=lambda i: (-row["selector_scores"][i], i))[:3]  # noqa: B023
        while True:
            expected.append(
                {
                    "group": number,
                    "query_id": row["query_id"],
                    "query": row["query"],
                    "grades": row["grades"][start : start + 8],
                    "prototype_passages": [row["passages"][i] for i in best],
                    "passages": row["passages"][start : start + 8],
                }
            )
            if start + 8 >= len(row["passages"]):
                break
            start, number = start + 6, number + 1
    assert list(view) == expected
    assert view.group_queries == [group["query_id"] for group in expected]


def spans(view, epoch):
    view.set_epoch(epoch)
    return list(view.groups)


def test_random_edges_differ_between_epochs_but_never_their_number():
    view = GroupView(make_rows(), options(group_size=8, group_overlap=2), random_edges=5)
    count, queries, drawn = len(view), view.group_queries, set()
    for epoch in range(40):
        groups = spans(view, epoch)
        assert len(groups) == len(view) == count
        assert view.group_queries == queries
        drawn.add(tuple(groups))
        for row, length in enumerate(LENGTHS):
            own = [(number, start, end) for r, number, start, end in groups if r == row]
            assert [number for number, *_ in own] == list(range(len(own)))
            assert {i for _, start, end in own for i in range(start, end)} == set(range(length))
            assert all(0 < end - start <= 8 for _, start, end in own)
            assert all(previous[2] - following[1] == 2 for previous, following in zip(own, own[1:], strict=False))
    assert len(drawn) == 40
    # In one epoch, queries of equally many documents have their edges at different places.
    view = GroupView(make_rows([33] * 12), options(group_size=8, group_overlap=2), random_edges=5)
    assert len({tuple(g[1:] for g in view.groups if g[0] == row) for row in range(12)}) > 1


def test_random_edges_are_a_function_of_seed_and_epoch_alone():
    rows, cut = make_rows(), options(group_size=8, group_overlap=2)
    view = GroupView(rows, cut, random_edges=5)
    forward = [spans(view, epoch) for epoch in range(6)]
    torch.manual_seed(1)
    random.seed(1)
    state = torch.get_rng_state()
    other = GroupView(rows, cut, random_edges=5)
    assert other.groups == forward[0]  # as it was made
    assert [spans(other, epoch) for epoch in reversed(range(6))] == forward[::-1]
    assert torch.equal(torch.get_rng_state(), state)
    assert spans(GroupView(rows, cut, random_edges=6), 3) != forward[3]
    fixed = GroupView(rows, cut)
    assert spans(fixed, 0) == spans(fixed, 3)


def test_vectors_stand_for_passages():
    vectors = {"q": torch.arange(10.0).view(5, 2)}
    view = GroupView(datasets.Dataset.from_list([ROW]), options(), vectors=vectors.__getitem__)
    first, second = view
    assert "passages" not in first and "prototype_passages" not in first and first["query_id"] == "q"
    assert first["prototype_vectors"].tolist() == [[8.0, 9.0], [2.0, 3.0], [6.0, 7.0]]
    assert first["vectors"].tolist() == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]
    assert second["vectors"].tolist() == [[4.0, 5.0], [6.0, 7.0], [8.0, 9.0]]
    assert (first["grades"], second["grades"]) == ([0, 2, 0], [0, 0, -1])
    none = GroupView(datasets.Dataset.from_list([ROW]), options(prototypes="none"), vectors=vectors.__getitem__)
    assert none[0]["prototype_vectors"].shape == (0, 2)


@pytest.mark.parametrize("vectors", [None, lambda query_id: torch.zeros(5, 2)])
def test_whole_documents_are_not_read(vectors):
    plain, whole = (datasets.Dataset.from_list([row]) for row in (ROW, ROW | {"texts": list("vwxyz")}))
    views = [GroupView(rows, options(), vectors=vectors) for rows in (plain, whole)]
    assert views[0].rows.column_names == views[1].rows.column_names
    assert list(map(str, views[0])) == list(map(str, views[1]))


def test_words_are_compared_over_the_list_and_once(monkeypatch):
    """Kept or not, a group's part of the list's comparison; what is kept is not made again."""
    texts = ["red sky", "blue sky sea", "red red sea", "", "sea"]
    expected = word_vectors(texts).likeness()
    made = []
    monkeypatch.setattr(groups_module, "list_words", lambda texts: made.append(texts) or word_vectors(texts))
    rows = datasets.Dataset.from_list([ROW | {"texts": texts}])
    for kept, times in ((100, 1), (99, 4)):
        monkeypatch.setattr(groups_module, "KEPT_BYTES", kept)
        made.clear()
        view = GroupView(rows, options(), likeness=True)
        for _ in range(2):
            first, second = (group["likeness"] for group in view)
            torch.testing.assert_close(first, expected[:3, :3])
            torch.testing.assert_close(second, expected[2:, 2:])
        assert len(made) == times


@pytest.mark.parametrize("vectors", [None, lambda query_id: torch.zeros(5, 2)])
def test_a_teachers_scores_lie_beside_the_grades(vectors):
    """By document, wherever the run has it; what the run lacks is no number."""
    teacher = {"q": {"c": 3.5, "e": -1.0, "a": 0.25, "z": 9.0}, "other": {"b": 7.0}}
    view = GroupView(datasets.Dataset.from_list([ROW]), options(), vectors=vectors, teacher=teacher)
    first, second = (group["teacher_scores"] for group in view)
    assert first == pytest.approx([0.25, math.nan, 3.5], nan_ok=True)
    assert second == pytest.approx([3.5, math.nan, -1.0], nan_ok=True)
    untaught = GroupView(datasets.Dataset.from_list([ROW]), options(), vectors=vectors, teacher={"other": {}})
    assert all(math.isnan(score) for group in untaught for score in group["teacher_scores"])


def test_what_is_left_out_is_the_models():
    config = CoBertConfig(num_prototypes=2, group_size=6, group_overlap=1)
    assert GroupOptions().of_model(config) == Grouping(2, 6, 1)
    assert GroupOptions(0, prototypes="none").of_model(config) == Grouping(0, 6, 1, "none")
    assert GroupOptions(group_size=9, first_edge=2).of_model(config) == Grouping(2, 9, 1, first_edge=2)
    # A size that would be too small for some other model's overlap is right for this one's.
    assert GroupOptions(group_size=4).of_model(config) == Grouping(2, 4, 1)
    assert GroupOptions(group_size=3, group_overlap=0, first_edge=2).of_model(config).spans(4) == [(0, 1), (1, 4)]
    for wrong in (GroupOptions(group_size=1), GroupOptions(group_overlap=6), GroupOptions(first_edge=5)):
        with pytest.raises(ValueError, match="spans|--group_overlap"):
            wrong.of_model(config)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"group_overlap": 3}, "got size 3 and overlap 3"),
        ({"group_overlap": -1}, "got size 3 and overlap -1"),
        ({"group_size": 0}, "--group_size must be at least 1, got 0"),
        ({"first_edge": -1}, "an offset must be from 0 to 1"),
        ({"prototypes": "best"}, "--prototypes must be one of selector, first-stage, none, not 'best'"),
        ({"num_prototypes": -1}, "--num_prototypes must be at least 0, got -1"),
    ],
)
def test_wrong_options_are_refused_at_once(wrong, message):
    with pytest.raises(ValueError, match=message):
        options(**wrong)
