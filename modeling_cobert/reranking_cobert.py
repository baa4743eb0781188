# Copyright 2026 The Co-BERT authors.
# SPDX-License-Identifier: Apache-2.0
"""Text in, ranking out: cut, select, encode every distinct pair once, calibrate, score in groups, rank."""

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from numbers import Integral, Real
from threading import Lock

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from .batches_cobert import default_batch_tokens, in_threads, map_rows, one_thread_a_batch
from .grouping_cobert import (
    BROKEN_MODEL,
    best_first,
    first_alike,
    merge_spans,
    overlapping_spans,
    starting_scores,
)
from .passages_cobert import (
    CutDocument,
    PairTokenizer,
    TokenRow,
    check_tokenizer,
    load_tokenizer,
)
from .selection_cobert import (
    BiEncoderSelector,
    Selector,
    best_passages,
    by_document,
    choose_passages,
    load_selector,
)
from .words_cobert import WordVectors, document_text, word_vectors

# Of documents and of tokens: beyond it lie only slips of the hand.
MOST = 2**31

# Held while what all threads share is changed: what is loaded on first use, and training or evaluation mode.
_LOADING, _MODES = Lock(), Lock()


@dataclass
class TextSide:
    """
    What a model needs to read text, beside its weights: none of it is a module, a parameter or part of a checkpoint.

    A copy of it (`copy.deepcopy`, pickle) leaves out the loaded selectors, which are loaded again on first use, and
    the Hub's token, which is nobody else's business.

    Args:
        tokenizer (`PreTrainedTokenizerBase`, *optional*): the tokenizer that was set or found.
        source (`tuple[str, dict]`, *optional*): the checkpoint that the tokenizer lies beside, and its Hub options.
        selectors (`dict[tuple[str, int], Selector]`): what was loaded, by name and most tokens of a row.
        ranking (`int`): how many threads are ranking with the model just now.
        modes (`tuple[tuple[nn.Module, bool], ...]`): what was in training before the first of them began.
    """

    tokenizer: PreTrainedTokenizerBase | None = None
    source: tuple[str, dict] | None = None
    selectors: dict[tuple[str, int], Selector] = field(default_factory=dict)
    ranking: int = 0
    modes: tuple[tuple[nn.Module, bool], ...] = ()

    def find_tokenizer(self, encoder_config) -> PreTrainedTokenizerBase:
        """The tokenizer that was set, or the one beside the checkpoint; it must fit the encoder."""
        with _LOADING:
            if self.tokenizer is None:
                if self.source is None:
                    raise ValueError(
                        "this model was not loaded from a checkpoint: pass tokenizer=... or set model.tokenizer"
                    )
                name, hub_options = self.source
                # With the encoder's config given AutoTokenizer does not read the checkpoint's and ask for remote code.
                self.tokenizer = load_tokenizer(name, encoder_config.vocab_size, config=encoder_config, **hub_options)
            else:
                check_tokenizer(self.tokenizer, encoder_config.vocab_size)
            return self.tokenizer

    def find_selector(self, name: str, max_length: int, device: torch.device | str) -> Selector:
        """The selector called `name`, loaded once, on the device where it is wanted now."""
        key = (name, max_length)
        with _LOADING:
            if key not in self.selectors:
                self.selectors[key] = load_selector(name, max_length, device)
            return self.selectors[key].to(device)

    def __getstate__(self) -> dict:
        source = self.source
        if source is not None:
            source = (source[0], {name: value for name, value in source[1].items() if name != "token"})
        return {"tokenizer": self.tokenizer, "source": source, "selectors": {}}


@dataclass(frozen=True, kw_only=True)
class EncodedList:
    """
    A query's candidates in first-stage order, as the encoder left them: all that scoring, again and again, needs.

    Args:
        vectors (`torch.Tensor` of shape `(documents, hidden)`): the vectors r_j.
        selector_scores (`list[float]`): one each; the best ones are the prototypes.
        first_stage_scores (`list[float]`, *optional*): one each; without them the order serves where they are wanted.
        content (`torch.Tensor` of shape `(documents, content_size)`, *optional*): what the passages are about.
        words ([`~words_cobert.WordVectors`], *optional*): of the whole documents.
    """

    vectors: Tensor
    selector_scores: Sequence[float]
    first_stage_scores: Sequence[float] | None = None
    content: Tensor | None = None
    words: WordVectors | None = None


