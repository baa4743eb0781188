"""BERT-QE, weighing: the chunks' votes are summed up, mixed with the query's own score, and the share is tuned."""

import json
import logging
import math
import os
from collections.abc import Collection as Ids
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from scipy.special import expit, softmax

from ..collections.collection import Collection
from ..collections.folds import Fold
from ..collections.judgments import check_judgments
from ..collections.options import SplitOptions
from ..collections.splits import plan_splits
from ..collections.trec import read_run, write_run
from ..evaluation.measures import DEFAULT_MEASURES, evaluate_run, parse_measures
from ..ranking.seen import refuse_seen, seen_queries
from ..ranking.ties import strict_scores
from ..steps.files import write_json
from ..steps.folders import check_begun, claim_folder, claims_end, write_settings
from ..steps.hashing import json_sha256
from ..steps.processes import process_state
from .bert_qe import BertQeOptions, read_scored, score_expansions

logger = logging.getLogger(__name__)

STEP = "bert-qe-result"
ALPHAS = tuple(i / 10 for i in range(11))
RELEVANCE = ("logit", "probability")
PHASE1_RUN, RUN, RESULTS = "phase1.trec", "run.trec", "results.json"


@dataclass(frozen=True)
class TuningOptions:
    """How the chunks' share is chosen: on the validation queries of each fold, for its test queries."""

    alpha: float | None = field(
        default=None, metadata={"help": "A fixed share for all queries: nothing is tuned, and all are tested."}
    )
    relevance: str = field(
        default="logit",
        metadata={
            "help": "What a score is. probability is what the authors' code took; it saturates, so that the chunks' "
            "weights are nearly equal.",
            "choices": list(RELEVANCE),
        },
    )
    measure: str = field(default="nDCG@20", metadata={"help": "What is tuned, by its name in ir_measures."})

    def __post_init__(self):
        if self.relevance not in RELEVANCE:
            raise ValueError(f"relevance must be one of {', '.join(RELEVANCE)}, not {self.relevance!r}")
        if self.alpha is not None and not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha is a share between 0 and 1, got {self.alpha}")
        parse_measures([self.measure])


def interpolate(query: Mapping, alpha: float, relevance: str = "logit") -> dict[str, float]:
    """
    The final scores of a query's documents, (1 - alpha) * rel(q, d) + alpha * rel(C, d), where
    rel(C, d) = sum_i softmax_i(rel(q, c_i)) * rel(c_i, d). A query whose feedback documents are empty has no chunks,
    and keeps the scores of phase 1.

    Args:
        query (`Mapping`): a row of [`read_scored`].
        alpha (`float`): the chunks' share.
        relevance (`str`, *optional*, defaults to `"logit"`): what rel(., .) is.
    """
    rel = expit if relevance == "probability" else float
    mixed = [rel(score) for score in query["scores"]]
    if query["chunks"]:
        weights = softmax([rel(score) for score in query["chunk_scores"]]).tolist()
        by_document = zip(*query["chunk_votes"], strict=True)
        votes = [math.fsum(w * rel(v) for w, v in zip(weights, vs, strict=True)) for vs in by_document]
        mixed = [(1 - alpha) * score + alpha * voted for score, voted in zip(mixed, votes, strict=True)]
    return strict_scores(query["doc_ids"], mixed)


def best_alpha(values: Mapping[float, Mapping[str, float]], queries: Ids[str]) -> tuple[float, dict[float, float]]:
    """
    The share with the best mean; of equally good ones the smallest.

    Args:
        values (`Mapping[float, Mapping[str, float]]`): share to query id to measure.
        queries (`Collection[str]`): the validation queries.

    Returns:
        `tuple[float, dict[float, float]]`: the share, and the mean of every share.
    """
    means = {
        alpha: math.fsum(values[alpha][query_id] for query_id in queries) / len(queries) for alpha in sorted(values)
    }
    return max(means, key=lambda alpha: (means[alpha], -alpha)), means


