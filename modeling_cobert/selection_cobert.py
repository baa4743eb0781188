# Copyright 2026 The Co-BERT authors.
# SPDX-License-Identifier: Apache-2.0
"""Selectors: what picks the passage that stands for a document, and the documents that serve as prototypes."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModel, AutoModelForSequenceClassification

from .batches_cobert import map_rows
from .checkpoint_cobert import check_weights, find_file, load_config, read_json
from .configuration_cobert import CoBertConfig
from .grouping_cobert import best_first
from .initialization_cobert import loading_faults, weights_that_are_none
from .passages_cobert import (
    CutDocument,
    PairTokenizer,
    TokenRow,
    cut_documents,
    load_tokenizer,
    split_terms,
)

BUILT_IN = ("self", "lexical", "first-stage")


class Selector:
    """
    Scores every passage of a query's candidates: the best one stands for its document (MaxP), and the documents with
    the best ones are the prototypes. `cut` once, then `score` query by query.

    Args:
        pairs ([`PairTokenizer`], *optional*): whose tokens the passages have; without one they have words only.
    """

    kind: str

    def __init__(self, pairs: PairTokenizer | None = None):
        self.pairs = pairs

    def cut(
        self, documents: Sequence[str | Mapping], passage_words: int, passage_overlap: int, passage_title: bool = False
    ) -> list[CutDocument]:
        """Documents cut into passages as [`score`] wants them: see [`PairTokenizer.cut`]."""
        cut = cut_documents if self.pairs is None else self.pairs.cut
        return cut(documents, passage_words, passage_overlap, passage_title)

    def score(
        self,
        query: str,
        documents: Sequence[CutDocument],
        batch_tokens: int,
        advance: Callable[[int], object] | None = None,
    ) -> list[list[float]]:
        """
        One list a document, one score a passage.

        Args:
            query (`str`): the query.
            documents (`list[CutDocument]`): its candidates in first-stage order, as this selector's `cut` made them.
            batch_tokens (`int`): the most tokens of a batch, padding included.
            advance (`Callable`, *optional*): called with a number of passages done, for a progress bar; equal ones
                may be counted once.
        """
        raise NotImplementedError

    def to(self, device: torch.device | str) -> "Selector":
        """Moves the selector's model, if it has one."""
        return self


class LexicalSelector(Selector):
    """BM25 among the passages of a query's candidates: needs no model and no tokenizer."""

    kind = "lexical"

    def score(self, query, documents, batch_tokens, advance=None) -> list[list[float]]:
        scores = counted_scores(query, [counts for document in documents for counts in document.term_counts])
        if advance is not None:
            advance(len(scores))
        return by_document(scores, documents)


class FirstStageSelector(Selector):
    """The first passage of each document, and documents in the order given."""

    kind = "first-stage"

    def score(self, query, documents, batch_tokens, advance=None) -> list[list[float]]:
        if advance is not None:
            advance(sum(len(document.spans) for document in documents))
        return [[float(-rank)] + [-math.inf] * (len(d.spans) - 1) for rank, d in enumerate(documents)]


class CrossEncoderSelector(Selector):
    """The paper's selector: a sequence classifier with one label, or with two of which the second is *relevant*."""

    kind = "cross-encoder"
    pairs: PairTokenizer

    def __init__(self, model, tokenizer, max_length: int):
        super().__init__(PairTokenizer(tokenizer, max_length))
        self.model = model.eval()

    def score(self, query, documents, batch_tokens, advance=None) -> list[list[float]]:
        query_ids = self.pairs.query(query)
        rows = [self.pairs.pair(query_ids, d.tokens(i)) for d in documents for i in range(len(d.spans))]
        return by_document(self.score_rows(rows, batch_tokens, advance), documents)

    @torch.no_grad()
    def score_rows(self, rows: Sequence[TokenRow], batch_tokens: int, advance: Callable | None = None) -> list[float]:
        """The relevance logit of each query-passage row (of two labels, the second less the first)."""
        if not rows:
            return []
        return map_rows(rows, self.pairs, self._relevance, self.model.device, batch_tokens, advance).tolist()

    def to(self, device):
        self.model.to(device)
        return self

    def _relevance(self, **batch) -> Tensor:
        logits = self.model(**batch).logits.float()
        return logits[:, 0] if logits.shape[1] == 1 else logits[:, 1] - logits[:, 0]


