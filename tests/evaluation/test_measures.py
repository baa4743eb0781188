"""Measures: equal to pytrec_eval, also with ties; hostile names and runs."""

import math

import pytest
import pytrec_eval
from hypothesis import given
from hypothesis import strategies as st

from modeling_cobert.evaluation.measures import (
    evaluate_run,
    ideal_run,
    parse_measures,
    per_query_values,
    recall_ceiling,
    unjudged_share,
)

QUERIES = ["1", "q two", "<script>", "é"]
DOCUMENTS = ["a", "b", "B", "10", "9", "ü", "d e", "|"]
# few distinct scores, so that ties are the rule; two of them differ in double precision only
SCORES = st.sampled_from([0.0, 1.0, 1.0 + 1e-12, -2.5, 16777216.0, 16777217.0])
GRADES = st.integers(min_value=-1, max_value=3)


def grid(values, min_documents):
    documents = st.dictionaries(st.sampled_from(DOCUMENTS), values, min_size=min_documents)
    return st.dictionaries(st.sampled_from(QUERIES), documents, min_size=min_documents)


@given(qrels=grid(GRADES, 1), run=grid(SCORES, 0))
def test_equals_pytrec_eval_with_ties(qrels, run):
    names = {"P@2": "P_2", "nDCG@3": "ndcg_cut_3", "AP@1000": "map_cut_1000", "R@5": "recall_5", "RR": "recip_rank"}
    oracle = pytrec_eval.RelevanceEvaluator(qrels, set(names.values())).evaluate(run)
    values = evaluate_run(qrels, run, names).per_query
    for name, trec_name in names.items():
        assert list(values[name]) == list(qrels)
        for query_id in qrels:
            expected = oracle.get(query_id, {}).get(trec_name, 0.0)
            assert values[name][query_id] == pytest.approx(expected, abs=1e-12), (name, query_id)


@given(qrels=grid(GRADES, 1), run=grid(SCORES, 0))
def test_programs_that_break_ties_differently_see_one_order(qrels, run):
    """RR@10 and Judged come from other programs than RR and P; over all documents, RR@10 is RR."""
    rr, rr_at_10 = per_query_values(qrels, run, parse_measures("RR RR@10")).values()
    assert rr == rr_at_10
    judged = evaluate_run(qrels, run, ["Judged@2"]).per_query["Judged@2"]
    shown = {query_id: min(2, len(run.get(query_id, {}))) for query_id in qrels}
    missing = sum(shown[query_id] * (1 - judged[query_id]) for query_id in qrels)
    expected = missing / sum(shown.values()) if sum(shown.values()) else 0.0
    assert unjudged_share(qrels, run, depth=2) == pytest.approx(expected)


def test_hand_computed_values_and_missing_queries_count_as_zero():
    qrels = {"q1": {"a": 2, "b": 1, "c": 0}, "q2": {"x": 1}}
    run = {"q1": {"c": 3.0, "a": 2.0, "z": 1.0}, "unknown": {"a": 1.0}}
    result = evaluate_run(qrels, run, ["P@2", "nDCG@20", "AP@1000", "NumRet"])
    ideal = 2 + 1 / math.log2(3)
    assert result.per_query["nDCG@20"] == {"q1": pytest.approx(2 / math.log2(3) / ideal), "q2": 0.0}
    assert result.means["P@2"] == pytest.approx(0.25)  # 1/2 and nothing
    assert result.means["AP@1000"] == pytest.approx((1 / 2) / 2 / 2)  # one of two relevant ones, at rank 2
    assert result.means["NumRet"] == 3  # a count is summed
    assert result.missing == ["q2"] and result.unjudged == ["unknown"] and result.queries == 2
    assert result.unjudged_share == pytest.approx(1 / 3)
    assert recall_ceiling(qrels, run, depth=2) == pytest.approx(0.25)
    assert recall_ceiling(qrels, run, depth=1) == 0.0


def test_a_query_with_an_empty_result_list_is_a_query_without_results():
    qrels = {"q1": {"a": 1}, "q2": {"a": 1}}
    result = evaluate_run(qrels, {"q1": {}, "q2": {"a": 1.0}}, ["P@1", "Judged@20", "ERR@20"])
    assert result.missing == ["q1"]
    assert result.means == {"P@1": 0.5, "Judged@20": 0.5, "ERR@20": pytest.approx(1 / 16 / 2)}


@given(qrels=grid(GRADES, 1), run=grid(SCORES, 0), depth=st.integers(1, 8))
def test_no_order_of_the_top_beats_the_ideal_one(qrels, run, depth):
    measures = ["nDCG@2", "P@2", "AP@1000"]
    top = {
        query_id: {doc_id: run[query_id][doc_id] for doc_id in ideal}
        for query_id, ideal in ideal_run(qrels, run, depth).items()
    }
    best = evaluate_run(qrels, ideal_run(qrels, run, depth), measures).means
    for name, value in evaluate_run(qrels, top, measures).means.items():
        assert value <= best[name] + 1e-12
    assert recall_ceiling(qrels, top, 1000) == pytest.approx(recall_ceiling(qrels, run, depth))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ndgc@20", "did you mean nDCG@20"),
        ("map@1000", "did you mean MAP@1000"),
        ("foobar", "ir_measures has"),
        ("P", "parameter is missing"),
        ("P@0", "at least 1"),
        ("P(cutoff=0)", "at least 1"),
        ("nDCG@True", "at least 1"),
        ("P(rel=0)@5", "at least 1"),
        ("P@x", "cannot read"),
        ("P(foo=1)@3", "unsupported params"),
        ("Bpref@3", "cutoff"),
        ("__import__('os')", "cannot read"),
        ("alpha_nDCG@20", "none of the installed packages"),
    ],
)
def test_a_bad_name_is_an_error_that_helps(name, message):
    with pytest.raises(ValueError, match=message):
        parse_measures([name])


def test_names():
    assert [str(measure) for measure in parse_measures()] == ["P@20", "nDCG@20", "AP@1000"]
    assert [str(measure) for measure in parse_measures("MAP@1000 AP@1000  RR")] == ["AP@1000", "RR"]
    with pytest.raises(ValueError, match="no measure"):
        parse_measures("")


def test_bad_input():
    with pytest.raises(ValueError, match="qrels are empty"):
        evaluate_run({}, {"q": {"d": 1.0}})
    with pytest.raises(ValueError, match="no judged document"):
        evaluate_run({"q": {}}, {})
    with pytest.raises(ValueError, match="finite"):
        evaluate_run({"q": {"d": 1}}, {"q": {"d": float("nan")}})
