"""Training on a frozen encoder: every distinct pair is encoded once, its vector kept in a memory-mapped file."""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset
from tqdm.auto import tqdm

from ..data.collator import GroupCollator, document_layout
from ..modeling_cobert import CoBertForGroupwiseRanking
from ..passages_cobert import TokenRow, default_batch_tokens, map_rows
from ..steps.files import atomic_open

logger = logging.getLogger(__name__)

BLOCK = 1024  # pairs between two marks of progress


class FrozenGroups(Dataset):
    """
    Groups with vectors in place of texts.

    Args:
        rows (`datasets.Dataset`): the groups.
        vectors (`np.ndarray` of shape `(pairs, hidden)`): of every distinct pair, memory-mapped.
        places (`list[np.ndarray]`): for each row, where in `vectors` its prototypes and then its candidates are.
    """

    def __init__(self, rows, vectors: np.ndarray, places: list[np.ndarray]):
        self.rows, self.vectors, self.places = rows, vectors, places
        self.light = rows.select_columns(["query_id", "group", "prototype_ids", "candidate_ids", "candidate_grades"])

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict:
        return {**self.light[index], "vectors": torch.from_numpy(np.asarray(self.vectors[self.places[index]]))}


@dataclass
class VectorCollator:
    """What [`GroupCollator`] makes, for [`FrozenGroups`]: `vectors` (batch, m + n, hidden) in place of tokens."""

    num_prototypes: int
    with_query_ids: bool = False

    def __call__(self, rows: Sequence[Mapping]) -> dict[str, Tensor]:
        m = self.num_prototypes
        mask, labels = document_layout(rows, m)
        vectors = torch.zeros(*mask.shape, rows[0]["vectors"].shape[-1])
        for i, row in enumerate(rows):
            given = len(row["prototype_ids"])
            kept = min(m, given)
            vectors[i, :kept] = row["vectors"][:kept]
            vectors[i, m : m + len(row["candidate_ids"])] = row["vectors"][given:]
        batch = {"vectors": vectors, "document_mask": mask, "labels": labels}
        return batch | ({"query_ids": [row["query_id"] for row in rows]} if self.with_query_ids else {})


