"""BERT-QE, weighing: the chunks' votes are summed up, mixed with the query's own score, and the share is tuned."""

import json
import logging
import math
import os
from collections.abc import Collection as Ids
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from accelerate import PartialState

from ..collections.collection import Collection
from ..collections.folds import Fold
from ..collections.splits import plan_splits
from ..collections.trec import read_run, write_run
from ..data.candidates import check_judgments
from ..evaluation.measures import DEFAULT_MEASURES, evaluate_run, parse_measures
from ..steps.files import atomic_open
from ..steps.folders import claim_folder, json_sha256, write_settings
from .bert_qe import BertQeOptions, ScoredQuery, read_scored, score_expansions

logger = logging.getLogger(__name__)

STEP = "bert-qe-result"
ALPHAS = tuple(i / 10 for i in range(11))
RELEVANCE = ("logit", "probability")


@dataclass(frozen=True)
class TuningOptions:
    """
    What the result depends on, besides the scores.

    Args:
        folds (`str`, *optional*, defaults to `"auto"`): see [`plan_splits`]; the share is tuned on the validation
            queries of each fold and used for its test queries.
        alpha (`float`, *optional*): one share for all queries instead; nothing is tuned, and all queries are tested.
        relevance (`str`, *optional*, defaults to `"logit"`): what rel(., .) is, the logit or, as in the authors'
            release, the `"probability"` (which saturates, so that the chunks' weights are nearly equal).
        measure (`str`, *optional*, defaults to `"nDCG@20"`): what is tuned.
        seed (`int`, *optional*, defaults to 42): of random folds.
    """

    folds: str = "auto"
    alpha: float | None = None
    relevance: str = "logit"
    measure: str = "nDCG@20"
    seed: int = 42

    def __post_init__(self):
        if self.relevance not in RELEVANCE:
            raise ValueError(f"relevance must be one of {', '.join(RELEVANCE)}, not {self.relevance!r}")
        if self.alpha is not None and not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha is a share between 0 and 1, got {self.alpha}")


def softmax(scores: Sequence[float]) -> list[float]:
    """Positive weights that sum to 1."""
    if not scores:
        return []
    top = max(scores)
    powers = [math.exp(score - top) for score in scores]
    total = math.fsum(powers)
    return [power / total for power in powers]


def interpolate(query: ScoredQuery, alpha: float, relevance: str = "logit") -> dict[str, float]:
    """
    The final scores of a query's documents, (1 - alpha) * rel(q, d) + alpha * rel(C, d), where
    rel(C, d) = sum_i softmax_i(rel(q, c_i)) * rel(c_i, d).

    A query whose feedback documents are empty has no chunks, and keeps the scores of phase 1.
    """
    rel = _sigmoid if relevance == "probability" else float
    own = [rel(score) for score in query.scores]
    if not query.chunks:
        return dict(zip(query.doc_ids, own, strict=True))
    weights = softmax([rel(score) for score in query.chunk_scores])
    by_document = zip(*query.chunk_votes, strict=True)
    expanded = [math.fsum(w * rel(vote) for w, vote in zip(weights, votes, strict=True)) for votes in by_document]
    mixed = [(1 - alpha) * score + alpha * voted for score, voted in zip(own, expanded, strict=True)]
    return dict(zip(query.doc_ids, mixed, strict=True))


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


def run_bert_qe(
    collection: Collection,
    run: str | os.PathLike,
    output: str | os.PathLike,
    options: BertQeOptions,
    tuning: TuningOptions | None = None,
    source: Mapping | None = None,
    progress: bool = True,
) -> dict:
    """
    BERT-QE from a first-stage run to a tested result in `output/result`: `run.trec`, `phase1.trec` (MaxP alone) and
    `results.json`. Whatever is done for the same settings is not done again.

    Models whose names have `{fold}` in them score the validation and test queries of their own fold, never a query
    that they were trained on; others score all queries once.

    Args:
        collection, run, output, options, source, progress: as for [`score_expansions`].
        tuning ([`TuningOptions`], *optional*): how to weigh.

    Returns:
        `dict`: `alphas` and `validation` by fold, and `measures` of `first_stage`, `phase1` and `bert_qe` over the
        test queries; a test query without results counts as zero.
    """
    output, tuning = Path(output), tuning or TuningOptions()
    # What can be wrong with judgments, folds and measures is said before hours of work, not after them.
    parse_measures([tuning.measure])
    qrels = collection.qrels()
    check_judgments(qrels, collection.queries(), options.skip_missing, f"judgments of {collection.name}")
    folds = _plan(collection, options, tuning)
    jobs = _jobs(collection, run, output, options, folds)
    done = [score_expansions(part, path, folder, chosen, source, progress) for part, path, folder, chosen, _ in jobs]
    state = PartialState()
    settings = {
        "step": STEP,
        "format": 1,
        **asdict(tuning),
        "sha256": {
            "scores": json_sha256([{k: v for k, v in one.items() if k != "counts"} for one in done]),
            "folds": json_sha256([asdict(fold) for fold in folds]),
            "qrels": json_sha256([[query_id, sorted(grades.items())] for query_id, grades in qrels.items()]),
        },
    }
    with state.main_process_first():
        if claim_folder(output / "result", settings) is None:
            parts = [(folder, part) for _, _, folder, _, part in jobs]
            results = _weigh(qrels, output / "result", parts, tuning)
            write_settings(output / "result", settings, results)
    return json.loads((output / "result" / "results.json").read_text(encoding="utf-8"))


