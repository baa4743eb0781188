"""Exact training in little memory: the encoder runs in chunks, each run again with its graph when its turn comes."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..modeling_cobert import CoBertForGroupwiseRanking
from ..outputs_cobert import CoBertRecorder


@contextmanager
def encoder_in_chunks(model: CoBertForGroupwiseRanking, chunk_size: int | None) -> Iterator[None]:
    """
    Lets `model.encode` take at most `chunk_size` pairs at a time and keep no activations but those of one chunk.

    Documents meet only after the encoder. So a group's gradient is had exactly by encoding chunk by chunk without a
    graph, running calibrator and scorer on the vectors, and, once the gradient has come back to the vectors of a
    chunk, encoding that chunk again with its graph (gradient caching). Dropout's random state is kept for each chunk
    and replayed. All this happens inside one backward pass, so DDP, accumulation, loss scaling and autocast need not
    know of it.

    Args:
        model ([`CoBertForGroupwiseRanking`]): the model, as it was before any wrapping.
        chunk_size (`int`, *optional*): the most pairs with activations in memory; `None` changes nothing.

    Example:

    ```python
    >>> with encoder_in_chunks(model, 8):
    ...     model(**batch).loss.backward()
    ```
    """
    if chunk_size is not None and chunk_size < 1:
        raise ValueError(f"encoder_chunk_size must be at least 1, got {chunk_size}")
    if chunk_size is None:
        yield
        return
    encode = model.encode

    def encode_chunks(
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        recorder: CoBertRecorder | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        if input_ids is None or (recorder is not None and (recorder.hidden_states or recorder.attentions)):
            return encode(input_ids, attention_mask, token_type_ids, recorder, inputs_embeds)
        inputs = (input_ids, attention_mask, token_type_ids)
        chunks = list(zip(*(_split(x, chunk_size, len(input_ids)) for x in inputs), strict=True))
        # The backward pass begins with the last chunk: to drop its activations only to make them again would be waste.
        vectors = [checkpoint(encode, *chunk, use_reentrant=False) for chunk in chunks[:-1]]
        return torch.cat([*vectors, encode(*chunks[-1])])  # (pairs, hidden)

    vars(model)["encode"] = encode_chunks
    try:
        yield
    finally:
        del model.encode


def _split(tensor: Tensor | None, size: int, length: int) -> tuple[Tensor | None, ...]:
    return (None,) * -(-length // size) if tensor is None else tensor.split(size)