class BiEncoderSelector(Selector):
    """A sentence encoder: cosine of query and passage, each embedded alone, so that a passage serves all queries."""

    kind = "bi-encoder"
    pairs: PairTokenizer

    def __init__(self, model, tokenizer, max_length: int, pooling: str = "mean"):
        super().__init__(PairTokenizer(tokenizer, max_length))
        self.model = model.eval()
        self.pooling = pooling

    def score(self, query, documents, batch_tokens, advance=None) -> list[list[float]]:
        if not documents:
            return []
        return self.score_embedded(query, documents, self.embed_passages(documents, batch_tokens, advance))

    def score_embedded(self, query: str, documents: Sequence[CutDocument], passages: Tensor) -> list[list[float]]:
        """What [`score`] gives, from the vectors that [`embed_passages`] gave for the documents."""
        # Not a matrix product: there the last bit depends on where a row stands, and equal passages would differ.
        cosines = (passages * self.embed_query(query).to(passages.device)).sum(dim=-1)
        return by_document(cosines.tolist(), documents)

    def embed_texts(self, texts: Sequence[str], batch_tokens: int, advance: Callable | None = None) -> Tensor:
        """Unit vectors `(texts, hidden)` of passages that were chosen before, given as text."""
        rows = [self.pairs.single(text.ids) for text in self.pairs.tokenize(texts)]
        return self.embed_rows(rows, batch_tokens, advance)

    def embed_passages(
        self,
        documents: Sequence[CutDocument],
        batch_tokens: int,
        advance: Callable[[int], object] | None = None,
    ) -> Tensor:
        """Unit vectors `(passages, hidden)` of all passages, document by document."""
        rows = [self.pairs.single(d.tokens(i)) for d in documents for i in range(len(d.spans))]
        return self.embed_rows(rows, batch_tokens, advance)

    def embed_query(self, query: str) -> Tensor:
        """A query's unit vector `(hidden,)`; one that would have to be cut is an error, as everywhere."""
        row = self.pairs.single(self.pairs.query(query))
        return self.embed_rows([row], batch_tokens=len(row))[0]

    @torch.no_grad()
    def embed_rows(self, rows: Sequence[TokenRow], batch_tokens: int, advance: Callable | None = None) -> Tensor:
        """Unit vectors `(rows, hidden)`."""
        return map_rows(rows, self.pairs, self._embed, self.model.device, batch_tokens, advance)

    def to(self, device):
        self.model.to(device)
        return self

    def _embed(self, **batch) -> Tensor:
        hidden = self.model(**batch).last_hidden_state.float()
        if self.pooling == "cls":
            vectors = hidden[:, 0]
        else:
            mask = batch["attention_mask"].unsqueeze(-1).to(hidden.dtype)
            vectors = (hidden * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)
        return torch.nn.functional.normalize(vectors, dim=-1)


def choose_passages(
    selector: Selector,
    query: str,
    documents: Sequence[CutDocument],
    batch_tokens: int,
    advance: Callable[[int], object] | None = None,
) -> tuple[list[int], list[float]]:
    """
    The best passage of each document and its score; of equally good ones the first.

    Args:
        selector ([`Selector`]): what scores the passages.
        query (`str`): the query.
        documents (`list[CutDocument]`): its candidates in first-stage order, as the selector's `cut` made them.
        batch_tokens, advance: as in [`Selector.score`].

    Example:

    ```python
    >>> selector = LexicalSelector()
    >>> documents = selector.cut(["red car blue car", "bees see red"], passage_words=2, passage_overlap=0)
    >>> best, scores = choose_passages(selector, "blue bees", documents, batch_tokens=1024)
    >>> best
    [1, 0]
    ```
    """
    return best_passages(selector.score(query, documents, batch_tokens, advance))


