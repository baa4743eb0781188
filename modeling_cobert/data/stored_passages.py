"""Passages of a bi-encoder: every passage of every document embedded once, to files, and serving all queries."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from accelerate import PartialState

from ..passages_cobert import CutDocument
from ..selection_cobert import BiEncoderSelector
from ..steps.blocks import BlockFile, write_blocks
from ..steps.shards import fill

# Documents whose vectors are in memory together, and in one file.
DOCUMENTS_A_FILE = 1024


class StoredPassages:
    """
    Unit vectors of all passages. Files are made of the same documents in every run, so that a vector never depends on
    where a run was killed.

    Args:
        selector ([`BiEncoderSelector`]): what embeds them.
        doc_ids (`list[str]`): all documents.
        folder (`Path`): where the files are.
        batch_tokens (`int`): the most tokens of a batch.
    """

    def __init__(self, selector: BiEncoderSelector, doc_ids: Sequence[str], folder: Path, batch_tokens: int):
        self.selector, self.batch_tokens = selector, batch_tokens
        self.files = [doc_ids[start : start + DOCUMENTS_A_FILE] for start in range(0, len(doc_ids), DOCUMENTS_A_FILE)]
        self.paths = [Path(folder) / f"{number:05d}.safetensors" for number in range(len(self.files))]
        self.places = {d: (number, i) for number, ids in enumerate(self.files) for i, d in enumerate(ids)}
        self._opened: dict[int, BlockFile] = {}

    def embed(
        self, cut: Callable[[Sequence[str]], Mapping[str, CutDocument]], state: PartialState, advance: Callable
    ) -> None:
        """Makes the files that are not there; `cut` gives documents cut by the selector's own tokenizer."""

        def make(number: int) -> None:
            found = cut(self.files[number])
            documents = [found[doc_id] for doc_id in self.files[number]]
            vectors = self.selector.embed_passages(documents, self.batch_tokens)
            pairs = self.selector.pairs
            room = pairs.max_length - len(pairs.prefix) - len(pairs.suffix)
            long = [sum(d.num_tokens(i) > room for i in range(len(d.spans))) for d in documents]
            sizes = [len(document.spans) for document in documents]
            write_blocks(self.paths[number], vectors, sizes, {"truncated": long})
            advance(len(documents))

        fill(self.paths, make, state)

    def score(self, query: str, doc_ids: Sequence[str], documents: Sequence[CutDocument]) -> list[list[float]]:
        """One list a document with the scores of its passages."""
        places = [self.places[doc_id] for doc_id in doc_ids]
        return self.selector.score_embedded(
            query, documents, torch.cat([self._open(number)[i] for number, i in places])
        )

    def truncated(self, doc_id: str) -> int:
        """How many of a document's passages did not fit."""
        number, i = self.places[doc_id]
        return self._open(number).notes["truncated"][i]

    def _open(self, number: int) -> BlockFile:
        if number not in self._opened:
            self._opened[number] = BlockFile(self.paths[number])
        return self._opened[number]