def rerank(
    model,
    query: str,
    documents: Sequence[str | dict],
    top_k: int | None = None,
    *,
    tokenizer=None,
    selector: str | os.PathLike | None = None,
    return_documents: bool = False,
    batch_tokens: int | None = None,
    show_progress_bar: bool | None = None,
    allow_fresh_weights: bool = False,
) -> list[dict]:
    """
    Ranks documents for a query.

    Args:
        model ([`CoBertForGroupwiseRanking`]): what scores them.
        query (`str`): never truncated; one that leaves no room for a passage is an error.
        documents (`list[str | dict]`): strings, or dicts with `text` and perhaps `title`, in first-stage order. A
            model with `starting_weights` also reads their first-stage `score`; where none has one, the order serves.
        top_k (`int`, *optional*): how many to return; all by default.
        tokenizer (`PreTrainedTokenizerBase`, *optional*): by default the one beside the checkpoint.
        selector (`str` or `os.PathLike`, *optional*): overrides the config's `selector`.
        return_documents (`bool`, *optional*, defaults to `False`): whether each result has the document's `text`.
        batch_tokens (`int`, *optional*): the most tokens in a batch, padding included; by default 1024 on a CPU, else
            16384.
        show_progress_bar (`bool`, *optional*): by default a bar appears on a terminal after 3 seconds.
        allow_fresh_weights (`bool`, *optional*, defaults to `False`): whether to rank even with a model whose
            checkpoint did not have its very weights, so that some are random, or some were left out.

    Returns:
        `list[dict]`: best first, `corpus_id` (the document's place in `documents`), `score` (the logit), `probability`
        (its sigmoid) and, if asked for, `text`. Ties keep the given order; equal documents tie where one group has
        them all, and in two groups may differ by what else is there.
    """
    documents = _check_inputs(query, documents, top_k, batch_tokens)
    selector = _check_names(selector, tokenizer)
    if model.loading_faults and not allow_fresh_weights:
        raise ValueError(
            f"{model.loading_faults}. Its ranking would mean nothing: load a whole checkpoint or, if the model was "
            "trained since then, pass allow_fresh_weights=True"
        )
    if not documents:
        return []
    if tokenizer is None:
        tokenizer = model.find_tokenizer()
    else:
        check_tokenizer(tokenizer, model.config.encoder_config.vocab_size)
    pairs = PairTokenizer(tokenizer, model.config.max_length)
    selector = selector if selector is not None else model.config.selector
    batch_tokens = default_batch_tokens(input_device(model)) if batch_tokens is None else batch_tokens
    with _inference(model), one_thread_a_batch(), _progress(show_progress_bar) as advance:
        encoded = encode_list(model, pairs, query, documents, selector, batch_tokens, advance, advance)
        scores = score_list(model, encoded, batch_tokens)
    for place, score in enumerate(scores):
        if math.isinf(score):
            raise ValueError(f"document {place} has the score {score}: {BROKEN_MODEL}")
    return [
        {"corpus_id": i, "score": scores[i], "probability": _sigmoid(scores[i])}
        | ({"text": _text(documents[i])} if return_documents else {})
        for i in best_first(scores, top_k)
    ]


def encode_list(
    model,
    pairs: PairTokenizer,
    query: str,
    documents: Sequence,
    selector: str,
    batch_tokens: int,
    advance=None,
    advance_selection=None,
) -> EncodedList:
    """Each document's best passage, encoded, with the selector's score of it and, where wanted, content and words."""
    config, device = model.config, input_device(model)
    shape = (config.passage_words, config.passage_overlap, config.passage_title)
    given = None if model.start is None else first_stage_scores(documents)
    query_ids = pairs.query(query)
    cut = pairs.cut(documents, *shape)
    words = word_vectors([document_text(d, i) for i, d in enumerate(documents)]) if config.reads_words else None

    if selector == "self":
        # Every passage is encoded anyway, so the chosen ones' vectors are at hand.
        passages = [pairs.pair(query_ids, d.tokens(i)) for d in cut for i in range(len(d.spans))]
        vectors = map_rows(passages, pairs, model.encode, device, batch_tokens, advance, is_offloaded(model))
        # Equal passages have equal vectors, but a product of matrices rounds by where a row stands.
        logits = model.own_relevance(vectors).float().tolist()
        logits = [logits[place] for place in first_alike((row.second, *row.ids) for row in passages)]
        best, relevance = best_passages(by_document(logits, cut))
        return EncodedList(
            vectors=vectors[_places(cut, best)], selector_scores=relevance, first_stage_scores=given, words=words
        )
    chooser = model.text_side.find_selector(selector, config.max_length, device)
    # One without a tokenizer reads words, which are the same in any cut.
    own_cut = cut if chooser.pairs is None else chooser.cut(documents, *shape)
    content = None
    if config.content_size:
        passages = content_selector(model, selector).embed_passages(own_cut, batch_tokens, advance_selection)
        best, relevance = best_passages(chooser.score_embedded(query, own_cut, passages))
        content = passages[_places(own_cut, best)]
    else:
        best, relevance = choose_passages(chooser, query, own_cut, batch_tokens, advance_selection)
    chosen = [pairs.pair(query_ids, d.tokens(place)) for d, place in zip(cut, best, strict=True)]
    return EncodedList(
        vectors=encode_pairs(model, pairs, chosen, batch_tokens, advance),
        selector_scores=relevance,
        first_stage_scores=given,
        content=content,
        words=words,
    )