def best_passages(scores: Sequence[Sequence[float]]) -> tuple[list[int], list[float]]:
    """Each document's best passage and its score, from one list of scores a document; ties to the first."""
    best = [best_first(of_document, 1)[0] for of_document in scores]
    return best, [of_document[place] for of_document, place in zip(scores, best, strict=True)]


def by_document(scores: Sequence[float], documents: Sequence[CutDocument]) -> list[list[float]]:
    """Scores of all passages in one list -> one list a document."""
    remaining = iter(scores)
    return [[next(remaining) for _ in document.spans] for document in documents]


def counted_scores(
    query: str, passages: Sequence[tuple[int, Counter]], k1: float = 0.9, b: float = 0.4
) -> list[float]:
    """
    BM25 of each passage, with document frequencies counted over the passages given (one query's candidates).

    No stemming and no stop list: this is the selector that needs nothing, in any language that writes spaces.

    Args:
        query (`str`): the query.
        passages (`list[tuple[int, Counter]]`): the terms of each, counted by [`count_terms`].
        k1, b (`float`, *optional*, default to 0.9 and 0.4): saturation, and share of length normalisation.
    """
    terms = sorted(set(split_terms(query)))
    found = [(length, {t: counts[t] for t in terms if t in counts}) for length, counts in passages]
    frequencies = Counter(term for _, counts in found for term in counts)
    mean_length = math.fsum(length for length, _ in found) / len(found) if found else 0.0
    idf = {t: math.log(1 + (len(found) - df + 0.5) / (df + 0.5)) for t, df in frequencies.items()}
    return [
        math.fsum(
            idf[term] * count / (count + k1 * (1 - b + b * length / mean_length)) for term, count in counts.items()
        )
        for length, counts in found
    ]


def load_selector(name: str, max_length: int = 256, device: torch.device | str = "cpu") -> Selector:
    """
    The selector called `name`: `"lexical"`, `"first-stage"`, or the Hub id or folder of a cross-encoder or bi-encoder,
    which is loaded in float32 and never with remote code.

    A classifier with one or two labels is a cross-encoder; a sentence-transformers folder, or a plain encoder without
    a head, is a bi-encoder (pooled as its folder says, else by the mean).

    Example:

    ```python
    >>> load_selector("lexical").kind
    'lexical'
    ```
    """
    if not name.strip():
        raise ValueError("the selector's name is empty: give lexical, first-stage, or an encoder's Hub id or folder")
    if name == "self":
        raise ValueError(
            "selector 'self' is the model itself: it has nothing to load, and only the model's own `rerank` can use it"
        )
    if name == "lexical":
        return LexicalSelector()
    if name == "first-stage":
        return FirstStageSelector()
    return _load_encoder(name, max_length, device)


def most_tokens(config) -> int | None:
    """How many tokens an encoder can read at once, by its config; `None` where that sets no limit."""
    longest = getattr(config, "max_position_embeddings", None)
    if longest is not None and config.model_type in ("roberta", "xlm-roberta", "camembert"):
        longest -= config.pad_token_id + 1
    return longest


def check_encoder(name: str, max_length: int) -> str:
    """
    Which kind of selector an encoder is, by its config; one that cannot be one, or has no room for pairs of so many
    tokens, is an error. No weights are read.
    """
    config = _selector_config(name)
    check_room(name, max_length, getattr(config, "vocab_size", None))
    return CrossEncoderSelector.kind if _is_cross_encoder(config) else BiEncoderSelector.kind


def check_room(name: str, max_length: int, vocab_size: int | None = None) -> None:
    """Raises where a row of so many tokens of this checkpoint's tokenizer has no room for a query and a passage."""
    pairs = PairTokenizer(load_tokenizer(name, vocab_size), max_length)
    if pairs.max_length < pairs.num_special + 2:
        raise ValueError(
            f"max_length {max_length}: a query-passage pair has {pairs.num_special} special tokens and needs room "
            f"for words: give {pairs.num_special + 2} or more"
        )


