# Copyright 2026 The Co-BERT authors.
# SPDX-License-Identifier: Apache-2.0
"""Text -> words -> passages -> token rows, the same for ranking, selection and training."""

import os
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from transformers import AutoTokenizer

from .grouping_cobert import overlapping_spans


@dataclass(frozen=True)
class TokenizedText:
    """A text's words and its tokens, made once; any stretch of words is a slice of it."""

    words: list[str]
    ids: list[int]
    starts: list[int]  # starts[i] is word i's first token; one entry more than words

    def tokens(self, start: int, end: int) -> list[int]:
        return self.ids[self.starts[start] : self.starts[end]]


@dataclass(frozen=True)
class CutDocument:
    """A document and the spans of words that are its passages."""

    title: TokenizedText | None  # where it is to stand before every passage
    body: TokenizedText
    spans: list[tuple[int, int]]

    def tokens(self, passage: int) -> list[int]:
        start, end = self.spans[passage]
        return (self.title.ids if self.title else []) + self.body.tokens(start, end)

    def num_tokens(self, passage: int) -> int:
        start, end = self.spans[passage]
        return (len(self.title.ids) if self.title else 0) + self.body.starts[end] - self.body.starts[start]

    def text(self, passage: int) -> str:
        start, end = self.spans[passage]
        return " ".join((self.title.words if self.title else []) + self.body.words[start:end])

    @cached_property
    def term_counts(self) -> list[tuple[int, Counter]]:
        """What [`count_terms`] says of each passage, counted once for all queries that the document is ranked for."""
        return [count_terms(self.text(passage)) for passage in range(len(self.spans))]


@dataclass(frozen=True)
class TokenRow:
    """One sequence for a BERT: its ids, and from where on they are the second segment."""

    ids: list[int]
    second: int

    def __len__(self) -> int:
        return len(self.ids)


def split_terms(text: str) -> list[str]:
    """A text's words in lower case, without punctuation: what lexical selection compares."""
    return re.findall(r"\w+", text.lower())


def count_terms(text: str) -> tuple[int, Counter]:
    """A text's number of terms, and how often each occurs."""
    terms = split_terms(text)
    return len(terms), Counter(terms)


def split_document(document: str | Mapping, position: int | None = None) -> tuple[str, str]:
    """`(title, text)` of a document given as a string or as a dict with `text` and perhaps `title`."""
    if isinstance(document, str):
        return "", document
    where = "a document" if position is None else f"document {position}"
    if not isinstance(document, Mapping):
        raise TypeError(f"{where} must be a string or a dict with 'text' and 'title', not {type(document).__name__}")
    title, text = document.get("title") or "", document.get("text")
    if not isinstance(text, str) or not isinstance(title, str):
        raise TypeError(f"{where} must have a string under 'text' (and, if any, under 'title')")
    return title, text


def split_words(texts: Sequence[str]) -> list[TokenizedText]:
    """The words alone, split as [`PairTokenizer.tokenize`] splits them, for whoever needs no tokens."""
    return [TokenizedText(_encodable(text).split(), [], []) for text in texts]


def cut_documents(
    documents: Sequence[str | Mapping],
    passage_words: int,
    passage_overlap: int,
    passage_title: bool = False,
    tokenize: Callable[[Sequence[str]], list[TokenizedText]] = split_words,
) -> list[CutDocument]:
    """What [`PairTokenizer.cut`] does, with any way to tokenise; by default there are words and no tokens."""
    parts = [split_document(document, position) for position, document in enumerate(documents)]
    titles = [title if passage_title else "" for title, _ in parts]
    bodies = [text if passage_title else f"{title} {text}" for title, text in parts]
    return [
        CutDocument(
            title if title.words else None,
            body,
            overlapping_spans(len(body.words), passage_words, passage_overlap) or [(0, 0)],
        )
        for title, body in zip(tokenize(titles), tokenize(bodies), strict=True)
    ]


