"""Explanations: every number against the model's stages called by hand, and a page that shows all text as text."""

import json
import re
from dataclasses import replace

import pytest
import tiny
import torch

from modeling_cobert.analysis.explanation import explain_query, explanation_section, in_words, scorer_attention
from modeling_cobert.data.groups import Grouping
from modeling_cobert.evaluation.report import render_report
from modeling_cobert.ranking.ranker import EncodedQuery, Ranker
from modeling_cobert.words_cobert import word_vectors

DOCUMENTS = 12  # with groups of 7 that share 2: (0, 7), (5, 12)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return tiny.tokenizer(tmp_path_factory.mktemp("tokenizer"))


def make(tokenizer, variant: str, count: int = DOCUMENTS, **fields) -> tuple[Ranker, EncodedQuery]:
    model = tiny.model(**tiny.VARIANTS[variant], **fields)
    model.tokenizer = tokenizer
    vectors = torch.randn(count, tiny.HIDDEN, generator=torch.Generator().manual_seed(3))
    selector_scores = torch.randn(count, generator=torch.Generator().manual_seed(4)).tolist()
    best = sorted(range(count), key=lambda i: -selector_scores[i])[: model.num_prototypes]
    encoded = EncodedQuery(
        query_id="<q>",
        query="bees & <b>cars</b>",
        doc_ids=[f"d{i}" for i in range(count)],
        texts=[f"text <script>{i}</script>" for i in range(count)],
        vectors=vectors,
        selector_scores=selector_scores,
        grouping=Grouping(model.num_prototypes, tiny.N, 2),
        prototypes=best,
    )
    return Ranker.wrap(model), encoded


def ranked(scores: list[float]) -> list[int]:
    return [1 + sum(other > score for other in scores) for score in scores]


@torch.no_grad()
def by_hand(model, vectors, spans, calibrate: bool, alone: bool, prototypes) -> list[float]:
    """Document by document: through the calibrator or not, in its group or with all others masked out, the larger."""
    best = [float("-inf")] * len(vectors)
    for start, end in spans:
        group = vectors[start:end].unsqueeze(0)
        if calibrate:
            group, _ = model.calibrate(vectors[prototypes].unsqueeze(0), group)
        for i in range(end - start):
            mask = torch.ones(1, end - start, dtype=torch.long)
            if alone:
                mask = torch.zeros_like(mask)
                mask[0, i] = 1
            best[start + i] = max(best[start + i], float(model.score(group, mask)[0, i]))
    return best


@pytest.mark.parametrize("variant", ["full", "release", "calibrator", "scorer", "neither"])
def test_scores_with_parts_on_and_off(variant, tokenizer):
    ranker, encoded = make(tokenizer, variant)
    explanation = explain_query(ranker, encoded)
    use = ranker.model.config
    parts = {"calibration": use.use_calibrator, "group": use.use_scorer, "both": use.use_calibrator and use.use_scorer}
    assert explanation.parts == [part for part, there in parts.items() if there]
    spans = [(0, 7), (5, 12)]
    assert encoded.groups == spans
    hand = {
        name: by_hand(ranker.model, encoded.vectors, spans, on and use.use_calibrator, alone, encoded.prototypes)
        for name, on, alone in (
            ("full", True, False),
            ("calibration", False, False),
            ("group", True, use.use_scorer),
            ("both", False, use.use_scorer),
        )
    }
    assert [d.rank for d in explanation.documents] == list(range(1, DOCUMENTS + 1))
    for document in explanation.documents:
        place = int(document.doc_id[1:])
        assert document.first_stage_rank == place + 1
        assert document.score == pytest.approx(hand["full"][place], abs=1e-5)
        assert document.rank == ranked(hand["full"])[place]
        for part in explanation.parts:
            off = document.without[part]
            assert off.score == pytest.approx(hand[part][place], abs=1e-5)
            assert off.rank == ranked(hand[part])[place]
            assert document.moved[part]["score"] == pytest.approx(hand["full"][place] - hand[part][place], abs=2e-5)
            assert document.moved[part]["ranks"] == ranked(hand[part])[place] - ranked(hand["full"])[place]
    # Turned off, a part makes a difference: otherwise this test would see nothing.
    for part in explanation.parts:
        assert max(abs(d.moved[part]["score"]) for d in explanation.documents) > 1e-3


