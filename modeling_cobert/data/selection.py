"""Selection: the best passage of every candidate, in shards of queries, so that a killed run goes on where it was."""

import logging
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pyarrow as pa
import torch
from accelerate import PartialState

from ..batches_cobert import default_batch_tokens, one_thread_a_batch
from ..checkpoint_cobert import load_config
from ..collections.collection import Collection
from ..passages_cobert import CutDocument, PairTokenizer, load_tokenizer
from ..selection_cobert import (
    BUILT_IN,
    BiEncoderSelector,
    CrossEncoderSelector,
    Selector,
    best_passages,
    load_selector,
    most_tokens,
)
from ..steps.folders import claim_folder, claims_end, read_settings, write_settings
from ..steps.hashing import model_sha256
from ..steps.limits import check_numbers
from ..steps.processes import process_state
from ..steps.progress import progress_bar
from ..steps.shards import QueryShards
from .candidates import Candidates, CutOptions, find_candidates
from .row_checks import check_selection
from .stored_passages import StoredPassages

logger = logging.getLogger(__name__)

STEP, FORMAT, MADE_BY = "selection", 2, "cobert select"
# Words of documents that stay in memory from one query to the next: some 200 MB.
_KEPT_WORDS = 1_000_000
SCHEMA = pa.schema(
    [
        ("query_id", pa.string()),
        ("query", pa.string()),
        ("doc_ids", pa.list_(pa.string())),
        ("ranks", pa.list_(pa.int32())),  # in the run, from 1
        ("first_stage_scores", pa.list_(pa.float64())),
        ("selector_scores", pa.list_(pa.float64())),  # of the best passages
        ("passages", pa.list_(pa.string())),
        ("passage_numbers", pa.list_(pa.int32())),  # which of a document's passages that is, from 0
        ("passage_counts", pa.list_(pa.int32())),  # how many it has
        ("truncated", pa.list_(pa.int32())),  # how many of them did not fit; null where no tokenizer counts
    ]
)
TEXTS = pa.field("texts", pa.list_(pa.string()))  # titles and whole texts; only where they are kept


@dataclass(frozen=True)
class SelectionOptions(CutOptions):
    """What the selected passages depend on, besides collection and run. The defaults are the paper's."""

    selector: str = field(
        metadata={
            "help": "Hub id or folder of a cross-encoder (1 or 2 labels; the paper's way) or of a bi-encoder, "
            "lexical (BM25 on passages), or first-stage (first passage, order of the run)."
        }
    )
    max_length: int = field(default=256, metadata={"help": "The most tokens of a query-passage pair."})
    batch_tokens: int | None = field(
        default=None,
        metadata={"help": "The most tokens of a batch, padding included; by default 16384, or 1024 on a CPU."},
    )
    shard_queries: int = field(default=4, metadata={"help": "Queries that are saved together."})
    tokenizer: str | None = field(
        default=None,
        metadata={"help": "With lexical or first-stage: whose tokens tell which passages will be truncated."},
    )
    keep_texts: bool = field(
        default=False,
        metadata={
            "help": "Keep whole documents beside their best passages: training with --feedback_weight needs them."
        },
    )

    def __post_init__(self):
        super().__post_init__()
        check_numbers(self, 1, "max_length", "batch_tokens", "shard_queries")


@claims_end()
def select_passages(
    collection: Collection,
    run: str | os.PathLike,
    output: str | os.PathLike,
    options: SelectionOptions,
    query_ids: Sequence[str] | None = None,
    progress: bool = True,
    check: Callable[[list[str]], object] | None = None,
) -> dict:
    """
    Writes the best passage of each candidate of each query to `output`; done before, or in part, it goes on.

    Under `torchrun` or `accelerate launch` the shards are dealt to all processes; every process returns at the end.

    Args:
        collection ([`Collection`]): queries and documents.
        run (`str` or `os.PathLike`): the TREC run that names the candidates.
        output (`str` or `os.PathLike`): a new folder, or one begun with the same settings.
        options ([`SelectionOptions`]): how to select.
        query_ids (`list[str]`, *optional*): only these queries; all of the collection's by default.
        progress (`bool`, *optional*, defaults to `True`): whether to show progress bars.
        check (`Callable`, *optional*): called with the ids of the queries that have candidates before anything is
            written, to raise what is wrong with them.

    Returns:
        `dict`: the settings and, under `counts`, what was done; also in `output/settings.json`.
    """
    state = process_state()
    candidates = find_candidates(collection, run, options.k, query_ids, progress=progress and state.is_main_process)
    if check is not None:
        check(list(candidates.queries))
    work = _Selection(collection, candidates, Path(output), options, state, progress and state.is_main_process)
    settings = work.settings()
    with state.main_process_first():
        done = claim_folder(output, settings)
    if done is None:
        with one_thread_a_batch():
            work.select()
        if state.is_main_process:
            counts = count_selected(work.shards, candidates)
            shutil.rmtree(Path(output) / "vectors", ignore_errors=True)  # nothing needs them once every query is done
            write_settings(output, settings, counts, work.shards.paths)
    state.wait_for_everyone()
    return read_settings(output, STEP, MADE_BY, FORMAT)


