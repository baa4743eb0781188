# Copyright 2026 The Co-BERT authors.
# SPDX-License-Identifier: Apache-2.0
"""Losses as pure functions (logits, labels, mask) -> scalar; padding is handled once, in `ranking_loss` for grades and
in `distillation_loss` for scores of a teacher."""

import torch
from torch import Tensor
from torch.nn import functional as F

from .start_cobert import standardize_rows

IGNORE = -100
# Of approx_ndcg: two logits that are a tenth of a standard deviation apart are told apart by sigmoid(1) = 0.73.
TEMPERATURE = 0.1


def pointwise(logits: Tensor, grades: Tensor, real: Tensor) -> Tensor:
    """Cross-entropy of every candidate against relevant / not relevant (Co-BERT, section 3; MacAvaney et al. 2019)."""
    losses = F.binary_cross_entropy_with_logits(logits, (grades > 0).to(logits.dtype), reduction="none")
    return _mean(losses, real)


def listwise(logits: Tensor, grades: Tensor, real: Tensor) -> Tensor:
    """Softmax cross-entropy against the grades' share of the group (ListNet's top-one form, Cao et al. 2007)."""
    log_probabilities = logits.masked_fill(~real, torch.finfo(logits.dtype).min).log_softmax(dim=-1)
    total = grades.sum(dim=-1)
    share = grades / total.clamp(min=torch.finfo(logits.dtype).tiny).unsqueeze(-1)
    losses = -(share * log_probabilities.masked_fill(~real, 0.0)).sum(dim=-1)
    return _mean(losses, total > 0)


def ranknet(logits: Tensor, grades: Tensor, real: Tensor) -> Tensor:
    """Logistic loss of every pair with different grades (RankNet, Burges et al. 2005)."""
    losses, ordered = _pairs(logits, grades, real)
    return _mean(losses, ordered)


def lambda_(logits: Tensor, grades: Tensor, real: Tensor) -> Tensor:
    """RankNet, a pair weighted by the nDCG that its swap would change (LambdaRank; Burges 2010; Wang et al. 2018)."""
    losses, ordered = _pairs(logits, grades, real)
    order = (
        logits.detach().masked_fill(~real, torch.finfo(logits.dtype).min).argsort(dim=-1, descending=True, stable=True)
    )
    ranks = order.argsort(dim=-1) + 1  # (groups, documents)
    discounts = 1 / torch.log2(ranks + 1.0)
    ideal = (grades.sort(dim=-1, descending=True).values * discounts.sort(dim=-1, descending=True).values).sum(dim=-1)
    change = (grades.unsqueeze(-1) - grades.unsqueeze(-2)).abs() * (
        discounts.unsqueeze(-1) - discounts.unsqueeze(-2)
    ).abs()
    weighted = losses * change / ideal.clamp(min=torch.finfo(logits.dtype).tiny)[:, None, None]
    return _mean(weighted.masked_fill(~ordered, 0.0).sum(dim=(-2, -1)), ordered.any(dim=-1).any(dim=-1))


def approx_ndcg(logits: Tensor, grades: Tensor, real: Tensor) -> Tensor:
    """1 - nDCG with smooth ranks (ApproxNDCG; Qin et al. 2010, Bruch et al. 2019), of logits standardised over the
    group: only their order and relative distances count, not how sure of itself a model is."""
    scores = standardize_rows(logits, real) / TEMPERATURE
    ahead = torch.sigmoid(scores.unsqueeze(-2) - scores.unsqueeze(-1)) * real.unsqueeze(-2)  # (groups, own, others)
    ranks = ahead.sum(dim=-1) + 0.5  # each is half ahead of itself
    places = torch.arange(1, logits.shape[-1] + 1, device=logits.device)
    ideal = (grades.sort(dim=-1, descending=True).values / torch.log2(places + 1.0)).sum(dim=-1)
    gained = (grades / torch.log2(ranks + 1)).sum(dim=-1)
    return _mean(1 - gained / ideal.clamp(min=torch.finfo(logits.dtype).tiny), ideal > 0)


LOSSES = {
    "pointwise": pointwise,
    "listwise": listwise,
    "ranknet": ranknet,
    "lambda": lambda_,
    "approx_ndcg": approx_ndcg,
}


