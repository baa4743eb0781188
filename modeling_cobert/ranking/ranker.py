"""The one ranker: every distinct pair encoded once, groups merged, ties broken by one rule, resumed query by query."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
import torch
from accelerate import PartialState
from torch import Tensor

from ..batches_cobert import default_batch_tokens, one_thread_a_batch
from ..data.groups import Grouping, GroupOptions
from ..data.selection import selector_sha256
from ..grouping_cobert import merge_spans
from ..modeling_cobert import CoBertForGroupwiseRanking
from ..passages_cobert import PairTokenizer
from ..reranking_cobert import (
    EncodedList,
    calibrate_list,
    content_selector,
    encode_list,
    encode_pairs,
    score_groups,
    start_list,
)
from ..selection_cobert import BUILT_IN
from ..steps.folders import claim_folder, claims_end
from ..steps.hashing import config_sha256, model_sha256
from ..steps.progress import progress_bar
from ..steps.shards import QueryShards
from .loading import load_cobert
from .ties import strict_scores

if TYPE_CHECKING:
    from .inputs import CollectionInputs, RowsInputs

Inputs: TypeAlias = "RowsInputs | CollectionInputs"  # what is to be re-ranked
SCHEMA = pa.schema([("query_id", pa.string()), ("doc_ids", pa.list_(pa.string())), ("scores", pa.list_(pa.float64()))])


@dataclass(frozen=True, kw_only=True)
class EncodedQuery(EncodedList):
    """
    One query's candidates in first-stage order, as the encoder left them: all that scoring, again and again, needs.

    Args:
        query_id, query (`str`): the query's id and text.
        doc_ids, texts (`list[str]`): the candidates' ids, and what of each a reader may be shown.
        grouping ([`Grouping`]): how the list is cut into groups, and what the prototypes are.
        prototypes (`list[int]`): the places of the feedback documents, best first.
        vectors, selector_scores, first_stage_scores, content, words: as in [`~reranking_cobert.EncodedList`].
    """

    query_id: str
    query: str
    doc_ids: list[str]
    texts: list[str]
    grouping: Grouping
    prototypes: list[int]

    @property
    def groups(self) -> list[tuple[int, int]]:
        return self.grouping.spans(len(self.doc_ids))


@dataclass(frozen=True)
class Ranker:
    """
    A model, ready to re-rank query sets.

    Args:
        model ([`CoBertForGroupwiseRanking`]): in evaluation mode.
        pairs ([`PairTokenizer`]): its tokenizer.
        selector (`str`): what chooses passages and prototypes, where the inputs have not chosen them.
        batch_tokens (`int`): the most tokens of a batch, padding included.
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
        """Loads a folder or Hub id, by [`load_cobert`]."""
        if batch_tokens is not None and batch_tokens < 1:
            raise ValueError(f"batch_tokens must be at least 1, got {batch_tokens}")
        model = load_cobert(name, dtype).to(device)  # type: ignore[arg-type]  # transformers wraps `to` without types
        return cls.wrap(model, selector, batch_tokens)

    @classmethod
    def wrap(cls, model, selector: str | None = None, batch_tokens: int | None = None) -> "Ranker":
        """Takes a model that is loaded already; it is put in evaluation mode."""
        if batch_tokens is None:
            batch_tokens = default_batch_tokens(model.device)
        pairs = PairTokenizer(model.find_tokenizer(), model.config.max_length)
        return cls(model.eval(), pairs, model.config.selector if selector is None else selector, batch_tokens)

    def fingerprint(self) -> dict[str, str]:
        """Weights, tokenizer and configuration, wherever they were loaded from."""
        weights = model_sha256(self.model, self.pairs.tokenizer)
        return {"weights": weights, "config": config_sha256(self.model.config, leave_out=("selector",))}

    def selector_fingerprint(self) -> str | None:
        """The selector's weights; `None` for one that has none of its own."""
        if self.selector in BUILT_IN:
            return None
        model = self.model
        return selector_sha256(model.text_side.find_selector(self.selector, model.config.max_length, model.device))

    @torch.inference_mode()
    def encode_documents(self, query: str, documents: Sequence[dict], advance: Callable | None = None) -> EncodedList:
        """Cuts documents, chooses passages by the selector and encodes them, as `model.rerank` does."""
        return encode_list(self.model, self.pairs, query, documents, self.selector, self.batch_tokens, advance)

    @torch.inference_mode()
    def encode_passages(self, query: str, passages: Sequence[str], advance: Callable | None = None) -> Tensor:
        """The vectors `(passages, hidden)` of passages that were chosen before."""
        rows = self.pairs.rows(query, passages)
        return encode_pairs(self.model, self.pairs, rows, self.batch_tokens, advance)

    @torch.inference_mode()
    def embed_passages(self, passages: Sequence[str]) -> Tensor | None:
        """What these passages are about `(passages, content_size)`; `None` for a model that reads no content."""
        if not self.model.config.content_size:
            return None
        return content_selector(self.model).embed_texts(passages, self.batch_tokens)

    @torch.inference_mode()
    def calibrate(self, encoded: EncodedQuery, prototypes: Sequence[int] | None = None) -> tuple[Tensor, list[float]]:
        """
        All candidates of a query seen through its prototypes (or those given): see
        [`~reranking_cobert.calibrate_list`].
        """
        chosen = encoded.prototypes if prototypes is None else prototypes
        return calibrate_list(self.model, encoded, chosen, self.batch_tokens)

    @torch.inference_mode()
    def start(self, encoded: EncodedQuery, fed_back: bool = True) -> Tensor | None:
        """What the list starts from, in a model with `starting_weights`: see [`~reranking_cobert.start_list`]."""
        return start_list(self.model, encoded, fed_back)

    @torch.inference_mode()
    def score_groups(
        self, encoded: EncodedQuery, calibrated: Tensor, groups: Sequence[tuple[int, int]] | None = None
    ) -> list[list[float]]:
        """The model's logits: one list a group (the query's own by default), one logit a document of it."""
        groups = encoded.groups if groups is None else groups
        return score_groups(self.model, encoded, calibrated, groups, self.batch_tokens)

    def score_list(
        self, encoded: EncodedQuery, calibrated: Tensor, groups: Sequence[tuple[int, int]] | None = None
    ) -> list[float]:
        """One score a document: its groups' logits, merged as the model's config says."""
        groups = encoded.groups if groups is None else groups
        return self.merge(groups, self.score_groups(encoded, calibrated, groups))

    def merge(self, groups: Sequence[tuple[int, int]], logits: Sequence[Sequence[float]]) -> list[float]:
        """One score a document, of the logits that its groups gave it."""
        return merge_spans(groups, logits, self.model.config.overlap_merge)

    def score(self, encoded: EncodedQuery) -> list[float]:
        """The model's scores of one query's candidates, in first-stage order."""
        calibrated, _ = self.calibrate(encoded)
        return self.score_list(encoded, calibrated)

    def group_options(self, options: GroupOptions) -> Grouping:
        """The options with the model's own sizes where none are given, and no prototypes without a calibrator."""
        chosen = options.of_model(self.model.config)
        return chosen if self.model.config.use_calibrator else replace(chosen, num_prototypes=0)

    def check_queries(self, queries: Mapping[str, str]) -> None:
        """Every query must leave room for a passage, which is known before any work."""
        for query_id, text in queries.items():
            try:
                self.pairs.query(text)
            except ValueError as error:
                raise ValueError(f"query {query_id!r}: {error}") from None