def encode_pairs(model, pairs: PairTokenizer, rows: Sequence[TokenRow], batch_tokens: int, advance=None) -> Tensor:
    """The vectors `(rows, hidden)` of query-passage pairs; zeros, at no cost, for a model where nothing reads them."""
    if model.config.reads_pairs:
        return map_rows(
            rows, pairs, model.encode, input_device(model), batch_tokens, advance, alone=is_offloaded(model)
        )
    if advance is not None:
        advance(len(rows))
    return torch.zeros(len(rows), model.config.hidden_size, dtype=model.dtype, device=input_device(model))


def _places(documents: Sequence[CutDocument], best: Sequence[int]) -> list[int]:
    """Where the chosen passages stand among all passages, document by document."""
    firsts = [0, *accumulate(len(document.spans) for document in documents)][:-1]
    return [first + place for first, place in zip(firsts, best, strict=True)]


def content_selector(model, selector: str | None = None) -> BiEncoderSelector:
    """The bi-encoder that a model with `content_size` takes content from; any other selector is an error."""
    name, config = model.config.selector if selector is None else selector, model.config
    chooser = model.text_side.find_selector(name, config.max_length, input_device(model))
    width = chooser.model.config.hidden_size if isinstance(chooser, BiEncoderSelector) else None
    if width != config.content_size:
        found = f"a {chooser.kind} selector" if width is None else f"a bi-encoder with vectors of {width} numbers"
        raise ValueError(
            f"the model reads content of {config.content_size} numbers, which only the bi-encoder that it was trained "
            f"with gives; {name!r} is {found}: pass the right one as selector"
        )
    return chooser


def input_device(model) -> torch.device:
    """
    The device that a model's inputs belong on: where its weights are or, if accelerate keeps these in main memory or
    on a disk (`device_map`, `cpu_offload`, `disk_offload`), where it brings them to run.
    """
    return next(_hook_devices(model), model.device)


def is_offloaded(model) -> bool:
    """Whether accelerate brings weights in and out as the model runs: then it can run but once at a time."""
    return next(_hook_devices(model), None) is not None


def _hook_devices(model) -> Iterator[torch.device]:
    for module in model.modules():
        device = getattr(getattr(module, "_hf_hook", None), "execution_device", None)
        if device is not None:
            yield torch.device(device)


def first_stage_scores(documents: Sequence[str | Mapping], file: str | None = None) -> list[float] | None:
    """
    The `score` that documents carry, or `None` where none does; some with and some without is an error, which names
    the line of the `file` that they come from.
    """
    scores = [document.get("score") if isinstance(document, Mapping) else None for document in documents]
    if all(score is None for score in scores):
        return None
    found = []
    for place, score in enumerate(scores):
        try:
            number = float(score) if isinstance(score, Real) and not isinstance(score, bool) else math.nan
        except OverflowError:  # a whole number with hundreds of digits
            number = math.inf
        if not math.isfinite(number):
            where = "" if file is None else f"{file}:{place + 1}: "
            raise ValueError(
                f"{where}document {place} has the score {score!r}: give all documents a finite first-stage score, or "
                "none"
            )
        found.append(number)
    return found


