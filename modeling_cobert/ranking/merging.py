"""Logits of groups -> a run over whole queries, and its measures."""

from collections.abc import Mapping, Sequence

import numpy as np

from ..evaluation.measures import evaluate_run
from ..grouping_cobert import best_first, merge_spans


def merge_groups(rows, logits: np.ndarray, how: str) -> dict[str, dict[str, float]]:
    """
    One score for every document of every query. A document that is in a group several times, with one window of its
    text each, has the best window's score.

    Args:
        rows (`datasets.Dataset`): groups, all those of a query somewhere among them.
        logits (`np.ndarray` of shape `(groups, documents)`): what the model gave; what is over is padding.
        how (`str`): which score a document in two groups gets, as in [`merge_spans`].

    Returns:
        `dict[str, dict[str, float]]`: query id (in the rows' order) to document id (best first) to score.
    """
    rows = rows.select_columns(["query_id", "group", "candidate_ids", "candidate_ranks"])
    if len(rows) != len(logits):
        raise ValueError(f"{len(rows)} groups, but logits for {len(logits)}")
    queries: dict[str, list] = {}
    for row, scores in zip(rows, logits, strict=True):
        queries.setdefault(row["query_id"], []).append((row, scores))
    run = {}
    for query_id, groups in queries.items():
        groups.sort(key=lambda group: group[0]["group"])
        documents: dict[int, str] = {}
        for row, _ in groups:
            documents |= dict(zip(row["candidate_ranks"], row["candidate_ids"], strict=True))
        # Ranks may have gaps, where a run names documents that the collection lacks; places have none.
        places = {rank: place for place, rank in enumerate(sorted(documents))}
        windows, kept = [], []
        for row, scores in groups:
            ranks, best = row["candidate_ranks"], {}
            for rank, score in zip(ranks, scores[: len(ranks)].tolist(), strict=True):
                best[rank] = float(np.maximum(best.get(rank, score), score))  # unlike max(), it does not lose a NaN
            if how != "max" and len(best) < len(ranks):
                raise ValueError(f"query {query_id!r}, group {row['group']}: windows of a document merge by max only")
            window = [places[rank] for rank in best]
            if window != list(range(window[0], window[0] + len(window))):
                raise ValueError(f"query {query_id!r}, group {row['group']}: its candidates are not neighbours")
            windows.append((window[0], window[-1] + 1))
            kept.append(list(best.values()))
        merged = merge_spans(windows, kept, how)
        ids = [documents[rank] for rank in sorted(documents)]
        run[query_id] = {ids[i]: merged[i] for i in best_first(merged)}
    return run


def measure_run(
    run: Mapping[str, Mapping[str, float]], qrels: Mapping[str, Mapping[str, int]], measures: Sequence[str]
) -> dict[str, float]:
    """Means over the judged queries of the run, by ir_measures, in trec_eval's order of documents."""
    judged = {query_id: qrels[query_id] for query_id in run if qrels.get(query_id)}
    if not judged:
        raise ValueError(f"none of {len(run)} queries has judgments: there is nothing to select or report by")
    return evaluate_run(judged, {query_id: run[query_id] for query_id in judged}, measures).means