def rank_query(ranker: Ranker, inputs: Inputs, query_id: str, advance: Callable | None = None) -> dict[str, float]:
    """One query's documents, best first, with scores that fall strictly: see [`strict_scores`]."""
    with one_thread_a_batch():
        encoded = inputs.encode(ranker, query_id, advance)
        return strict_scores(encoded.doc_ids, ranker.score(encoded))


def rerank_queries(
    ranker: Ranker,
    inputs: Inputs,
    output: str | Path,
    state: PartialState | None = None,
    progress: bool = True,
) -> dict[str, dict[str, float]]:
    """
    Re-ranks every query of the inputs; done before, or in part, it goes on.

    Each query is worked on by one process alone, in batches of its own, each on one thread, so that its scores do not
    depend on how many processes and threads there are, nor on what was done before a kill. What is done lies in
    `output/.parts`, a file a query.

    Args:
        ranker ([`Ranker`]): the model.
        inputs ([`RowsInputs`] or [`CollectionInputs`]): what to re-rank.
        output (`str` or `Path`): a folder for the parts; with parts of another model or other inputs it is an error.
        state (`PartialState`, *optional*): the processes; this one alone by default.
        progress (`bool`, *optional*, defaults to `True`): whether to show a progress bar.

    Returns:
        `dict[str, dict[str, float]]`: query id to document id, best first, to score. The same in every process.
    """
    inputs.check(ranker)
    settings = {"step": "ranking", "format": 2, "model": ranker.fingerprint(), **inputs.settings(ranker)}

    def rank(query_id: str, advance: Callable) -> dict:
        scores = rank_query(ranker, inputs, query_id, advance)
        return {"doc_ids": list(scores), "scores": list(scores.values())}

    rows = map_queries(rank, inputs, Path(output) / ".parts", settings, SCHEMA, state, "Re-ranking", progress)
    run = {row["query_id"]: dict(zip(row["doc_ids"], row["scores"], strict=True)) for row in rows}
    for query_id, scores in run.items():
        if scores.keys() != inputs.run[query_id].keys():
            raise ValueError(
                f"{output}: the part of query {query_id!r} has other documents: remove {output} and start over"
            )
    return run


@claims_end()
def map_queries(
    function: Callable[[str, Callable], dict],
    inputs: Inputs,
    folder: Path,
    settings: Mapping,
    schema: pa.Schema,
    state: PartialState | None = None,
    description: str = "Queries",
    progress: bool = True,
) -> list[dict]:
    """
    `function(query_id, advance)` for every query of the inputs, a file each; what is there is not made again.

    Returns:
        `list[dict]`: the rows, read from the files, the same in every process.
    """
    state = state or PartialState()
    with state.main_process_first():
        claim_folder(folder, {**settings, "queries": list(inputs.queries)})
    shards = QueryShards(folder, list(inputs.queries), schema)
    total = sum(len(inputs.run[query_id]) for query_id in shards.missing()) // state.num_processes
    show = progress and state.is_main_process
    with progress_bar(desc=description, unit="documents", total=total, show=show) as bar:
        shards.fill(lambda query_id: function(query_id, bar.update), state)
    return list(shards.read())
