"""Effectiveness of a run: any measure of ir_measures, per query and averaged, in trec_eval's order of documents."""

import difflib
import logging
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

import ir_measures
from ir_measures.measures import Measure

from ..collections.trec import trec_order
from ..steps.limits import HIGHEST

logger = logging.getLogger(__name__)

Run = Mapping[str, Mapping[str, float]]
Qrels = Mapping[str, Mapping[str, int]]

# The paper's measures.
DEFAULT_MEASURES = ("P@20", "nDCG@20", "AP@1000")
UNJUDGED_DEPTH = 20


def parse_measures(names: str | Iterable[str | Measure] = DEFAULT_MEASURES) -> list[Measure]:
    """
    Turns names into ir_measures objects and says clearly what is wrong with one that cannot be computed.

    Args:
        names (`str` or `Iterable[str]`, *optional*): names such as `"nDCG@20"`, `"AP(rel=2)@1000"` or `"RR@10"`; one
            string may hold several with white space between them. P@20, nDCG@20 and AP@1000 by default.

    Example:

    ```python
    >>> parse_measures("P@20 MAP@1000")
    [P@20, AP@1000]
    ```
    """
    names = names.split() if isinstance(names, str) else list(names)
    if not names:
        raise ValueError("no measure was named; try P@20 nDCG@20 AP@1000")
    # Two names of one measure (MAP and AP) would make one column twice.
    return list(dict.fromkeys(_parse_measure(name) for name in names))