def _selector_config(name: str):
    """The config of an encoder that can be a selector."""
    try:
        config = load_config(name)
    except OSError as error:
        raise OSError(f"selector {error}: choose lexical, first-stage, or an encoder that is there") from error
    if config.model_type == CoBertConfig.model_type:
        raise ValueError(
            f"selector {name!r} is a Co-BERT, which ranks whole lists: choose lexical, first-stage, a cross-encoder "
            "(a pointwise Co-BERT becomes one by cobert export) or a bi-encoder"
        )
    if _is_cross_encoder(config) and config.num_labels not in (1, 2):
        raise ValueError(f"selector {name!r} has {config.num_labels} labels: a cross-encoder has 1 or 2")
    return config


def _is_cross_encoder(config) -> bool:
    return (config.architectures or [""])[0].endswith("ForSequenceClassification")


def _load_encoder(name: str, max_length: int, device: torch.device | str) -> CrossEncoderSelector | BiEncoderSelector:
    config = _selector_config(name)
    tokenizer = load_tokenizer(name, getattr(config, "vocab_size", None))
    longest = most_tokens(config) or max_length
    if _is_cross_encoder(config):
        model = _load_whole(AutoModelForSequenceClassification, name, config)
        return CrossEncoderSelector(model.to(device), tokenizer, min(max_length, longest))
    model = _load_whole(AutoModel, name, config)
    return BiEncoderSelector(model.to(device), tokenizer, min(max_length, longest), _pooling(name))


def _load_whole(kind, name: str, config):
    """A model in float32; weights that it lacks are an error, but for a pooler, which nothing here reads."""
    check_weights(name, config, lambda: kind.from_config(config, trust_remote_code=False))
    model, info = kind.from_pretrained(
        name, trust_remote_code=False, use_safetensors=True, dtype=torch.float32, output_loading_info=True
    )
    unread = ("pooler.",) if kind is AutoModel else ()
    missing = [key for key in info["missing_keys"] if not key.startswith(unread)]
    faults = loading_faults(name, {**info, "missing_keys": missing, "unexpected_keys": []})
    faults = faults or weights_that_are_none(name, model)
    if faults:
        raise ValueError(f"{faults}. What such a selector picks would mean nothing: load a whole checkpoint")
    return model


def _pooling(name: str) -> str:
    modules = _read_json(name, "modules.json")
    if modules is None:
        return "mean"
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise ValueError(f"selector {name!r}: its modules.json is no list of modules")
    kinds = [str(module.get("type", "")).rsplit(".", 1)[-1] for module in modules]
    unknown = set(kinds) - {"Transformer", "Pooling", "Normalize"}
    if unknown:
        raise ValueError(f"selector {name!r} has layers that are not known here: {', '.join(sorted(unknown))}")
    paths = [module.get("path") for module, kind in zip(modules, kinds, strict=True) if kind == "Pooling"]
    path = paths[0] if paths else None
    if path is not None and (not isinstance(path, str) or Path(path).is_absolute() or ".." in Path(path).parts):
        raise ValueError(f"selector {name!r}: its modules.json leads to {path!r}, which is not in its folder")
    settings = (_read_json(name, f"{path}/config.json") if path else None) or {}
    if not isinstance(settings, dict):
        raise ValueError(f"selector {name!r}: {path}/config.json is no table of settings")
    chosen = sorted(key for key, value in settings.items() if key.startswith("pooling_mode_") and value is True)
    if isinstance(settings.get("pooling_mode"), str):
        chosen = [settings["pooling_mode"]]
    pooling = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "mean": "mean", "cls": "cls"}
    if not chosen:
        return "mean"
    if len(chosen) > 1 or chosen[0] not in pooling:
        raise ValueError(
            f"selector {name!r} pools by {', '.join(chosen)}: only the mean and the first token are known"
        )
    return pooling[chosen[0]]


def _read_json(name: str, file: str):
    path = find_file(name, file)
    return None if path is None else read_json(path)