def test_a_group_of_one_is_a_document_alone(tokenizer):
    """Without positions, masking the others out is the same as a group of its own."""
    ranker, encoded = make(tokenizer, "full")
    for document in explain_query(ranker, encoded).documents:
        place = int(document.doc_id[1:])
        with torch.no_grad():
            group, _ = ranker.model.calibrate(
                encoded.vectors[encoded.prototypes].unsqueeze(0), encoded.vectors[place : place + 1].unsqueeze(0)
            )
            expected = float(ranker.model.score(group)[0, 0])
        assert document.without["group"].score == pytest.approx(expected, abs=1e-5)


def test_weights_of_the_prototypes(tokenizer):
    ranker, encoded = make(tokenizer, "full")
    explanation = explain_query(ranker, encoded)
    logits = ranker.model.prototype_weight(encoded.vectors[encoded.prototypes]).squeeze(-1)
    weights = dict(zip(encoded.prototypes, logits.softmax(dim=0).tolist(), strict=True))
    assert {int(p.doc_id[1:]): p.weight for p in explanation.prototypes} == pytest.approx(weights, abs=1e-6)
    assert sum(p.weight for p in explanation.prototypes) == pytest.approx(1)
    assert [p.weight for p in explanation.prototypes] == sorted(weights.values(), reverse=True)
    ranks = {d.doc_id: d.rank for d in explanation.documents}
    for prototype in explanation.prototypes:
        assert prototype.rank == ranks[prototype.doc_id]
        assert prototype.selector_score == encoded.selector_scores[prototype.first_stage_rank - 1]


def test_attention_is_that_of_the_deciding_group(tokenizer):
    ranker, encoded = make(tokenizer, "full")
    before = ranker.model.scorer.config._attn_implementation
    explanation = explain_query(ranker, encoded, attended=4)
    assert ranker.model.scorer.config._attn_implementation == before == "sdpa"
    calibrated, _ = ranker.calibrate(encoded)
    eager = tiny.model(attn_implementation="eager")
    eager.load_state_dict(ranker.model.state_dict())
    eager.scorer.set_attn_implementation("eager")
    attentions, logits = [], []
    with torch.no_grad():
        for start, end in encoded.groups:
            output = eager.scorer(
                inputs_embeds=calibrated[start:end].unsqueeze(0),
                position_ids=torch.zeros(1, end - start, dtype=torch.long),
                output_attentions=True,
            )
            assert len(output.attentions) == 2 and output.attentions[0].shape == (1, 2, 7, 7)
            attentions.append(sum(layer[0, head] for layer in output.attentions for head in (0, 1)) / 4)
            logits.append(eager.classifier(output.last_hidden_state)[0, :, 0])
    assert torch.allclose(scorer_attention(ranker, calibrated[:7]), attentions[0], atol=1e-6)
    decided = set()
    for document in explanation.documents:
        place = int(document.doc_id[1:])
        inside = [g for g, (start, end) in enumerate(encoded.groups) if start <= place < end]
        deciding = max(inside, key=lambda g: float(logits[g][place - encoded.groups[g][0]]))
        decided.add((len(inside), deciding))
        assert (document.group, document.group_size) == (deciding, 7)
        start = encoded.groups[deciding][0]
        row = attentions[deciding][place - start]
        assert document.self_attention == pytest.approx(float(row[place - start]), abs=1e-6)
        others = sorted((i for i in range(7) if start + i != place), key=lambda i: -float(row[i]))[:4]
        assert [a.doc_id for a in document.attended] == [f"d{start + i}" for i in others]
        assert [a.weight for a in document.attended] == pytest.approx([float(row[i]) for i in others], abs=1e-6)
    assert {(1, 0), (1, 1)} <= decided


def test_odd_lists(tokenizer):
    for variant in ("full", "release", "neither"):
        explanation = explain_query(*make(tokenizer, variant, count=1))
        (document,) = explanation.documents
        assert document.rank == 1 and document.attended == []
        if "group" in explanation.parts:
            assert document.self_attention == pytest.approx(1) and abs(document.moved["group"]["score"]) < 1e-5


def test_json_and_a_page_that_shows_all_text_as_text(tokenizer):
    explanation = explain_query(*make(tokenizer, "full"))
    told = json.loads(json.dumps(explanation.to_dict()))
    assert told["documents"][0]["without"]["group"]["rank"] == explanation.documents[0].without["group"].rank
    page = render_report("Why", [explanation_section(explanation, top=3)])
    assert "<script>" not in page and "<b>cars" not in page
    assert "bees &amp; &lt;b&gt;cars&lt;/b&gt;" in page and "&lt;script&gt;11&lt;/script&gt;" in page
    assert "All 12 documents" in page
    for variant in ("neither", "calibrator"):
        page = render_report("Why", [explanation_section(explain_query(*make(tokenizer, variant)))])
        assert "attended to in the scorer" not in page