class FrozenVectors:
    """
    Encodes all pairs of a groups dataset, or goes on where an earlier process stopped, or finds them done.

    The folder's name is a fingerprint of all that makes the vectors: encoder weights and config, pooling, tokenizer,
    length and texts. So a cache is never stale. Several processes share the work block by block.

    Args:
        model ([`CoBertForGroupwiseRanking`]): its encoder is used as it is, without dropout.
        collator ([`GroupCollator`]): makes the pairs.
        rows (`datasets.Dataset`): the groups.
        folder (`str` or `os.PathLike`): where caches are kept.

    Example:

    ```python
    >>> frozen = FrozenVectors(model, collator, groups.dataset(), "_vectors")
    >>> frozen.encode()
    >>> train = frozen.groups(groups.dataset(fold.train))
    ```
    """

    def __init__(self, model: CoBertForGroupwiseRanking, collator: GroupCollator, rows, folder: str | os.PathLike):
        self.model, self.collator = model, collator
        # Prototypes are among the candidates, and neighbouring groups share documents: each pair once.
        self.pairs: dict[bytes, int] = {}
        self.texts: list[tuple[int, str, int]] = []  # where a pair's passage is: row, column, place
        self.rows = rows
        for i, row in enumerate(rows):
            for role in ("prototype", "candidate"):
                for j, passage in enumerate(row[f"{role}_passages"]):
                    key = _pair_key(row["query"], passage)
                    if key not in self.pairs:
                        self.pairs[key] = len(self.pairs)
                        self.texts.append((i, f"{role}_passages", j))
        self.folder = Path(folder) / fingerprint(model, collator, list(self.pairs))

    @property
    def path(self) -> Path:
        return self.folder / "vectors.npy"

    @property
    def size(self) -> int:
        """Bytes of the file of vectors."""
        return len(self.pairs) * self.model.config.hidden_size * 4

    def encode(
        self, batch_tokens: int | None = None, process: int = 0, processes: int = 1, wait: Callable = lambda: None
    ):
        """
        Encodes what is missing.

        Args:
            batch_tokens (`int`, *optional*): the most tokens in a batch; by default what is fast on the device.
            process, processes (`int`, *optional*): this process's share; every one of them must call this.
            wait (`Callable`, *optional*): returns when all processes have called it.
        """
        if not self.path.exists():
            partial, done = self.folder / "partial.npy", self.folder / "done.npy"
            blocks = -(-len(self.pairs) // BLOCK)
            if process == 0:
                self._prepare(partial, done, blocks)
            wait()
            vectors, flags = np.lib.format.open_memmap(partial, "r+"), np.lib.format.open_memmap(done, "r+")
            mine = [b for b in range(blocks) if not flags[b] and b % processes == process]
            batch_tokens = batch_tokens or default_batch_tokens(self.model.device)
            self._encode_blocks(mine, vectors, flags, batch_tokens, show=process == 0)
            wait()
            if process == 0:
                if not flags.all():
                    raise RuntimeError(f"{partial}: some blocks were not encoded; run the same command again")
                os.replace(partial, self.path)
                done.unlink()
        wait()

    def _prepare(self, partial: Path, done: Path, blocks: int) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        shape = (len(self.pairs), self.model.config.hidden_size)
        if partial.exists() and done.exists():
            return
        free = shutil.disk_usage(self.folder).free
        if free < self.size:
            raise OSError(f"{self.folder}: {self.size:,} bytes of vectors do not fit, {free:,} are free")
        with atomic_open(self.folder / "about.json") as file:
            json.dump({"pairs": shape[0], "hidden_size": shape[1], "block": BLOCK}, file, indent=1)
        for path, values_shape, dtype in ((partial, shape, np.float32), (done, (blocks,), np.uint8)):
            path.unlink(missing_ok=True)
            made = path.with_suffix(".new")
            np.lib.format.open_memmap(made, "w+", dtype=dtype, shape=values_shape).flush()
            os.replace(made, path)  # done.npy comes last: where it is, both are whole

    @torch.no_grad()
    def _encode_blocks(self, blocks: Sequence[int], vectors, flags, batch_tokens: int, show: bool) -> None:
        training = self.model.training
        self.model.eval()
        with tqdm(desc="Encoding", total=len(blocks) * BLOCK, unit=" pairs", disable=None if show else True) as bar:
            for block in blocks:
                start = block * BLOCK
                rows = self._token_rows(self.texts[start : start + BLOCK])
                encoded = map_rows(rows, self.collator.pairs, self.model.encode, self.model.device, batch_tokens)
                vectors[start : start + len(rows)] = encoded.float().cpu().numpy()
                vectors.flush()
                flags[block] = 1
                flags.flush()
                bar.update(len(rows))
        self.model.train(training)

    def _token_rows(self, texts: Sequence[tuple[int, str, int]]) -> list[TokenRow]:
        made = []
        for i, places in groupby(texts, key=lambda text: text[0]):
            row = self.rows[i]
            made += self.collator.pair_rows(row, [row[column][j] for _, column, j in places])
        return made

    def groups(self, rows) -> FrozenGroups:
        """The vectors of `rows`, which must be among those that were encoded."""
        places = []
        for row in rows:
            passages = [*row["prototype_passages"], *row["candidate_passages"]]
            places.append(np.array([self.pairs[_pair_key(row["query"], p)] for p in passages]))
        return FrozenGroups(rows, np.load(self.path, mmap_mode="r"), places)


def fingerprint(model: CoBertForGroupwiseRanking, collator: GroupCollator, pairs: Sequence[bytes]) -> str:
    """A name for what an encoder makes of these pairs."""
    digest = hashlib.sha256()
    config = {k: v for k, v in model.config.encoder_config.to_dict().items() if not k.startswith("_")}
    about = [config, model.config.encoder_pooling, collator.max_length, BLOCK]
    digest.update(json.dumps(about, sort_keys=True, default=str).encode())
    digest.update(collator.tokenizer.backend_tokenizer.to_str().encode())
    for name, tensor in sorted(model.encoder.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    digest.update(b"".join(pairs))
    return digest.hexdigest()[:32]


def _pair_key(query: str, passage: str) -> bytes:
    return hashlib.blake2b(f"{query}\0{passage}".encode("utf-8", "surrogatepass"), digest_size=16).digest()
