"""The `evaluate` metric, loaded by its path: its own example, adding row by row, hostile rows."""

import doctest
from pathlib import Path

import evaluate
import pytest

from modeling_cobert.evaluation.measures import evaluate_run

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def ranking(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)  # the documented path is relative
    return evaluate.load("metrics/cobert_ranking", cache_dir=str(tmp_path))


def test_the_documented_example_runs(ranking):
    examples = doctest.DocTestParser().get_doctest(ranking.inputs_description, {}, "metric", None, 0)
    assert len(examples.examples) == 5
    assert doctest.DocTestRunner().run(examples).failed == 0


def rows(qrels, run):
    for query_id, grades in qrels.items():
        scores = run.get(query_id, {})
        yield (
            {"query_id": query_id, "doc_ids": list(scores), "scores": list(scores.values())},
            {"query_id": query_id, "doc_ids": list(grades), "grades": list(grades.values())},
        )


def test_row_by_row_and_in_batches_equal_the_run_as_a_whole(ranking):
    qrels = {"q1": {"a": 2, "b": 0, "é": 1}, "2": {"a": 1}, "<q>": {"c": -1, "d": 3}}
    run = {"q1": {"b": 1.0, "a": 1.0, "é": 0.5}, "<q>": {"d": -2.0, "c": -1.0}}
    expected = evaluate_run(qrels, run)
    for prediction, reference in rows(qrels, run):
        ranking.add(prediction=prediction, reference=reference)
    assert ranking.compute() == expected.means
    predictions, references = zip(*rows(qrels, run), strict=True)
    # rows belong together by their query, not by their place
    ranking.add_batch(predictions=list(predictions[::-1]), references=list(references))
    assert ranking.compute(per_query=True) == expected.means | {"per_query": expected.per_query}


@pytest.mark.parametrize(
    ("doc_ids", "scores", "message"),
    [(["a", "a"], [1.0, 2.0], "same document twice"), (["a"], [1.0, 2.0], "1 doc_ids but 2 scores")],
)
def test_bad_rows(ranking, doc_ids, scores, message):
    predictions = [{"query_id": "q", "doc_ids": doc_ids, "scores": scores}]
    references = [{"query_id": "q", "doc_ids": ["a"], "grades": [1]}]
    with pytest.raises(ValueError, match=message):
        ranking.compute(predictions=predictions, references=references)


@pytest.mark.parametrize("grade", [0.5, -1.25, float("nan"), float("inf"), None])
def test_grades_are_whole_numbers(ranking, grade):
    prediction = {"query_id": "q", "doc_ids": ["a", "b"], "scores": [1.0, 0.5]}
    reference = {"query_id": "q", "doc_ids": ["b", "a"], "grades": [1, grade]}
    with pytest.raises(ValueError, match=f"query 'q', document 'a' has the grade {grade}: grades are whole numbers"):
        ranking.compute(predictions=[prediction], references=[reference])
    reference["grades"] = [1, 10**12]  # trec_eval would count them in a list of that length
    with pytest.raises(ValueError, match="grades are whole numbers of at most 10000"):
        ranking.compute(predictions=[prediction], references=[reference])
    reference["grades"] = [0, 2.0]
    assert ranking.compute(predictions=[prediction], references=[reference], measures=["nDCG@20"]) == {"nDCG@20": 1.0}


def test_two_rows_of_one_query(ranking):
    prediction = {"query_id": "q", "doc_ids": ["a"], "scores": [1.0]}
    reference = {"query_id": "q", "doc_ids": ["a"], "grades": [1]}
    with pytest.raises(ValueError, match="two rows"):
        ranking.compute(predictions=[prediction] * 2, references=[reference] * 2)
