"""Stability: a model that is indifferent to order shows it, one that is not shows that, and hand-computed changes."""

import json
from dataclasses import replace

import pytest
import tiny
import tiny_collection
import torch
from test_explanation import DOCUMENTS, make, started

from modeling_cobert.analysis.stability import (
    Condition,
    StabilityOptions,
    compare_scores,
    conditions,
    membership_blocks,
    query_stability,
    rescore,
    shuffled,
    stability,
    stability_table,
)
from modeling_cobert.collections.collection import open_collection
from modeling_cobert.evaluation.measures import evaluate_run
from modeling_cobert.evaluation.tables import to_terminal
from modeling_cobert.grouping_cobert import overlapping_spans
from modeling_cobert.ranking.inputs import collection_inputs
from modeling_cobert.ranking.ranker import Ranker, rerank_queries


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return tiny.tokenizer(tmp_path_factory.mktemp("tokenizer"))


SHUFFLES = [Condition(kind, seed) for kind in ("order", "order within groups") for seed in range(4)]


def test_one_group_without_positions_does_not_care_for_order(tokenizer):
    ranker, encoded = make(tokenizer, "full", count=tiny.N)
    for values in query_stability(ranker, encoded, SHUFFLES).values():
        assert values["worst_rank_change"] == 0 and values["kendall_tau"] == 1 and values["kept_at_20"] == 1
        assert values["worst_score_change"] < 1e-5
    ranker, encoded = make(tokenizer, "release", count=tiny.N)
    found = query_stability(ranker, encoded, SHUFFLES).values()
    assert all(values["worst_score_change"] > 1e-3 for values in found)
    assert max(values["worst_rank_change"] for values in found) > 0
    assert min(values["kendall_tau"] for values in found) < 1


def test_nor_does_one_that_starts_from_known_scores_and_content(tokenizer):
    ranker, encoded = started(tokenizer)
    one_group = replace(encoded, grouping=replace(encoded.grouping, group_size=DOCUMENTS))
    for name, values in query_stability(ranker, one_group, [*SHUFFLES, Condition("candidates", 5)]).items():
        assert (values["worst_score_change"] < 1e-5) == name.startswith("order"), name


def test_several_groups_care_who_meets_whom_but_not_where(tokenizer):
    ranker, encoded = make(tokenizer, "full", count=17)
    found = query_stability(ranker, encoded, [*SHUFFLES, Condition("edges", 2), Condition("candidates", 9)])
    for name, values in found.items():
        if name.startswith("order within groups"):
            assert values["worst_score_change"] < 1e-5 and values["worst_rank_change"] == 0
        else:
            assert values["worst_score_change"] > 1e-4
    # Without a scorer nothing but the prototypes is shared.
    ranker, encoded = make(tokenizer, "calibrator", count=17)
    for values in query_stability(ranker, encoded, [*SHUFFLES, Condition("edges", 2)]).values():
        assert values["worst_score_change"] < 1e-5


@torch.no_grad()
@pytest.mark.parametrize("variant", ["full", "release"])
def test_rescoring_by_hand(variant, tokenizer):
    ranker, encoded = make(tokenizer, variant, count=12)
    model = ranker.model

    def by_hand(places, spans, prototypes):
        scores = {}
        for start, end in spans:
            group = encoded.vectors[places[start:end]].unsqueeze(0)
            group, _ = model.calibrate(encoded.vectors[prototypes].unsqueeze(0), group)
            for place, score in zip(places[start:end], model.score(group)[0].tolist(), strict=True):
                scores[place] = max(score, scores.get(place, score))
        return [scores[place] for place in places]

    order, scores = rescore(ranker, encoded, Condition("order", 1))
    assert sorted(order) == list(range(12)) != order
    assert scores == pytest.approx(by_hand(order, encoded.groups, encoded.prototypes), abs=1e-5)
    order, scores = rescore(ranker, encoded, Condition("edges", 3))
    assert order == list(range(12))
    assert scores == pytest.approx(by_hand(order, [(0, 4), (2, 9), (7, 12)], encoded.prototypes), abs=1e-5)
    # Moved by three from where they are: 4 + 3 is 2 again, where groups begin every 5.
    moved = replace(encoded, grouping=replace(encoded.grouping, first_edge=4))
    assert moved.groups == [(0, 3), (1, 8), (6, 12)]
    _, scores = rescore(ranker, moved, Condition("edges", 3))
    assert scores == pytest.approx(by_hand(order, [(0, 5), (3, 10), (8, 12)], encoded.prototypes), abs=1e-5)
    k = 1 + max(encoded.prototypes[:-1])  # leaves out at least what comes after them
    best = sorted(range(k), key=lambda place: -encoded.selector_scores[place])[: tiny.M]
    order, scores = rescore(ranker, encoded, Condition("candidates", k))
    assert order == list(range(k))
    assert scores == pytest.approx(by_hand(order, overlapping_spans(k, 7, 2), best), abs=1e-5)


def test_prototypes_that_are_the_first_documents_change_with_the_order(tokenizer):
    ranker, encoded = make(tokenizer, "calibrator", count=12)
    first = replace(encoded.grouping, prototypes="first-stage")
    by_order = replace(encoded, grouping=first, prototypes=[0, 1, 2])
    (values,) = query_stability(ranker, by_order, [Condition("order", 0)]).values()
    assert values["worst_score_change"] > 1e-3


