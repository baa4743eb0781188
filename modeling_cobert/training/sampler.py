"""The order in which groups are fed: a function of the seed and the epoch alone, so that any epoch can be resumed."""

from collections.abc import Iterator

import torch
from torch.utils.data import Sampler

from ..data.groups import GroupView
from .arguments import FEED_ORDERS


class GroupSampler(Sampler[int]):
    """
    Positions of groups in the order of an epoch.

    Args:
        groups ([`GroupView`]): the groups; it learns the epoch, too, since its edges may be drawn anew.
        order (`str`, *optional*, defaults to `"shuffled"`): `"shuffled"` over all queries (the paper), or queries
            shuffled with a query's groups together, from the first-stage's top (`"initial"`) or bottom (`"reversed"`).
        seed (`int`, *optional*, defaults to 42): of the shuffling.
    """

    def __init__(self, groups: GroupView, order: str = "shuffled", seed: int = 42):
        if order not in FEED_ORDERS:
            raise ValueError(f"groups are fed {', '.join(FEED_ORDERS)}, not {order!r}")
        self.groups, self.seed, self.epoch = groups, seed, 0
        queries: dict[str, list[int]] = {}
        for position, query_id in enumerate(groups.group_queries):  # a query's groups stand in first-stage order
            queries.setdefault(query_id, []).append(position)
        if order == "reversed":
            queries = {query_id: positions[::-1] for query_id, positions in queries.items()}
        # Shuffled over all queries is each group on its own.
        self.units = [[i] for i in range(len(groups))] if order == "shuffled" else list(queries.values())

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self.groups.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self.groups)

    def __iter__(self) -> Iterator[int]:
        # Seeds of neighbouring runs and epochs must not meet: 42 with epoch 1 is not 43 with epoch 0.
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + self.epoch) % 2**63)
        for unit in torch.randperm(len(self.units), generator=generator).tolist():
            yield from self.units[unit]
