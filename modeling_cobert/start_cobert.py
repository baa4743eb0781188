# Copyright 2026 The Co-BERT authors.
# SPDX-License-Identifier: Apache-2.0
"""What a ranking starts from, before calibrator and scorer add to it: known scores, and what feedback by words and
neighbours make of them."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

# Where learning begins: of two documents with cosines of 0.7 and 0.6, the first counts 7 times as much.
SHARPNESS = 20.0
# Of two prototypes whose start differs by half a standard deviation, the first counts 2.7 times as much.
PROTOTYPE_SHARPNESS = 2.0
# So many deviations above the mean, a promising document's vote counts in full.
PROMISING = 0.5


class CoBertStart(nn.Module):
    """
    What is known of a document before its context is looked at: a mixture of the encoder's own relevance, the
    selector's score and the first stage's, each standardised over the list. One whose weight is 0 to begin with is
    left out for good.
    """

    def __init__(self, weights: Sequence[float], learned: bool):
        super().__init__()
        self.counted = [float(weight != 0) for weight in weights]
        self.weight = nn.Parameter(torch.empty(3), requires_grad=learned)

    def drops_what_was_learned(self) -> bool:
        """Whether the checkpoint has a weight, of an earlier version's training, for a score that is left out."""
        if self.weight.is_meta:
            return False  # it is on a disk
        pairs = zip(self.counted, self.weight.tolist(), strict=True)
        return any(weight != 0 and not counted for counted, weight in pairs)

    def forward(self, relevance: Tensor, scores: Tensor, mask: Tensor) -> Tensor:
        """`(batch, n)`, `(batch, n, 2)`, `(batch, n)` -> `(batch, n)`; in float32, whose digits the scores need."""
        own = standardize_rows(relevance, mask).unsqueeze(-1)
        weight = self.weight.float() * torch.tensor(self.counted, device=self.weight.device)
        # Not a matrix product, which autocast would compute in half precision.
        return (torch.cat((own, scores.float()), dim=-1) * weight).sum(dim=-1)


class CoBertFeedback(nn.Module):
    """
    Pseudo relevance feedback by words (Rocchio 1971): the best documents of a list are its prototypes, and every
    document gains by how much its words are alike theirs.
    """

    def __init__(self, count: int, learned: bool):
        super().__init__()
        self.count = count
        self.weight = nn.Parameter(torch.empty(()), requires_grad=learned)
        # How much more a better prototype counts, as a logarithm.
        self.sharpness = nn.Parameter(torch.empty(()), requires_grad=learned)

    def shares(self, logits: Tensor, mask: Tensor) -> Tensor:
        """How much each document `(batch, n)` counts as a prototype: 0 but for the best, whose shares sum to 1."""
        real, known = mask.bool(), standardize_rows(logits, mask)
        lowest = torch.finfo(known.dtype).min
        best = known.masked_fill(~real, lowest).argsort(dim=-1, descending=True, stable=True)[:, : self.count]
        chosen = torch.zeros_like(real).scatter(-1, best, True) & real
        return (known * self.sharpness.float().exp()).masked_fill(~chosen, lowest).softmax(dim=-1) * chosen

    def forward(self, logits: Tensor, likeness: Tensor, mask: Tensor) -> Tensor:
        """`(batch, n)`, how alike the documents' words are `(batch, n, n)`, `(batch, n)` -> `(batch, n)`."""
        with torch.autocast(logits.device.type, enabled=False):
            votes = (likeness.float() @ self.shares(logits, mask).unsqueeze(-1)).squeeze(-1)
        return self.add(logits, votes, mask)

    def add(self, logits: Tensor, votes: Tensor, mask: Tensor) -> Tensor:
        """Logits with the prototypes' votes `(batch, n)` in them, in float32."""
        return logits + self.weight.float() * standardize_rows(votes, mask)


