"""Rows of groups -> batches: m prototypes, then the candidates, padded to the longest pair and the largest group."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ..loss_cobert import IGNORE
from ..passages_cobert import PairTokenizer, TokenRow


@dataclass
class GroupCollator:
    """
    Builds what [`CoBertForGroupwiseRanking`] takes from rows of a groups dataset. Tokens are those of `model.rerank`.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): the encoder's fast tokenizer.
        max_length (`int`, *optional*, defaults to 256): the most tokens of a pair; only passages are cut.
        num_prototypes (`int`, *optional*, defaults to 4): m as the model feeds it, 0 without a calibrator. A row's
            first m prototypes are taken; where there are fewer, masked rows stand for the rest.
        with_query_ids (`bool`, *optional*, defaults to `False`): whether the batch also has `query_ids`, a list that
            the model does not take.

    Returns a dict of `input_ids`, `attention_mask`, `token_type_ids` (batch, m + n, tokens), `document_mask`
    (batch, m + n) and `labels` (batch, n), where n is the largest group of the batch.

    Example:

    ```python
    >>> collator = GroupCollator(tokenizer, max_length=256, num_prototypes=model.num_prototypes)
    >>> batch = collator([groups[0], groups[1]])
    >>> loss = model(**batch).loss
    ```
    """

    tokenizer: PreTrainedTokenizerBase
    max_length: int = 256
    num_prototypes: int = 4
    with_query_ids: bool = False
    pairs: PairTokenizer = field(init=False, repr=False)

    def __post_init__(self):
        self.pairs = PairTokenizer(self.tokenizer, self.max_length)

    def __call__(self, rows: Sequence[Mapping]) -> dict[str, Tensor]:
        mask, labels = document_layout(rows, self.num_prototypes)
        documents = mask.shape[1]
        laid = []  # batch * (m + n) token rows, empty ones for padding
        for row in rows:
            prototypes = self.pair_rows(row, row["prototype_passages"][: self.num_prototypes])
            candidates = self.pair_rows(row, row["candidate_passages"])
            laid += prototypes + [_NOTHING] * (self.num_prototypes - len(prototypes))
            laid += candidates + [_NOTHING] * (documents - self.num_prototypes - len(candidates))
        padded = self.pairs.pad(laid)
        batch = {name: values.view(len(rows), documents, -1) for name, values in padded.items()}
        batch |= {"document_mask": mask, "labels": labels}
        return batch | ({"query_ids": [row["query_id"] for row in rows]} if self.with_query_ids else {})

    def pair_rows(self, row: Mapping, passages: Sequence[str]) -> list[TokenRow]:
        """Some passages of a row, each paired with its query."""
        try:
            query_ids = self.pairs.query(row["query"])
            return [self.pairs.pair(query_ids, passage.ids) for passage in self.pairs.tokenize(passages)]
        except (TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"query {row['query_id']!r}, group {row.get('group')}: {error}") from error


_NOTHING = TokenRow([], 0)


def document_layout(rows: Sequence[Mapping], num_prototypes: int) -> tuple[Tensor, Tensor]:
    """
    What is real and what is relevant in a batch of rows.

    Returns:
        `document_mask` (batch, m + n), 1 for real rows, and `labels` (batch, n), grades or -100.
    """
    if not rows:
        raise ValueError("a batch needs at least one group")
    counts = [len(row["candidate_grades"]) for row in rows]
    for row, count in zip(rows, counts, strict=True):
        if count == 0:
            raise ValueError(f"query {row['query_id']!r}, group {row.get('group')}: a group without candidates")
    mask = torch.zeros(len(rows), num_prototypes + max(counts), dtype=torch.long)
    labels = torch.full((len(rows), max(counts)), IGNORE, dtype=torch.long)
    for i, (row, count) in enumerate(zip(rows, counts, strict=True)):
        mask[i, : min(num_prototypes, len(row["prototype_ids"]))] = 1
        mask[i, num_prototypes : num_prototypes + count] = 1
        # All grades below 0 mean the same, and none of them may be mistaken for the sign of no label.
        grades = [IGNORE if grade is None else max(grade, -1) for grade in row["candidate_grades"]]
        labels[i, :count] = torch.tensor(grades)
    return mask, labels
