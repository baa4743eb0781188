"""The order in which groups are fed: a function of the seed and the epoch alone, so that any epoch can be resumed."""

from collections.abc import Iterator, Sequence

import torch
from torch.utils.data import Sampler

from .arguments import FEED_ORDERS


class GroupSampler(Sampler[int]):
    """
    Positions of groups in the order of an epoch.

    Args:
        query_ids (`list[str]`): the query of each group.
        numbers (`list[int]`): the place of each group in its query's first-stage ranking.
        order (`str`, *optional*, defaults to `"shuffled"`): `"shuffled"` over all queries (the paper), or queries
            shuffled with a query's groups together, from the first-stage's top (`"initial"`) or bottom (`"reversed"`).
        seed (`int`, *optional*, defaults to 42): of the shuffling.
    """

    def __init__(self, query_ids: Sequence[str], numbers: Sequence[int], order: str = "shuffled", seed: int = 42):
        if order not in FEED_ORDERS:
            raise ValueError(f"groups are fed {', '.join(FEED_ORDERS)}, not {order!r}")
        self.order, self.seed, self.epoch, self.length = order, seed, 0, len(query_ids)
        queries: dict[str, list[int]] = {}
        for position, query_id in enumerate(query_ids):
            queries.setdefault(query_id, []).append(position)
        for positions in queries.values():
            positions.sort(key=lambda position: numbers[position], reverse=order == "reversed")
        # Shuffled over all queries is each group on its own.
        self.units = [[i] for i in range(self.length)] if order == "shuffled" else list(queries.values())

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        # Seeds of neighbouring runs and epochs must not meet: 42 with epoch 1 is not 43 with epoch 0.
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + self.epoch) % 2**63)
        for unit in torch.randperm(len(self.units), generator=generator).tolist():
            yield from self.units[unit]