def test_changes_by_hand():
    # As it is: 0 > 1 > 2 > 3. Changed: 3 comes first, so that 0, 1 and 2 fall by one and 3 rises by three.
    values = compare_scores([4.0, 3.0, 2.0, 1.0], [2, 3, 0, 1], [2.0, 9.0, 4.0, 3.5])
    assert values["mean_rank_change"] == (1 + 1 + 1 + 3) / 4
    assert (values["worst_rank_change"], values["worst_place"]) == (3, 3)
    assert values["kendall_tau"] == pytest.approx((3 - 3) / 6)
    assert (values["mean_score_change"], values["worst_score_change"]) == ((0 + 8 + 0 + 0.5) / 4, 8.0)
    # Only what both hold is compared: of 0 and 2, neither moves.
    values = compare_scores([4.0, 5.0, 2.0], [0, 2], [1.0, 0.5])
    assert values["worst_rank_change"] == 0 and values["kendall_tau"] == 1
    assert compare_scores([1.0], [0], [3.0])["kendall_tau"] == 1
    # Of the top 20 of 40, ten are exchanged for the last ten.
    reference = [float(-i) for i in range(40)]
    changed = [100.0 if 30 <= i else -float(i) for i in range(40)]
    assert compare_scores(reference, list(range(40)), changed)["kept_at_20"] == 0.5


def test_lists_are_changed_as_the_names_say():
    assert membership_blocks([(0, 7), (5, 12)]) == [(0, 5), (5, 7), (7, 12)]
    order = shuffled(12, 5, [(0, 5), (5, 7), (7, 12)])
    assert sorted(order[:5]) == list(range(5)) and sorted(order[5:7]) == [5, 6] and order != list(range(12))
    assert shuffled(12, 5, [(0, 12)]) == shuffled(12, 5, [(0, 12)]) != shuffled(12, 6, [(0, 12)])
    names = [str(c) for c in conditions(StabilityOptions(seeds=1), step=56, longest=1000)]
    assert names == [
        "order 0", "order within groups 0", "edges 14", "edges 28", "edges 42", "candidates 500", "candidates 250"
    ]  # fmt: skip
    assert [str(c) for c in conditions(StabilityOptions(seeds=0), step=1, longest=1)] == []
    with pytest.raises(ValueError, match="groups begin every 5 documents, so an offset of 5 is no other cut"):
        conditions(StabilityOptions(offsets=[5]), step=5, longest=10)
    with pytest.raises(ValueError, match="must be at least 1"):
        StabilityOptions(ks=[0])


def test_a_whole_query_set(tokenizer, tmp_path, monkeypatch):
    folder = tiny_collection.make(tmp_path / "words")
    model = tiny.model()
    model.tokenizer = tokenizer
    ranker = Ranker.wrap(model)
    inputs = collection_inputs(open_collection(folder), folder / "run.trec", progress=False)
    rows, encode = [], model.encode
    monkeypatch.setattr(
        model, "encode", lambda **batch: rows.extend(map(tuple, batch["input_ids"].tolist())) or encode(**batch)
    )
    options = StabilityOptions(seeds=2, offsets=[2], ks=[10, 99], measures=["nDCG@20", "P@5"])
    report = stability(ranker, inputs, tmp_path / "out", options, progress=False)
    # Encoded once, scored many times.
    assert len(rows) <= sum(len(scores) for scores in inputs.run.values())
    assert json.loads(json.dumps(report)) == json.loads(json.dumps(report))
    summary = {row["change"]: row for row in report["conditions"]}
    assert list(summary) == ["order", "order within groups", "edges 2", "candidates 10", "candidates 99"]
    # All candidates are no change at all, and the measure is that of the ranking itself.
    same = summary["candidates 99"]
    assert same["worst_rank_change"] == same["worst_score_change"] == 0
    judged = {query_id: inputs.qrels[query_id] for query_id in inputs.queries}
    run = rerank_queries(ranker, inputs, tmp_path / "run", progress=False)
    means = evaluate_run(judged, run, ["nDCG@20", "P@5"]).means
    for measure, value in means.items():
        assert same["measures"][measure]["as_it_is"] == pytest.approx(value)
        assert same["measures"][measure]["mean"] == pytest.approx(value)
        assert summary["order"]["measures"][measure]["as_it_is"] == pytest.approx(value)
    assert summary["order"]["worst_rank_change"] == max(
        values[f"order {seed}"]["worst_rank_change"] for values in report["per_query"].values() for seed in (0, 1)
    )
    row = summary["order"]["measures"]["nDCG@20"]
    assert row["lowest"] <= row["mean"] <= row["highest"]
    table = to_terminal(stability_table(report))
    assert "order, 2 shuffles" in table and "nDCG@20 as it is" in table
    again = stability(ranker, inputs, tmp_path / "out", options, progress=False)
    assert again == report
    with pytest.raises(ValueError, match="begun with other settings: conditions is"):
        stability(ranker, inputs, tmp_path / "out", StabilityOptions(seeds=1), progress=False)