def load_tokenizer(name: str | os.PathLike, vocab_size: int | None = None, **options):
    """
    Loads a checkpoint's tokenizer, never with remote code. One that is damaged, knows no words or does not fit is an
    error.

    Args:
        name (`str` or `os.PathLike`): folder or Hub id.
        vocab_size (`int`, *optional*): how many tokens its model knows.
        options: more for `AutoTokenizer.from_pretrained`.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False, **options)
    except (OSError, ImportError):
        raise
    except Exception as error:  # the tokenizers library raises plain ones
        raise ValueError(
            f"{name}: its tokenizer cannot be read ({type(error).__name__}: {error}): copy tokenizer.json and "
            "tokenizer_config.json anew"
        ) from error
    check_tokenizer(tokenizer, vocab_size, name)
    return tokenizer


def check_tokenizer(tokenizer, vocab_size: int | None = None, name: str | os.PathLike = "the model") -> None:
    """Raises where a tokenizer knows no words, or more of them than its model: see [`load_tokenizer`]."""
    # Where there are no files of a tokenizer, AutoTokenizer makes one up, to which every word is unknown.
    if len(tokenizer) <= len(tokenizer.all_special_ids):
        raise ValueError(
            f"{name}: the tokenizer knows no words, only {len(tokenizer)} special tokens: put the tokenizer.json and "
            "tokenizer_config.json that the model was trained with beside its weights"
        )
    # Fewer are fine: tables of embeddings are padded to round numbers.
    last = max(tokenizer.get_vocab().values())
    if vocab_size is not None and last >= vocab_size >= len(tokenizer):
        raise ValueError(
            f"{name}: the tokenizer has a token with the number {last}, but the encoder knows {vocab_size} of them: "
            "copy tokenizer.json and tokenizer_config.json anew"
        )
    if vocab_size is not None and len(tokenizer) > vocab_size:
        raise ValueError(
            f"{name}: the tokenizer knows {len(tokenizer)} tokens, but the encoder only {vocab_size}: take the "
            "tokenizer that the model was trained with (or, after adding tokens, resize_token_embeddings)"
        )


class PairTokenizer:
    """
    Builds `[CLS] query [SEP] passage [SEP]` rows from texts that were tokenised once.

    Special tokens written out in a text ("[SEP]") are read as plain text, and truncation touches the passage only.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): a fast tokenizer.
        max_length (`int`): the most tokens of a row.
    """

    def __init__(self, tokenizer, max_length: int):
        if not tokenizer.is_fast:
            raise ValueError(
                f"{type(tokenizer).__name__} cannot tell where a word's tokens start: use a fast tokenizer"
            )
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.pad_id = tokenizer.pad_token_id or 0
        # The template is read off the tokenizer itself, so that a cross-encoder that is no BERT works as well.
        # Split as in `tokenize`: a tokenizer keeps this setting of a call, and other threads may be about to use it.
        probe = tokenizer("a", "b", split_special_tokens=True)
        alone = tokenizer(["a", "b"], add_special_tokens=False, split_special_tokens=True)
        ids, (first, second) = probe["input_ids"], alone["input_ids"]
        if not first or not second or first[0] not in ids or second[-1] not in ids:
            raise ValueError(f"{type(tokenizer).__name__} does not join two texts in a way that is known here")
        start, end = ids.index(first[0]), len(ids) - ids[::-1].index(second[-1])
        self.prefix, self.suffix = ids[:start], ids[end:]
        self.middle = ids[start + len(first) : end - len(second)]
        types = probe.get("token_type_ids")
        self.has_types = types is not None and 1 in types

    def tokenize(self, texts: Sequence[str]) -> list[TokenizedText]:
        """Splits each text at white space and tokenises it once, whole."""
        # In pieces: the offsets of ten thousand long documents at once would fill the memory.
        pieces = (texts[start : start + 256] for start in range(0, len(texts), 256))
        return [tokenized for piece in pieces for tokenized in self._tokenize(piece)]

    def _tokenize(self, texts: Sequence[str]) -> list[TokenizedText]:
        split = [_encodable(text).split() for text in texts]
        encoded = self.tokenizer(
            [" ".join(words) for words in split],
            add_special_tokens=False,
            return_offsets_mapping=True,
            return_attention_mask=False,
            split_special_tokens=True,
            verbose=False,
        )
        return [
            TokenizedText(words, ids, _word_starts(words, offsets))
            for words, ids, offsets in zip(split, encoded["input_ids"], encoded["offset_mapping"], strict=True)
        ]

    def cut(
        self, documents: Sequence[str | Mapping], passage_words: int, passage_overlap: int, passage_title: bool = False
    ) -> list[CutDocument]:
        """
        Cuts documents into overlapping passages; an empty one is one empty passage, since it must be ranked as well.

        Args:
            documents (`list[str | dict]`): texts, or dicts with `text` and perhaps `title`.
            passage_words, passage_overlap (`int`): words of a passage, and words that neighbours share.
            passage_title (`bool`, *optional*, defaults to `False`): whether the title stands before every passage;
                else it is the beginning of the text.
        """
        return cut_documents(documents, passage_words, passage_overlap, passage_title, self.tokenize)

    def query(self, query: str) -> list[int]:
        """A query's tokens; one that leaves no room for a passage is an error, since it must not be cut."""
        if not isinstance(query, str):
            raise TypeError(f"a query must be a string, not {type(query).__name__}")
        ids = self.tokenize([query])[0].ids
        room = self.max_length - self.num_special - 1
        if len(ids) > room:
            raise ValueError(
                f"the query has {len(ids)} tokens, but a row of {self.max_length} has room for {room} beside a "
                f"passage: shorten the query ({query[:60]!r}...) or use a model with a larger max_length"
            )
        return ids

    @property
    def num_special(self) -> int:
        return len(self.prefix) + len(self.middle) + len(self.suffix)

    def pair(self, query_ids: Sequence[int], passage_ids: Sequence[int]) -> TokenRow:
        """One row; what does not fit of the passage's end is left out."""
        room = self.max_length - self.num_special - len(query_ids)
        first = [*self.prefix, *query_ids, *self.middle]
        ids = [*first, *passage_ids[:room], *self.suffix]
        return TokenRow(ids, len(first) if self.has_types else len(ids))

    def rows(self, query: str, passages: Sequence[str]) -> list[TokenRow]:
        """A row for each of a query's passages, given as text."""
        query_ids = self.query(query)
        return [self.pair(query_ids, passage.ids) for passage in self.tokenize(passages)]

    def single(self, ids: Sequence[int]) -> TokenRow:
        """One row of one text, as a bi-encoder reads it."""
        room = self.max_length - len(self.prefix) - len(self.suffix)
        row = [*self.prefix, *ids[:room], *self.suffix]
        return TokenRow(row, len(row))

    def pad(self, rows: Sequence[TokenRow], device: torch.device | str = "cpu") -> dict[str, Tensor]:
        """Tensors `(rows, tokens)`, padded on the right to the longest row."""
        # By hand: `tokenizer.pad` gives the same tensors in twice the time (64 rows of 128 tokens), warns that a fast
        # tokenizer should not be used so, and pads on the side that the tokenizer's own setting names.
        longest = max(len(row) for row in rows)
        ids = [row.ids + [self.pad_id] * (longest - len(row)) for row in rows]
        mask = [[1] * len(row) + [0] * (longest - len(row)) for row in rows]
        batch = {"input_ids": ids, "attention_mask": mask}
        if self.has_types:
            batch["token_type_ids"] = [
                [0] * row.second + [1] * (len(row) - row.second) + [0] * (longest - len(row)) for row in rows
            ]
        return {name: torch.tensor(values, device=device) for name, values in batch.items()}


def _encodable(text: str) -> str:
    # Half of a surrogate pair, as broken JSON escapes leave it, is not text that a tokenizer can take.
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _word_starts(words: list[str], offsets: list[tuple[int, int]]) -> list[int]:
    # A token belongs to the word that its last character lies in (some tokenizers count the space before as theirs).
    lasts = [max(end - 1, start) for start, end in offsets]
    starts, position = [], 0
    for word in words:
        starts.append(bisect_left(lasts, position))
        position += len(word) + 1
    return [*starts, len(lasts)]
