"""BERT-QE (Zheng et al., 2020), scoring: the best chunks of the best documents become queries for all documents.

Three cross-encoders, three phases. (1) Every document is scored by its best passage, which is selection as for
Co-BERT. (2) The best documents are cut into chunks of a few words, and the chunks that are most relevant to the query
are kept. (3) Every document is scored against every kept chunk. What comes out is stored before it is weighed, so that
[`~modeling_cobert.baselines.interpolation`] can try any share of the chunks without another forward pass.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path

import pyarrow as pa

from ..batches_cobert import default_batch_tokens
from ..collections.collection import Collection
from ..collections.trec import read_run
from ..data.candidates import CutOptions
from ..data.selection import SelectionOptions, check_length, read_selected, select_passages
from ..grouping_cobert import best_first, overlapping_spans
from ..selection_cobert import CrossEncoderSelector, load_selector
from ..steps.folders import claim_folder, claims_end, read_settings, write_settings
from ..steps.hashing import json_sha256, model_sha256
from ..steps.limits import check_numbers
from ..steps.processes import process_state
from ..steps.progress import progress_bar
from ..steps.shards import QueryShards

STEP, FORMAT, MADE_BY = "bert-qe", 2, "cobert bert-qe"
CHUNKS_FROM = ("document", "passage")
COMPARED_WITH = ("best", "all")
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
class BertQeOptions(CutOptions):
    """What the scores depend on, besides collection and run. The defaults are those of Zheng et al."""

    phase1: str = field(
        metadata={"help": "Cross-encoder that re-ranks: Hub id or folder; {fold} stands for a fold's number."}
    )
    phase2: str = field(metadata={"help": "Cross-encoder that scores chunks for the query."})
    phase3: str = field(metadata={"help": "Cross-encoder that scores documents for the chunks."})
    passage_words: int = field(kw_only=True, default=100, metadata={"help": "Words of a passage."})
    passage_overlap: int = field(
        kw_only=True, default=50, metadata={"help": "Words that neighbouring passages share."}
    )
    max_length: int = field(
        default=384, metadata={"help": "The most tokens of a pair; a chunk as a query is cut at a third of it."}
    )
    feedback_docs: int = field(default=10, metadata={"help": "k_d, the best documents of phase 1 that give chunks."})
    feedback_chunks: int = field(default=10, metadata={"help": "k_c, how many chunks are kept."})
    chunk_words: int = field(default=10, metadata={"help": "m, words of a chunk."})
    chunk_overlap: int = field(default=5, metadata={"help": "Words that neighbouring chunks share."})
    chunks_from: str = field(
        default="document",
        metadata={
            "help": "Cut the whole document or, as in the authors' release, its best passage only.",
            "choices": list(CHUNKS_FROM),
        },
    )
    compared_with: str = field(
        default="best",
        metadata={
            "help": "Compare chunks with the document's best passage of phase 1 (as in the authors' release), or with "
            "all of its passages, of which the best for the chunk counts.",
            "choices": list(COMPARED_WITH),
        },
    )
    batch_tokens: int | None = field(
        default=None,
        metadata={"help": "The most tokens of a batch, padding included; by default 16384, or 1024 on a CPU."},
    )
    shard_queries: int = field(default=1, metadata={"help": "Queries that are saved together."})

    def __post_init__(self):
        super().__post_init__()
        overlapping_spans(0, self.chunk_words, self.chunk_overlap)
        check_numbers(self, 1, "feedback_docs", "feedback_chunks", "chunk_words", "shard_queries", "batch_tokens")
        check_numbers(self, 1, "max_length")
        for name, choices in (("chunks_from", CHUNKS_FROM), ("compared_with", COMPARED_WITH)):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, not {getattr(self, name)!r}")

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
    scores = encoder.score_rows(rows, options.batch_tokens or default_batch_tokens(encoder.model.device))
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
            scores = iter(encoder.score_rows(rows, options.batch_tokens or default_batch_tokens(encoder.model.device)))
            votes[key] = [max([next(scores) for _ in passages]) for passages in documents]
        if advance is not None:
            advance(1)
    return [votes[key] for key in keys]


@claims_end()
def score_expansions(
    collection: Collection,
    run: str | os.PathLike,
    output: str | os.PathLike,
    options: BertQeOptions,
    query_ids: Sequence[str] | None = None,
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
        query_ids (`list[str]`, *optional*): only these queries.
        progress (`bool`, *optional*, defaults to `True`): whether to show progress bars.

    Returns:
        `dict`: the settings and, under `counts`, what was done; [`read_scored`] reads the scores.
    """
    output, state = Path(output), process_state()
    if options.batch_tokens is None:
        options = replace(options, batch_tokens=default_batch_tokens(state.device))
    phase2, phase3 = _load_encoders(options, state.device)
    _check_queries(phase2, collection.queries(), set(read_run(run)))
    first = select_passages(collection, run, output / "phase1", options.selection(), query_ids, progress)
    work = _Expansion(collection, output, options, phase2, phase3)
    settings = {
        "step": STEP,
        "format": FORMAT,
        "collection": collection.name,
        **asdict(options),
        "sha256": {
            "phase1": json_sha256({key: value for key, value in first.items() if key != "counts"}),
            "phase2": model_sha256(phase2.model, phase2.pairs.tokenizer),
            "phase3": model_sha256(phase3.model, phase3.pairs.tokenizer),
        },
    }
    with state.main_process_first():
        done = claim_folder(work.folder, settings)
    if done is None:
        total = -(-len(work.shards.missing()) // state.num_processes) * options.feedback_chunks
        show = progress and state.is_main_process
        with progress_bar(desc="Expanding", unit="chunks", total=total, show=show) as bar:
            work.shards.fill(lambda query_id: work.score(query_id, bar.update), state)
        if state.is_main_process:
            write_settings(work.folder, settings, work.counts(), work.shards.paths)
    state.wait_for_everyone()
    return read_settings(work.folder, STEP, MADE_BY, FORMAT)


def read_scored(output: str | os.PathLike) -> QueryShards:
    """What [`score_expansions`] finished: `read()` gives rows of [`SCHEMA`], in order."""
    folder = Path(output) / "expansion"
    settings = read_settings(folder, STEP, MADE_BY, FORMAT)
    return QueryShards(folder / "shards", settings["counts"]["query_ids"], SCHEMA, settings["shard_queries"])


class _Expansion:
    """Phases 2 and 3 of one process."""

    def __init__(self, collection, output: Path, options: BertQeOptions, phase2, phase3):
        self.collection, self.folder, self.options = collection, output / "expansion", options
        self.phase2, self.phase3 = phase2, phase3
        self.selected = read_selected(output / "phase1")
        query_ids = [query_id for shard in self.selected.shards for query_id in shard]
        self.shards = QueryShards(self.folder / "shards", query_ids, SCHEMA, options.shard_queries)

    def counts(self) -> dict:
        """What the files hold, whichever process made them."""
        counts = {"queries": 0, "queries_without_chunks": 0, "documents": 0, "chunks": 0}
        for row in self.shards.read():
            counts["queries"] += 1
            counts["queries_without_chunks"] += not row["chunks"]
            counts["documents"] += len(row["doc_ids"])
            counts["chunks"] += len(row["chunks"])
        return {"query_ids": [query_id for shard in self.shards.shards for query_id in shard], **counts}

    def score(self, query_id: str, advance: Callable) -> dict:
        """One query's row."""
        query = self.selected.row(query_id)
        best = [query["doc_ids"][i] for i in best_first(query["selector_scores"], self.options.feedback_docs)]
        everything = self.options.compared_with == "all"
        found = self.collection.lookup(query["doc_ids"] if everything else best)
        passages = dict(zip(query["doc_ids"], query["passages"], strict=True))
        if self.options.chunks_from == "document":
            feedback = {doc_id: found[doc_id].to_dict() for doc_id in best}
        else:
            feedback = {doc_id: passages[doc_id] for doc_id in best}
        chunks = select_chunks(self.phase2, query["query"], feedback, self.options)
        if everything:
            documents = [found[doc_id].to_dict() for doc_id in query["doc_ids"]]
            cut = self.phase3.cut(documents, *self.options.cut)
            tokens = [[document.tokens(i) for i in range(len(document.spans))] for document in cut]
        else:
            tokens = [[passage.ids] for passage in self.phase3.pairs.tokenize(query["passages"])]
        votes = chunk_votes(self.phase3, [text for _, text, _ in chunks], tokens, self.options, advance)
        advance(self.options.feedback_chunks - len(chunks))
        return {
            "doc_ids": query["doc_ids"],
            "first_stage_scores": query["first_stage_scores"],
            "scores": query["selector_scores"],
            "chunks": [text for _, text, _ in chunks],
            "chunk_doc_ids": [doc_id for doc_id, _, _ in chunks],
            "chunk_scores": [score for _, _, score in chunks],
            "chunk_votes": votes,
        }


def _load_encoders(options: BertQeOptions, device) -> tuple[CrossEncoderSelector, CrossEncoderSelector]:
    """The models of phases 2 and 3, one object if they are one; that of phase 1 is loaded once to see what it is."""
    loaded: dict[str, CrossEncoderSelector] = {}
    for name in dict.fromkeys((options.phase1, options.phase2, options.phase3)):
        check_length("a phase's model", name, options.max_length)
        found = load_selector(name, options.max_length, device)
        if not isinstance(found, CrossEncoderSelector):
            raise ValueError(f"{name!r} is a {found.kind}: BERT-QE needs cross-encoders with 1 or 2 labels")
        loaded[name] = found
    return loaded[options.phase2], loaded[options.phase3]


def _check_queries(encoder: CrossEncoderSelector, queries: Mapping[str, str], ranked: set[str]) -> None:
    """Says before hours of work that a query is too long; phase 1 looks at its own tokens."""
    for query_id, query in queries.items():
        if query_id in ranked:
            try:
                encoder.pairs.query(query)
            except ValueError as error:
                raise ValueError(f"query {query_id!r}: {error}") from None
