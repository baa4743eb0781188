"""Is one run better than another? Paired tests over queries, Holm's correction, and who was helped or hurt."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
from scipy import stats

from .measures import Evaluation

TESTS = ("t-test", "randomisation")
CORRECTIONS = ("none", "holm")
# How many signs the randomisation test holds in memory at once.
BATCH = 250_000
# Measures are ratios of small integers and sums of logarithms: a smaller difference is rounding, not an effect.
UNCHANGED = 1e-9
# As in the paper, a symbol for each baseline; further baselines get letters.
SYMBOLS = "†‡§¶‖"
# Before a symbol: significantly worse.
WORSE = "↓"


def paired_t_test(differences: Sequence[float]) -> float | None:
    """
    The two-tailed p-value of a paired t-test, `None` for fewer than two queries.

    Args:
        differences (`Sequence[float]`): run minus baseline, one value a query. No change at all gives 1, the same
            change everywhere gives 0.
    """
    values = _clean(differences)
    if len(values) < 2:
        return None
    if not values.any():
        return 1.0
    # Where all changes are equal the variance is rounding noise, and scipy warns of it.
    if np.ptp(values) <= UNCHANGED:
        return 0.0
    return float(stats.ttest_rel(values, np.zeros_like(values)).pvalue)


def randomisation_test(differences: Sequence[float], samples: int = 100_000, seed: int = 0) -> float | None:
    """
    The two-tailed p-value of a paired randomisation (sign-flip permutation) test, `None` for fewer than two queries.

    If run and baseline were interchangeable, each query's difference could as well have the other sign: p is the share
    of sign patterns whose sum is at least as far from zero as the one seen. Where there are no more than `samples`
    patterns, all are tried; else as many random ones, and the pattern seen counts as one of them, so p is never 0.

    Args:
        differences (`Sequence[float]`): run minus baseline, one value a query.
        samples (`int`, *optional*, defaults to 100000): how many patterns are tried at the most.
        seed (`int`, *optional*, defaults to 0): of the random patterns.

    Example:

    ```python
    >>> randomisation_test([0.1, 0.1, 0.1])  # of eight patterns, two are as far from zero
    0.25

    ```
    """
    values = _clean(differences)
    if len(values) < 2:
        return None
    values = values[values != 0]  # a query without a change has no sign
    if len(values) < 2:
        return 1.0  # either sign is as far from zero
    result = stats.permutation_test(
        (values,),
        _distance,
        permutation_type="samples",
        vectorized=True,
        n_resamples=samples,
        batch=max(1, BATCH // len(values)),
        alternative="greater",
        rng=np.random.default_rng(seed),
    )
    return float(result.pvalue)


def _distance(values: np.ndarray, axis: int) -> np.ndarray:
    """How far sums are from zero, rounded: those of the same numbers in another order differ in the last bits."""
    return np.abs(values.sum(axis=axis)).round(12)


def _clean(differences: Sequence[float]) -> np.ndarray:
    values = np.asarray(differences, dtype=np.float64)
    if not np.isfinite(values).all():
        raise ValueError("a difference is not finite: measures must be numbers for every query")
    return np.where(np.abs(values) <= UNCHANGED, 0.0, values)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """
    Holm's step-down correction (1979) of p-values that belong together; `None` stays `None` and is not counted.

    Example:

    ```python
    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]

    ```
    """
    known = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, index) in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - rank) * p))
        adjusted[index] = largest
    return adjusted


@dataclass(frozen=True)
class Comparison:
    """
    One run against one baseline by one measure.

    Args:
        run, baseline, measure (`str`): what is compared.
        mean, baseline_mean (`float`): the two means.
        relative_change (`float`, *optional*): (mean - baseline) / baseline, `None` where the baseline is 0.
        p_t_test, p_randomisation (`float`, *optional*): two-tailed, not corrected; `None` where no test is possible.
        p_value (`float`, *optional*): of the chosen test, corrected if that was asked for; what `significant` goes by.
        significant (`bool`): whether `p_value` is below alpha.
        helped, hurt, unchanged (`int`): queries above, below and at their baseline value.
        gains (`dict[str, float]`): query id to run minus baseline.
        note (`str`): what a reader must know, such as too few queries for a test.
    """

    run: str
    baseline: str
    measure: str
    mean: float
    baseline_mean: float
    relative_change: float | None
    p_t_test: float | None
    p_randomisation: float | None
    p_value: float | None
    significant: bool
    helped: int
    hurt: int
    unchanged: int
    gains: dict[str, float]
    note: str = ""

    @property
    def better(self) -> bool:
        """Whether the mean is above the baseline's."""
        return self.mean > self.baseline_mean

    def to_dict(self) -> dict:
        """Returns what `json.dump` can write."""
        return asdict(self)


