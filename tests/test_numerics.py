"""Numbers at the edge of what floats hold: the right answer, or an error that says so, and never a silent ranking."""

import math
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

from modeling_cobert import CoBertForGroupwiseRanking
from modeling_cobert.baselines.mixture import ScoredList
from modeling_cobert.collections.trec import read_run, write_run
from modeling_cobert.evaluation.measures import evaluate_run
from modeling_cobert.evaluation.significance import TESTS, compare_runs
from modeling_cobert.grouping_cobert import MERGES, best_first, merge_spans, overlapping_spans, standardize
from modeling_cobert.initialization_cobert import weights_that_are_none
from modeling_cobert.loss_cobert import DISTILLATION_LOSSES, LOSSES, distillation_loss, ranking_loss
from modeling_cobert.ranking.loading import load_cobert
from modeling_cobert.ranking.ties import strict_scores
from modeling_cobert.selection_cobert import load_selector
from modeling_cobert.start_cobert import standardize_rows

QUERY = "how do bees see"
DOCUMENTS = ["bees see", "red car", "the sky is blue", "slow wheel", "honey light"] * 3
START = {"starting_weights": [0.7, 0.4, 0.5]}
WORDS = {**START, "feedback_weight": 0.9, "neighbour_weight": 0.6}
BROKEN = "the model's weights are damaged or, in half precision, its numbers too large: load it in float32"
LARGEST = float(np.finfo(np.float32).max)
SCALES = [1e-300, 1e-38, 1e-30, 1e-20, 1.0, 1e15, 1e22, 1e30, 1e38, 1e300]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return tiny.tokenizer(tmp_path_factory.mktemp("tokenizer"))


def make(tokenizer, **fields) -> CoBertForGroupwiseRanking:
    made = tiny.model(**fields)
    torch.nn.init.normal_(made.classifier.weight)  # of a model with a start it begins as zero
    made.tokenizer = tokenizer
    return made


def rank(model) -> list[dict] | str:
    """The ranking, all scores of which are numbers, or what the user is told."""
    try:
        ranking = model.rerank(QUERY, DOCUMENTS)
    except ValueError as error:
        return str(error)
    assert all(math.isfinite(result["score"]) and 0 <= result["probability"] <= 1 for result in ranking)
    assert sorted(result["corpus_id"] for result in ranking) == list(range(len(DOCUMENTS)))
    return ranking


# --- half precision and damaged weights


@pytest.mark.parametrize("fields", [{}, START, WORDS], ids=["paper", "start", "words"])
@pytest.mark.parametrize("variant", tiny.VARIANTS)
@torch.no_grad()
def test_what_half_precision_cannot_hold_is_told(variant, fields, tokenizer):
    """In float16 the head's, then the encoder's numbers overflow; bfloat16 has the range, so it ranks."""
    told = []
    for enlarge in (
        lambda m: (m.classifier.weight.mul_(6e4).clamp_(-6e4, 6e4), m.classifier.bias.fill_(6e4)),
        lambda m: m.encoder.embeddings.LayerNorm.weight.fill_(6e4),
    ):
        for dtype in (torch.float16, torch.bfloat16):
            model = make(tokenizer, **tiny.VARIANTS[variant], **fields)
            enlarge(model)
            found = rank(model.to(dtype))
            if isinstance(found, str):
                assert dtype == torch.float16 and found.endswith(BROKEN), found
                told.append(found)
    assert told


@torch.no_grad()
def test_an_infinite_score_does_not_rank(tokenizer, tmp_path):
    """One that is larger than all numbers would stand first, as if it meant something."""
    model = make(tokenizer, **tiny.VARIANTS["neither"])
    model.classifier.bias.fill_(math.inf)
    assert rank(model) == f"document 0 has the score inf: {BROKEN}"
    with pytest.raises(ValueError, match="document 'b' has the score inf: the model's weights are damaged or"):
        strict_scores(["a", "b"], [0.0, math.inf])


