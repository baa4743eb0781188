"""Losses against values computed by hand, and that padding never reaches them."""

import math

import pytest
import torch
from torch.testing import assert_close

from modeling_cobert.loss_cobert import DISTILLATION_LOSSES, LOSSES, distillation_loss, ranking_loss

LOGITS, LABELS = [2.0, -1.0, 0.5], [1, 0, 2]
SCORES = [3.0, 2.5, -4.0]
NAN = float("nan")


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def by_hand(name: str, logits: list[float], labels: list[int]) -> float:
    n = len(logits)
    if name == "pointwise":
        return sum(-math.log(sigmoid(x) if y > 0 else 1 - sigmoid(x)) for x, y in zip(logits, labels, strict=True)) / n
    if name == "listwise":
        total = sum(math.exp(x) for x in logits)
        return -sum(y / sum(labels) * math.log(math.exp(x) / total) for x, y in zip(logits, labels, strict=True))
    if name == "approx_ndcg":
        mean = sum(logits) / n
        deviation = math.sqrt(sum((x - mean) ** 2 for x in logits) / n)
        ranks = [1 + sum(sigmoid((y - x) / deviation / 0.1) for y in logits if y != x) for x in logits]
        best = sum(y / math.log2(r + 1) for r, y in enumerate(sorted(labels, reverse=True), start=1))
        return 1 - sum(y / math.log2(r + 1) for r, y in zip(ranks, labels, strict=True)) / best
    pairs = [(i, j) for i in range(n) for j in range(n) if labels[i] > labels[j]]
    losses = {(i, j): -math.log(sigmoid(logits[i] - logits[j])) for i, j in pairs}
    if name == "ranknet":
        return sum(losses.values()) / len(pairs)
    ranks = {i: rank for rank, i in enumerate(sorted(range(n), key=lambda i: -logits[i]), start=1)}
    ideal = sum(y / math.log2(r + 1) for r, y in enumerate(sorted(labels, reverse=True), start=1))

    def change(i, j):
        return abs(labels[i] - labels[j]) * abs(1 / math.log2(ranks[i] + 1) - 1 / math.log2(ranks[j] + 1)) / ideal

    return sum(change(i, j) * losses[i, j] for i, j in pairs)


@pytest.mark.parametrize("name", LOSSES)
def test_by_hand(name):
    loss = ranking_loss(name, torch.tensor([LOGITS]), torch.tensor([LABELS]))
    assert loss.item() == pytest.approx(by_hand(name, LOGITS, LABELS), rel=1e-5)


def test_lambda_weighs_what_a_swap_changes():
    """One relevant document at rank 2 of 2: swapping changes nDCG by 1 - 1/log2(3)."""
    loss = ranking_loss("lambda", torch.tensor([[1.0, 0.0]]), torch.tensor([[0, 1]]))
    assert loss.item() == pytest.approx((1 - 1 / math.log2(3)) * math.log(1 + math.e), rel=1e-5)


@pytest.mark.parametrize("name", LOSSES)
def test_groups_and_padding(name):
    """Two groups, one of them padded: as if each candidate stood alone, whatever the padding holds."""
    nan = float("nan")
    logits = torch.tensor([[*LOGITS, 7.0], [0.3, 0.1, nan, float("inf")]], requires_grad=True)
    labels = torch.tensor([[*LABELS, -100], [0, 1, -100, 3]])
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]])
    loss = ranking_loss(name, logits, labels, mask)
    first, second = (LOGITS, LABELS), ([0.3, 0.1], [0, 1])
    a, b = by_hand(name, *first), by_hand(name, *second)
    weights = {"pointwise": (3 / 5, 2 / 5), "ranknet": (3 / 4, 1 / 4)}.get(name, (1 / 2, 1 / 2))
    assert loss.item() == pytest.approx(weights[0] * a + weights[1] * b, rel=1e-5)
    loss.backward()
    assert torch.isfinite(logits.grad).all() and (logits.grad[mask == 0] == 0).all()
    if name != "approx_ndcg":  # two logits, standardised, are always -1 and 1
        assert (logits.grad[mask == 1] != 0).all()


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("labels", [[-100, -100, -100], [0, 0, 0], [2, 2, 2]])
def test_nothing_to_learn_from_is_finite(name, labels):
    logits = torch.tensor([LOGITS], requires_grad=True)
    loss = ranking_loss(name, logits, torch.tensor([labels]))
    loss.backward()
    assert torch.isfinite(loss) and torch.isfinite(logits.grad).all()
    if labels[0] == -100:
        assert loss == 0 and logits.grad.abs().sum() == 0
    if name in ("ranknet", "lambda"):
        assert loss == 0


