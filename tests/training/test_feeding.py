"""The order of groups in an epoch, and measures of whole queries."""

import pytest

from modeling_cobert.evaluation.measures import measure_run
from modeling_cobert.training.sampler import GroupSampler

QUERIES = ["a", "a", "a", "b", "b", "c", "c"]
NUMBERS = [0, 1, 2, 0, 1, 0, 1]


class Groups:
    """What of a [`GroupView`] the sampler looks at."""

    group_queries = QUERIES
    epoch = None

    def __len__(self):
        return len(QUERIES)

    def set_epoch(self, epoch):
        self.epoch = epoch


def order(kind, epoch=0, seed=42):
    groups = Groups()
    sampler = GroupSampler(groups, kind, seed)
    sampler.set_epoch(epoch)
    assert groups.epoch == epoch and len(sampler) == len(QUERIES)
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
        GroupSampler(Groups(), "random")


def test_measures_are_of_whole_judged_queries():
    """By hand: P@20 is 2/20 and 0; reciprocal rank 1/2 and 0 for the query whose relevant document was not found."""
    run = {"q": {"a": 3.0, "b": 2.0, "c": 1.0}, "r": {"z": 1.0}, "unjudged": {"y": 1.0}}
    qrels = {"q": {"b": 1, "c": 2, "a": 0}, "r": {"w": 1}, "other": {"v": 1}}
    assert measure_run(qrels, run, ["P@20", "RR"]) == {"P@20": pytest.approx(0.05), "RR": pytest.approx(0.25)}
    with pytest.raises(ValueError, match="none of 1 queries has judgments"):
        measure_run(qrels, {"unjudged": {"y": 1.0}}, ["P@20"])