def _plan(collection: Collection, options: BertQeOptions, tuning: TuningOptions) -> list[Fold]:
    """The folds, over all queries of the collection whether they have results or not."""
    queries = list(collection.queries())
    if tuning.alpha is not None and not options.by_fold:
        return [Fold((), (), tuple(queries))]
    plan = plan_splits(collection, queries, tuning.folds, tuning.seed, options.skip_missing)
    if plan.folds is not None:
        return plan.folds
    if not {"validation", "test"} <= plan.splits.keys():
        raise ValueError(
            f"{plan.source}: there are no validation and test queries to tune and test on ({', '.join(plan.splits)}): "
            "give folds, or a fixed alpha"
        )
    return [Fold(*(plan.splits.get(name, ()) for name in ("train", "validation", "test")))]


class _Part:
    """A collection with some of its queries."""

    def __init__(self, collection: Collection, queries: Iterable[str]):
        self._collection, self._queries = collection, set(queries)
        self.name, self.lookup = collection.name, collection.lookup

    def queries(self) -> dict[str, str]:
        return {query_id: text for query_id, text in self._collection.queries().items() if query_id in self._queries}


def _jobs(collection, run, output: Path, options: BertQeOptions, folds: Sequence[Fold]) -> list[tuple]:
    """What is to be scored: collection, run, folder and options; and which folds (with numbers) use the scores."""
    numbered = list(enumerate(folds, start=1))
    if not options.by_fold:
        return [(collection, run, output / "scores", options, numbered)]
    ranked, known = read_run(run), collection.queries()
    jobs = []
    for number, fold in numbered:
        queries = {*fold.validation, *fold.test}
        folder = output / f"fold-{number}"
        # Queries that the collection lacks stay in, so that they are found and counted like everywhere.
        part = {
            query_id: scores for query_id, scores in ranked.items() if query_id in queries or query_id not in known
        }
        if not part:
            raise ValueError(f"{run}: not one validation or test query of fold {number} is in it")
        with PartialState().main_process_first():
            if PartialState().is_main_process:
                write_run(folder / "first-stage.trec", part, "first-stage")
        path = folder / "first-stage.trec"
        jobs.append((_Part(collection, queries), path, folder / "scores", options.in_fold(number), [(number, fold)]))
    return jobs


def _weigh(
    qrels: Mapping[str, Mapping[str, int]], folder: Path, parts: Sequence[tuple[Path, list]], tuning: TuningOptions
) -> dict:
    """Tunes, mixes, tests and writes."""
    qrels = {query_id: grades for query_id, grades in qrels.items() if grades}
    alphas, validation = {}, {}
    runs: dict[str, dict[str, dict[str, float]]] = {"first_stage": {}, "phase1": {}, "bert_qe": {}}
    for scores, folds in parts:
        chosen, means = choose_alphas(scores, folds, qrels, tuning)
        alphas, validation = alphas | chosen, validation | means
        alpha_of = {query_id: chosen[number] for number, fold in folds for query_id in fold.test}
        for query in read_scored(scores):
            if query.query_id in alpha_of:
                runs["first_stage"][query.query_id] = dict(zip(query.doc_ids, query.first_stage_scores, strict=True))
                runs["phase1"][query.query_id] = dict(zip(query.doc_ids, query.scores, strict=True))
                runs["bert_qe"][query.query_id] = interpolate(query, alpha_of[query.query_id], tuning.relevance)
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
        "measures": {
            name: evaluate_run(
                judged, {query_id: one[query_id] for query_id in one if query_id in judged}, DEFAULT_MEASURES
            ).means
            for name, one in runs.items()
        },
    }
    write_run(folder / "phase1.trec", runs["phase1"], "maxp")
    write_run(folder / "run.trec", runs["bert_qe"], "bert-qe")
    with atomic_open(folder / "results.json") as file:
        json.dump(results, file, indent=1)
        file.write("\n")
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
        mixed = {
            q.query_id: interpolate(q, alpha, tuning.relevance) for q in read_scored(scores) if q.query_id in wanted
        }
        (values[alpha],) = evaluate_run(wanted, mixed, [tuning.measure]).per_query.values()
    best = {number: best_alpha(values, queries) for number, queries in judged.items()}
    return {number: alpha for number, (alpha, _) in best.items()}, {
        number: means for number, (_, means) in best.items()
    }


def _sigmoid(logit: float) -> float:
    return 1 / (1 + math.exp(-logit)) if logit >= 0 else math.exp(logit) / (1 + math.exp(logit))