@pytest.mark.parametrize("name", LOSSES)
def test_permutation_scale_and_precision(name):
    logits, labels = torch.randn(3, 9, generator=torch.Generator().manual_seed(0)), torch.arange(27).view(3, 9) % 4
    order = torch.randperm(9, generator=torch.Generator().manual_seed(1))
    loss = ranking_loss(name, logits, labels)
    assert_close(ranking_loss(name, logits[:, order], labels[:, order]), loss)
    assert ranking_loss(name, logits.half(), labels).dtype == torch.float32
    extreme = ranking_loss(name, logits * 1e4, labels)
    assert torch.isfinite(extreme)


def test_approx_ndcg_is_blind_to_scale_and_level_and_near_to_ndcg():
    logits, labels = torch.randn(3, 9, generator=torch.Generator().manual_seed(0)), torch.arange(27).view(3, 9) % 4
    loss = ranking_loss("approx_ndcg", logits, labels)
    assert_close(ranking_loss("approx_ndcg", 50 * logits - 7, labels), loss, atol=1e-5, rtol=0)
    wide = torch.tensor([[3.0, 2.0, 1.0, 0.0, -1.0]])  # steps of 7 temperatures: smooth ranks are ranks
    for grades in ([0, 2, 1, 0, 1], [2, 1, 1, 0, 0]):
        gained, ideal = (
            sum(g / math.log2(r + 1) for r, g in enumerate(order, start=1)) for order in (grades, sorted(grades)[::-1])
        )
        found = ranking_loss("approx_ndcg", wide, torch.tensor([grades])).item()
        assert found == pytest.approx(1 - gained / ideal, abs=2e-3)


def test_grades_below_zero_are_not_relevant():
    logits = torch.tensor([LOGITS])
    for name in LOSSES:
        junk, plain = (ranking_loss(name, logits, torch.tensor([[1, x, 2]])) for x in (-2, 0))
        assert_close(junk, plain)


def test_a_label_that_is_no_number_is_no_label():
    logits = torch.tensor([LOGITS])
    for name in LOSSES:
        nan, none = (ranking_loss(name, logits, torch.tensor([[1.0, x, 2.0]])) for x in (NAN, -100.0))
        assert_close(nan, none)


def test_a_grades_share_of_the_group_has_no_unit():
    logits = torch.tensor([LOGITS])
    whole = ranking_loss("listwise", logits, torch.tensor([[2.0, 0.0, 1.0]]))
    assert_close(ranking_loss("listwise", logits, torch.tensor([[0.2, 0.0, 0.1]])), whole)


def test_any_grade_above_zero_is_relevant_to_the_pointwise_loss():
    logits = torch.tensor([LOGITS])
    assert_close(
        ranking_loss("pointwise", logits, torch.tensor([[1, 0, 1]])),
        ranking_loss("pointwise", logits, torch.tensor([[3, 0, 2]])),
    )


# --- of a teacher


def softmax(values: list[float]) -> list[float]:
    return [math.exp(x) / sum(map(math.exp, values)) for x in values]


def taught_by_hand(name: str, logits: list[float], scores: list[float], temperature: float = 1.0) -> list[float]:
    """The losses whose mean over all groups is wanted: one a group, or one a pair that the teacher orders."""
    scores = [score / temperature for score in scores]
    if name == "kl":
        wanted, found = softmax(scores), softmax(logits)
        return [sum(p * math.log(p / q) for p, q in zip(wanted, found, strict=True))]
    pairs = [(i, j) for i in range(len(scores)) for j in range(len(scores)) if scores[i] > scores[j]]
    return [((logits[i] - logits[j]) - (scores[i] - scores[j])) ** 2 for i, j in pairs]


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


