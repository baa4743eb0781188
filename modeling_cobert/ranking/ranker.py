"""Re-ranking of whole query sets: every distinct pair encoded once, queries dealt to processes, resumed by query."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from accelerate import PartialState
from torch import Tensor
from transformers import AutoConfig

from ..data.passage_scores import model_sha256
from ..grouping_cobert import best_first, merge_spans, overlapping_spans
from ..modeling_cobert import CoBertForGroupwiseRanking
from ..passages_cobert import PairTokenizer, default_batch_tokens, map_rows
from ..reranking_cobert import calibrate_list, input_device, score_groups, select_vectors
from ..selection_cobert import BUILT_IN
from ..steps.folders import json_sha256
from ..steps.shards import map_queries

logger = logging.getLogger(__name__)

_TINY = np.finfo(np.float32).tiny
_FLOAT32_MAX = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class EncodedQuery:
    """
    One query's candidates in first-stage order, as the encoder left them: all that scoring, again and again, needs.

    Args:
        query_id, query (`str`): the query's id and text.
        doc_ids, texts (`list[str]`): the candidates' ids, and what of each a reader may be shown.
        vectors (`torch.Tensor` of shape `(documents, hidden)`): the vectors r_j.
        relevance (`list[float]`): the selector's scores.
        prototypes (`list[int]`): the places of the feedback documents, best first.
        group_size, group_overlap (`int`): how the list is cut into groups.
        by_order (`bool`): whether the prototypes are just the first documents, so that another order has others.
    """

    query_id: str
    query: str
    doc_ids: list[str]
    texts: list[str]
    vectors: Tensor
    relevance: list[float]
    prototypes: list[int]
    group_size: int
    group_overlap: int
    by_order: bool

    @property
    def windows(self) -> list[tuple[int, int]]:
        return overlapping_spans(len(self.doc_ids), self.group_size, self.group_overlap)


class Inputs(Protocol):
    """What is to be re-ranked: [`GroupsInputs`] or [`CollectionInputs`]."""

    name: str
    tag: str
    k: int
    queries: dict[str, str]
    run: dict[str, dict[str, float]]
    qrels: dict[str, dict[str, int]] | None
    skipped: dict[str, int]

    def settings(self, ranker: "Ranker") -> dict:
        """Everything but the model that the result depends on, with fingerprints."""

    def group_shape(self, ranker: "Ranker") -> tuple[int, int]:
        """How lists are cut: the size of a group, and the overlap."""

    def check(self, ranker: "Ranker") -> None:
        """Raises, before any work, what would be wrong with this model on these inputs."""

    def encode(self, ranker: "Ranker", query_id: str, advance: Callable | None = None) -> EncodedQuery:
        """One query, encoded."""


@dataclass(frozen=True)
class Ranker:
    """
    A model, ready to re-rank query sets.

    Args:
        model ([`CoBertForGroupwiseRanking`]): in evaluation mode.
        pairs ([`PairTokenizer`]): its tokenizer.
        selector (`str`): what chooses passages and prototypes, where the inputs have not chosen them.
        batch_tokens (`int`): the most tokens of a batch, padding included.

    Example:

    ```python
    >>> ranker = Ranker.load("models/cobert")
    >>> inputs = collection_inputs(open_collection("demo"), "runs/demo.trec")
    >>> run = rerank_queries(ranker, inputs, "results/demo")
    ```
    """

    model: CoBertForGroupwiseRanking
    pairs: PairTokenizer
    selector: str
    batch_tokens: int

    @classmethod
    def load(
        cls,
        name: str,
        selector: str | None = None,
        batch_tokens: int | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> "Ranker":
        """Loads a folder or Hub id. Weights that the checkpoint lacks are an error: they would be random."""
        if batch_tokens is not None and batch_tokens < 1:
            raise ValueError(f"batch_tokens must be at least 1, got {batch_tokens}")
        config = AutoConfig.from_pretrained(name, trust_remote_code=False)
        if config.model_type != "cobert":
            raise ValueError(f"{name}: a Co-BERT is needed, this is a {config.model_type!r}")
        model, info = CoBertForGroupwiseRanking.from_pretrained(name, dtype=dtype, output_loading_info=True)
        if info["missing_keys"]:
            missing = sorted(info["missing_keys"])
            raise ValueError(f"{name}: the checkpoint lacks {len(missing)} weights, such as {missing[0]!r}")
        return cls.wrap(model.to(device), selector, batch_tokens)

    @classmethod
    def wrap(cls, model, selector: str | None = None, batch_tokens: int | None = None) -> "Ranker":
        """Takes a model that is loaded already; it is put in evaluation mode."""
        if batch_tokens is None:
            batch_tokens = default_batch_tokens(model.device)
        pairs = PairTokenizer(model.find_tokenizer(), model.config.max_length)
        return cls(model.eval(), pairs, model.config.selector if selector is None else selector, batch_tokens)

    def fingerprint(self) -> dict[str, str]:
        """Weights, tokenizer and configuration, wherever they were loaded from."""
        config = self.model.config.to_dict()
        for name in ("_name_or_path", "transformers_version", "selector"):
            config.pop(name, None)
        return {"weights": model_sha256(self), "config": json_sha256(_sorted(config))}

    def selector_fingerprint(self) -> str | None:
        """The selector's weights; `None` for one that has none of its own."""
        if self.selector in BUILT_IN:
            return None
        model = self.model
        device = input_device(model)
        return model_sha256(model.text_side.find_selector(self.selector, model.config.max_length, device))

    @torch.inference_mode()
    def encode_documents(
        self, query: str, documents: Sequence[dict], advance: Callable | None = None
    ) -> tuple[Tensor, list[float]]:
        """Cuts documents, chooses passages by the selector, as `model.rerank` does: their vectors and its scores."""
        return select_vectors(self.model, self.pairs, query, documents, self.selector, self.batch_tokens, advance)

    @torch.inference_mode()
    def encode_passages(self, query: str, passages: Sequence[str], advance: Callable | None = None) -> Tensor:
        """The vectors `(passages, hidden)` of passages that were chosen before."""
        query_ids = self.pairs.query(query)
        rows = [self.pairs.pair(query_ids, text.ids) for text in self.pairs.tokenize(passages)]
        return map_rows(rows, self.pairs, self.model.encode, self.model.device, self.batch_tokens, advance)

    @torch.inference_mode()
    def calibrate(self, vectors: Tensor, prototypes: Sequence[int]) -> tuple[Tensor, list[float]]:
        """All candidates of a query seen through its prototypes: see [`~reranking_cobert.calibrate_list`]."""
        return calibrate_list(self.model, vectors, prototypes, self.batch_tokens)

    @torch.inference_mode()
    def score_windows(self, vectors: Tensor, windows: Sequence[tuple[int, int]]) -> list[list[float]]:
        """The scorer's logits: one list a window, one logit a document of it."""
        return score_groups(self.model, vectors, windows, self.batch_tokens)

    def score_list(self, vectors: Tensor, windows: Sequence[tuple[int, int]]) -> list[float]:
        """One score a document: its windows' logits, merged as the model's config says."""
        return merge_spans(windows, self.score_windows(vectors, windows), self.model.config.overlap_merge)

    def score(self, encoded: EncodedQuery) -> list[float]:
        """The model's scores of one query's candidates, in first-stage order."""
        calibrated, _ = self.calibrate(encoded.vectors, encoded.prototypes)
        return self.score_list(calibrated, encoded.windows)