def ranking_loss(name: str, logits: Tensor, labels: Tensor, mask: Tensor | None = None) -> Tensor:
    """
    The loss `name` over the real candidates of all groups; zero, with a gradient of zero, where there is none.

    Args:
        name (`str`): a key of `LOSSES`.
        logits (`torch.Tensor` of shape `(groups, documents)`): one relevance logit each.
        labels (`torch.Tensor` of shape `(groups, documents)`): grades; -100 or NaN where there is none. A grade below
            0 (TREC's junk pages) counts as 0.
        mask (`torch.Tensor` of shape `(groups, documents)`, *optional*): true or 1 for real candidates.

    Example:

    ```python
    >>> import torch
    >>> from modeling_cobert.loss_cobert import ranking_loss

    >>> ranking_loss("pointwise", torch.tensor([[0.0, 9.9]]), torch.tensor([[1, -100]]))
    tensor(0.6931)
    ```
    """
    real = (labels != IGNORE) & ~labels.isnan()
    if mask is not None:
        real = real & mask.bool()
    # In float32 also under autocast and half precision, where a sum over thousands of pairs would lose its digits;
    # a padded logit is replaced, not multiplied by zero, so that nothing it holds can reach the sum.
    logits = logits.float().masked_fill(~real, 0.0)
    return LOSSES[name](logits, labels.clamp(min=0).masked_fill(~real, 0).to(logits.dtype), real)


def kl(logits: Tensor, scores: Tensor, real: Tensor) -> Tensor:
    """KL divergence from the teacher's softmax over the group (Hinton et al. 2015; RankDistil, Reddi et al. 2021)."""
    lowest = torch.finfo(logits.dtype).min
    student, teacher = (x.masked_fill(~real, lowest).log_softmax(dim=-1) for x in (logits, scores))
    losses = (teacher.exp() * (teacher - student)).masked_fill(~real, 0.0).sum(dim=-1)
    return _mean(losses, real.sum(dim=-1) > 1)


def margin_mse(logits: Tensor, scores: Tensor, real: Tensor) -> Tensor:
    """Squared difference of margins, over all pairs that the teacher orders (MarginMSE, Hofstätter et al. 2020)."""
    margins, wanted = (x.unsqueeze(-1) - x.unsqueeze(-2) for x in (logits, scores))  # (groups, better, worse)
    ordered = (wanted > 0) & real.unsqueeze(-1) & real.unsqueeze(-2)
    # Before the square: where one leaves the range of floats, its gradient would be no number in spite of the mask.
    return _mean((margins - wanted).masked_fill(~ordered, 0.0) ** 2, ordered)


DISTILLATION_LOSSES = {"kl": kl, "margin_mse": margin_mse}


def distillation_loss(
    name: str, logits: Tensor, teacher_scores: Tensor, mask: Tensor | None = None, temperature: float = 1.0
) -> Tensor:
    """
    The loss `name` over all candidates that a teacher has scored; a group with fewer than two of them gives zero,
    with a gradient of zero.

    Args:
        name (`str`): a key of `DISTILLATION_LOSSES`.
        logits (`torch.Tensor` of shape `(groups, documents)`): one relevance logit each.
        teacher_scores (`torch.Tensor` of shape `(groups, documents)`): of any scale; NaN where there is none.
        mask (`torch.Tensor` of shape `(groups, documents)`, *optional*): true or 1 for real candidates.
        temperature (`float`, *optional*, defaults to 1.0): what the teacher's scores are divided by. The logits are
            not: they are to come out on the scale of the scores so divided.

    Example:

    ```python
    >>> import torch
    >>> from modeling_cobert.loss_cobert import distillation_loss

    >>> distillation_loss("margin_mse", torch.tensor([[1.0, 0.0]]), torch.tensor([[5.0, 2.0]]))
    tensor(4.)
    ```
    """
    scores = teacher_scores.float() / temperature
    real = scores.isfinite()
    if mask is not None:
        real = real & mask.bool()
    # As above: in float32, and what is not real is replaced.
    return DISTILLATION_LOSSES[name](logits.float().masked_fill(~real, 0.0), scores.masked_fill(~real, 0.0), real)


def _pairs(logits: Tensor, grades: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    ordered = (grades.unsqueeze(-1) > grades.unsqueeze(-2)) & real.unsqueeze(-1) & real.unsqueeze(-2)
    return F.softplus(logits.unsqueeze(-2) - logits.unsqueeze(-1)), ordered  # (groups, better, worse)


def _mean(losses: Tensor, counted: Tensor) -> Tensor:
    return losses.masked_fill(~counted, 0.0).sum() / counted.sum().clamp(min=1)
