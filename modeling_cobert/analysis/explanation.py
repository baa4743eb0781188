"""Context, explained: what prototypes, calibration and group did to one query's ranking, and who looked at whom.

Every part is turned off in the trained model itself, nothing is trained anew:

- *Calibration off*: the scorer (or the head) gets the candidates' vectors as the encoder left them.
- *Group off*: every document goes through the scorer where it stands, with all others of its group masked out, so that
  it can attend to itself alone. (The head without the scorer would be no score: it was never trained on such vectors.)
- *Both off*: the two at once, which is what the model says of the pair alone; in a model that starts from known scores
  (`starting_weights`), that start, before feedback, neighbours, calibrator and scorer add to it.

A part that the model does not have cannot be turned off, and has no column.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from ..evaluation.report import Block, Details, Section
from ..evaluation.tables import Table
from ..grouping_cobert import best_first
from ..outputs_cobert import CoBertRecorder
from ..ranking.ranker import EncodedQuery, Ranker

OFF = {"calibration": "calibration off", "group": "group off", "both": "both off"}
_SHOWN_TEXT = 80


@dataclass(frozen=True)
class Placed:
    """A score and the rank, from 1, that it gives."""

    score: float
    rank: int


@dataclass(frozen=True)
class Attended:
    """Another candidate, and the share of a document's attention that it got."""

    doc_id: str
    weight: float


@dataclass(frozen=True)
class ExplainedPrototype:
    """A feedback document: its weight (they sum to 1), the selector's score, its ranks before and after."""

    doc_id: str
    weight: float
    selector_score: float
    first_stage_rank: int
    rank: int


@dataclass(frozen=True)
class ExplainedDocument:
    """
    What happened to one document.

    Args:
        doc_id, text (`str`): which one, and what of it a reader may be shown.
        first_stage_rank, rank (`int`): from 1.
        score (`float`): with everything on.
        without (`dict[str, Placed]`): what it would be with `calibration`, `group` or `both` turned off.
        moved (`dict[str, dict]`): by each of these parts: `score` (on minus off) and `ranks` (positive: moved up).
        group (`int`, *optional*): which group's scorer decided the score, from 0; of two, by `overlap_merge`.
        group_size (`int`, *optional*): how many documents that group has. Equal attention would be 1 / group_size.
        self_attention (`float`, *optional*): how much it attended to itself, averaged over heads and layers.
        attended (`list[Attended]`): the other candidates that it attended to most.
        neighbours (`list[Attended]`): in a model with `neighbour_weight`, the other candidates that are about the
            same, and their share in what it is drawn to.
        shared_words (`list[str]`): in a model with `feedback_weight`, the words that it gained most by, which it
            shares with the documents that start best; in one that tells neighbours by words, those they share most.
    """

    doc_id: str
    text: str
    first_stage_rank: int
    rank: int
    score: float
    without: dict[str, Placed]
    moved: dict[str, dict]
    group: int | None
    group_size: int | None
    self_attention: float | None
    attended: list[Attended]
    neighbours: list[Attended]
    shared_words: list[str]


@dataclass(frozen=True)
class Explanation:
    """
    One query's ranking, explained; see the module's first lines for what each part turned off means.

    Args:
        query_id, query (`str`): the query.
        parts (`list[str]`): which parts could be turned off.
        prototypes (`list[ExplainedPrototype]`): heaviest first.
        documents (`list[ExplainedDocument]`): best first.
        fed_back (`bool`): whether words that are shared are those with the documents that start best.
    """

    query_id: str
    query: str
    parts: list[str]
    prototypes: list[ExplainedPrototype]
    documents: list[ExplainedDocument]
    fed_back: bool = False

    def to_dict(self) -> dict:
        """Returns what `json.dump` can write."""
        return asdict(self)


