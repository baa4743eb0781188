"""The order of groups in an epoch, and the way back from groups to whole queries."""

import datasets
import numpy as np
import pytest

from modeling_cobert.ranking.merging import measure_run, merge_groups
from modeling_cobert.training.sampler import GroupSampler

QUERIES = ["a", "b", "a", "c", "c", "b", "a"]
NUMBERS = [1, 0, 0, 0, 1, 1, 2]


def order(kind, epoch=0, seed=42):
    sampler = GroupSampler(QUERIES, NUMBERS, kind, seed)
    sampler.set_epoch(epoch)
    return list(sampler)


@pytest.mark.parametrize("kind", ["shuffled", "initial", "reversed"])
def test_every_group_once_in_an_order_of_seed_and_epoch_alone(kind):
    orders = {tuple(order(kind, epoch)) for epoch in range(20)}
    assert len(orders) > 3
    assert all(sorted(o) == list(range(len(QUERIES))) for o in orders)
    assert order(kind, 3) == order(kind, 3)
    assert [order(kind, e, 42) for e in range(1, 9)] != [order(kind, e, 43) for e in range(8)]


@pytest.mark.parametrize(("kind", "sign"), [("initial", 1), ("reversed", -1)])
def test_a_querys_groups_stay_together_in_first_stage_order(kind, sign):
    firsts = set()
    for epoch in range(20):
        fed = order(kind, epoch)
        queries = [QUERIES[i] for i in fed]
        firsts.add(queries[0])
        for query in "abc":
            places = [i for i, q in enumerate(queries) if q == query]
            assert places == list(range(places[0], places[0] + len(places)))
            numbers = [NUMBERS[fed[i]] for i in places]
            assert numbers == sorted(numbers, reverse=sign < 0)
    assert firsts == {"a", "b", "c"}, "queries are not shuffled"


def test_unknown_order():
    with pytest.raises(ValueError, match="not 'random'"):
        GroupSampler(QUERIES, NUMBERS, "random")


def rows(*groups):
    names = ("query_id", "group", "candidate_ids", "candidate_ranks")
    return datasets.Dataset.from_list([dict(zip(names, group, strict=True)) for group in groups])


@pytest.mark.parametrize(("how", "shared"), [("max", 0.9), ("mean", 0.5), ("first", 0.1), ("last", 0.9)])
def test_merge_groups(how, shared):
    """Groups in any order, with gaps in the ranks (documents that the collection lacks) and padded logits."""
    given = rows(("q", 1, ["c", "d"], [4, 7]), ("p", 0, ["x"], [1]), ("q", 0, ["a", "b", "c"], [1, 2, 4]))
    logits = np.array([[0.9, -1.0, -100.0], [3.0, -100.0, -100.0], [0.5, 2.0, 0.1]])
    assert merge_groups(given, logits, how) == {
        "q": {"b": 2.0, **({"c": shared, "a": 0.5} if shared >= 0.9 else {"a": 0.5, "c": shared}), "d": -1.0},
        "p": {"x": 3.0},
    }


def test_merge_groups_refuses_what_it_cannot_place():
    with pytest.raises(ValueError, match="query 'q', group 0: its candidates are not neighbours"):
        merge_groups(rows(("q", 0, ["a", "c"], [1, 3]), ("q", 1, ["b"], [2])), np.zeros((2, 2)), "max")
    with pytest.raises(ValueError, match="2 groups, but logits for 1"):
        merge_groups(rows(("q", 0, ["a"], [1]), ("q", 1, ["b"], [2])), np.zeros((1, 2)), "max")


def test_measures_are_of_whole_judged_queries():
    """By hand: P@20 is 2/20 and 0; reciprocal rank 1/2 and 0 for the query whose relevant document was not found."""
    run = {"q": {"a": 3.0, "b": 2.0, "c": 1.0}, "r": {"z": 1.0}, "unjudged": {"y": 1.0}}
    qrels = {"q": {"b": 1, "c": 2, "a": 0}, "r": {"w": 1}, "other": {"v": 1}}
    assert measure_run(run, qrels, ["P@20", "RR"]) == {"P@20": pytest.approx(0.05), "RR": pytest.approx(0.25)}
    with pytest.raises(ValueError, match="none of 1 queries has judgments"):
        measure_run({"unjudged": {"y": 1.0}}, qrels, ["P@20"])
