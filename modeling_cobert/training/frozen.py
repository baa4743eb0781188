"""Vectors that training does not change: every candidate is encoded once, into files that all epochs read."""

import logging
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from accelerate import PartialState
from torch import Tensor

from ..batches_cobert import default_batch_tokens, map_rows
from ..modeling_cobert import CoBertForGroupwiseRanking
from ..passages_cobert import PairTokenizer
from ..selection_cobert import BiEncoderSelector
from ..steps.blocks import BlockFile, write_blocks
from ..steps.hashing import Fingerprint, config_sha256
from ..steps.progress import progress_bar
from ..steps.shards import fill

logger = logging.getLogger(__name__)

PAIRS_A_FILE = 4096
# Passages whose content is read, and checked, together.
PASSAGES_A_BLOCK = 64
# About 100 MB of content stay in memory.
KEPT_BLOCKS = 1024
# Part of a cache's name: files of another layout are never met.
LAYOUT = 2


class StoredVectors:
    """
    Vectors of all candidates of some rows: encoded now, or where an earlier process stopped, or found done.

    The folder's name is a fingerprint of all that makes the vectors: texts, and what a subclass adds, such as weights,
    tokenizer and length. So a cache is never stale. Several processes share the work file by file.

    Args:
        rows (`datasets.Dataset`): the queries with their passages.
        folder (`str` or `os.PathLike`): where caches are kept.
        made ([`Fingerprint`]): what makes the vectors, beside the texts.
        width (`int`): the numbers of a vector.
        device (`torch.device`): where they are made.
    """

    unit = "pairs"

    def __init__(self, rows, folder: str | os.PathLike, made: Fingerprint, width: int, device: torch.device):
        self.rows, self.width, self.device = rows, width, device
        self.files: list[list[int]] = []  # the rows of each file
        self.sizes: list[list[int]] = []  # how many vectors each of these has: a block of the file
        self.places: dict[str, tuple[int, int]] = {}  # query id to file and block
        self.count, filled = 0, PAIRS_A_FILE
        made.add(LAYOUT)
        for i, row in enumerate(rows):
            made.add([row["query"], row["passages"]])
            if filled >= PAIRS_A_FILE:
                self.files.append([])
                self.sizes.append([])
                filled = 0
            self.places[row["query_id"]] = (len(self.files) - 1, len(self.files[-1]))
            self.files[-1].append(i)
            self.sizes[-1].append(len(row["passages"]))
            filled += len(row["passages"])
            self.count += len(row["passages"])
        self.folder = Path(folder) / str(made)[:32]
        self.paths = [self.folder / f"{number:05d}.safetensors" for number in range(len(self.files))]
        self._opened: dict[int, BlockFile] = {}

    def __call__(self, query_id: str) -> Tensor:
        """The vectors `(documents, width)` of a query's candidates; a damaged file is an error."""
        number, block = self.places[query_id]
        if number not in self._opened:
            self._opened[number] = BlockFile(self.paths[number], self.sizes[number])
        return self._opened[number][block]

    def make(self, rows: Sequence[Mapping], batch_tokens: int, advance: Callable[[int], object]) -> Tensor:
        """The vectors `(candidates, width)` of some rows, one after the other; equal ones may be counted once."""
        raise NotImplementedError

    def encode(self, batch_tokens: int | None = None, state: PartialState | None = None) -> None:
        """
        Encodes what is missing; every process must call it.

        Args:
            batch_tokens (`int`, *optional*): the most tokens in a batch; by default what is fast on the device.
            state (`PartialState`, *optional*): the processes that share the work.
        """
        state = state or PartialState()
        missing = sum(sum(sizes) for path, sizes in zip(self.paths, self.sizes, strict=True) if not path.exists())
        if missing and state.is_main_process:
            self._check_space(missing)
        batch_tokens = batch_tokens or default_batch_tokens(self.device)
        total = -(-missing // state.num_processes)
        with progress_bar(desc="Encoding", unit=self.unit, total=total, show=state.is_main_process) as bar:
            fill(self.paths, lambda number: self._encode(number, batch_tokens, bar.update), state)

    @torch.no_grad()
    def _encode(self, number: int, batch_tokens: int, advance: Callable[[int], object]) -> None:
        told = 0

        def tell(count: int) -> None:
            nonlocal told
            told += count
            advance(count)

        encoded = self.make([self.rows[i] for i in self.files[number]], batch_tokens, tell)
        write_blocks(self.paths[number], encoded.float(), self.sizes[number])
        advance(len(encoded) - told)

    def _check_space(self, missing: int) -> None:
        needed = missing * self.width * 4
        self.folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self.folder).free
        if free < needed:
            raise OSError(f"{self.folder}: {needed:,} bytes of vectors do not fit, {free:,} are free")


