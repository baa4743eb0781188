"""Selection: the best passage of every candidate, in shards of queries, so that a killed run goes on where it was."""

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from accelerate import PartialState
from tqdm.auto import tqdm

from ..collections.collection import Collection
from ..grouping_cobert import best_first
from ..passages_cobert import CutDocument, default_batch_tokens
from ..steps.files import atomic_open
from ..steps.folders import claim_folder, file_sha256, read_settings, write_settings
from .candidates import Candidates, as_dict, find_candidates
from .passage_scores import BiEncoderScorer, CrossEncoderScorer, WordScorer, load_scorer

logger = logging.getLogger(__name__)

STEP = "selection"
# Words of documents that stay in memory from one shard to the next: some 200 MB.
_KEPT_WORDS = 1_000_000
SCHEMA = pa.schema(
    [
        ("query_id", pa.string()),
        ("query", pa.string()),
        ("doc_id", pa.string()),
        ("rank", pa.int32()),  # in the run, from 1
        ("first_stage_score", pa.float64()),
        ("score", pa.float64()),  # the selector's, of the best passage
        ("window", pa.int32()),  # which passage that is, from 0
        ("windows", pa.int32()),  # how many passages the document has
        ("truncated", pa.int32()),  # how many of them did not fit; null where no tokenizer counts
        ("passage", pa.string()),
    ]
)


@dataclass(frozen=True)
class SelectionOptions:
    """
    What the selected passages depend on, besides collection and run. The defaults are the paper's.

    Args:
        selector (`str`): Hub id or folder of a cross-encoder (the paper's way) or bi-encoder, `"lexical"` or
            `"first-stage"`.
        k (`int`, *optional*, defaults to 1000): how many documents of each query are re-ranked.
        passage_words, passage_overlap (`int`, *optional*, default to 150 and 75): words of a passage, and words that
            neighbours share.
        passage_title (`bool`, *optional*, defaults to `False`): whether the title stands before every passage.
        max_length (`int`, *optional*, defaults to 256): the most tokens of a query-passage pair.
        batch_tokens (`int`, *optional*): the most tokens of a batch, padding included; by default 16384, or 1024 on a
            CPU, where a batch should stay in the cache and the less padding the better.
        shard_queries (`int`, *optional*, defaults to 4): queries that are worked on, and saved, together.
        tokenizer (`str`, *optional*): for a selector without one, whose tokens tell which passages get truncated.
        skip_missing (`bool`, *optional*, defaults to `False`): whether what does not fit together is counted and left
            out instead of being an error.
    """

    selector: str
    k: int = 1000
    passage_words: int = 150
    passage_overlap: int = 75
    passage_title: bool = False
    max_length: int = 256
    batch_tokens: int | None = None
    shard_queries: int = 4
    tokenizer: str | None = None
    skip_missing: bool = False

    @property
    def window(self) -> tuple[int, int, bool]:
        return self.passage_words, self.passage_overlap, self.passage_title


@dataclass(frozen=True)
class SelectedQuery:
    """One query's candidates in first-stage order: equally long columns, named as in the files."""

    query_id: str
    query: str
    doc_ids: list[str]
    ranks: list[int]
    first_stage_scores: list[float]
    scores: list[float]
    passages: list[str]


def select_passages(
    collection: Collection,
    run: str | os.PathLike,
    output: str | os.PathLike,
    options: SelectionOptions,
    source: Mapping | None = None,
    progress: bool = True,
) -> dict:
    """
    Writes the best passage of each candidate of each query to `output`; done before, or in part, it goes on.

    Under `torchrun` or `accelerate launch` the shards are dealt to all processes; every process returns at the end.

    Args:
        collection ([`Collection`]): queries and documents.
        run (`str` or `os.PathLike`): the TREC run that names the candidates.
        output (`str` or `os.PathLike`): a new folder, or one begun with the same settings.
        options ([`SelectionOptions`]): how to select.
        source (`Mapping`, *optional*): how the collection was opened, for whoever opens it after this step.
        progress (`bool`, *optional*, defaults to `True`): whether to show progress bars.

    Returns:
        `dict`: the settings and, under `counts`, what was done; also in `output/settings.json`.
    """
    output = Path(output)
    state = PartialState(cpu=not torch.accelerator.is_available(), timeout=timedelta(days=30))
    progress = progress and state.is_main_process
    work = _Selection(collection, run, output, options, state, progress)
    with state.main_process_first():
        done = claim_folder(output, work.settings(collection.name, run, source))
    state.wait_for_everyone()  # nobody writes a shard before all have looked which are missing
    if done is None:
        with _one_thread_a_batch():
            work.select()
    state.wait_for_everyone()
    return read_settings(output, STEP)