@pytest.mark.parametrize("temperature", [1.0, 0.5, 4.0])
@pytest.mark.parametrize("name", DISTILLATION_LOSSES)
def test_a_teacher_by_hand(name, temperature):
    loss = distillation_loss(name, torch.tensor([LOGITS]), torch.tensor([SCORES]), temperature=temperature)
    assert loss.item() == pytest.approx(mean(taught_by_hand(name, LOGITS, SCORES, temperature)), rel=1e-5)


def test_margins_in_whole_numbers():
    """Margins 1, 3, 2 where 4, 4, 0 are wanted: the teacher ties the last two, which leaves (1-4)^2 and (3-4)^2."""
    loss = distillation_loss("margin_mse", torch.tensor([[3.0, 2.0, 0.0]]), torch.tensor([[5.0, 1.0, 1.0]]))
    assert loss.item() == (9 + 1) / 2


@pytest.mark.parametrize("name", DISTILLATION_LOSSES)
def test_a_teacher_of_groups_with_gaps_and_padding(name):
    """As if only scored candidates were there, whatever logits and scores the others hold."""
    logits = torch.tensor([[*LOGITS, NAN], [0.3, 7.0, 0.1, 9.0], [1.0, 2.0, 3.0, 4.0]], requires_grad=True)
    scores = torch.tensor([[*SCORES, 5.0], [1.0, NAN, 2.5, 8.0], [2.0, NAN, NAN, NAN]])
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 1, 1]])
    loss = distillation_loss(name, logits, scores, mask)
    wanted = taught_by_hand(name, LOGITS, SCORES) + taught_by_hand(name, [0.3, 0.1], [1.0, 2.5])
    assert loss.item() == pytest.approx(mean(wanted), rel=1e-5)
    loss.backward()
    counted = torch.tensor([[True, True, True, False], [True, False, True, False], [False] * 4])
    assert (logits.grad[~counted] == 0).all() and (logits.grad[counted] != 0).all()


@pytest.mark.parametrize("name", DISTILLATION_LOSSES)
@pytest.mark.parametrize("scores", [[NAN] * 3, [NAN, 2.0, NAN], [float("inf"), 1.0, float("-inf")]])
def test_fewer_than_two_scores_teach_nothing(name, scores):
    logits = torch.tensor([LOGITS], requires_grad=True)
    loss = distillation_loss(name, logits, torch.tensor([scores]))
    loss.backward()
    assert loss.item() == 0 and (logits.grad == 0).all()


@pytest.mark.parametrize("name", DISTILLATION_LOSSES)
def test_what_a_teachers_loss_does_not_depend_on(name):
    """Order, a constant added to all logits or scores of a group, precision; and it is finite at any scale."""
    generator = torch.Generator().manual_seed(0)
    logits, scores = torch.randn(3, 9, generator=generator), torch.randn(3, 9, generator=generator)
    scores[1, 4:] = NAN
    order, shift = torch.randperm(9, generator=generator), torch.tensor([[4.0], [-7.0], [0.5]])
    loss = distillation_loss(name, logits, scores)
    assert_close(distillation_loss(name, logits[:, order], scores[:, order]), loss)
    assert_close(distillation_loss(name, logits + shift, scores), loss)
    assert_close(distillation_loss(name, logits, scores + shift), loss)
    assert_close(distillation_loss(name, logits, scores * 3, temperature=3.0), loss)
    half = distillation_loss(name, logits.half(), scores)
    assert half.dtype == torch.float32 and half.item() == pytest.approx(loss.item(), rel=1e-2)
    assert torch.isfinite(distillation_loss(name, logits * 1e4, scores * 1e4))


@pytest.mark.parametrize("name", DISTILLATION_LOSSES)
def test_the_best_student_is_its_teacher_at_that_temperature(name):
    scores = torch.tensor([SCORES, [1.0, 1.0, 4.0]])
    best = (scores / 2.5).requires_grad_()
    loss = distillation_loss(name, best, scores, temperature=2.5)
    loss.backward()
    assert loss.item() == pytest.approx(0, abs=1e-6) and best.grad.abs().max() < 1e-6
    generator = torch.Generator().manual_seed(3)
    for _ in range(20):
        other = best.detach() + 0.1 * torch.randn(2, 3, generator=generator)
        assert distillation_loss(name, other, scores, temperature=2.5) > loss
