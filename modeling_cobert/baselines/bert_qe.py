"""BERT-QE (Zheng et al., 2020), scoring: the best chunks of the best documents become queries for all documents.

Three cross-encoders, three phases. (1) Every document is scored by its best passage, which is selection as for
Co-BERT. (2) The best documents are cut into chunks of a few words, and the chunks that are most relevant to the query
are kept. (3) Every document is scored against every kept chunk. What comes out is stored before it is weighed, so that
[`~modeling_cobert.baselines.interpolation`] can try any share of the chunks without another forward pass.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from accelerate import PartialState
from tqdm.auto import tqdm

from ..collections.collection import Collection
from ..collections.trec import read_run
from ..data.candidates import as_dict
from ..data.passage_scores import model_sha256
from ..data.selection import (
    SelectedQuery,
    SelectionOptions,
    read_selected,
    select_passages,
    selected_queries,
)
from ..grouping_cobert import best_first, overlapping_spans
from ..passages_cobert import default_batch_tokens
from ..selection_cobert import CrossEncoderSelector, load_selector
from ..steps.files import atomic_open
from ..steps.folders import claim_folder, json_sha256, read_settings, write_settings

STEP = "bert-qe"
CHUNKS_FROM = ("document", "passage")
PHASE3_WINDOWS = ("best", "all")
SCHEMA = pa.schema(
    [
        ("query_id", pa.string()),
        ("doc_ids", pa.list_(pa.string())),  # in first-stage order
        ("first_stage_scores", pa.list_(pa.float64())),
        ("scores", pa.list_(pa.float64())),  # rel(q, d), of the best passage
        ("chunks", pa.list_(pa.string())),  # the kept ones, best first
        ("chunk_doc_ids", pa.list_(pa.string())),  # where each of them stands
        ("chunk_scores", pa.list_(pa.float64())),  # rel(q, c)
        ("chunk_votes", pa.list_(pa.list_(pa.float64()))),  # rel(c, d), one list a chunk, one number a document
    ]
)


@dataclass(frozen=True)
class BertQeOptions:
    """
    What the scores depend on, besides collection and run. The defaults are those of Zheng et al.

    Args:
        phase1, phase2, phase3 (`str`): Hub ids or folders of the cross-encoders, which may be the same one; `{fold}`
            in a name stands for the number of a fold that the model was trained in.
        k (`int`, *optional*, defaults to 1000): how many documents of each query are re-ranked.
        passage_words, passage_overlap (`int`, *optional*, default to 100 and 50): words of a passage, and words that
            neighbours share.
        passage_title (`bool`, *optional*, defaults to `False`): whether the title stands before every passage.
        max_length (`int`, *optional*, defaults to 384): the most tokens of a pair. A chunk that is used as a query is
            cut at a third of it.
        feedback_docs (`int`, *optional*, defaults to 10): k_d, the best documents of phase 1 that chunks come from.
        feedback_chunks (`int`, *optional*, defaults to 10): k_c, how many chunks are kept.
        chunk_words, chunk_overlap (`int`, *optional*, default to 10 and 5): m, words of a chunk, and words that
            neighbours share.
        chunks_from (`str`, *optional*, defaults to `"document"`): what is cut into chunks, the whole document or, as
            in the authors' release, its best `"passage"`.
        phase3_windows (`str`, *optional*, defaults to `"best"`): what a chunk is compared with, the passage that was
            best for the query (as in the authors' release) or `"all"` passages, of which the best for the chunk
            counts, at a price that grows with the length of the documents.
        batch_tokens (`int`, *optional*): the most tokens of a batch, padding included; by default 16384, or 1024 on a
            CPU.
        shard_queries (`int`, *optional*, defaults to 1): queries that are worked on, and saved, together.
        skip_missing (`bool`, *optional*, defaults to `False`): whether what does not fit together is counted and left
            out instead of being an error.
    """

    phase1: str
    phase2: str
    phase3: str
    k: int = 1000
    passage_words: int = 100
    passage_overlap: int = 50
    passage_title: bool = False
    max_length: int = 384
    feedback_docs: int = 10
    feedback_chunks: int = 10
    chunk_words: int = 10
    chunk_overlap: int = 5
    chunks_from: str = "document"
    phase3_windows: str = "best"
    batch_tokens: int | None = None
    shard_queries: int = 1
    skip_missing: bool = False

    def __post_init__(self):
        overlapping_spans(0, self.passage_words, self.passage_overlap)
        overlapping_spans(0, self.chunk_words, self.chunk_overlap)
        for name in ("feedback_docs", "feedback_chunks", "shard_queries"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name, choices in (("chunks_from", CHUNKS_FROM), ("phase3_windows", PHASE3_WINDOWS)):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, not {getattr(self, name)!r}")

    @property
    def window(self) -> tuple[int, int, bool]:
        return self.passage_words, self.passage_overlap, self.passage_title

    @property
    def by_fold(self) -> bool:
        """Whether the models differ from fold to fold."""
        return any("{fold}" in name for name in (self.phase1, self.phase2, self.phase3))

    def in_fold(self, number: int) -> "BertQeOptions":
        """The same with the models of one fold."""
        names = {name: getattr(self, name).replace("{fold}", str(number)) for name in ("phase1", "phase2", "phase3")}
        return replace(self, **names)

    def selection(self) -> SelectionOptions:
        """Phase 1 as a selection of passages."""
        same = {field.name for field in fields(SelectionOptions)} & {field.name for field in fields(self)}
        return SelectionOptions(selector=self.phase1, **{name: getattr(self, name) for name in same})


@dataclass(frozen=True)
class ScoredQuery:
    """One query's scores in all three phases: logits, in columns named as in [`SCHEMA`]."""

    query_id: str
    doc_ids: list[str]
    first_stage_scores: list[float]
    scores: list[float]
    chunks: list[str]
    chunk_doc_ids: list[str]
    chunk_scores: list[float]
    chunk_votes: list[list[float]]


def select_chunks(
    encoder: CrossEncoderSelector, query: str, documents: Mapping[str, Mapping | str], options: BertQeOptions
) -> list[tuple[str, str, float]]:
    """
    Phase 2: the chunks that are most relevant to the query.

    Args:
        encoder ([`CrossEncoderSelector`]): what scores them.
        query (`str`): the query.
        documents (`Mapping`): document id to text (or dict with `text` and `title`), best documents first.
        options ([`BertQeOptions`]): how long and how many.

    Returns:
        `list[tuple[str, str, float]]`: document id, text and score of each kept chunk, best first; of equal ones, that
        of the better document. An empty document has none.
    """
    cut = encoder.pairs.cut(list(documents.values()), options.chunk_words, options.chunk_overlap)
    chunks = [
        (doc_id, document, i)
        for doc_id, document in zip(documents, cut, strict=True)
        for i in range(len(document.spans))
        if document.body.words
    ]
    if not chunks:
        return []
    query_ids = encoder.pairs.query(query)
    rows = [encoder.pairs.pair(query_ids, document.tokens(i)) for _, document, i in chunks]
    scores = encoder.score_rows(rows, _batch_tokens(encoder, options))
    best = best_first(scores, options.feedback_chunks)
    return [(chunks[place][0], chunks[place][1].text(chunks[place][2]), scores[place]) for place in best]


def chunk_votes(
    encoder: CrossEncoderSelector,
    chunks: Sequence[str],
    documents: Sequence[Sequence[Sequence[int]]],
    options: BertQeOptions,
    advance: Callable | None = None,
) -> list[list[float]]:
    """
    Phase 3: the relevance of every document to every chunk, of its best passage where there are several.

    Args:
        encoder ([`CrossEncoderSelector`]): what scores them.
        chunks (`list[str]`): each is a query.
        documents (`list[list[list[int]]]`): for each document the tokens, by this encoder, of its passages.
        options ([`BertQeOptions`]): the size of a batch.
        advance (`Callable`, *optional*): called with 1 after each chunk.

    Returns:
        `list[list[float]]`: one list a chunk, one score a document.
    """
    longest = max(1, encoder.pairs.max_length // 3)  # 128 of 384, as in the authors' release
    votes: dict[tuple, list[float]] = {}
    keys = []
    # Chunk by chunk: all pairs of a query at once would take a gigabyte where documents are long.
    for chunk in encoder.pairs.tokenize(chunks):
        key = tuple(chunk.ids[:longest])
        keys.append(key)
        if key not in votes:
            rows = [encoder.pairs.pair(key, passage) for passages in documents for passage in passages]
            scores = iter(encoder.score_rows(rows, _batch_tokens(encoder, options)))
            votes[key] = [max([next(scores) for _ in passages]) for passages in documents]
        if advance is not None:
            advance(1)
    return [votes[key] for key in keys]


def score_expansions(
    collection: Collection,
    run: str | os.PathLike,
    output: str | os.PathLike,
    options: BertQeOptions,
    source: Mapping | None = None,
    progress: bool = True,
) -> dict:
    """
    All three phases for all queries: `output/phase1` and `output/expansion`; done before, or in part, it goes on.

    Under `torchrun` or `accelerate launch` the queries are dealt to all processes; every process returns at the end.

    Args:
        collection ([`Collection`]): queries and documents.
        run (`str` or `os.PathLike`): the TREC run to re-rank.
        output (`str` or `os.PathLike`): a new folder, or one begun with the same settings.
        options ([`BertQeOptions`]): how to score.
        source (`Mapping`, *optional*): how the collection was opened, noted with phase 1.
        progress (`bool`, *optional*, defaults to `True`): whether to show progress bars.

    Returns:
        `dict`: the settings and, under `counts`, what was done; [`read_scored`] reads the scores.
    """
    output = Path(output)
    state = PartialState(cpu=not torch.accelerator.is_available(), timeout=timedelta(days=30))
    if options.batch_tokens is None:
        options = replace(options, batch_tokens=default_batch_tokens(state.device))
    phase2, phase3 = _load_encoders(options, state.device)
    _check_queries(phase2, collection.queries(), set(read_run(run)))
    first = select_passages(collection, run, output / "phase1", options.selection(), source, progress)
    settings = {
        "step": STEP,
        "format": 1,
        "collection": collection.name,
        **asdict(options),
        "sha256": {
            "phase1": json_sha256({key: value for key, value in first.items() if key not in ("counts", "source")}),
            "phase2": model_sha256(phase2),
            "phase3": model_sha256(phase3),
        },
    }
    folder = output / "expansion"
    with state.main_process_first():
        done = claim_folder(folder, settings)
    state.wait_for_everyone()  # nobody writes a shard before all have looked which are missing
    if done is None:
        work = _Expansion(collection, output, options, phase2, phase3)
        work.expand(state, progress and state.is_main_process)
        state.wait_for_everyone()
        if state.is_main_process:
            write_settings(folder, settings, work.counts())
    state.wait_for_everyone()
    return read_settings(folder, STEP)


def read_scored(output: str | os.PathLike) -> Iterator[ScoredQuery]:
    """Reads what [`score_expansions`] finished, query by query in order; one shard is in memory at a time."""
    folder = Path(output) / "expansion"
    for number in range(read_settings(folder, STEP)["counts"]["shards"]):
        for row in pq.read_table(_shard(folder, number), schema=SCHEMA).to_pylist():
            yield ScoredQuery(**row)


class _Expansion:
    """Phases 2 and 3 of one process."""

    def __init__(self, collection, output: Path, options: BertQeOptions, phase2, phase3):
        self.collection, self.folder, self.options = collection, output / "expansion", options
        self.phase1, self.phase2, self.phase3 = output / "phase1", phase2, phase3
        self.queries = selected_queries(self.phase1)
        self.shards = range(-(-len(self.queries) // options.shard_queries))

    def expand(self, state: PartialState, progress: bool) -> None:
        """Makes this process's share of the missing shards."""
        missing = [number for number in self.shards if not _shard(self.folder, number).exists()]
        state.wait_for_everyone()
        mine = set(missing[state.process_index :: state.num_processes])
        size = self.options.shard_queries
        total = sum(len(self.queries[number * size : (number + 1) * size]) for number in mine)
        total *= self.options.feedback_chunks
        waiting: list[SelectedQuery] = []
        with tqdm(total=total, desc="Expanding", unit=" chunks", disable=not progress) as bar:
            for place, query in enumerate(read_selected(self.phase1)):
                if place // size not in mine:
                    continue
                waiting.append(query)
                if len(waiting) == size or place + 1 == len(self.queries):
                    self._write_shard(place // size, [self._score(query, bar.update) for query in waiting])
                    waiting.clear()

    def counts(self) -> dict:
        """What the files hold, whichever process made them."""
        counts = {"shards": len(self.shards), "queries": 0, "queries_without_chunks": 0, "documents": 0, "chunks": 0}
        for number in self.shards:
            for row in pq.read_table(_shard(self.folder, number), columns=["doc_ids", "chunks"]).to_pylist():
                counts["queries"] += 1
                counts["queries_without_chunks"] += not row["chunks"]
                counts["documents"] += len(row["doc_ids"])
                counts["chunks"] += len(row["chunks"])
        return counts

    def _score(self, query: SelectedQuery, advance: Callable) -> ScoredQuery:
        best = best_first(query.scores, self.options.feedback_docs)
        everything = self.options.phase3_windows == "all"
        wanted = query.doc_ids if everything else [query.doc_ids[i] for i in best]
        found = {doc_id: as_dict(document) for doc_id, document in self.collection.lookup(wanted).items()}
        if self.options.chunks_from == "document":
            feedback = {query.doc_ids[i]: found[query.doc_ids[i]] for i in best}
        else:
            feedback = {query.doc_ids[i]: query.passages[i] for i in best}
        chunks = select_chunks(self.phase2, query.query, feedback, self.options)
        if everything:
            cut = self.phase3.pairs.cut([found[doc_id] for doc_id in query.doc_ids], *self.options.window)
            tokens = [[document.tokens(i) for i in range(len(document.spans))] for document in cut]
        else:
            tokens = [[passage.ids] for passage in self.phase3.pairs.tokenize(query.passages)]
        votes = chunk_votes(self.phase3, [text for _, text, _ in chunks], tokens, self.options, advance)
        advance(self.options.feedback_chunks - len(chunks))
        return ScoredQuery(
            query_id=query.query_id,
            doc_ids=query.doc_ids,
            first_stage_scores=query.first_stage_scores,
            scores=query.scores,
            chunks=[text for _, text, _ in chunks],
            chunk_doc_ids=[doc_id for doc_id, _, _ in chunks],
            chunk_scores=[score for _, _, score in chunks],
            chunk_votes=votes,
        )

    def _write_shard(self, number: int, queries: Sequence[ScoredQuery]) -> None:
        table = pa.Table.from_pylist([asdict(query) for query in queries], schema=SCHEMA)
        with atomic_open(_shard(self.folder, number), "wb") as file:
            pq.write_table(table, file, compression="zstd")


def _load_encoders(options: BertQeOptions, device) -> tuple[CrossEncoderSelector, CrossEncoderSelector]:
    """The models of phases 2 and 3, one object if they are one; that of phase 1 is loaded once to see what it is."""
    loaded = {}
    for name in (options.phase1, options.phase2, options.phase3):
        if name not in loaded:
            loaded[name] = load_selector(name, options.max_length, device)
        if loaded[name].kind != "cross-encoder":
            raise ValueError(f"{name!r} is a {loaded[name].kind}: BERT-QE needs cross-encoders with 1 or 2 labels")
    return loaded[options.phase2], loaded[options.phase3]


def _check_queries(encoder: CrossEncoderSelector, queries: Mapping[str, str], ranked: set[str]) -> None:
    """Says before hours of work that a query is too long; phase 1 looks at its own tokens."""
    for query_id, query in queries.items():
        if query_id in ranked:
            try:
                encoder.pairs.query(query)
            except ValueError as error:
                raise ValueError(f"query {query_id!r}: {error}") from None


def _batch_tokens(encoder: CrossEncoderSelector, options: BertQeOptions) -> int:
    return options.batch_tokens or default_batch_tokens(encoder.model.device)


def _shard(folder: Path, number: int) -> Path:
    return folder / "shards" / f"{number:05d}.parquet"