def compare_runs(
    evaluations: Mapping[str, Evaluation],
    baselines: Iterable[str],
    *,
    test: str = "t-test",
    correction: str = "none",
    alpha: float = 0.05,
    samples: int = 100_000,
    seed: int = 0,
) -> list[Comparison]:
    """
    Compares every run with every baseline by every measure.

    Args:
        evaluations (`Mapping[str, Evaluation]`): name to result, all over the same qrels; baselines among them. A
            baseline is compared with the baselines before it.
        baselines (`Iterable[str]`): names of the baselines, in the order of their symbols.
        test (`str`, *optional*, defaults to `"t-test"`): which one decides, `"t-test"` (the paper) or
            `"randomisation"`. Both p-values are always computed.
        correction (`str`, *optional*, defaults to `"none"`): `"none"` (the paper) or `"holm"`, over all comparisons by
            one measure.
        alpha (`float`, *optional*, defaults to 0.05): the level of significance.
        samples, seed: of the randomisation test.

    Returns:
        `list[Comparison]`: by measure, then run, then baseline.
    """
    baselines = list(dict.fromkeys(baselines))
    _check(evaluations, baselines, test, correction, alpha)
    pairs = [
        (run, baseline)
        for run in evaluations
        for position, baseline in enumerate(baselines)
        if run not in baselines or position < baselines.index(run)
    ]
    comparisons = []
    for measure in next(iter(evaluations.values())).means:
        family = [_compare(evaluations, run, baseline, measure, samples, seed) for run, baseline in pairs]
        p_values = [c.p_t_test if test == "t-test" else c.p_randomisation for c in family]
        if correction == "holm":
            p_values = holm(p_values)
        comparisons += [
            replace(c, p_value=p, significant=p is not None and p < alpha)
            for c, p in zip(family, p_values, strict=True)
        ]
    return comparisons


def _check(evaluations, baselines, test, correction, alpha) -> None:
    unknown = [name for name in baselines if name not in evaluations]
    if unknown or not baselines:
        raise ValueError(f"baselines must be among the runs {list(evaluations)}, got {unknown or 'none'}")
    if test not in TESTS or correction not in CORRECTIONS:
        raise ValueError(f"test is one of {TESTS}, correction one of {CORRECTIONS}: got {test!r} and {correction!r}")
    if not 0 < alpha < 1:
        raise ValueError(f"alpha must lie between 0 and 1, got {alpha}")
    first_name, first = next(iter(evaluations.items()))
    for name, evaluation in evaluations.items():
        for measure, values in first.per_query.items():
            if (
                evaluation.per_query.keys() != first.per_query.keys()
                or evaluation.per_query[measure].keys() != values.keys()
            ):
                raise ValueError(
                    f"{name!r} and {first_name!r} have different queries or measures: evaluate both by the same qrels"
                )


def _compare(evaluations, run: str, baseline: str, measure: str, samples: int, seed: int) -> Comparison:
    ours, theirs = evaluations[run], evaluations[baseline]
    reference = theirs.per_query[measure]
    gains = {query_id: value - reference[query_id] for query_id, value in ours.per_query[measure].items()}
    differences = list(gains.values())
    helped = sum(gain > UNCHANGED for gain in differences)
    hurt = sum(gain < -UNCHANGED for gain in differences)
    mean, baseline_mean = ours.means[measure], theirs.means[measure]
    return Comparison(
        run=run,
        baseline=baseline,
        measure=measure,
        mean=mean,
        baseline_mean=baseline_mean,
        relative_change=(mean - baseline_mean) / baseline_mean if baseline_mean else None,
        p_t_test=paired_t_test(differences),
        p_randomisation=randomisation_test(differences, samples, seed),
        p_value=None,
        significant=False,
        helped=helped,
        hurt=hurt,
        unchanged=len(differences) - helped - hurt,
        gains=gains,
        note=_note(len(differences), helped + hurt),
    )


def _note(queries: int, changed: int) -> str:
    if queries < 2:
        return "one query: no paired test is possible, the difference may be chance"
    if changed == 0:
        return "no query changed: p is 1"
    least = 2.0 ** (1 - changed)
    if least >= 0.05:
        return f"only {changed} of {queries} queries changed: the randomisation test cannot go below p = {least:.4g}"
    return ""


def symbol(position: int) -> str:
    """The mark of the baseline at `position`: daggers first, as in the paper, then (a), (b) and so on."""
    if position < len(SYMBOLS):
        return SYMBOLS[position]
    number, letters = position - len(SYMBOLS), ""
    while True:
        letters = chr(ord("a") + number % 26) + letters
        number = number // 26 - 1
        if number < 0:
            return f"({letters})"


def marks(comparisons: Iterable[Comparison], baselines: Sequence[str], run: str, measure: str) -> tuple[str, str]:
    """
    The marks of the baselines that `run` is significantly better, and significantly worse, than. Each of the latter
    has its own arrow: behind one arrow for all, the second symbol would read as "better".
    """
    found = [c for c in comparisons if c.run == run and c.measure == measure and c.significant]
    order = {baseline: position for position, baseline in enumerate(baselines)}
    found.sort(key=lambda c: order[c.baseline])
    better = "".join(symbol(order[c.baseline]) for c in found if c.better)
    worse = "".join(WORSE + symbol(order[c.baseline]) for c in found if not c.better)
    return better, worse


def legend(comparisons: Iterable[Comparison], baselines: Sequence[str], description: str) -> list[str]:
    """
    What the marks of [`marks`] say, a line for each baseline and direction.

    Args:
        comparisons (`Iterable[Comparison]`): from [`compare_runs`].
        baselines (`Sequence[str]`): in the order given to [`compare_runs`].
        description (`str`): what the marks go by.
    """
    worse = {c.baseline for c in comparisons if c.significant and not c.better}
    lines = []
    for position, name in enumerate(baselines):
        lines.append(f"{symbol(position)} significantly better than {name} ({description})")
        if name in worse:
            lines.append(f"{WORSE}{symbol(position)} significantly worse than {name} ({description})")
    return lines


def format_p(p_value: float | None) -> str:
    """A p-value for people: `"-"` where there is none, `"<.0001"` where digits mean nothing."""
    if p_value is None or math.isnan(p_value):
        return "-"
    return "<.0001" if p_value < 0.0001 else f"{p_value:.4f}"