def started(tokenizer, variant: str = "full") -> tuple[Ranker, EncodedQuery]:
    """A model that starts from known scores and sees content, with a context that says something."""
    fields = {"starting_weights": [0.4, 1.0, 0.7], "content_size": 10, "neighbour_weight": 0.8, "selector": "bi"}
    fields["feedback_weight"] = 0.9
    ranker, encoded = make(tokenizer, variant, **fields)
    torch.nn.init.normal_(ranker.model.classifier.weight, std=0.3)
    generator = torch.Generator().manual_seed(8)
    content = torch.nn.functional.normalize(torch.randn(DOCUMENTS, 10, generator=generator), dim=-1)
    scores = torch.randn(DOCUMENTS, generator=generator).tolist()
    words = word_vectors([" ".join(tiny.WORDS[i % 7 : i % 7 + 3 + i % 4]) for i in range(DOCUMENTS)])
    return ranker, replace(encoded, content=content, first_stage_scores=scores, words=words)


@pytest.mark.parametrize("variant", ["full", "neither"])
def test_a_start_is_what_is_left_without_context(tokenizer, variant):
    ranker, encoded = started(tokenizer, variant)
    explanation = explain_query(ranker, encoded)
    assert explanation.parts == (["calibration", "group", "both"] if variant == "full" else ["both"])
    start = ranker.start(encoded, fed_back=False).tolist()
    assert start != ranker.start(encoded).tolist()
    by_id = {document.doc_id: document for document in explanation.documents}
    for doc_id, score, final in zip(encoded.doc_ids, start, ranker.score(encoded), strict=True):
        assert by_id[doc_id].without["both"].score == pytest.approx(score, abs=1e-5)
        assert by_id[doc_id].score == pytest.approx(final, abs=1e-5)
        others = [other.doc_id for other in by_id[doc_id].neighbours]
        assert doc_id not in others and len(set(others)) == len(others) == 5
    best = encoded.doc_ids[start.index(max(start))]
    assert set(by_id[best].shared_words) <= set(tiny.WORDS) and by_id[best].shared_words
    nearest = (encoded.content[0] @ encoded.content[1 : encoded.groups[0][1]].T).argmax()
    assert by_id["d0"].neighbours[0].doc_id == f"d{nearest + 1}"


def test_neighbours_by_words_are_named_with_what_they_share(tokenizer):
    fields = {"starting_weights": [0.0, 1.0, 0.7], "neighbour_weight": 2.0}
    ranker, encoded = make(tokenizer, "neither", **fields)
    texts = [" ".join(tiny.WORDS[i % 7 : i % 7 + 3 + i % 4]) for i in range(DOCUMENTS)]
    encoded = replace(encoded, words=word_vectors(texts))
    explanation = explain_query(ranker, encoded)
    assert explanation.parts == ["both"] and not explanation.fed_back
    first, end = encoded.groups[0]
    likeness = word_vectors(texts).likeness()
    for document in explanation.documents:
        place = encoded.doc_ids.index(document.doc_id)
        assert set(document.shared_words) <= set(texts[place].split()) and document.shared_words
        if first < place < end:
            nearest = max((i for i in range(first, end) if i != place), key=lambda i: float(likeness[place, i]))
            assert likeness[place, encoded.doc_ids.index(document.neighbours[0].doc_id)] == likeness[place, nearest]
    lines = in_words(explanation)
    assert lines and all("; about the same as " in line and "; shares with these: " in line for line in lines)


def test_words_name_what_moved(tokenizer):
    ranker, encoded = started(tokenizer)
    explanation = explain_query(ranker, encoded)
    lines = in_words(explanation, limit=2)
    assert len(lines) == 2
    by_id = {document.doc_id: document for document in explanation.documents}
    for line in lines:
        found = re.match(r"(d\d+) goes (up|down) from (\d+) to (\d+); about the same as (d\d+) \(at (\d+)\)", line)
        document = by_id[found[1]]
        assert (int(found[3]), int(found[4])) == (document.without["both"].rank, document.rank)
        assert (found[2] == "up") == (document.rank < document.without["both"].rank)
        assert int(found[6]) == by_id[found[5]].without["both"].rank
    plain, query = make(tokenizer, "scorer")
    assert in_words(explain_query(plain, query)) == []  # nothing that could be compared