@contextmanager
def _one_thread_a_batch() -> Iterator[None]:
    """
    On a CPU the last bits of a sum depend on how many threads share it, so a batch gets one, and there are as many
    batches at the same time as torch has threads: equal bytes on every machine that launches us, and faster too.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Selection:
    """One process's part in the work."""

    def __init__(self, collection, run, output: Path, options: SelectionOptions, state: PartialState, progress: bool):
        if options.batch_tokens is None:
            options = replace(options, batch_tokens=default_batch_tokens(state.device))
        self.collection, self.output, self.options = collection, output, options
        self.state, self.progress = state, progress
        if options.shard_queries < 1:
            raise ValueError(f"shard_queries must be at least 1, got {options.shard_queries}")
        self.candidates: Candidates = find_candidates(
            collection, run, options.k, *options.window, options.skip_missing, progress
        )
        self.scorer: WordScorer | CrossEncoderScorer | BiEncoderScorer = load_scorer(
            options.selector,
            options.max_length,
            options.batch_tokens,
            self.candidates.windows,
            output / "vectors",
            state.device,
            options.tokenizer,
            workers=torch.get_num_threads() if state.device.type == "cpu" else 1,
        )
        self.cut: dict[str, CutDocument] = {}
        self.query_tokens = self._count_query_tokens()
        query_ids = list(self.candidates.queries)
        size = options.shard_queries
        self.shards = [query_ids[start : start + size] for start in range(0, len(query_ids), size)]

    def settings(self, name: str, run: str | os.PathLike, source: Mapping | None) -> dict:
        fingerprints = {"run": file_sha256(run), **self.candidates.sha256, "selector": self.scorer.sha256}
        return {
            "step": STEP,
            "format": 1,
            "collection": name,
            "source": None if source is None else dict(source),
            "first_stage": self.candidates.tag,
            "selector_kind": self.scorer.kind,
            **asdict(self.options),
            "sha256": fingerprints,
        }

    def select(self) -> None:
        """Makes this process's share of the missing shards; the main process then counts and finishes."""
        missing = [number for number in range(len(self.shards)) if not _shard(self.output, number).exists()]
        if missing and isinstance(self.scorer, BiEncoderScorer):
            self._embed(self.scorer)
        else:
            self.state.wait_for_everyone()
        mine = self._share(missing)
        windows, ranked = self.candidates.windows, self.candidates.ranked
        total = sum(
            windows[doc_id] for number in mine for query_id in self.shards[number] for doc_id in ranked[query_id]
        )
        with tqdm(total=total, desc="Selecting", unit=" passages", disable=not self.progress) as bar:
            for number in mine:
                self._write_shard(number, bar.update)
        self.state.wait_for_everyone()
        if self.state.is_main_process:
            counts = _count(self.output, len(self.shards), self.candidates)
            if isinstance(self.scorer, BiEncoderScorer):
                self.scorer.clean_up()
            settings = read_settings(self.output)
            del settings["counts"]
            write_settings(self.output, settings, counts)

    def _share(self, numbers: Sequence[int]) -> Sequence[int]:
        return numbers[self.state.process_index :: self.state.num_processes]

    def _count_query_tokens(self) -> dict[str, int]:
        """Also the check, before any work, that every query leaves room for a passage."""
        if self.scorer.pairs is None:
            return dict.fromkeys(self.candidates.queries, 0)
        counts = {}
        for query_id, query in self.candidates.queries.items():
            try:
                counts[query_id] = len(self.scorer.pairs.query(query))
            except ValueError as error:
                raise ValueError(f"query {query_id!r}: {error}") from None
        return counts

    def _embed(self, scorer: BiEncoderScorer) -> None:
        missing = scorer.missing()
        self.state.wait_for_everyone()
        mine = self._share(missing)
        total = sum(self.candidates.windows[doc_id] for number in mine for doc_id in scorer.files[number])
        with tqdm(total=total, desc="Embedding", unit=" passages", disable=not self.progress) as bar:
            for number in mine:
                found = self.collection.lookup(scorer.files[number])
                documents = [as_dict(found[doc_id]) for doc_id in scorer.files[number]]
                scorer.embed(number, scorer.pairs.cut(documents, *self.options.window), bar.update)
        self.state.wait_for_everyone()

    def _cut(self, doc_ids: set[str]) -> dict[str, CutDocument]:
        """Documents, cut; some stay in memory from shard to shard, since queries have many in common."""
        missing = [doc_id for doc_id in sorted(doc_ids) if doc_id not in self.cut]
        found = self.collection.lookup(missing)
        new = self.scorer.cut([as_dict(found[doc_id]) for doc_id in missing], *self.options.window)
        self.cut.update(zip(missing, new, strict=True))
        words = sum(len(document.body.words) for document in self.cut.values())
        for doc_id in [doc_id for doc_id in self.cut if doc_id not in doc_ids]:
            if words <= _KEPT_WORDS:
                break
            words -= len(self.cut.pop(doc_id).body.words)
        return self.cut

    def _write_shard(self, number: int, advance) -> None:
        ranked = {query_id: self.candidates.ranked[query_id] for query_id in self.shards[number]}
        queries = {query_id: self.candidates.queries[query_id] for query_id in ranked}
        documents = self._cut({doc_id for scores in ranked.values() for doc_id in scores})
        ordered = {query_id: list(scores) for query_id, scores in ranked.items()}
        columns: dict[str, list] = {name: [] for name in SCHEMA.names}
        all_scores = self.scorer.score(queries, ordered, documents, advance)
        for (query_id, query), scores in zip(queries.items(), all_scores, strict=True):
            for rank, (doc_id, passages) in enumerate(zip(ordered[query_id], scores, strict=True), start=1):
                best = best_first(passages, 1)[0]
                row = (
                    query_id,
                    query,
                    doc_id,
                    rank,
                    ranked[query_id][doc_id],
                    passages[best],
                    best,
                    len(passages),
                    self.scorer.truncated(self.query_tokens[query_id], doc_id, documents[doc_id]),
                    documents[doc_id].text(best),
                )
                for name, value in zip(SCHEMA.names, row, strict=True):
                    columns[name].append(value)
        with atomic_open(_shard(self.output, number), "wb") as file:
            pq.write_table(pa.table(columns, schema=SCHEMA), file, compression="zstd")