def read_selection(folder: str | os.PathLike) -> dict:
    """The settings of a finished selection, checked."""
    settings = read_settings(folder, STEP, MADE_BY, FORMAT)
    check_selection(Path(folder), settings)
    return settings


def read_selected(folder: str | os.PathLike) -> QueryShards:
    """The queries of a finished selection: `read()` gives rows of [`SCHEMA`], in order; with `texts`, if kept."""
    settings = read_selection(folder)
    return shards_of(folder, settings["counts"]["query_ids"], settings["shard_queries"], keeps_texts(settings))


def shards_of(folder: str | os.PathLike, query_ids: Sequence[str], size: int, keep_texts: bool = False) -> QueryShards:
    """Where a selection's rows are."""
    return QueryShards(Path(folder) / "shards", query_ids, with_texts(SCHEMA, keep_texts), size)


def keeps_texts(settings: Mapping) -> bool:
    """Whether whole documents are in a folder of selected passages or of rows, by its settings."""
    return bool(settings.get("keep_texts", False))


def with_texts(schema: pa.Schema, keep_texts: bool) -> pa.Schema:
    """The columns of a folder: those of every folder and, where whole documents are kept, `texts` after them."""
    return schema.append(TEXTS) if keep_texts else schema


def count_selected(shards: QueryShards, candidates: Candidates) -> dict:
    """What the files hold: never what a process remembers, since an earlier one may have made them."""
    passages: dict[str, int] = {}
    pairs = pair_passages = truncated = 0
    counted = True
    for row in shards.read():
        passages |= dict(zip(row["doc_ids"], row["passage_counts"], strict=True))
        pairs += len(row["doc_ids"])
        pair_passages += sum(row["passage_counts"])
        counted = counted and row["truncated"] is not None
        truncated += sum(row["truncated"] or ())
    return {
        "query_ids": list(candidates.queries),
        "queries": len(candidates.queries),
        "documents": len(passages),
        "passages": sum(passages.values()),
        "pairs": pairs,
        "pair_passages": pair_passages,
        "truncated": truncated if counted else None,
        "skipped": candidates.skipped,
    }


def check_selector(options: SelectionOptions) -> None:
    """What can be known to be wrong with the selector, from its config alone: before any work, and before weights."""
    if options.selector == "self":
        raise ValueError("selector 'self' is the model itself: choose lexical, first-stage or an encoder")
    if options.selector in BUILT_IN:
        if options.tokenizer is not None:
            check_length("--tokenizer", options.tokenizer, options.max_length)
        return
    if options.tokenizer is not None:
        raise ValueError(
            f"selector {options.selector!r} brings its own tokenizer: {options.tokenizer!r} would not be used"
        )
    check_length("--selector", options.selector, options.max_length)


def check_length(option: str, name: str, max_length: int) -> None:
    """Whether the encoder `name` is there, and reads pairs of so many tokens."""
    try:
        config = load_config(name)
    except (OSError, ValueError) as error:
        choices = "lexical, first-stage, or " if option == "--selector" else ""
        raise ValueError(f"{option} {name}: give {choices}the folder or Hub id of an encoder ({error})") from error
    longest = most_tokens(config)
    if longest is not None and max_length > longest:
        raise ValueError(f"--max_length {max_length}: {name} reads at most {longest} tokens: give {longest} or fewer")


def load_chosen_selector(options: SelectionOptions, device: torch.device | str) -> Selector:
    """The selector that the options name, with the tokenizer that tells what will be truncated."""
    check_selector(options)
    selector = load_selector(options.selector, options.max_length, device)
    if options.tokenizer is not None:
        selector.pairs = PairTokenizer(load_tokenizer(options.tokenizer), options.max_length)
    return selector


def selector_sha256(selector: Selector) -> str | None:
    """The selector's weights; `None` for one that has none of its own."""
    if isinstance(selector, CrossEncoderSelector | BiEncoderSelector):
        return model_sha256(selector.model, selector.pairs.tokenizer)
    return None