def score_list(model, encoded: EncodedList, batch_tokens: int = 16384) -> list[float]:
    """Scores a whole ranked list from its vectors: prototypes, calibrator, groups, scorer, merged overlaps."""
    config = model.config
    groups = overlapping_spans(len(encoded.vectors), config.group_size, config.group_overlap)
    prototypes = best_first(encoded.selector_scores, model.num_prototypes)
    calibrated, _ = calibrate_list(model, encoded, prototypes, batch_tokens)
    logits = score_groups(model, encoded, calibrated, groups, batch_tokens)
    return merge_spans(groups, logits, config.overlap_merge)


def start_list(model, encoded: EncodedList, fed_back: bool = True) -> Tensor | None:
    """
    The logits `(documents,)` that a whole list starts from; `None` in a model without `starting_weights`.

    Args:
        encoded ([`EncodedList`]): the candidates.
        fed_back (`bool`, *optional*, defaults to `True`): whether feedback by words, if the model has any, is in them.
    """
    if model.start is None:
        return None
    scores = starting_scores(encoded.selector_scores, encoded.first_stage_scores)
    vectors = encoded.vectors.unsqueeze(0)
    start = model.start_from(vectors, torch.tensor([scores], device=vectors.device))
    if model.feedback is None or not fed_back:
        return start[0]
    if encoded.words is None:
        raise ValueError("this model learns from the words of whole documents (feedback_weight), which are not there")
    mask = torch.ones_like(start)
    votes = encoded.words.votes(model.feedback.shares(start, mask)[0])
    return model.feedback.add(start, votes.unsqueeze(0), mask)[0]


