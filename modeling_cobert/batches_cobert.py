# Copyright 2026 The Co-BERT authors.
# SPDX-License-Identifier: Apache-2.0
"""Token rows -> batches -> results; on a CPU several batches at the same time, each on one thread."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from threading import Lock, local

import torch
from torch import Tensor

from .passages_cobert import PairTokenizer, TokenRow


class _Threads:
    """How many threads torch had before [`one_thread_a_batch`], how many callers are inside, and of each caller how
    deep it is, and how many threads it is owed since it left while others were inside."""

    lock, before, inside, here = Lock(), 1, 0, local()


@contextmanager
def one_thread_a_batch() -> Iterator[int]:
    """
    Lets a product have one thread, and says how many batches may be worked on at the same time instead.

    On a CPU the last bits of a sum depend on how many threads share it: with one a batch, equal batches give equal
    bytes on any number of threads. It is faster too, since no thread waits for the slower one after each product.
    """
    # The number is the caller's own for some of torch's libraries and everybody's for others. So only the last one
    # who leaves may set it back, and one who left before has a single thread until it has been here again.
    here = _Threads.here
    with _Threads.lock:
        depth = getattr(here, "depth", 0)
        if not _Threads.inside:
            now = torch.get_num_threads()
            _Threads.before = getattr(here, "owed", 1) if now == 1 else now
        if not depth:
            _Threads.inside += 1
            torch.set_num_threads(1)
        here.depth = depth + 1
    try:
        yield _Threads.before
    finally:
        with _Threads.lock:
            here.depth = depth
            if not depth:
                _Threads.inside -= 1
                here.owed = _Threads.before if _Threads.inside else 1
                if not _Threads.inside:
                    torch.set_num_threads(_Threads.before)


def in_threads(function: Callable, items: Iterable, device: torch.device | str, alone: bool = False) -> Iterator:
    """
    `map`, in order; on a CPU with as many items in the works at the same time as torch has threads.

    Args:
        function (`Callable`): takes one item. It runs with the caller's settings of gradients and autocast.
        items (`Iterable`): they are taken when their turn is near.
        device (`torch.device` or `str`): where `function` computes.
        alone (`bool`, *optional*, defaults to `False`): one item after the other, whatever the device: for a model
            whose weights are brought in and out as it runs.
    """
    grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    cast, dtype = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")

    def run(item):  # all of these are settings of a single thread
        with torch.inference_mode(inference), torch.set_grad_enabled(grad), torch.autocast("cpu", dtype, cast):
            return function(item)

    with one_thread_a_batch() as threads:
        if torch.device(device).type != "cpu" or alone or threads <= 1:
            yield from map(function, items)
            return
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            items, running = iter(items), deque[Future]()
            try:
                for item in islice(items, 2 * threads):
                    running.append(pool.submit(run, item))
                while running:
                    yield running.popleft().result()
                    running.extend(pool.submit(run, item) for item in islice(items, 1))
            finally:
                for future in running:
                    future.cancel()


def token_batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """
    Positions in batches of at most `batch_tokens` tokens after padding, longest rows first, ties in given order.

    A row longer than `batch_tokens` is a batch of its own.
    """
    if batch_tokens < 1:
        raise ValueError(f"batch_tokens must be at least 1, got {batch_tokens}")
    order = sorted(range(len(lengths)), key=lambda position: -lengths[position])
    start = 0
    while start < len(order):
        count = max(1, batch_tokens // max(1, lengths[order[start]]))
        yield order[start : start + count]
        start += count


def default_batch_tokens(device: torch.device | str) -> int:
    """How many tokens a batch should have: on a CPU as many as stay in its cache, elsewhere 64 full rows."""
    return 1024 if torch.device(device).type == "cpu" else 16384


def map_rows(
    rows: Sequence[TokenRow],
    pairs: PairTokenizer,
    function: Callable[..., Tensor],
    device: torch.device | str,
    batch_tokens: int,
    advance: Callable[[int], object] | None = None,
    alone: bool = False,
) -> Tensor:
    """
    `function(**batch)` over all rows, each distinct row once, in token-bounded batches; results in the rows' order.

    Args:
        function (`Callable`): takes `input_ids`, `attention_mask` (and `token_type_ids`), gives one result a row.
        advance (`Callable`, *optional*): called with the number of rows done after each batch, for a progress bar.
        alone (`bool`, *optional*, defaults to `False`): see [`in_threads`].
    """
    distinct: dict[tuple, int] = {}
    places = [distinct.setdefault((row.second, *row.ids), len(distinct)) for row in rows]
    first = list(dict(zip(places, rows, strict=True)).values())
    results: dict[int, Tensor] = {}

    def run(batch: list[int]) -> tuple[list[int], Tensor]:
        return batch, function(**pairs.pad([first[i] for i in batch], device))

    batches = token_batches([len(row) for row in first], batch_tokens)
    for batch, outputs in in_threads(run, batches, device, alone):
        for i, output in zip(batch, outputs, strict=True):
            results[i] = output
        if advance is not None:
            advance(len(batch))
    return torch.stack([results[place] for place in places])
