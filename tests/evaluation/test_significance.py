"""Paired tests against scipy's own, by hand, and at their edges."""

import itertools
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from modeling_cobert.evaluation.measures import Evaluation, evaluate_run
from modeling_cobert.evaluation.significance import (
    compare_runs,
    format_p,
    holm,
    marks,
    paired_t_test,
    randomisation_test,
    symbol,
)

VALUES = st.lists(st.sampled_from([-0.5, -0.25, -0.1, 0.0, 0.1, 0.25, 0.5, 1.0]), min_size=2, max_size=9)


@given(st.lists(st.sampled_from([-0.5, -0.25, -0.1, 0.0, 0.1, 0.25, 0.5, 1.0]), min_size=2, max_size=12))
def test_exact_randomisation_is_the_count_over_all_sign_patterns(differences):
    patterns = np.array(list(itertools.product([1, -1], repeat=len(differences))))
    as_far = np.abs(patterns @ differences) >= abs(sum(differences)) - 1e-9
    assert randomisation_test(differences) == pytest.approx(as_far.mean())


def exact_p(units: list[int]) -> float:
    """The exact p-value of differences that are whole numbers, by the distribution of their sum with random signs."""
    chances = np.ones(1)  # of the sums -total, ..., total
    for unit in units:
        step = np.zeros(2 * abs(unit) + 1)
        step[0] += 0.5
        step[-1] += 0.5
        chances = np.convolve(chances, step)
    total = len(chances) // 2
    return chances[np.abs(np.arange(-total, total + 1)) >= abs(sum(units))].sum()


@pytest.mark.parametrize("queries", [13, 80, 250])
def test_sampled_randomisation_is_near_the_exact_value(queries):
    units = np.random.default_rng(queries).integers(-9, 10, queries)
    exact, samples = exact_p([int(unit) for unit in units]), 5000
    sampled = randomisation_test(units / 20, samples=samples)
    assert sampled == pytest.approx(exact, abs=5 * (exact * (1 - exact) / samples) ** 0.5 + 1 / samples)
    assert sampled == randomisation_test(units / 20, samples=samples)
    assert sampled != randomisation_test(units / 20, samples=samples, seed=1)
    assert randomisation_test([0.5, *[0.0] * queries]) == 1.0  # one query that changed says nothing


def test_sampled_randomisation_never_gives_zero():
    assert randomisation_test([1.0] * 40, samples=999) == 1 / 1000


@given(VALUES)
def test_t_test_is_scipys_one_sample_test_and_symmetric(differences):
    p_value = paired_t_test(differences)
    assert p_value == paired_t_test([-d for d in differences])
    assert 0 <= p_value <= 1
    if len(set(differences)) > 1:
        assert p_value == pytest.approx(stats.ttest_1samp(differences, 0).pvalue)


def test_edges_without_a_warning_or_a_nan():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert paired_t_test([0.0] * 7) == 1.0 == randomisation_test([0.0] * 7)
        assert paired_t_test([1e-17, -1e-17]) == 1.0  # rounding noise is no effect
        assert paired_t_test([0.1, 0.1, 0.1 + 1e-17]) == 0.0
        assert randomisation_test([0.1, 0.1, 0.1]) == 0.25
        assert paired_t_test([0.3]) is None and randomisation_test([0.3]) is None
        assert paired_t_test([]) is None
    with pytest.raises(ValueError, match="not finite"):
        paired_t_test([0.1, float("nan")])


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, None, 0.9]) == [1.0, None, 1.0]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holm_keeps_the_order_and_lies_between_raw_and_bonferroni(p_values):
    adjusted = holm(p_values)
    for raw, value in zip(p_values, adjusted, strict=True):
        assert raw <= value <= min(1.0, len(p_values) * raw) + 1e-12
    by_raw = [value for _, value in sorted(zip(p_values, adjusted, strict=True))]
    assert by_raw == sorted(adjusted)


def evaluation(values: dict[str, float]) -> Evaluation:
    mean = sum(values.values()) / len(values)
    return Evaluation({"P@20": mean}, {"P@20": values}, len(values), [], [], 0.0)