def calibrate_list(
    model, encoded: EncodedList, prototypes: Sequence[int], batch_tokens: int = 16384
) -> tuple[Tensor, list[float]]:
    """
    All candidates of a query seen through its prototypes, each once, however many groups it will be in.

    Args:
        encoded ([`EncodedList`]): the candidates.
        prototypes (`list[int]`): the prototypes' places among them.

    Returns:
        The vectors `(documents, hidden)` and the prototypes' weights. Without a calibrator or without prototypes the
        vectors come back as they were, with their content, if any, in them.
    """
    joined = model.join_content(encoded.vectors, encoded.content)
    if model.calibrator is None or not prototypes:
        return joined, []
    places = torch.tensor(prototypes, device=joined.device)
    chosen = joined[places].unsqueeze(0)  # (1, m, hidden)
    relevance = model.own_relevance(encoded.vectors[places]).unsqueeze(0)  # (1, m)
    at_once = max(1, batch_tokens // (2 * len(prototypes)))

    def calibrate(part: Tensor) -> tuple[Tensor, Tensor]:
        return model.calibrate(chosen, part.unsqueeze(0), relevance=relevance)

    parts = list(in_threads(calibrate, joined.split(at_once), joined.device, is_offloaded(model)))
    return torch.cat([part[0] for part, _ in parts]), parts[0][1][0].float().tolist()


def score_groups(
    model, encoded: EncodedList, calibrated: Tensor, groups: Sequence[tuple[int, int]], batch_tokens: int = 16384
) -> list[list[float]]:
    """
    The logits for groups of a list: one list a group, one logit a document; equal ones for equal documents of a group.

    Args:
        encoded ([`EncodedList`]): the candidates.
        calibrated (`torch.Tensor` of shape `(documents, hidden)`): what [`calibrate_list`] made of them.
        groups (`list[tuple[int, int]]`): the groups' first places and ends.
    """
    config, words, device = model.config, encoded.words, calibrated.device
    by_words = "words" in config.neighbours_by
    if by_words and words is None:
        raise ValueError("this model compares the words of whole documents (neighbour_weight), which are not there")

    start, alike = start_list(model, encoded), _seen_alike(model, encoded)
    longest = max(end - first for first, end in groups)
    at_once = max(1, batch_tokens // longest)

    def score(batch: Sequence[tuple[int, int]]) -> list[list[float]]:
        places = torch.tensor([[min(first + i, end - 1) for i in range(longest)] for first, end in batch])
        mask = torch.tensor([[int(first + i < end) for i in range(longest)] for first, end in batch])
        places, mask = places.to(device), mask.to(device)

        def of_groups(values: Tensor | None) -> Tensor | None:
            return None if values is None else values[places]

        likeness = None
        if by_words and words is not None:
            likeness = _likeness_of_groups(words, batch, longest).to(device)
        logits = model.score(
            calibrated[places], mask, start=of_groups(start), content=of_groups(encoded.content), likeness=likeness
        )
        return [
            [row[place] for place in first_alike(alike[first:end])]
            for row, (first, end) in zip(logits.float().tolist(), batch, strict=True)
        ]

    batches = (groups[done : done + at_once] for done in range(0, len(groups), at_once))
    scored = in_threads(score, batches, device, is_offloaded(model))
    return [row for rows in scored for row in rows]


def _seen_alike(model, encoded: EncodedList) -> list[int]:
    """
    A number for each document, the same for those between which the model sees no difference: products of matrices
    round by where a row stands, and would rank these.
    """
    config, count = model.config, len(encoded.vectors)
    if config.scorer_positions or config.mark_overlap:
        return list(range(count))  # there it makes a difference where a document stands
    keys: list[Iterable] = [
        [row.tobytes() for row in part.float().cpu().numpy()]
        for part, is_read in ((encoded.vectors, config.reads_pairs), (encoded.content, config.content_size))
        if is_read and part is not None
    ]
    if model.start is not None:
        _, *counted = model.start.counted
        known = starting_scores(encoded.selector_scores, encoded.first_stage_scores)
        keys.append([tuple(score for score, used in zip(of_one, counted, strict=True) if used) for of_one in known])
    if encoded.words is not None:
        keys.append(encoded.words.keys())
    return first_alike(zip(*keys, strict=True))


def _likeness_of_groups(words: WordVectors, groups: Sequence[tuple[int, int]], longest: int) -> Tensor:
    """How alike the words of each group's documents are `(groups, longest, longest)`, 0 where there is none."""
    squares = [words.likeness(first, end) for first, end in groups]
    return torch.stack([F.pad(square, (0, longest - len(square)) * 2) for square in squares])


def _check_names(selector: str | os.PathLike | None, tokenizer) -> str | None:
    """The selector's name as a string; what is none, and a tokenizer's name in its place, are errors."""
    if selector is not None and not isinstance(selector, str | os.PathLike):
        raise TypeError(f"selector must be a name or a folder, not {selector!r}")
    if isinstance(tokenizer, str | os.PathLike):
        raise TypeError(f"tokenizer must be one, not its name: pass AutoTokenizer.from_pretrained({str(tokenizer)!r})")
    return None if selector is None else os.fspath(selector)


def _check_inputs(query: str, documents, top_k: int | None, batch_tokens: int | None) -> list:
    """The documents as a list; what cannot be ranked is an error before any work."""
    if not isinstance(query, str):
        raise TypeError(f"a query must be a string, not {type(query).__name__}")
    if not query.strip():
        raise ValueError("the query is empty: there is nothing to rank by")
    if isinstance(documents, str | bytes | Mapping):
        raise TypeError(f"documents must be a list of documents, not one {type(documents).__name__}")
    # Going through a table would give the names of its columns.
    if not isinstance(documents, Iterable) or hasattr(documents, "columns") or getattr(documents, "shape", None) == ():
        raise TypeError(f"documents must be a list of documents, not {type(documents).__name__}")
    for name, number in (("top_k", top_k), ("batch_tokens", batch_tokens)):
        if number is not None and not isinstance(number, Integral):
            raise TypeError(f"{name} must be a whole number, not {number!r}")
        if number is not None and number > MOST:
            raise ValueError(f"{name} must be at most {MOST}, got {number}")
    if top_k is not None and top_k < 0:
        raise ValueError(f"top_k must not be negative, got {top_k}")
    return list(documents)


@contextmanager
def _inference(model) -> Iterator[None]:
    side = model.text_side
    # The first of several threads puts the model in evaluation mode, and the last one puts it back.
    with _MODES:
        if not side.ranking:
            side.modes = tuple((module, module.training) for module in model.modules())
            model.eval()
        side.ranking += 1
    try:
        with torch.inference_mode():
            yield
    finally:
        with _MODES:
            side.ranking -= 1
            if not side.ranking:
                for module, training in side.modes:
                    module.training = training
                side.modes = ()


@contextmanager
def _progress(show: bool | None) -> Iterator:
    delay = 0 if show else 3
    with tqdm(desc="Reading", unit=" passages", disable=None if show is None else not show, delay=delay) as bar:
        yield bar.update


def _sigmoid(logit: float) -> float:
    return 1 / (1 + math.exp(-logit)) if logit >= 0 else math.exp(logit) / (1 + math.exp(logit))


def _text(document: str | dict) -> str:
    return document if isinstance(document, str) else document["text"]
