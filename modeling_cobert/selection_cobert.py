"""Selectors: what picks the passage that stands for a document, and the documents that serve as prototypes."""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils import cached_file

from .passages_cobert import CutDocument, PairTokenizer, TokenRow, map_rows

BUILT_IN = ("self", "lexical", "first-stage")


def lexical_scores(query: str, passages: Sequence[str], k1: float = 0.9, b: float = 0.4) -> list[float]:
    """
    BM25 of each passage, with document frequencies counted over the passages given (one query's candidates).

    No stemming and no stop list: this is the selector that needs nothing, in any language that writes spaces.
    """
    return counted_scores(query, [count_terms(passage) for passage in passages], k1, b)


def count_terms(text: str) -> tuple[int, Counter]:
    """A text's number of terms, and how often each occurs."""
    terms = _terms(text)
    return len(terms), Counter(terms)


def counted_scores(
    query: str, passages: Sequence[tuple[int, Counter]], k1: float = 0.9, b: float = 0.4
) -> list[float]:
    """What [`lexical_scores`] gives, for passages whose terms were counted before, by [`count_terms`]."""
    terms = sorted(set(_terms(query)))
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


def by_document(scores: Sequence[float], documents: Sequence[CutDocument]) -> list[list[float]]:
    """Scores of all passages in one list -> one list a document."""
    remaining = iter(scores)
    return [[next(remaining) for _ in document.spans] for document in documents]


def _terms(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


class CrossEncoderSelector:
    """The paper's selector: a sequence classifier with one label, or with two of which the second is *relevant*."""

    kind = "cross-encoder"

    def __init__(self, model, tokenizer, max_length: int):
        self.model = model.eval()
        self.pairs = PairTokenizer(tokenizer, max_length)

    @torch.no_grad()
    def score_rows(self, rows: Sequence[TokenRow], batch_tokens: int, advance: Callable | None = None) -> list[float]:
        """The relevance logit of each query-passage row (of two labels, the second less the first)."""
        return map_rows(rows, self.pairs, self._relevance, self.model.device, batch_tokens, advance).tolist()

    def score(self, query: str, documents: Sequence[CutDocument], batch_tokens: int) -> list[list[float]]:
        """A score for every passage of every document, which this selector's own tokenizer must have cut."""
        query_ids = self.pairs.query(query)
        rows = [self.pairs.pair(query_ids, d.tokens(i)) for d in documents for i in range(len(d.spans))]
        return by_document(self.score_rows(rows, batch_tokens), documents)

    def _relevance(self, **batch) -> Tensor:
        logits = self.model(**batch).logits.float()
        return logits[:, 0] if logits.shape[1] == 1 else logits[:, 1] - logits[:, 0]


class BiEncoderSelector:
    """A sentence encoder: cosine of query and passage, each embedded alone, so that a passage serves all queries."""

    kind = "bi-encoder"

    def __init__(self, model, tokenizer, max_length: int, pooling: str = "mean"):
        self.model = model.eval()
        self.pairs = PairTokenizer(tokenizer, max_length)
        self.pooling = pooling

    @torch.no_grad()
    def embed_rows(self, rows: Sequence[TokenRow], batch_tokens: int, advance: Callable | None = None) -> Tensor:
        """Unit vectors `(rows, hidden)`."""
        return map_rows(rows, self.pairs, self._embed, self.model.device, batch_tokens, advance)

    def score(self, query: str, documents: Sequence[CutDocument], batch_tokens: int) -> list[list[float]]:
        """A score for every passage of every document, which this selector's own tokenizer must have cut."""
        rows = [self.pairs.single(d.tokens(i)) for d in documents for i in range(len(d.spans))]
        passages = self.embed_rows(rows, batch_tokens)
        query_vector = self.embed_rows([self.pairs.single(self.pairs.tokenize([query])[0].ids)], batch_tokens)[0]
        return by_document((passages @ query_vector).tolist(), documents)

    def _embed(self, **batch) -> Tensor:
        hidden = self.model(**batch).last_hidden_state.float()
        if self.pooling == "cls":
            vectors = hidden[:, 0]
        else:
            mask = batch["attention_mask"].unsqueeze(-1).to(hidden.dtype)
            vectors = (hidden * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)
        return torch.nn.functional.normalize(vectors, dim=-1)


def load_selector(name: str, max_length: int = 256, device: torch.device | str = "cpu"):
    """
    Loads the cross-encoder or bi-encoder called `name` (Hub id or folder), in float32, never with remote code.

    A classifier with one or two labels is a cross-encoder; a sentence-transformers folder, or a plain encoder without
    a head, is a bi-encoder (pooled as its folder says, else by the mean).
    """
    config = AutoConfig.from_pretrained(name, trust_remote_code=False)
    tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    longest = getattr(config, "max_position_embeddings", max_length)
    longest -= config.pad_token_id + 1 if config.model_type in ("roberta", "xlm-roberta", "camembert") else 0
    options = {"trust_remote_code": False, "use_safetensors": True, "dtype": torch.float32}
    architecture = (config.architectures or [""])[0]
    if architecture.endswith("ForSequenceClassification"):
        if config.num_labels not in (1, 2):
            raise ValueError(f"selector {name!r} has {config.num_labels} labels: a cross-encoder has 1 or 2")
        model = AutoModelForSequenceClassification.from_pretrained(name, **options)
        return CrossEncoderSelector(model.to(device), tokenizer, min(max_length, longest))
    model = AutoModel.from_pretrained(name, **options)
    return BiEncoderSelector(model.to(device), tokenizer, min(max_length, longest), _pooling(name))


def _pooling(name: str) -> str:
    modules = _read_json(name, "modules.json")
    if modules is None:
        return "mean"
    kinds = [str(module.get("type", "")).rsplit(".", 1)[-1] for module in modules]
    unknown = set(kinds) - {"Transformer", "Pooling", "Normalize"}
    if unknown:
        raise ValueError(f"selector {name!r} has layers that are not known here: {', '.join(sorted(unknown))}")
    path = next((module["path"] for module, kind in zip(modules, kinds, strict=True) if kind == "Pooling"), None)
    settings = (_read_json(name, f"{path}/config.json") if path else None) or {}
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
    path = cached_file(
        name,
        file,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
        _raise_exceptions_for_gated_repo=False,
    )
    return None if path is None else json.loads(Path(path).read_text(encoding="utf-8"))