@claims_end()
def run_bert_qe(
    collection: Collection,
    run: str | os.PathLike,
    output: str | os.PathLike,
    options: BertQeOptions,
    tuning: TuningOptions | None = None,
    splits: SplitOptions | None = None,
    progress: bool = True,
) -> dict:
    """
    BERT-QE from a first-stage run to a tested result in `output/result`: `run.trec`, `phase1.trec` (MaxP alone) and
    `results.json`. Whatever is done for the same settings is not done again.

    Models whose names have `{fold}` in them score the validation and test queries of their own fold, never a query
    that they were trained on; others score all queries once.

    Args:
        collection, run, output, options, progress: as for [`score_expansions`].
        tuning ([`TuningOptions`], *optional*): how to weigh.
        splits ([`SplitOptions`], *optional*): the folds.

    Returns:
        `dict`: `alphas` and `validation` by fold, and `measures` of `first_stage`, `phase1` and `bert_qe` over the
        test queries; a test query without results counts as zero.
    """
    output, tuning, state = Path(output), tuning or TuningOptions(), process_state()
    _check_output(output)
    # What can be wrong with judgments, folds and measures is said before hours of work, not after them.
    qrels = collection.qrels()
    check_judgments(collection)
    folds = list(enumerate(_plan(collection, options, tuning, splits), start=1))
    _refuse_seen(collection, options, folds)
    if options.by_fold:
        parts = [(output / f"fold-{number}", [(number, fold)]) for number, fold in folds]
        jobs = [(folder, options.in_fold(n), _queries(run, n, fold)) for folder, [(n, fold)] in parts]
    else:
        parts, jobs = [(output / "scores", folds)], [(output / "scores", options, None)]
    done = [score_expansions(collection, run, folder, chosen, ids, progress) for folder, chosen, ids in jobs]
    settings = {
        "step": STEP,
        "format": 2,
        **asdict(tuning),
        "sha256": {
            "scores": json_sha256([{k: v for k, v in one.items() if k != "counts"} for one in done]),
            "folds": json_sha256([asdict(fold) for _, fold in folds]),
            "qrels": json_sha256([[query_id, sorted(grades.items())] for query_id, grades in qrels.items()]),
        },
    }
    with state.main_process_first():
        folder = output / "result"
        if claim_folder(folder, settings) is None:
            results = _weigh(qrels, folder, parts, tuning)
            write_settings(folder, settings, results, [folder / name for name in (PHASE1_RUN, RUN, RESULTS)])
    return json.loads((folder / RESULTS).read_text(encoding="utf-8"))


def _check_output(output: Path) -> None:
    """What is in the folder must be of such a run; the folds of a training are called as those of one."""
    scored = [path.name for path in output.glob("fold-*")] if output.is_dir() else []
    check_begun(output, ("scores", "result", *scored), "--output")
    for name in ("scores", *scored):
        check_begun(output / name, ("phase1", "expansion"), "--output")


def _refuse_seen(collection: Collection, options: BertQeOptions, folds: Sequence[tuple[int, Fold]]) -> None:
    """No model may be tested on queries that it was trained on."""
    cure = "Name the models of each fold, '{fold}' stands for its number"
    for number, fold in folds:
        chosen = options.in_fold(number)
        for name in dict.fromkeys((chosen.phase1, chosen.phase2, chosen.phase3)):
            refuse_seen(seen_queries(name), collection.name, fold.test, name, cure)


def _plan(
    collection: Collection, options: BertQeOptions, tuning: TuningOptions, splits: SplitOptions | None
) -> list[Fold]:
    """The folds, over all queries of the collection whether they have results or not."""
    queries = list(collection.queries())
    if tuning.alpha is not None and not options.by_fold:
        return [Fold((), (), tuple(queries))]
    plan = plan_splits(collection, queries, splits)
    if plan.folds is None and not {"validation", "test"} <= plan.splits.keys():
        raise ValueError(
            f"{plan.source}: there are no validation and test queries to tune and test on ({', '.join(plan.splits)}): "
            "give folds, or a fixed alpha"
        )
    return plan.turns