def explain_query(ranker: Ranker, encoded: EncodedQuery, attended: int = 5) -> Explanation:
    """
    Explains the ranking of one query.

    Args:
        ranker ([`Ranker`]): the model.
        encoded ([`EncodedQuery`]): the query, from `inputs.encode(ranker, query_id)`.
        attended (`int`, *optional*, defaults to 5): how many attended candidates to name for each document.
    """
    model, groups = ranker.model, encoded.groups
    calibrated, weights = ranker.calibrate(encoded)
    uncalibrated, _ = ranker.calibrate(encoded, prototypes=[])
    by_group, start = ranker.score_groups(encoded, calibrated), ranker.start(encoded)
    full = ranker.merge(groups, by_group)
    off: dict[str, list[float]] = {}
    if weights:
        off["calibration"] = ranker.score_list(encoded, uncalibrated)
    if model.scorer is not None:
        off["group"] = ranker.merge(groups, scores_alone(ranker, calibrated, groups, start))
    known = ranker.start(encoded, fed_back=False)
    if known is not None and (model.config.has_context or model.feedback is not None or model.neighbours is not None):
        off["both"] = known.tolist()
    elif len(off) == 2:
        off["both"] = ranker.merge(groups, scores_alone(ranker, uncalibrated, groups))
    ranks, off_ranks = _ranks(full), {part: _ranks(scores) for part, scores in off.items()}
    attention = _attention_rows(ranker, calibrated, groups, by_group) if model.scorer is not None else {}
    near, shares = _neighbour_rows(ranker, encoded), _feedback_shares(ranker, known)

    def shared(place: int) -> list[str]:
        if encoded.words is None:
            return []
        if shares is not None:
            return encoded.words.shared(place, shares, attended)
        if place not in near:
            return []
        number, near_by = near[place]  # words without feedback tell neighbours
        drawn = torch.zeros(len(encoded.doc_ids))
        drawn[slice(*groups[number])] = torch.tensor(near_by)
        return encoded.words.shared(place, drawn, attended)

    def explain(place: int) -> ExplainedDocument:
        without = {part: Placed(scores[place], off_ranks[part][place]) for part, scores in off.items()}
        group, own, others = _attended(attention.get(place), place, groups, encoded.doc_ids, attended)
        _, _, neighbours = _attended(near.get(place), place, groups, encoded.doc_ids, attended)
        return ExplainedDocument(
            doc_id=encoded.doc_ids[place],
            text=encoded.texts[place],
            first_stage_rank=place + 1,
            rank=ranks[place],
            score=full[place],
            without=without,
            moved={
                part: {"score": full[place] - placed.score, "ranks": placed.rank - ranks[place]}
                for part, placed in without.items()
            },
            group=group,
            group_size=None if group is None else groups[group][1] - groups[group][0],
            self_attention=own,
            attended=others,
            neighbours=neighbours,
            shared_words=shared(place),
        )

    prototypes = [
        ExplainedPrototype(encoded.doc_ids[p], weight, encoded.selector_scores[p], p + 1, ranks[p])
        for p, weight in zip(encoded.prototypes, weights, strict=True)
    ]
    return Explanation(
        query_id=encoded.query_id,
        query=encoded.query,
        parts=list(off),
        prototypes=sorted(prototypes, key=lambda prototype: -prototype.weight),
        documents=[explain(place) for place in best_first(full)],
        fed_back=shares is not None,
    )


