"""Stability: how much scores and ranks change with the candidates' order, the groups' edges and their number.

Each query is encoded once and scored again under every condition; the passages stay those that were chosen for the
list as it is.

- *Order*: all candidates shuffled before they are cut into groups, so that other documents meet in the scorer.
- *Order within groups*: shuffled among the documents that are in the same groups, so that only places change. A scorer
  without positions is indifferent to that.
- *Edges*: all groups begin some documents earlier, so that the first one is shorter.
- *Candidates*: only the first k of the list, with prototypes chosen again from them.

Prototypes stay those that the selector chose; where they are just the first documents of the list, another order has
others. What is compared is the ranking of the documents that both lists hold.
"""

import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from accelerate import PartialState
from scipy.stats import kendalltau

from ..evaluation.measures import DEFAULT_MEASURES, parse_measures, per_query_values
from ..evaluation.tables import Table
from ..grouping_cobert import best_first
from ..ranking.ranker import EncodedQuery, Inputs, Ranker, map_queries
from ..ranking.ties import strict_scores
from ..steps.hashing import json_sha256
from ..steps.limits import check_numbers

TOP = 20
MOST_SHUFFLES = 100_000
SCHEMA = pa.schema([("query_id", pa.string()), ("result", pa.string())])  # what JSON says of a query


@dataclass(frozen=True)
class StabilityOptions:
    """What to change."""

    seeds: int = field(default=5, metadata={"help": "Shuffles of the whole list, and as many within groups."})
    offsets: list[int] | None = field(
        default=None,
        metadata={"help": "By how many documents to move the groups' edges; by default 1/4, 1/2 and 3/4 of a step."},
    )
    ks: list[int] | None = field(
        default=None, metadata={"help": "Numbers of candidates; by default 1/2 and 1/4 of the longest list."}
    )
    measures: list[str] = field(
        default_factory=lambda: list(DEFAULT_MEASURES), metadata={"help": "Any measures of ir_measures."}
    )

    def __post_init__(self):
        if self.seeds < 0 or any(offset < 1 for offset in self.offsets or ()) or any(k < 1 for k in self.ks or ()):
            raise ValueError("seeds must not be negative, offsets and ks must be at least 1")
        check_numbers(self, 0, "seeds", most=MOST_SHUFFLES)
        parse_measures(self.measures)


@dataclass(frozen=True)
class Condition:
    """One change: its `kind` (order, order within groups, edges, candidates) and its seed, offset or k."""

    kind: str
    value: int

    def __str__(self) -> str:
        return f"{self.kind} {self.value}"