class CoBertNeighbours(nn.Module):
    """
    Draws the logits of documents that are alike to each other: to a document's own is added by how much the others'
    mean, weighted by how alike they are in content or in words, is above their plain mean, standardised over the
    group. So where all are alike nothing moves.

    Args:
        learned (`bool`): whether weight and sharpness learn.
        promising (`bool`, *optional*, defaults to `False`): whether only documents that start better than the group's
            mean vote: most of the others are not relevant, and to be like them says little.
    """

    def __init__(self, learned: bool, promising: bool = False):
        super().__init__()
        self.promising = promising
        self.weight = nn.Parameter(torch.empty(()), requires_grad=learned)
        # How sharply those that are more alike are told from the others, as a logarithm: cosines lie close together.
        self.sharpness = nn.Parameter(torch.empty(()), requires_grad=learned)

    def voices(self, logits: Tensor, mask: Tensor) -> Tensor:
        """How much each document's vote counts `(batch, n)`, from 0 to 1; it is nothing to learn by."""
        if not self.promising:
            return mask.float()
        # A slope, not a step: what is next to the mean must not be in or out by a rounding.
        return (standardize_rows(logits, mask).detach() / PROMISING).clamp(0.0, 1.0)

    def shares(self, alike: Tensor, voices: Tensor) -> Tensor:
        """
        How much each document `(batch, n, 1)` heeds each other one `(batch, 1, n)`: rows sum to 1, or to 0.

        Args:
            alike (`torch.Tensor` of shape `(batch, n, n)`): the cosines of the documents' contents, or words.
            voices (`torch.Tensor` of shape `(batch, n)`): what [`voices`] gave.
        """
        itself = torch.eye(voices.shape[-1], dtype=torch.bool, device=voices.device)
        others = (voices > 0).unsqueeze(-2) & ~itself
        heard = voices.clamp(min=torch.finfo(voices.dtype).tiny).log().unsqueeze(-2)
        nearness = alike.float() * self.sharpness.float().exp() + heard  # (batch, n, n)
        return nearness.masked_fill(~others, torch.finfo(nearness.dtype).min).softmax(dim=-1) * others

    def forward(self, logits: Tensor, alike: Tensor, mask: Tensor) -> Tensor:
        """`(batch, n)`, how alike the documents are `(batch, n, n)`, `(batch, n)` -> `(batch, n)`, in float32."""
        with torch.autocast(logits.device.type, enabled=False):
            known = logits.float().masked_fill(~mask.bool(), 0.0).unsqueeze(-1)
            voices = self.voices(logits, mask)
            # The others' plain mean is the lower the better one is oneself: left in, it would let equals trade places.
            gains = self.shares(alike, voices) - self.shares(torch.zeros_like(alike), voices)
            votes = (gains @ known).squeeze(-1)
            return logits + self.weight.float() * standardize_rows(votes, mask, known.squeeze(-1))


def cosines(content: Tensor) -> Tensor:
    """How alike unit vectors `(.., n, width)` are, `(.., n, n)`, in float32 also under autocast."""
    with torch.autocast(content.device.type, enabled=False):
        return content.float() @ content.float().transpose(-1, -2)


def standardize_rows(values: Tensor, mask: Tensor, made_of: Tensor | None = None) -> Tensor:
    """
    Each row `(batch, n)` with mean 0 and deviation 1 over what `mask` calls real, and 0 elsewhere. Where values differ
    by no more than rounding, of the numbers that they are differences of, if `made_of` has these, they are equal: 0.
    """
    real = mask.bool()
    values, count = values.float().masked_fill(~real, 0.0), real.sum(dim=-1, keepdim=True).clamp(min=1)
    largest = values if made_of is None else torch.maximum(values.abs(), made_of.float().abs())
    largest = largest.detach().abs().amax(dim=-1, keepdim=True)
    # No square may leave the range of floats. A power of two, so that no digit changes.
    scale = largest.clamp(min=torch.finfo(largest.dtype).tiny).log2().floor().exp2()
    values, largest = values / scale, largest / scale
    centred = (values - values.sum(dim=-1, keepdim=True) / count).masked_fill(~real, 0.0)
    variance = centred.square().sum(dim=-1, keepdim=True) / count
    # Equal values differ from their mean by rounding, which must not be blown up to a deviation of 1.
    rounding = (1e-5 * largest).square()
    flat = variance.detach() <= rounding
    return centred.masked_fill(flat, 0.0) / variance.masked_fill(flat, 1.0).sqrt()
