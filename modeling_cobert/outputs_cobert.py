# Copyright 2026 The Co-BERT authors.
# SPDX-License-Identifier: Apache-2.0
"""What the model returns, and what it records of its parts on the way."""

from dataclasses import dataclass, field

from torch import Tensor
from transformers import BertModel
from transformers.utils import ModelOutput


@dataclass
class CoBertRankingOutput(ModelOutput):
    """
    Output of [`~modeling_cobert.CoBertForGroupwiseRanking`].

    Args:
        loss (`torch.FloatTensor` of shape `()`, *optional*, returned when `labels` is given):
            The loss that the config names, over every real candidate.
        logits (`torch.FloatTensor` of shape `(batch, n)`):
            One relevance logit a candidate: the ranking score. Its sigmoid is the paper's probability. What stands at
            a padded candidate means nothing.
        prototype_weights (`torch.FloatTensor` of shape `(batch, m)`, *optional*, with a calibrator):
            How much each prototype counts; they sum to 1 over the real ones.
        hidden_states, attentions (`tuple` of tensors, *optional*):
            The encoder's, under the names that every transformers model has for them.
        encoder_hidden_states, encoder_attentions (`tuple` of tensors, *optional*):
            Of shape `(batch * (m + n), tokens, hidden)` and `(batch * (m + n), heads, tokens, tokens)`.
        calibrator_hidden_states, calibrator_attentions (`tuple` of tensors, *optional*):
            Of shape `(batch * m * n, 2, hidden)` and `(batch * m * n, heads, 2, 2)`.
        scorer_hidden_states, scorer_attentions (`tuple` of tensors, *optional*):
            Of shape `(batch, n, hidden)` and `(batch, heads, n, n)`.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    prototype_weights: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    encoder_hidden_states: tuple[Tensor, ...] | None = None
    encoder_attentions: tuple[Tensor, ...] | None = None
    calibrator_hidden_states: tuple[Tensor, ...] | None = None
    calibrator_attentions: tuple[Tensor, ...] | None = None
    scorer_hidden_states: tuple[Tensor, ...] | None = None
    scorer_attentions: tuple[Tensor, ...] | None = None


@dataclass
class CoBertRecorder:
    """
    Runs the parts and keeps, under their names, the hidden states and attentions that were asked for.

    The recording itself is transformers' own, that of each `BertModel`. The model as a whole cannot do it by
    `_can_record_outputs` and `capture_outputs`: such hooks stop at a nested `PreTrainedModel`, whose forward collects
    for itself, and could not tell the layers of three BERTs apart. The stages also run without `forward`.
    """

    hidden_states: bool = False
    attentions: bool = False
    kept: dict[str, tuple[Tensor, ...]] = field(default_factory=dict)

    def run(self, name: str, part: BertModel, pooled: bool = False, **inputs) -> Tensor:
        """The part's last hidden states, or what its pooler makes of them."""
        output = part(
            **inputs,
            output_hidden_states=self.hidden_states,
            output_attentions=self.attentions,
            return_dict=True,
        )
        if self.hidden_states:
            self.kept[f"{name}_hidden_states"] = output.hidden_states
        if self.attentions:
            self.kept[f"{name}_attentions"] = output.attentions
        return output.pooler_output if pooled else output.last_hidden_state