@torch.no_grad()
def test_a_checkpoint_with_a_number_that_is_none_does_not_rank(tokenizer, tmp_path):
    """Attention takes a query that is not a number for one that looks at nothing: no score would tell."""
    model = make(tokenizer, **WORDS)
    for place, (name, weight) in enumerate(model.named_parameters()):
        kept = weight.view(-1)[-1].clone()
        weight.view(-1)[-1] = (math.nan, math.inf, -math.inf)[place % 3]
        assert weights_that_are_none("x", model).endswith(f"hold numbers that are not finite, such as {name}")
        weight.view(-1)[-1] = kept
    assert weights_that_are_none("x", model) == ""
    for name in (
        "calibrator.encoder.layer.0.attention.self.query.weight",
        "encoder.embeddings.word_embeddings.weight",
    ):
        state = {key: weight.clone() for key, weight in model.state_dict().items()}
        state[name][-1] = math.nan
        loaded = CoBertForGroupwiseRanking.from_pretrained(None, config=model.config, state_dict=state)
        loaded.tokenizer = tokenizer
        assert f"1 of its weights hold numbers that are not finite, such as {name}. Its ranking would" in rank(loaded)
        by_force = loaded.rerank(QUERY, DOCUMENTS, allow_fresh_weights=True)
        assert (by_force == rank(model)) == ("word" in name)  # the last word is in no text


def test_a_checkpoint_that_half_precision_cannot_hold_is_refused(tokenizer, tmp_path):
    model = make(tokenizer, **tiny.VARIANTS["neither"])
    torch.nn.init.constant_(model.classifier.weight, 1e6)
    model.save_pretrained(tmp_path)
    assert len(rank(load_cobert(tmp_path))) == len(DOCUMENTS)
    for fields in ({}, {"loss": "listwise"}):
        with pytest.raises(ValueError, match="1 of its weights hold .* such as classifier.weight. Load a whole check"):
            load_cobert(tmp_path, torch.float16, **fields)


@pytest.mark.parametrize("labels", [1, None], ids=["cross-encoder", "bi-encoder"])
def test_a_selector_with_weights_that_are_none_is_refused(labels, tmp_path):
    folder = tiny.bert_checkpoint(tmp_path, layers=2, labels=labels)
    weights = load_file(folder / "model.safetensors")
    prefix = "bert." if labels else ""
    lost = f"{prefix}encoder.layer.1.attention.self.query.weight"
    weights[lost].view(-1)[0] = math.nan
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=f"not finite, such as {lost}. What such a selector picks would mean nothing"):
        load_selector(str(folder))
    del weights[lost]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=f"1 missing, such as {lost}"):
        load_selector(str(folder))


def test_what_is_not_a_number_in_one_group_stays_so_when_groups_are_merged():
    spans = [(0, 2), (1, 3)]
    for how in ("max", "mean"):
        for scores in ([[0.5, math.nan], [0.7, 1.0]], [[0.5, 0.7], [math.nan, 1.0]]):
            merged = merge_spans(spans, scores, how)
            assert math.isnan(merged[1]) and (merged[0], merged[2]) == (0.5, 1.0)
            with pytest.raises(ValueError, match="position 1 is not a number"):
                best_first(merged)


# --- several threads: settings of a model and of a tokenizer are one for all


def test_threads_do_not_disturb_each_other(tokenizer, tmp_path):
    """What one thread sets for a while (evaluation mode, how special tokens are read) no other one may meet."""
    texts = [f"[SEP] {text} [MASK] bees" for text in DOCUMENTS[:5]]
    make(tokenizer).save_pretrained(tmp_path)
    model = CoBertForGroupwiseRanking.from_pretrained(tmp_path).train()
    queries = [f"{word} [SEP] see" for word in tiny.WORDS[:16]]
    alone = [model.rerank(query, texts) for query in queries]
    fresh = CoBertForGroupwiseRanking.from_pretrained(tmp_path).train()
    fresh.scorer.eval()
    begin = threading.Barrier(16)

    def rank_some(number: int) -> list:
        begin.wait()
        return [(i % 16, fresh.rerank(queries[i % 16], texts)) for i in range(number, number + 6)]

    with ThreadPoolExecutor(16) as pool:
        for found in pool.map(rank_some, range(16)):
            assert all(ranking == alone[place] for place, ranking in found)
    assert fresh.training and fresh.encoder.training and not fresh.scorer.training