def strict_scores(doc_ids: Sequence[str], scores: Sequence[float]) -> dict[str, float]:
    """
    Scores that any TREC tool ranks as the model did: falling strictly, in single precision.

    The model's ties keep the first stage's order, while trec_eval breaks ties by document id and sees ties where
    scores agree in single precision. So, from the best document down, a score that is not below the one before it is
    lowered to the next smaller single-precision number (in the seventh digit; by 1e-38 around zero). All other scores
    are written as they are, in single precision.

    Returns:
        `dict[str, float]`: document id, best first, to score.
    """
    for doc_id, score in zip(doc_ids, scores, strict=True):
        if not abs(score) <= _FLOAT32_MAX:
            raise ValueError(f"document {doc_id!r} has the score {score}: the model's weights are damaged")
    strict, last = {}, np.float32(np.inf)
    for place in best_first(scores):
        score = np.float32(scores[place])
        if score >= last:
            score = min(np.nextafter(last, np.float32(-np.inf)), last - _TINY)
        strict[doc_ids[place]] = float(score)
        last = score
    return strict


def rerank_queries(
    ranker: Ranker,
    inputs: Inputs,
    output: str | Path,
    state: PartialState | None = None,
    progress: bool = True,
) -> dict[str, dict[str, float]]:
    """
    Re-ranks every query of the inputs; done before, or in part, it goes on.

    Each query is worked on by one process alone, in batches of its own, so that its scores do not depend on how many
    processes there are, nor on what was done before a kill, as long as they have equally many threads: another number
    may change the last digit of a sum. What is done lies in `output/.parts`, a file a query.

    Args:
        ranker ([`Ranker`]): the model.
        inputs ([`GroupsInputs`] or [`CollectionInputs`]): what to re-rank.
        output (`str` or `Path`): a folder for the parts; with parts of another model or other inputs it is an error.
        state (`PartialState`, *optional*): the processes; this one alone by default.
        progress (`bool`, *optional*, defaults to `True`): whether to show a progress bar.

    Returns:
        `dict[str, dict[str, float]]`: query id to document id, best first, to score: falling strictly, see
        [`strict_scores`]. The same in every process.
    """
    inputs.check(ranker)
    settings = {"step": "ranking", "format": 1, "model": ranker.fingerprint(), **inputs.settings(ranker)}

    def rank(query_id: str, advance: Callable) -> dict[str, float]:
        encoded = inputs.encode(ranker, query_id, advance)
        return strict_scores(encoded.doc_ids, ranker.score(encoded))

    run = map_queries(rank, list(inputs.queries), Path(output) / ".parts", settings, state, "Re-ranking", progress)
    for query_id, scores in run.items():
        if scores.keys() != inputs.run[query_id].keys():
            raise ValueError(
                f"{output}: the part of query {query_id!r} has other documents: remove {output} and start over"
            )
    return run


def check_queries(ranker: Ranker, queries: Mapping[str, str]) -> None:
    """Every query must leave room for a passage, which is known before any work."""
    for query_id, text in queries.items():
        try:
            ranker.pairs.query(text)
        except ValueError as error:
            raise ValueError(f"query {query_id!r}: {error}") from None


def _sorted(value: object) -> object:
    """Dicts by key, at any depth: a config's fields have no fixed order."""
    if isinstance(value, Mapping):
        return {str(key): _sorted(value[key]) for key in sorted(value, key=str)}
    return [_sorted(item) for item in value] if isinstance(value, list | tuple) else _plain(value)


def _plain(value: object) -> object:
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