def read_selected(folder: str | os.PathLike) -> Iterator[SelectedQuery]:
    """Reads the queries of a finished selection, in order; one shard is in memory at a time."""
    folder = Path(folder)
    settings = read_settings(folder, STEP)
    for number in range(settings["counts"]["shards"]):
        table = pq.read_table(_shard(folder, number), schema=SCHEMA)
        query_ids = table["query_id"].to_pylist()
        starts = [i for i, query_id in enumerate(query_ids) if i == 0 or query_id != query_ids[i - 1]]
        for start, end in zip(starts, [*starts[1:], len(query_ids)], strict=True):
            rows = table.slice(start, end - start)
            yield SelectedQuery(
                query_id=query_ids[start],
                query=rows["query"][0].as_py(),
                doc_ids=rows["doc_id"].to_pylist(),
                ranks=rows["rank"].to_pylist(),
                first_stage_scores=rows["first_stage_score"].to_pylist(),
                scores=rows["score"].to_pylist(),
                passages=rows["passage"].to_pylist(),
            )


def selected_queries(folder: str | os.PathLike) -> list[str]:
    """The ids of the queries of a finished selection, in order."""
    shards = range(read_settings(folder, STEP)["counts"]["shards"])
    tables = (pq.read_table(_shard(Path(folder), number), columns=["query_id"]) for number in shards)
    return [query_id for table in tables for query_id in pc.unique(table["query_id"]).to_pylist()]


def _shard(folder: Path, number: int) -> Path:
    return folder / "shards" / f"{number:05d}.parquet"


def _count(folder: Path, shards: int, candidates: Candidates) -> dict:
    """What the files hold: never what a process remembers, since an earlier one may have made them."""
    counts = {"pairs": 0, "pair_passages": 0, "truncated": 0}
    counted = True
    for number in range(shards):
        table = pq.read_table(_shard(folder, number), columns=["windows", "truncated"])
        counts["pairs"] += len(table)
        counts["pair_passages"] += pc.sum(table["windows"]).as_py()
        counted = counted and table["truncated"].null_count == 0
        counts["truncated"] += pc.sum(table["truncated"]).as_py() or 0
    return {
        "shards": shards,
        "queries": len(candidates.queries),
        "documents": len(candidates.windows),
        "passages": sum(candidates.windows.values()),
        **counts,
        "truncated": counts["truncated"] if counted else None,
        "skipped": candidates.skipped,
    }
