"""Groups -> batches: m prototypes, then the candidates, padded to the longest pair and the largest group."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ..loss_cobert import IGNORE
from ..passages_cobert import PairTokenizer, TokenRow

_NOTHING = TokenRow([], 0)


@dataclass
class GroupCollator:
    """
    Builds what [`CoBertForGroupwiseRanking`] takes from groups of a [`GroupView`]. Tokens are those of `model.rerank`.

    Args:
        pairs ([`PairTokenizer`]): makes rows of query and passage; it may be left out where groups have vectors.
        num_prototypes (`int`, *optional*, defaults to 4): m as the model feeds it, 0 without a calibrator. A group's
            first m prototypes are taken; where there are fewer, masked rows stand for the rest.
        with_query_ids (`bool`, *optional*, defaults to `False`): whether the batch also has `query_ids`, a list that
            the model does not take.

    Returns a dict of `input_ids`, `attention_mask`, `token_type_ids` (batch, m + n, tokens), or of `vectors`
    (batch, m + n, hidden), with `document_mask` (batch, m + n) and `labels` (batch, n), where n is the largest group
    of the batch. Where groups have them, also `teacher_scores` (batch, n), NaN where there are none, `starting_scores`
    (batch, n, 2), `content` (batch, m + n, width) and `likeness` (batch, n, n).

    Example:

    ```python
    >>> collator = GroupCollator(PairTokenizer(tokenizer, max_length=32), num_prototypes=model.num_prototypes)
    >>> batch = collator([groups[0], groups[1]])
    >>> loss = model(**batch).loss
    ```
    """

    pairs: PairTokenizer | None
    num_prototypes: int = 4
    with_query_ids: bool = False

    def __call__(self, groups: Sequence[Mapping]) -> dict:
        mask, labels = self._layout(groups)
        if self.pairs is None or "vectors" in groups[0]:
            batch = {"vectors": self._laid(groups, mask, "vectors")}
        else:
            batch = self._tokens(self.pairs, groups, mask.shape[1])
        batch |= {"document_mask": mask, "labels": labels}
        if "teacher_scores" in groups[0]:
            batch["teacher_scores"] = _teacher_scores(groups, labels.shape[1])
        if "starting_scores" in groups[0]:
            batch["starting_scores"] = self._laid(groups, mask, "starting_scores")[:, self.num_prototypes :]
        if "content" in groups[0]:
            batch["content"] = self._laid(groups, mask, "content")
        if "likeness" in groups[0]:
            n = labels.shape[1]
            padded = [F.pad(group["likeness"], (0, n - len(group["grades"])) * 2) for group in groups]
            batch["likeness"] = torch.stack(padded)
        return batch | ({"query_ids": [group["query_id"] for group in groups]} if self.with_query_ids else {})

    def _layout(self, groups: Sequence[Mapping]) -> tuple[Tensor, Tensor]:
        """What is real `(batch, m + n)`, and the grades `(batch, n)`, -100 where there are none."""
        if not groups:
            raise ValueError("a batch needs at least one group")
        _check_groups(groups)
        m, counts = self.num_prototypes, [len(group["grades"]) for group in groups]
        mask = torch.zeros(len(groups), m + max(counts), dtype=torch.long)
        labels = torch.full((len(groups), max(counts)), IGNORE, dtype=torch.long)
        for i, (group, count) in enumerate(zip(groups, counts, strict=True)):
            prototypes = group["prototype_vectors"] if "vectors" in group else group["prototype_passages"]
            mask[i, : min(m, len(prototypes))] = 1
            mask[i, m : m + count] = 1
            # All grades below 0 mean the same, and none of them may be mistaken for the sign of no label.
            labels[i, :count] = torch.tensor([IGNORE if g is None else max(g, -1) for g in group["grades"]])
        return mask, labels

    def _tokens(self, pairs: PairTokenizer, groups: Sequence[Mapping], documents: int) -> dict[str, Tensor]:
        laid = []  # batch * (m + n) token rows, empty ones for padding
        for group in groups:
            passages = [*group["prototype_passages"][: self.num_prototypes], *group["passages"]]
            try:
                rows = pairs.rows(group["query"], passages)
            except (TypeError, ValueError, AttributeError) as error:
                raise ValueError(f"query {group['query_id']!r}, group {group.get('group')}: {error}") from error
            given = len(rows) - len(group["passages"])
            laid += rows[:given] + [_NOTHING] * (self.num_prototypes - given)
            laid += rows[given:] + [_NOTHING] * (documents - self.num_prototypes - len(group["passages"]))
        padded = pairs.pad(laid)
        return {name: values.view(len(groups), documents, -1) for name, values in padded.items()}

    def _laid(self, groups: Sequence[Mapping], mask: Tensor, name: str) -> Tensor:
        """Numbers of prototypes and candidates where their rows are, `(batch, m + n, width)`, 0 in padded ones."""
        m = self.num_prototypes
        laid = torch.zeros(*mask.shape, groups[0][name].shape[-1])
        for i, group in enumerate(groups):
            prototypes = group[f"prototype_{name}"][:m]
            laid[i, : len(prototypes)] = prototypes
            laid[i, m : m + len(group[name])] = group[name]
        return laid


def _check_groups(groups: Sequence[Mapping]) -> None:
    """Every group has candidates, and everything that a batch takes of it as often."""
    for group in groups:
        named = f"query {group['query_id']!r}, group {group.get('group')}"
        if "grades" not in group:
            raise ValueError(f"{named}: it has no grades; of candidates that nobody judged they are None")
        count = len(group["grades"])
        if count == 0:
            raise ValueError(f"{named}: a group without candidates")
        kept = ("vectors" if "vectors" in group else "passages", "teacher_scores", "starting_scores", "content")
        for name in kept:
            if name in group and len(group[name]) != count:
                raise ValueError(f"{named}: it has {count} grades, but {len(group[name])} {name}")
        texts = [*group.get("prototype_passages", ()), *group.get("passages", ())]
        if "vectors" not in group and not all(isinstance(text, str) for text in texts):
            raise ValueError(f"{named}: a passage is no string")


def _teacher_scores(groups: Sequence[Mapping], width: int) -> Tensor:
    scores = torch.full((len(groups), width), math.nan)
    for row, group in zip(scores, groups, strict=True):
        row[: len(group["teacher_scores"])] = torch.tensor(group["teacher_scores"])
    return scores  # (batch, n)