class _Selection:
    """One process's part in the work."""

    def __init__(
        self,
        collection: Collection,
        candidates: Candidates,
        output: Path,
        options: SelectionOptions,
        state: PartialState,
        progress: bool,
    ):
        self.collection, self.candidates, self.output, self.options = collection, candidates, output, options
        self.state, self.progress = state, progress
        given = options.batch_tokens
        self.batch_tokens = default_batch_tokens(state.device) if given is None else given
        self.selector = load_chosen_selector(options, state.device)
        query_ids = list(self.candidates.queries)
        self.shards = shards_of(output, query_ids, options.shard_queries, options.keep_texts)
        self.documents: dict[str, CutDocument] = {}
        self.stored: StoredPassages | None = None
        self.query_tokens = self._count_query_tokens()

    def settings(self) -> dict:
        options = asdict(self.options)
        if not options["keep_texts"]:
            del options["keep_texts"]  # not in the settings of folders that are older than the option: they go on
        return {
            "step": STEP,
            "format": FORMAT,
            "collection": self.collection.name,
            "skip_missing": self.collection.skip_missing,
            "first_stage": self.candidates.tag,
            "selector_kind": self.selector.kind,
            **options,
            "batch_tokens": self.batch_tokens,
            "sha256": {**self.candidates.sha256, "selector": selector_sha256(self.selector)},
        }

    def select(self) -> None:
        """Makes this process's share of the missing shards."""
        missing = self.shards.missing()
        if missing and isinstance(self.selector, BiEncoderSelector):
            self._embed(self.selector)
        total = sum(len(self.candidates.ranked[query_id]) for query_id in missing)
        total = -(-total // self.state.num_processes)
        with progress_bar(desc="Selecting", unit="documents", total=total, show=self.progress) as bar:
            self.shards.fill(lambda query_id: self._select(query_id, bar.update), self.state)

    def _count_query_tokens(self) -> dict[str, int]:
        """What of each query's tokens is in a pair; a query that leaves no room is found before any work."""
        if self.selector.pairs is None:
            return dict.fromkeys(self.candidates.queries, 0)
        counts = {}
        for query_id, query in self.candidates.queries.items():
            try:
                counts[query_id] = len(self.selector.pairs.query(query))
            except ValueError as error:
                raise ValueError(f"query {query_id!r}: {error}") from None
        return counts

    def _embed(self, selector: BiEncoderSelector) -> None:
        doc_ids = sorted({doc_id for scores in self.candidates.ranked.values() for doc_id in scores})
        stored = StoredPassages(selector, doc_ids, self.output / "vectors", self.batch_tokens)
        with progress_bar(desc="Embedding", unit="documents", total=len(doc_ids), show=self.progress) as bar:
            stored.embed(self._cut, self.state, bar.update)
        self.stored = stored

    def _cut(self, doc_ids: Sequence[str]) -> dict[str, CutDocument]:
        """Documents, cut; some stay in memory from query to query, since queries have many in common."""
        missing = [doc_id for doc_id in doc_ids if doc_id not in self.documents]
        found = self.collection.lookup(missing)
        cut = self.selector.cut([found[doc_id].to_dict() for doc_id in missing], *self.options.cut)
        self.documents.update(zip(missing, cut, strict=True))
        words = sum(len(document.body.words) for document in self.documents.values())
        wanted = set(doc_ids)
        for doc_id in [doc_id for doc_id in self.documents if doc_id not in wanted]:
            if words <= _KEPT_WORDS:
                break
            words -= len(self.documents.pop(doc_id).body.words)
        return self.documents

    def _select(self, query_id: str, advance: Callable) -> dict:
        query, ranked = self.candidates.queries[query_id], self.candidates.ranked[query_id]
        doc_ids = list(ranked)
        cut = self._cut(doc_ids)
        documents = [cut[doc_id] for doc_id in doc_ids]
        if self.stored is not None:
            scores = self.stored.score(query, doc_ids, documents)
        else:
            scores = self.selector.score(query, documents, self.batch_tokens)
        best, best_scores = best_passages(scores)
        advance(len(doc_ids))
        row = {
            "query": query,
            "doc_ids": doc_ids,
            "ranks": list(range(1, len(doc_ids) + 1)),
            "first_stage_scores": list(ranked.values()),
            "selector_scores": best_scores,
            "passages": [document.text(b) for document, b in zip(documents, best, strict=True)],
            "passage_numbers": best,
            "passage_counts": [len(document.spans) for document in documents],
            "truncated": self._truncated(query_id, doc_ids, documents),
        }
        if self.options.keep_texts:
            found = self.collection.lookup(doc_ids)  # again: of a cut document only the words are there
            row["texts"] = [found[doc_id].full_text for doc_id in doc_ids]
        return row

    def _truncated(self, query_id: str, doc_ids: Sequence[str], documents: Sequence[CutDocument]) -> list[int] | None:
        """How many passages of each document did not fit; `None` where nothing counts tokens."""
        if self.stored is not None:
            return [self.stored.truncated(doc_id) for doc_id in doc_ids]
        pairs = self.selector.pairs
        if pairs is None:
            return None
        room = pairs.max_length - pairs.num_special - self.query_tokens[query_id]
        return [sum(document.num_tokens(i) > room for i in range(len(document.spans))) for document in documents]
