"""Training on a frozen encoder: every candidate is encoded once, its vector kept in files that all epochs read."""

import logging
import os
import shutil
from pathlib import Path

import torch
from accelerate import PartialState
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from ..modeling_cobert import CoBertForGroupwiseRanking
from ..passages_cobert import PairTokenizer, default_batch_tokens, map_rows
from ..steps.files import atomic_open
from ..steps.hashing import Fingerprint, config_sha256
from ..steps.progress import progress_bar
from ..steps.shards import fill

logger = logging.getLogger(__name__)

PAIRS_A_FILE = 4096


class FrozenVectors:
    """
    The vectors of all candidates of some rows: encoded now, or where an earlier process stopped, or found done.

    The folder's name is a fingerprint of all that makes the vectors: encoder weights and config, pooling, tokenizer,
    length and texts. So a cache is never stale. Several processes share the work file by file.

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
        self.model, self.rows = model, rows
        self.pairs = PairTokenizer(model.find_tokenizer(), model.config.max_length)
        self.files: list[list[int]] = []  # the rows of each file
        self.places: dict[str, tuple[int, int, int]] = {}  # query id to file, first and last vector
        made, self.count, filled = self._fingerprint(), 0, PAIRS_A_FILE
        for i, row in enumerate(rows):
            made.add([row["query"], row["passages"]])
            if filled >= PAIRS_A_FILE:
                self.files.append([])
                filled = 0
            self.files[-1].append(i)
            self.places[row["query_id"]] = (len(self.files) - 1, filled, filled + len(row["passages"]))
            filled += len(row["passages"])
            self.count += len(row["passages"])
        self.folder = Path(folder) / str(made)[:32]
        self.paths = [self.folder / f"{number:05d}.safetensors" for number in range(len(self.files))]
        self._opened: dict[int, safe_open] = {}

    def __call__(self, query_id: str) -> Tensor:
        """The vectors `(documents, hidden)` of a query's candidates."""
        number, start, end = self.places[query_id]
        if number not in self._opened:
            self._opened[number] = safe_open(self.paths[number], "pt")
        return self._opened[number].get_slice("vectors")[start:end]

    def encode(self, batch_tokens: int | None = None, state: PartialState | None = None) -> None:
        """
        Encodes what is missing; every process must call it.

        Args:
            batch_tokens (`int`, *optional*): the most tokens in a batch; by default what is fast on the device.
            state (`PartialState`, *optional*): the processes that share the work.
        """
        state = state or PartialState()
        missing = sum(end - start for number, start, end in self.places.values() if not self.paths[number].exists())
        if missing and state.is_main_process:
            self._check_space(missing)
        batch_tokens = batch_tokens or default_batch_tokens(self.model.device)
        training = self.model.training
        self.model.eval()
        total = -(-missing // state.num_processes)
        with progress_bar(desc="Encoding", unit="pairs", total=total, show=state.is_main_process) as bar:
            fill(self.paths, lambda number: bar.update(self._encode(number, batch_tokens)), state)
        self.model.train(training)

    @torch.no_grad()
    def _encode(self, number: int, batch_tokens: int) -> int:
        rows = [pair for i in self.files[number] for pair in self._pair_rows(self.rows[i])]
        encoded = map_rows(rows, self.pairs, self.model.encode, self.model.device, batch_tokens)
        with atomic_open(self.paths[number], "wb") as file:
            file.write(save({"vectors": encoded.float().cpu().contiguous()}))
        return len(rows)

    def _pair_rows(self, row: dict) -> list:
        try:
            return self.pairs.rows(row["query"], row["passages"])
        except ValueError as error:
            raise ValueError(f"query {row['query_id']!r}: {error}") from error

    def _check_space(self, missing: int) -> None:
        needed = missing * self.model.config.hidden_size * 4
        self.folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self.folder).free
        if free < needed:
            raise OSError(f"{self.folder}: {needed:,} bytes of vectors do not fit, {free:,} are free")

    def _fingerprint(self) -> Fingerprint:
        made, config = Fingerprint(), self.model.config
        made.add([config_sha256(config.encoder_config), config.encoder_pooling, config.max_length, PAIRS_A_FILE])
        made.add_tokenizer(self.pairs.tokenizer)
        made.add_weights(self.model.encoder)
        return made