def _queries(run: str | os.PathLike, number: int, fold: Fold) -> list[str]:
    """The queries that the models of a fold may score."""
    chosen = [*fold.validation, *fold.test]
    if not set(chosen) & read_run(run).keys():
        raise ValueError(f"{run}: not one validation or test query of fold {number} is in it")
    return chosen


def _weigh(
    qrels: Mapping[str, Mapping[str, int]],
    folder: Path,
    parts: Sequence[tuple[Path, list[tuple[int, Fold]]]],
    tuning: TuningOptions,
) -> dict:
    """Tunes, mixes, tests and writes."""
    qrels = {query_id: grades for query_id, grades in qrels.items() if grades}
    alphas: dict[int, float] = {}
    validation: dict[int, dict[float, float]] = {}
    runs: dict[str, dict[str, dict[str, float]]] = {"first_stage": {}, "phase1": {}, "bert_qe": {}}
    for scores, folds in parts:
        chosen, means = choose_alphas(scores, folds, qrels, tuning)
        alphas, validation = alphas | chosen, validation | means
        alpha_of = {query_id: chosen[number] for number, fold in folds for query_id in fold.test}
        for query in read_scored(scores).read():
            query_id = query["query_id"]
            if query_id in alpha_of:
                first = zip(query["doc_ids"], query["first_stage_scores"], strict=True)
                runs["first_stage"][query_id] = dict(first)
                runs["phase1"][query_id] = strict_scores(query["doc_ids"], query["scores"])
                runs["bert_qe"][query_id] = interpolate(query, alpha_of[query_id], tuning.relevance)
    tested = {query_id for _, folds in parts for _, fold in folds for query_id in fold.test}
    judged = {query_id: grades for query_id, grades in qrels.items() if query_id in tested}
    if not judged:
        raise ValueError(f"not one of {len(tested)} test queries is judged")
    results = {
        "queries": len(judged),
        "queries_without_results": sum(query_id not in runs["bert_qe"] for query_id in judged),
        "queries_unjudged": sum(query_id not in judged for query_id in runs["bert_qe"]),
        "alphas": alphas,
        "validation": validation,
        "measures": {name: evaluate_run(judged, one, DEFAULT_MEASURES).means for name, one in runs.items()},
    }
    write_run(folder / PHASE1_RUN, runs["phase1"], "maxp")
    write_run(folder / RUN, runs["bert_qe"], "bert-qe")
    write_json(folder / RESULTS, results)
    return results


def choose_alphas(
    scores: Path, folds: Sequence[tuple[int, Fold]], qrels: Mapping[str, Mapping[str, int]], tuning: TuningOptions
) -> tuple[dict[int, float], dict[int, dict[float, float]]]:
    """By the number of each fold: the share that is best for its validation queries, and the mean of every share."""
    if tuning.alpha is not None:
        return {number: tuning.alpha for number, _ in folds}, {}
    judged = {number: [query_id for query_id in fold.validation if query_id in qrels] for number, fold in folds}
    for number, fold in folds:
        if not judged[number]:
            raise ValueError(f"fold {number}: none of its {len(fold.validation)} validation queries is judged")
    wanted = {query_id: qrels[query_id] for queries in judged.values() for query_id in queries}
    values = {}
    for alpha in ALPHAS:  # one share's run is in memory at a time
        rows = (row for row in read_scored(scores).read() if row["query_id"] in wanted)
        mixed = {row["query_id"]: interpolate(row, alpha, tuning.relevance) for row in rows}
        (values[alpha],) = evaluate_run(wanted, mixed, [tuning.measure]).per_query.values()
    best = {number: best_alpha(values, queries) for number, queries in judged.items()}
    return {number: alpha for number, (alpha, _) in best.items()}, {
        number: means for number, (_, means) in best.items()
    }
