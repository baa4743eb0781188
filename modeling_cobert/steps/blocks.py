"""Vectors in blocks, each with a checksum that is compared when it is read: no damaged number is ever used."""

import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from .files import atomic_open


def write_blocks(path: Path, vectors: Tensor, sizes: Sequence[int], notes: Mapping | None = None) -> None:
    """
    Writes vectors `(count, width)`; the file is whole or not there.

    Args:
        path (`Path`): the file, safetensors.
        vectors (`torch.Tensor`): all blocks, one after the other.
        sizes (`list[int]`): how many vectors each block has.
        notes (`Mapping`, *optional*): what else is to be known, in JSON's words.
    """
    vectors = vectors.cpu().contiguous()
    sums = [_checksum(block) for block in vectors.split(list(sizes))]
    head = json.dumps({"sizes": list(sizes), "sums": sums, "notes": dict(notes or {})})
    # In one word, since several would be written in any order.
    with atomic_open(path, "wb") as file:
        file.write(save({"vectors": vectors}, {"blocks": f"{zlib.crc32(head.encode())} {head}"}))


class BlockFile:
    """
    A file of [`write_blocks`], which stays open: blocks are read as they are wanted. Damage is a `ValueError`.

    Args:
        path (`Path`): the file.
        sizes (`list[int]`, *optional*): what the blocks' sizes must be.
    """

    def __init__(self, path: Path, sizes: Sequence[int] | None = None):
        self.path = path
        try:
            file = safe_open(path, "pt")
            checksum, _, head = (file.metadata() or {}).get("blocks", "").partition(" ")
            if checksum != str(zlib.crc32(head.encode())):
                raise self._damaged("its checksums are not there, or do not fit")
            self._vectors = file.get_slice("vectors")
        except SafetensorError as error:
            raise self._damaged(str(error)) from None
        found = json.loads(head)
        self.notes, self._sums = found["notes"], found["sums"]
        self._ends = torch.tensor([0, *found["sizes"]]).cumsum(0).tolist()
        if sizes is not None and list(sizes) != found["sizes"]:
            raise self._damaged("it has other blocks")

    def __getitem__(self, number: int) -> Tensor:
        """The vectors of one block."""
        block = self._vectors[self._ends[number] : self._ends[number + 1]]
        if _checksum(block) != self._sums[number]:
            raise self._damaged(f"block {number} does not fit its checksum")
        return block

    def _damaged(self, how: str) -> ValueError:
        return ValueError(f"{self.path}: damaged, or of an earlier version ({how}): remove it and run again")


def _checksum(block: Tensor) -> int:
    return zlib.crc32(block.contiguous().view(-1).view(torch.uint8).numpy().data)