def conditions(options: StabilityOptions, step: int, longest: int) -> list[Condition]:
    """
    All changes that the options ask for.

    Args:
        step (`int`): documents from group to group, n - o. An offset must be below it.
        longest (`int`): the most candidates of any query.
    """
    offsets, ks = options.offsets, options.ks
    if offsets is None:
        offsets = sorted({step * quarters // 4 for quarters in (1, 2, 3)} - {0})
    wide = [offset for offset in offsets if offset >= step]
    if wide:
        raise ValueError(f"groups begin every {step} documents, so an offset of {wide[0]} is no other cut")
    if ks is None:
        ks = sorted({longest // 2, longest // 4} - {0}, reverse=True)
    seeds = range(options.seeds)
    return [
        *(Condition("order", seed) for seed in seeds),
        *(Condition("order within groups", seed) for seed in seeds),
        *(Condition("edges", offset) for offset in offsets),
        *(Condition("candidates", k) for k in ks),
    ]


def shuffled(count: int, seed: int, blocks: Sequence[tuple[int, int]]) -> list[int]:
    """Places 0..count-1, shuffled inside each block; the same on every machine and in every version of Python."""
    generator = random.Random(seed)
    draws = [generator.random() for _ in range(count)]
    return [place for start, end in blocks for place in sorted(range(start, end), key=draws.__getitem__)]


def membership_blocks(groups: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The stretches of a list whose documents are all in the same groups."""
    edges = sorted({edge for group in groups for edge in group})
    return list(zip(edges, edges[1:], strict=False))


def rescore(ranker: Ranker, encoded: EncodedQuery, condition: Condition) -> tuple[list[int], list[float]]:
    """
    Scores under a condition.

    Returns:
        The places (in the list as it is) of the documents in their changed order, and their scores in that order.
    """
    count, groups = len(encoded.doc_ids), encoded.groups
    order = list(range(count))
    if condition.kind == "order":
        order = shuffled(count, condition.value, [(0, count)])
    elif condition.kind == "order within groups":
        order = shuffled(count, condition.value, membership_blocks(groups))
    elif condition.kind == "edges":
        grouping = encoded.grouping
        step = grouping.group_size - grouping.group_overlap
        groups = grouping.spans(count, (grouping.first_edge + condition.value) % step)
    else:
        order = order[: condition.value]
        groups = encoded.grouping.spans(len(order))
    places = {place: new for new, place in enumerate(order)}
    changed = reordered(encoded, order, [places[place] for place in _prototypes(encoded, order)])
    calibrated, _ = ranker.calibrate(changed)
    return order, ranker.score_list(changed, calibrated, groups)


def reordered(encoded: EncodedQuery, order: Sequence[int], prototypes: list[int]) -> EncodedQuery:
    """The documents at these places, in this order, with these prototypes among them."""
    places, first_stage = torch.tensor(order, device=encoded.vectors.device), encoded.first_stage_scores
    return replace(
        encoded,
        doc_ids=[encoded.doc_ids[place] for place in order],
        texts=[encoded.texts[place] for place in order],
        vectors=encoded.vectors[places],
        selector_scores=[encoded.selector_scores[place] for place in order],
        first_stage_scores=None if first_stage is None else [first_stage[place] for place in order],
        content=None if encoded.content is None else encoded.content[places],
        words=None if encoded.words is None else encoded.words.take(order),
        prototypes=prototypes,
    )


def _prototypes(encoded: EncodedQuery, order: Sequence[int]) -> list[int]:
    """The first of the new order, or those that were chosen, filled up with the next best of what is left."""
    wanted = min(len(encoded.prototypes), len(order))
    if encoded.grouping.prototypes == "first-stage":
        return list(order[:wanted])
    there = set(order)
    kept = [place for place in encoded.prototypes if place in there]
    rest = sorted(there - set(kept))
    best = best_first([encoded.selector_scores[place] for place in rest], wanted - len(kept))
    return kept + [rest[i] for i in best]


def compare_scores(reference: Sequence[float], order: Sequence[int], scores: Sequence[float]) -> dict:
    """
    How far a changed list is from the one as it is, over the documents that both hold.

    Args:
        reference (`list[float]`): scores of the list as it is.
        order (`list[int]`): places in it, in the changed order.
        scores (`list[float]`): scores in the changed order.

    Returns:
        `dict`: `mean_rank_change` and `worst_rank_change` (absolute), `worst_place` (of the document that moved most),
        `kendall_tau` (tau-b of the two rankings; 1 for one document), `kept_at_20` (the share of the top 20 that stays
        there), `mean_score_change`, `worst_score_change` (absolute).
    """
    common = sorted(order)
    before = {common[i]: rank for rank, i in enumerate(best_first([reference[p] for p in common]))}
    after = {order[i]: rank for rank, i in enumerate(best_first(scores))}
    changes = {place: abs(before[place] - after[place]) for place in common}
    score_changes = [abs(reference[place] - score) for place, score in zip(order, scores, strict=True)]
    worst = max(common, key=lambda place: changes[place])
    top = {place for place in common if before[place] < TOP}
    tau = 1.0
    if len(common) > 1:
        tau = float(kendalltau([before[p] for p in common], [after[p] for p in common]).statistic)
    return {
        "mean_rank_change": sum(changes.values()) / len(common),
        "worst_rank_change": changes[worst],
        "worst_place": worst,
        "kendall_tau": tau,
        "kept_at_20": sum(after[place] < TOP for place in top) / len(top),
        "mean_score_change": math.fsum(score_changes) / len(score_changes),
        "worst_score_change": max(score_changes),
    }


def query_stability(
    ranker: Ranker,
    encoded: EncodedQuery,
    changes: Sequence[Condition],
    grades: Mapping[str, int] | None = None,
    measures: Sequence[str] = DEFAULT_MEASURES,
) -> dict[str, dict]:
    """
    One query under every condition.

    Args:
        ranker ([`Ranker`]): the model.
        encoded ([`EncodedQuery`]): the query, encoded once.
        changes (`list[Condition]`): from [`conditions`].
        grades (`Mapping[str, int]`, *optional*): the query's judgments, if it is judged.
        measures (`Sequence[str]`, *optional*): ir_measures names.

    Returns:
        `dict[str, dict]`: condition to what [`compare_scores`] returns, with the document that moved most and, for a
        judged query, the `measures` and, of the same documents in the list as it is, the `reference_measures`.
    """
    parsed = parse_measures(measures)
    reference = ranker.score(encoded)

    def measured(places: Sequence[int], scores: Sequence[float]) -> dict[str, float]:
        run = {encoded.query_id: strict_scores([encoded.doc_ids[place] for place in places], scores)}
        values = per_query_values({encoded.query_id: grades or {}}, run, parsed)
        return {str(measure): by_query[encoded.query_id] for measure, by_query in values.items()}

    found = {}
    for condition in changes:
        order, scores = rescore(ranker, encoded, condition)
        result = compare_scores(reference, order, scores)
        result["worst_document"] = encoded.doc_ids[result.pop("worst_place")]
        if grades:
            common = sorted(order)
            result["measures"] = measured(order, scores)
            result["reference_measures"] = measured(common, [reference[place] for place in common])
        found[str(condition)] = result
    return found


def stability(
    ranker: Ranker,
    inputs: Inputs,
    output: str | Path,
    options: StabilityOptions | None = None,
    state: PartialState | None = None,
    progress: bool = True,
) -> dict:
    """
    The stability of a model on a query set; done before, or in part, it goes on.

    Args:
        ranker ([`Ranker`]): the model.
        inputs ([`RowsInputs`] or [`CollectionInputs`]): what to re-rank.
        output (`str` or `Path`): a folder; one file a query lies in its `.parts`.
        options ([`StabilityOptions`], *optional*): what to change.
        state (`PartialState`, *optional*): the processes that share the work.
        progress (`bool`, *optional*, defaults to `True`): whether to show a progress bar.

    Returns:
        `dict`: under `conditions` what [`summarise`] returns, under `per_query` query id to condition to values.
    """
    options = options or StabilityOptions()
    inputs.check(ranker)
    grouping = ranker.group_options(inputs.options)
    changes = conditions(
        options, grouping.group_size - grouping.group_overlap, max(len(scores) for scores in inputs.run.values())
    )
    qrels = inputs.qrels or {}
    settings = {
        "step": "stability",
        "format": 2,
        "model": ranker.fingerprint(),
        **inputs.settings(ranker),
        "conditions": [str(condition) for condition in changes],
        "measures": [str(measure) for measure in parse_measures(options.measures)],
        "judgments": json_sha256(
            [[query_id, list(qrels[query_id].items())] for query_id in inputs.queries if query_id in qrels]
        ),
    }

    def measure(query_id: str, advance: Callable) -> dict[str, str]:
        encoded = inputs.encode(ranker, query_id, advance)
        found = query_stability(ranker, encoded, changes, qrels.get(query_id), options.measures)
        return {"result": json.dumps(found)}

    query_ids = list(inputs.queries)
    rows = map_queries(measure, inputs, Path(output) / ".parts", settings, SCHEMA, state, "Stability", progress)
    per_query = {row["query_id"]: json.loads(row["result"]) for row in rows}
    return {
        "collection": inputs.name,
        "queries": len(query_ids),
        "judged_queries": sum(query_id in qrels for query_id in query_ids),
        "options": asdict(options),
        "conditions": summarise(per_query, changes),
        "per_query": per_query,
    }


def summarise(per_query: Mapping[str, Mapping[str, Mapping]], changes: Sequence[Condition]) -> list[dict]:
    """
    Per kind of change (all seeds together, each offset and each k alone): means over queries and seeds, the worst of
    all, and each measure's mean over the judged queries with its range over seeds.
    """
    rows: dict[str, list[Condition]] = {}
    for condition in changes:
        shuffles = condition.kind.startswith("order")
        rows.setdefault(condition.kind if shuffles else str(condition), []).append(condition)
    summary = []
    for name, members in rows.items():
        values = [(query_id, by[str(member)]) for member in members for query_id, by in per_query.items()]
        worst_query, worst = max(values, key=lambda item: item[1]["worst_rank_change"])
        row = {
            "change": name,
            "runs": len(members),
            **{
                key: float(np.mean([value[key] for _, value in values]))
                for key in ("mean_rank_change", "kendall_tau", "kept_at_20", "mean_score_change")
            },
            "lowest_kendall_tau": min(value["kendall_tau"] for _, value in values),
            "worst_rank_change": worst["worst_rank_change"],
            "worst_query": worst_query,
            "worst_document": worst["worst_document"],
            "worst_score_change": max(value["worst_score_change"] for _, value in values),
            "measures": _measure_ranges(per_query, members),
        }
        summary.append(row)
    return summary


def _measure_ranges(per_query: Mapping[str, Mapping], members: Sequence[Condition]) -> dict[str, dict[str, float]]:
    judged = [by for by in per_query.values() if "measures" in by[str(members[0])]]
    if not judged:
        return {}
    ranges = {}
    for measure in judged[0][str(members[0])]["measures"]:
        means = [np.mean([by[str(member)]["measures"][measure] for by in judged]) for member in members]
        reference = np.mean([by[str(members[0])]["reference_measures"][measure] for by in judged])
        ranges[measure] = {
            "as_it_is": float(reference),
            "mean": float(np.mean(means)),
            "lowest": float(min(means)),
            "highest": float(max(means)),
        }
    return ranges


def stability_table(report: Mapping, measure: str | None = None) -> Table:
    """
    The summary for people.

    Args:
        report (`Mapping`): what [`stability`] returned.
        measure (`str`, *optional*): the measure to show; nDCG@20 if it was computed, else the first.
    """
    measures = [name for row in report["conditions"][:1] for name in row["measures"]]
    if measure is None and measures:
        measure = "nDCG@20" if "nDCG@20" in measures else measures[0]
    columns = ["Change", "mean |Δrank|", "worst |Δrank|", "Kendall τ", "lowest τ", f"kept@{TOP}", "mean |Δscore|"]
    columns += [f"{measure} as it is", "changed", "range"] if measure else []
    rows = []
    for row in report["conditions"]:
        name = f"{row['change']}, {row['runs']} shuffles" if row["change"].startswith("order") else row["change"]
        cells = [name, f"{row['mean_rank_change']:.2f}", str(row["worst_rank_change"]), f"{row['kendall_tau']:.4f}"]
        cells += [f"{row['lowest_kendall_tau']:.4f}", f"{row['kept_at_20']:.1%}", f"{row['mean_score_change']:.5f}"]
        if measure:
            values = row["measures"][measure]
            cells += [f"{values['as_it_is']:.4f}", f"{values['mean']:.4f}"]
            cells += [f"{values['lowest']:.4f}-{values['highest']:.4f}" if row["runs"] > 1 else ""]
        rows.append(cells)
    notes = [
        f"{report['queries']} queries. Changes of rank are over the documents that both lists hold; for fewer "
        "candidates, the measure as it is is of the same documents in the whole list's order.",
    ]
    return Table(columns, rows, title=f"Stability on {report['collection']}", notes=notes)