# --- equal scores


@pytest.mark.parametrize("how", MERGES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@torch.no_grad()
def test_equal_scores_keep_the_first_stages_order_in_every_written_run(how, dtype, tokenizer, tmp_path):
    """Groups that overlap, ids whose order is another, every precision: one order, in memory and in a file."""
    model = make(tokenizer, overlap_merge=how).to(dtype)
    model.classifier.weight.zero_()
    ids = [f"d{(7 * place) % len(DOCUMENTS):02d}" for place in range(len(DOCUMENTS))]
    assert len(overlapping_spans(len(ids), tiny.N, 2)) == 3
    ranking = model.rerank(QUERY, DOCUMENTS)
    assert [result["corpus_id"] for result in ranking] == list(range(len(ids)))
    run = strict_scores(ids, [result["score"] for result in ranking])
    write_run(tmp_path / "run.trec", {"q": run}, "tag")
    assert list(read_run(tmp_path / "run.trec")["q"]) == ids


def test_equal_scores_of_all_sources_keep_the_order_in_a_mixture():
    for value in (0.0, -LARGEST, LARGEST, 1e-300):
        mixed = ScoredList(["b", "a", "c"], [[value] * 3, [1.0] * 3]).mix([0.3, 0.7])
        assert list(mixed) == ["b", "a", "c"]


FLOATS = st.floats(-LARGEST, LARGEST, width=32)


@given(st.lists(st.one_of(FLOATS, st.sampled_from([LARGEST, -LARGEST, 0.0, -0.0, 5e-324, -5e-324])), min_size=1))
def test_written_scores_fall_strictly_or_are_refused(scores):
    """At the very end of single precision there is no smaller number to set a tie apart by."""
    ids = [f"d{place}" for place in range(len(scores))]
    try:
        written = strict_scores(ids, scores)
    except ValueError as error:
        assert scores.count(-LARGEST) > 1 or min(scores) < -LARGEST / 1.0001  # noqa: PT017
        assert "no score is below" in str(error)  # noqa: PT017
        return
    single = [np.float32(score) for score in written.values()]
    assert all(np.isfinite(single)) and all(one > other for one, other in zip(single, single[1:], strict=False))


# --- first-stage scores


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan, 10**400, -(10**400)], ids=lambda bad: str(bad)[:5])
def test_a_first_stage_score_that_is_no_float_is_refused(bad, tokenizer):
    model = make(tokenizer, **START)
    given_documents = [{"text": text, "score": 1.0} for text in DOCUMENTS[:3]]
    given_documents[1]["score"] = bad
    with pytest.raises(ValueError, match="document 1 has the score .*: give all documents a finite first-stage score"):
        model.rerank(QUERY, given_documents)


@pytest.mark.parametrize("scale", SCALES)
def test_the_unit_of_first_stage_scores_does_not_matter(scale, tokenizer):
    """Scores of any size that a float can have, beyond single precision too; and equal ones say nothing."""
    model = make(tokenizer, **WORDS)

    def scored(scores: list[float]) -> list[dict]:
        return model.rerank(QUERY, [{"text": t, "score": s} for t, s in zip(DOCUMENTS, scores, strict=True)])

    ranks = [float(-place) for place in range(len(DOCUMENTS))]
    found, expected = scored([scale * rank for rank in ranks]), scored(ranks)
    assert [r["corpus_id"] for r in found] == [r["corpus_id"] for r in expected]
    assert [r["score"] for r in found] == pytest.approx([r["score"] for r in expected], abs=1e-5)
    assert scored([scale] * len(DOCUMENTS)) == scored([0.0] * len(DOCUMENTS))