def _parse_measure(name: str | Measure) -> Measure:
    try:
        measure = name if isinstance(name, Measure) else ir_measures.parse_measure(name)
    except NameError:
        raise ValueError(f"unknown measure {name!r}{_suggestion(str(name))}") from None
    except (ValueError, KeyError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError(f"cannot read measure {name!r} ({error}); write it as nDCG@20 or AP(rel=2)@1000") from None
    try:
        measure.validate_params()
    except AssertionError as error:
        # ir_measures marks a parameter that is missing by a bare object()
        problem = "a parameter is missing, such as @20" if "<object object" in str(error) else error
        raise ValueError(f"measure {name!r}: {problem}") from None
    for parameter, least in (("cutoff", 1), ("rel", 1)):
        value = measure.params.get(parameter, least)
        # trec_eval ends the whole process at a cut-off of 0 and takes a huge one for another; bool is an int to Python
        if isinstance(value, bool) or not least <= value <= HIGHEST:
            raise ValueError(
                f"measure {name!r}: {parameter} must be an integer of at least {least} and at most {HIGHEST}, got "
                f"{value!r}"
            )
    if not ir_measures.DefaultPipeline.supports(measure):
        raise ValueError(f"measure {name!r} is known, but none of the installed packages computes it")
    return measure


def _suggestion(name: str) -> str:
    stem, _, cutoff = name.partition("@")
    # aliases such as NDCG come after the name that they stand for
    known = {known.lower(): known for known in reversed(ir_measures.measures.registry)}
    close = difflib.get_close_matches(stem.lower(), known, n=1)
    if not close:
        return f"; ir_measures has {', '.join(sorted(known.values()))}"
    return f"; did you mean {known[close[0]]}{'@' if cutoff else ''}{cutoff}?"


@dataclass(frozen=True)
class Evaluation:
    """
    How good one run is.

    Args:
        means (`dict[str, float]`): measure to its mean over the queries of the qrels (the sum of counts as NumRet).
        per_query (`dict[str, dict[str, float]]`): measure to query id to value, for every query of the qrels.
        queries (`int`): how many queries the qrels have.
        missing (`list[str]`): queries of the qrels without results; they count as zero.
        unjudged (`list[str]`): queries of the run that the qrels do not have; they are left out.
        unjudged_share (`float`): the share of unjudged documents among the top 20 of all queries.
    """

    means: dict[str, float]
    per_query: dict[str, dict[str, float]]
    queries: int
    missing: list[str]
    unjudged: list[str]
    unjudged_share: float

    def to_dict(self) -> dict:
        """Returns what `json.dump` can write."""
        return asdict(self)


def per_query_values(qrels: Qrels, run: Run, measures: Sequence[Measure]) -> dict[Measure, dict[str, float]]:
    """
    Computes each measure for each query of the qrels; queries without results have 0.

    Every measure sees the documents in trec_eval's order. ir_measures asks different programs for different measures,
    and they break ties differently (RR@10 by rising, AP by falling document id), some allow only numbers as query ids
    and no space in a document id. So the run is handed over with ranks as scores and numbers as ids.
    """
    if not qrels:
        raise ValueError("the qrels are empty: there is no query to evaluate")
    empty = [query_id for query_id, grades in qrels.items() if not grades]
    if empty:
        raise ValueError(f"query {empty[0]!r} of the qrels has no judged document; leave it out")
    numbered_qrels, numbered_run = {}, {}
    for number, (query_id, grades) in enumerate(qrels.items(), start=1):
        ranking = trec_order(run.get(query_id, {}))
        ids = {doc_id: f"d{position}" for position, doc_id in enumerate(dict.fromkeys([*ranking, *grades]))}
        numbered_qrels[str(number)] = {ids[doc_id]: int(grade) for doc_id, grade in grades.items()}
        if ranking:
            numbered_run[str(number)] = {ids[d]: float(len(ranking) - i) for i, d in enumerate(ranking)}
    values = {measure: dict.fromkeys(qrels, 0.0) for measure in measures}
    query_ids = list(qrels)
    try:
        for metric in ir_measures.iter_calc(list(measures), numbered_qrels, numbered_run):
            values[metric.measure][query_ids[int(metric.query_id) - 1]] = float(metric.value)
    except (subprocess.CalledProcessError, OSError, ZeroDivisionError) as error:
        raise RuntimeError(f"ir_measures failed on one of {measures}: {error}") from error
    return values


def evaluate_run(qrels: Qrels, run: Run, measures: str | Iterable[str | Measure] = DEFAULT_MEASURES) -> Evaluation:
    """
    Evaluates a run.

    Args:
        qrels (`Mapping[str, Mapping[str, int]]`): query id to document id to grade; decides which queries count.
        run (`Mapping[str, Mapping[str, float]]`): query id to document id to score.
        measures (`str` or `Iterable[str]`, *optional*): ir_measures names; P@20, nDCG@20 and AP@1000 by default.

    Example:

    ```python
    >>> result = evaluate_run({"q1": {"d1": 1}, "q2": {"d7": 1}}, {"q1": {"d1": 0.9, "d2": 0.3}}, ["P@1", "RR"])
    >>> result.means, result.missing
    ({'P@1': 0.5, 'RR': 0.5}, ['q2'])
    ```
    """
    measures = parse_measures(measures)
    values = per_query_values(qrels, run, measures)
    missing = [query_id for query_id in qrels if not run.get(query_id)]
    unjudged = [query_id for query_id in run if query_id not in qrels]
    if missing:
        logger.warning("%d of %d queries have no results and count as zero: %s", len(missing), len(qrels), missing[:5])
    if unjudged:
        logger.warning("%d queries of the run are not in the qrels and are left out: %s", len(unjudged), unjudged[:5])
    return Evaluation(
        means={str(measure): _aggregate(measure, values[measure].values()) for measure in measures},
        per_query={str(measure): values[measure] for measure in measures},
        queries=len(qrels),
        missing=missing,
        unjudged=unjudged,
        unjudged_share=unjudged_share(qrels, run),
    )


def _aggregate(measure: Measure, values: Iterable[float]) -> float:
    aggregator = measure.aggregator()
    for value in values:
        aggregator.add(value)
    return float(aggregator.result())


def mean_values(qrels: Qrels, run: Run, measures: Sequence[Measure]) -> dict[str, float]:
    """The means alone, by the measures' names."""
    return {str(m): _aggregate(m, values.values()) for m, values in per_query_values(qrels, run, measures).items()}


def measure_run(
    qrels: Qrels, run: Run, measures: str | Iterable[str | Measure] = DEFAULT_MEASURES
) -> dict[str, float]:
    """Means over the judged queries of the run, by the measures' names."""
    judged = {query_id: qrels[query_id] for query_id in run if qrels.get(query_id)}
    if not judged:
        raise ValueError(f"none of {len(run)} queries has judgments: there is nothing to select or report by")
    return mean_values(judged, run, parse_measures(measures))


def recall_ceiling(qrels: Qrels, run: Run, depth: int = 1000) -> float:
    """The mean share of relevant documents in a first stage's top `depth`, more than which no re-ranker can find."""
    return mean_values(qrels, run, parse_measures([f"R@{depth}"]))[f"R@{depth}"]


def ideal_run(qrels: Qrels, run: Run, depth: int = 1000) -> dict[str, dict[str, float]]:
    """Re-ranks a first stage's top `depth` by the judgments themselves: the best that a re-ranker could do with it."""
    ideal = {}
    for query_id, scores in run.items():
        grades = qrels.get(query_id, {})
        # An unjudged document is as good as one judged 0, so it stands before negative grades.
        ideal[query_id] = {doc_id: float(grades.get(doc_id, 0)) for doc_id in trec_order(scores)[:depth]}
    return ideal


def unjudged_share(qrels: Qrels, run: Run, depth: int = UNJUDGED_DEPTH) -> float:
    """The share of documents without a judgment among the top `depth` of all queries of the qrels."""
    shown = unjudged = 0
    for query_id, grades in qrels.items():
        top = trec_order(run.get(query_id, {}))[:depth]
        shown += len(top)
        unjudged += sum(doc_id not in grades for doc_id in top)
    return unjudged / shown if shown else 0.0