class FrozenVectors(StoredVectors):
    """
    What a frozen encoder gives for every query-passage pair.

    Args:
        model ([`CoBertForGroupwiseRanking`]): its encoder is used as it is, without dropout.
        rows (`datasets.Dataset`): the queries with their passages.
        folder (`str` or `os.PathLike`): where caches are kept.

    Example:

    ```python
    >>> frozen = FrozenVectors(model, rows.dataset(), "_vectors")
    >>> frozen.encode()
    >>> groups = GroupView(rows.dataset(fold.train), options, vectors=frozen)
    ```
    """

    def __init__(self, model: CoBertForGroupwiseRanking, rows, folder: str | os.PathLike):
        self.model, config = model, model.config
        self.pairs = PairTokenizer(model.find_tokenizer(), config.max_length)
        made = Fingerprint()
        made.add([config_sha256(config.encoder_config), config.encoder_pooling, config.max_length, PAIRS_A_FILE])
        made.add_tokenizer(self.pairs.tokenizer)
        made.add_weights(model.encoder)
        super().__init__(rows, folder, made, config.hidden_size, model.device)

    def make(self, rows: Sequence[Mapping], batch_tokens: int, advance: Callable[[int], object]) -> Tensor:
        training = self.model.training
        self.model.eval()
        pairs = [pair for row in rows for pair in self._pair_rows(row)]
        encoded = map_rows(pairs, self.pairs, self.model.encode, self.model.device, batch_tokens, advance)
        self.model.train(training)
        return encoded

    def _pair_rows(self, row: Mapping) -> list:
        try:
            return self.pairs.rows(row["query"], row["passages"])
        except ValueError as error:
            raise ValueError(f"query {row['query_id']!r}: {error}") from error


class NoVectors:
    """In place of [`FrozenVectors`] for a model where nothing reads what the encoder makes of a pair: zeros."""

    def __init__(self, rows, width: int):
        self.width = width
        self.counts = {row["query_id"]: len(row["doc_ids"]) for row in rows.select_columns(["query_id", "doc_ids"])}

    def __call__(self, query_id: str) -> Tensor:
        return torch.zeros(1, 1).expand(self.counts[query_id], self.width)

    def encode(self, state: PartialState | None = None) -> None:
        """There is nothing to do."""


class ContentVectors(StoredVectors):
    """
    What the passages are about: the unit vectors of a bi-encoder, which no training changes. They do not depend on
    the query, so that a passage is embedded once, however many lists it is in.

    Args:
        selector ([`BiEncoderSelector`]): the bi-encoder.
        rows, folder: as for [`FrozenVectors`].
    """

    unit = "passages"

    def __init__(self, selector: BiEncoderSelector, rows, folder: str | os.PathLike):
        self.selector, config = selector, selector.model.config
        made = Fingerprint()
        made.add(["content", config_sha256(config), selector.pooling, selector.pairs.max_length, PAIRS_A_FILE])
        made.add_tokenizer(selector.pairs.tokenizer)
        made.add_weights(selector.model)
        known: dict[str, int] = {}  # in the order of the lists, so that those of one lie together
        self.needed = {
            row["query_id"]: [known.setdefault(passage, len(known)) for passage in row["passages"]] for row in rows
        }
        passages, size = list(known), PASSAGES_A_BLOCK
        blocks = [
            {"query_id": str(number), "query": "", "passages": passages[number * size : (number + 1) * size]}
            for number in range(-(-len(passages) // size))
        ]
        super().__init__(blocks, folder, made, config.hidden_size, selector.model.device)
        self._kept: dict[int, Tensor] = {}

    def __call__(self, query_id: str) -> Tensor:
        places = [divmod(place, PASSAGES_A_BLOCK) for place in self.needed[query_id]]
        return torch.stack([self._block(block)[i] for block, i in places])

    def _block(self, number: int) -> Tensor:
        if number not in self._kept:
            if len(self._kept) >= KEPT_BLOCKS:
                self._kept.clear()
            self._kept[number] = super().__call__(str(number))
        return self._kept[number]

    def make(self, rows: Sequence[Mapping], batch_tokens: int, advance: Callable[[int], object]) -> Tensor:
        passages = [passage for row in rows for passage in row["passages"]]
        return self.selector.embed_texts(passages, batch_tokens, advance)