@torch.inference_mode()
def scores_alone(
    ranker: Ranker, vectors: Tensor, groups: Sequence[tuple[int, int]], start: Tensor | None = None
) -> list[list[float]]:
    """What the scorer says of each document of each group when all others are masked out: it stays at its place."""
    scores = []
    for first, end in groups:
        size = end - first
        group, begun = vectors[first:end], None if start is None else start[first:end]
        alone = torch.eye(size, dtype=torch.long, device=vectors.device)
        logits = []
        for rows in torch.arange(size, device=vectors.device).split(max(1, ranker.batch_tokens // size)):
            known = None if begun is None else begun.expand(len(rows), -1)
            batch = ranker.model.score(group.expand(len(rows), -1, -1), alone[rows], start=known)  # (rows, size)
            logits += batch[torch.arange(len(rows)), rows].float().tolist()
        scores.append(logits)
    return scores


@torch.inference_mode()
def scorer_attention(ranker: Ranker, vectors: Tensor) -> Tensor:
    """Who attends to whom in one group `(documents, documents)`, averaged over layers and heads; rows sum to 1."""
    recorder = CoBertRecorder(attentions=True)
    with _eager(ranker.model.scorer):
        ranker.model.score(vectors.unsqueeze(0), recorder=recorder)
    return torch.stack(recorder.kept["scorer_attentions"]).float().mean(dim=(0, 1, 2)).cpu()


@contextmanager
def _eager(part) -> Iterator[None]:
    """Only the plain implementation of attention can tell what it attended to."""
    before = part.config._attn_implementation
    part.set_attn_implementation("eager")
    try:
        yield
    finally:
        part.set_attn_implementation(before)


def _attention_rows(
    ranker: Ranker, vectors: Tensor, groups: Sequence[tuple[int, int]], scores: Sequence[Sequence[float]]
) -> dict[int, tuple[int, list[float]]]:
    """Each document's place to the group that decided its score, and its attention in that group."""
    deciding: dict[int, int] = {}
    how = ranker.model.config.overlap_merge
    for number, (start, end) in enumerate(groups):
        for place in range(start, end):
            known = deciding.setdefault(place, number)
            larger = scores[number][place - start] > scores[known][place - groups[known][0]]
            # A mean is of both groups: the one with the larger score is shown.
            if how == "last" or (how in ("max", "mean") and larger):
                deciding[place] = number
    rows = {}
    for number, (start, end) in enumerate(groups):
        attention = scorer_attention(ranker, vectors[start:end]).tolist()
        for place in range(start, end):
            if deciding[place] == number:
                rows[place] = (number, attention[place - start])
    return rows


@torch.inference_mode()
def _neighbour_rows(ranker: Ranker, encoded: EncodedQuery) -> dict[int, tuple[int, list[float]]]:
    """Place to its (first) group's number and the shares of that group's documents in what it is drawn to."""
    model, content, known = ranker.model, encoded.content, ranker.start(encoded)
    if model.neighbours is None or known is None:
        return {}
    words = encoded.words if "words" in model.config.neighbours_by else None
    rows: dict[int, tuple[int, list[float]]] = {}
    for number, (start, end) in enumerate(encoded.groups):
        likeness = None if words is None else words.likeness(start, end).to(known.device)
        alike = model.compare(None if content is None else content[start:end], likeness)
        if alike is None:
            return {}
        logits = known[start:end].unsqueeze(0)
        voices = model.neighbours.voices(logits, torch.ones_like(logits))
        shares = model.neighbours.shares(alike.unsqueeze(0), voices)[0].tolist()
        for place in range(start, end):
            rows.setdefault(place, (number, shares[place - start]))
    return rows


def _feedback_shares(ranker: Ranker, start: torch.Tensor | None) -> torch.Tensor | None:
    """How much each document counts as a prototype in feedback by words; `None` in a model without it."""
    feedback = ranker.model.feedback
    if feedback is None or start is None:
        return None
    with torch.inference_mode():
        return feedback.shares(start.unsqueeze(0), torch.ones_like(start).unsqueeze(0))[0]


def _attended(
    found: tuple[int, list[float]] | None,
    place: int,
    groups: Sequence[tuple[int, int]],
    doc_ids: Sequence[str],
    limit: int,
) -> tuple[int | None, float | None, list[Attended]]:
    if found is None:
        return None, None, []
    group, weights = found
    start = groups[group][0]
    order = [start + i for i in best_first(weights) if start + i != place and weights[i] > 0][:limit]
    others = [Attended(doc_ids[other], weights[other - start]) for other in order]
    return group, weights[place - start], others


def _ranks(scores: Sequence[float]) -> list[int]:
    ranks = [0] * len(scores)
    for rank, place in enumerate(best_first(scores), start=1):
        ranks[place] = rank
    return ranks


def prototype_table(explanation: Explanation) -> Table:
    """Which prototype weighed how much."""
    rows = [
        [p.doc_id, f"{p.weight:.3f}", f"{p.selector_score:.3f}", str(p.first_stage_rank), str(p.rank)]
        for p in explanation.prototypes
    ]
    return Table(["Prototype", "Weight", "Selector", "First-stage rank", "Rank"], rows)


def document_table(explanation: Explanation, limit: int | None = None) -> Table:
    """Score and rank with everything on, and how far each part moved a document."""
    # A model without calibrator and scorer has one thing to turn off: what feedback and neighbours add.
    off = ["context off"] if explanation.parts == ["both"] else [OFF[part] for part in explanation.parts]
    columns = ["Document", "Text", "Rank", "First", "Score", *off]
    rows = []
    for document in explanation.documents[:limit]:
        row = [document.doc_id, _short(document.text), str(document.rank), str(document.first_stage_rank)]
        row.append(f"{document.score:.4f}")
        for part in explanation.parts:
            row.append(f"{_moved(document.without[part].rank, document.rank)} {document.moved[part]['score']:+.3f}")
        rows.append(row)
    return Table(columns, rows, text_columns=2)


def attention_table(explanation: Explanation, limit: int | None = None) -> Table:
    """Which other candidates the scorer attended to."""
    rows = [
        [
            document.doc_id,
            ", ".join(f"{other.doc_id} ({other.weight:.3f})" for other in document.attended),
            f"{document.self_attention:.3f}",
            f"{1 / document.group_size:.3f}",
        ]
        for document in explanation.documents[:limit]
        if document.group_size is not None
    ]
    return Table(["Document", "Attended to", "Itself", "Equal share"], rows, text_columns=2)


def in_words(explanation: Explanation, limit: int = 3) -> list[str]:
    """
    What the context did, for people: a sentence for each document that it moved most, from or into the best ten.

    Args:
        explanation ([`Explanation`]): from [`explain_query`].
        limit (`int`, *optional*, defaults to 3): how many documents.
    """
    if "both" not in explanation.parts:
        return []
    before = {document.doc_id: document.without["both"].rank for document in explanation.documents}
    moved = [d for d in explanation.documents if d.rank != before[d.doc_id] and min(d.rank, before[d.doc_id]) <= 10]
    moved.sort(key=lambda document: (-abs(before[document.doc_id] - document.rank), document.rank))
    lines = []
    for document in moved[:limit]:
        way = "up" if document.rank < before[document.doc_id] else "down"
        line = f"{document.doc_id} goes {way} from {before[document.doc_id]} to {document.rank}"
        for how, others in (("about the same as", document.neighbours), ("it looked at", document.attended)):
            if others:
                named = ", ".join(f"{other.doc_id} (at {before[other.doc_id]})" for other in others[:3])
                line += f"; {how} {named}"
        if document.shared_words:
            whom = "the best documents" if explanation.fed_back else "these"
            line += f"; shares with {whom}: {', '.join(document.shared_words)}"
        lines.append(f"{line}.")
    return lines


def explanation_section(explanation: Explanation, top: int = 20) -> Section:
    """
    A section for [`write_report`]: prototypes, how far each part moved the documents, and attention.

    Args:
        explanation ([`Explanation`]): from [`explain_query`].
        top (`int`, *optional*, defaults to 20): how many documents are in sight; the others are to unfold.
    """
    blocks: list[Block] = [f"Query {explanation.query_id}: {explanation.query}"]
    if explanation.prototypes:
        blocks += ["Which feedback document (prototype) weighed how much in the calibration:"]
        blocks += [prototype_table(explanation)]
    blocks += [
        "How far each part of the context moved the documents. Without calibration, the vectors go on as the encoder "
        "left them; without the group, a document sees itself alone in the scorer. Under a part that is off: the rank "
        "without it, how many ranks up or down turning it on moved the document, and what it added to the score.",
        document_table(explanation, top),
    ]
    words = in_words(explanation)
    if words:
        blocks += [f"Moved most, in places without the context and with it: {' '.join(words)}"]
    attends = any(document.group is not None for document in explanation.documents)
    if attends:
        blocks += [
            "Which other candidates of its group each document attended to in the scorer, averaged over layers and "
            "heads.",
            attention_table(explanation, top),
        ]
    if len(explanation.documents) > top:
        rest: list[Block] = [document_table(explanation), *([attention_table(explanation)] if attends else ())]
        blocks.append(Details(f"All {len(explanation.documents)} documents", rest))
    return Section(f"Context, explained: query {explanation.query_id}", blocks, short=f"Query {explanation.query_id}")


def _moved(before: int, after: int) -> str:
    arrow = "=" if before == after else f"↑{before - after}" if after < before else f"↓{after - before}"
    return f"{before} {arrow}"


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN_TEXT else f"{text[: _SHOWN_TEXT - 1]}…"