@pytest.mark.parametrize("score", ["nan", "inf", "-inf", "1e39", "-1e39", "1e400", "0x1p3", "1_0", "", "NaN"])
def test_a_runs_score_that_is_no_single_precision_number_is_refused(score, tmp_path):
    path = tmp_path / "run.trec"
    path.write_text(f"q Q0 a 1 2.0 x\nq Q0 b 2 {score} x\n")
    with pytest.raises(ValueError, match=r"run\.trec:2: (the score must be a finite number|expected 6 columns)"):
        read_run(path)


# --- standardising


@pytest.mark.parametrize("scale", [scale for scale in SCALES if 1e-38 <= scale <= 1e38])
def test_standardised_rows_know_no_unit(scale):
    """Squares of large and small numbers leave the range of floats long before the numbers do."""
    values = torch.tensor([[1.0, -0.5, 0.25, 0.8], [0.3, 0.3, 0.3, 0.3], [1.0, 2.0, 0.0, 0.0]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 0, 0]])
    plain = values.clone().requires_grad_()
    scaled = (values * scale).requires_grad_()
    expected, found = standardize_rows(plain, mask), standardize_rows(scaled, mask)
    assert_close(found, expected, atol=1e-6, rtol=0)
    assert_close(standardize_rows(scaled, mask, scaled), expected, atol=1e-6, rtol=0)
    assert found[0].tolist() == pytest.approx(standardize(values[0].tolist()), abs=1e-6)
    weights = torch.tensor([1.0, 2.0, -3.0, 0.5])
    (expected * weights).sum().backward()
    (found * weights).sum().backward()
    assert (scaled.grad[1] == 0).all() and (scaled.grad[2, 2:] == 0).all()
    if 1e-30 <= scale <= 1e30:  # beyond, the gradient itself leaves the range
        assert_close(scaled.grad * scale, plain.grad, atol=1e-5, rtol=0)


@given(st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=9), st.sampled_from([1e-300, 1e-12, 1e5]))
def test_standard_scores_are_numbers_whatever_their_unit(values, scale):
    found = standardize([value * scale if scale < 1 else value / 1e300 * scale for value in values])
    assert all(math.isfinite(score) and abs(score) <= math.sqrt(len(values)) + 1e-9 for score in found)
    assert standardize([values[0]] * len(values)) == [0.0] * len(values)


def test_what_is_not_finite_spreads_in_a_row_and_is_not_hidden():
    for bad in (math.nan, math.inf, -math.inf):
        values = torch.tensor([[1.0, bad, 2.0], [1.0, 2.0, bad]])
        found = standardize_rows(values, torch.tensor([[1, 1, 1], [1, 1, 0]]))
        assert found[0].isnan().all() and found[1].tolist() == pytest.approx([-1.0, 1.0, 0.0])


# --- losses

GRADES = {"one": [2], "none relevant": [0, 0, 0, 0], "all relevant": [1, 3, 2, 1], "mixed": [0, 2, 0, 1]}
# Of a margin of 1e30 the square is beyond single precision, which stops a training with an error.
TOLD = {"margin_mse": 1e15}


def logits_of(scale: float, count: int) -> torch.Tensor:
    """A group, one that is padded from its second place on, and one of padding alone."""
    values = scale * torch.linspace(1.0, -1.0, count)
    return torch.stack((values, values, values)).requires_grad_()


@pytest.mark.parametrize("scale", [0.0, 1e-38, 1e-30, 1.0, 1e4, 1e15, 1e30])
@pytest.mark.parametrize("grades", GRADES)
@pytest.mark.parametrize("name", [*LOSSES, *DISTILLATION_LOSSES])
def test_every_loss_and_gradient_is_finite(name, grades, scale):
    labels = torch.tensor([GRADES[grades]] * 3)
    logits = logits_of(scale, labels.shape[1])
    mask = torch.ones_like(labels)
    mask[1, 1:], mask[2] = 0, 0
    with torch.no_grad():
        logits[mask == 0] = torch.tensor([math.nan, math.inf, -1e30]).repeat(3)[: int((mask == 0).sum())]
    if name in LOSSES:
        loss = ranking_loss(name, logits, labels, mask)
    else:
        loss = distillation_loss(name, logits, labels.float(), mask)
    loss.backward()
    if scale > TOLD.get(name, math.inf) and len(set(GRADES[grades])) > 1:
        assert not loss.isfinite()
        return
    assert loss.isfinite() and loss >= 0 and logits.grad.isfinite().all()
    assert (logits.grad[mask == 0] == 0).all()