def test_comparison_by_hand():
    base = evaluation({"a": 0.5, "b": 0.5, "c": 0.5, "d": 0.5})
    ours = evaluation({"a": 0.75, "b": 0.25, "c": 1.0, "d": 0.5})
    (result,) = compare_runs({"base": base, "ours": ours}, ["base"])
    assert (result.helped, result.hurt, result.unchanged) == (2, 1, 1)
    assert result.relative_change == pytest.approx(0.25)
    assert result.gains == {"a": 0.25, "b": -0.25, "c": 0.5, "d": 0.0}
    assert result.p_t_test == pytest.approx(stats.ttest_rel([0.75, 0.25, 1.0, 0.5], [0.5] * 4).pvalue)
    # of the 8 sign patterns of (.25, .25, .5), sums of at least .5 either way: all but .25+.25-.5 and its mirror
    assert result.p_randomisation == pytest.approx(6 / 8)
    assert not result.significant and result.better
    assert "cannot go below p = 0.25" in result.note


def test_identical_runs_one_query_and_a_zero_baseline():
    same = evaluation({"a": 0.5, "b": 0.25})
    (result,) = compare_runs({"x": same, "y": same}, ["x"])
    assert result.p_t_test == result.p_randomisation == result.p_value == 1.0
    assert not result.significant and "no query changed" in result.note
    (result,) = compare_runs({"x": evaluation({"a": 0.0}), "y": evaluation({"a": 1.0})}, ["x"], correction="holm")
    assert result.p_value is None and result.relative_change is None and not result.significant
    assert "one query" in result.note


def test_several_baselines_daggers_and_correction():
    generator = np.random.default_rng(0)
    queries = [f"q{i}" for i in range(30)]
    level = {"low": 0.2, "middle": 0.4, "high": 0.6}
    results = {
        name: evaluation({q: value + generator.normal(0, 0.02) for q in queries}) for name, value in level.items()
    }
    plain = compare_runs(results, ["low", "middle"])
    assert [(c.run, c.baseline) for c in plain] == [("middle", "low"), ("high", "low"), ("high", "middle")]
    assert marks(plain, ["low", "middle"], "high", "P@20") == ("†‡", "")
    worse = compare_runs(results, ["high", "middle"])
    assert marks(worse, ["high", "middle"], "low", "P@20") == ("", "↓†↓‡")
    corrected = compare_runs(results, ["low", "middle"], correction="holm")
    assert [c.p_value for c in corrected] == holm([c.p_t_test for c in plain])
    by_chance = compare_runs(results, ["low"], test="randomisation", samples=1000)
    assert all(c.p_value == c.p_randomisation for c in by_chance)


def test_bad_questions():
    one, other = evaluation({"a": 1.0}), evaluation({"b": 1.0})
    for arguments, message in [
        (({"x": one}, ["z"]), "baselines must be among"),
        (({"x": one}, []), "baselines must be among"),
        (({"x": one, "y": other}, ["x"]), "different queries"),
    ]:
        with pytest.raises(ValueError, match=message):
            compare_runs(*arguments)
    with pytest.raises(ValueError, match="correction"):
        compare_runs({"x": one}, ["x"], correction="bonferroni")
    with pytest.raises(ValueError, match="alpha"):
        compare_runs({"x": one}, ["x"], alpha=5)


def test_symbols_and_p_values_for_people():
    assert [symbol(i) for i in (0, 1, 4, 5, 30, 31)] == ["†", "‡", "‖", "(a)", "(z)", "(aa)"]
    assert [format_p(p) for p in (None, 0.0, 0.00011, 1.0)] == ["-", "<.0001", "0.0001", "1.0000"]


def test_real_runs_end_to_end():
    qrels = {f"q{i}": {"good": 1, "bad": 0} for i in range(6)}
    good = {q: {"good": 2.0, "bad": 1.0} for q in qrels}
    bad = {q: {"good": 1.0, "bad": 2.0} for q in qrels}
    results = {name: evaluate_run(qrels, run, ["RR", "P@1"]) for name, run in {"bad": bad, "good": good}.items()}
    for comparison in compare_runs(results, ["bad"], test="randomisation"):
        assert comparison.p_value == pytest.approx(2 / 2**6) and comparison.significant
        assert comparison.helped == 6