@pytest.mark.parametrize("scale", [1e30, 1e38, LARGEST])
@pytest.mark.parametrize("grades", GRADES)
@pytest.mark.parametrize("name", [*LOSSES, *DISTILLATION_LOSSES])
def test_a_loss_that_is_finite_has_a_gradient_that_is(name, grades, scale):
    """A training stops at a loss that is none; a gradient that is none would go unseen."""
    labels = torch.tensor([GRADES[grades]])
    logits = (scale * torch.linspace(1.0, -1.0, labels.shape[1])).unsqueeze(0).requires_grad_()
    loss = (
        ranking_loss(name, logits, labels) if name in LOSSES else distillation_loss(name, logits, labels.float() * 1e9)
    )
    loss.backward()
    assert logits.grad.isfinite().all() or not loss.isfinite()


@pytest.mark.parametrize("name", DISTILLATION_LOSSES)
@pytest.mark.parametrize("scale", [1e-30, 1e4, 1e15, 1e38])
def test_a_teachers_scores_of_any_size(name, scale):
    logits = torch.tensor([[0.3, -0.2, 0.9], [0.3, -0.2, 0.9]], requires_grad=True)
    scores = scale * torch.tensor([[1.0, -1.0, 0.5], [1.0, 1.0, 1.0]])
    loss = distillation_loss(name, logits, scores)
    loss.backward()
    assert not loss.isfinite() if name == "margin_mse" and scale > 1e20 else logits.grad.isfinite().all()


# --- measures and tests of significance


def test_measures_where_nothing_is_relevant_judged_or_found():
    """Zero, and not what a division by zero gives."""
    qrels = {"none": {"a": 0, "b": -1}, "missing": {"z": 1}, "plain": {"a": 1}}
    run = {"none": {"a": 1.0, "b": 1.0}, "plain": {"x": 2.0, "y": 2.0}, "unknown": {"a": 3.0}}
    names = ["P@20", "nDCG@20", "AP@1000", "RR", "R@5", "Bpref", "Rprec", "RR@10", "Judged@5", "ERR@20", "Success@3"]
    for kept in (["none"], ["missing"], ["plain"], list(qrels)):
        result = evaluate_run({query_id: qrels[query_id] for query_id in kept}, run, names)
        for name in names:
            assert sorted(result.per_query[name]) == sorted(kept)
            assert all(0 <= value <= 1 for value in result.per_query[name].values())
            if name != "Judged@5":
                assert result.means[name] == 0


@pytest.mark.parametrize("queries", [1, 2, 9])
@pytest.mark.parametrize("shift", [0.0, 1e-12, 0.25])
@pytest.mark.parametrize("test", TESTS)
def test_runs_that_differ_by_nothing_or_by_the_same_everywhere(test, shift, queries):
    """No warning of a library, no p that is none; a difference in the twelfth digit is rounding."""
    names = [f"q{number}" for number in range(queries)]
    relevant = {name: {"a": 1} for name in names}
    base = evaluate_run(relevant, {name: {"b": 2.0, "a": 1.0} for name in names}, ["RR"])
    moved = {name: value + shift for name, value in base.per_query["RR"].items()}
    other = type(base)({"RR": base.means["RR"] + shift}, {"RR": moved}, queries, [], [], 0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (found,) = compare_runs({"base": base, "other": other}, ["base"], test=test, correction="holm", samples=999)
    assert found.helped == (queries if shift > 1e-9 else 0) and found.hurt == 0
    if queries == 1:
        assert found.p_value is None and not found.significant
    else:
        assert 0 <= found.p_value <= 1 and (found.p_value == 1) == (shift < 1e-9)
