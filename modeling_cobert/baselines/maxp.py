"""BERT-Base MaxP: groups of single windows, for training a pointwise model and for testing it by the best window.

A relevant document trains with many of its windows, each labelled as the document is (Dai and Callan, 2019), so which
windows there are depends on the judgments: such groups serve for training alone, and testing on them would give the
answers away. Beside them stand groups with every window of every candidate; its best window is a document's score.
"""

import os
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from tqdm.auto import tqdm

from ..collections.collection import Collection
from ..data.candidates import Candidates, as_dict, find_candidates
from ..data.groups import GroupOptions, build_groups
from ..data.selection import SCHEMA
from ..data.selection import STEP as SELECTION
from ..passages_cobert import cut_documents
from ..steps.files import atomic_open
from ..steps.folders import claim_folder, file_sha256, json_sha256, write_settings

WINDOWS = ("train", "all")
NEGATIVE_WINDOWS = ("sampled", "first")


@dataclass(frozen=True)
class WindowOptions:
    """
    What the windows depend on, besides collection and run. The defaults are the paper's.

    Args:
        k (`int`, *optional*, defaults to 1000): how many documents of each query are re-ranked.
        passage_words, passage_overlap (`int`, *optional*, default to 150 and 75): words of a window, and words that
            neighbours share.
        passage_title (`bool`, *optional*, defaults to `False`): whether the title stands before every window.
        positive_windows (`int`, *optional*, defaults to 30): how many windows of a relevant document train, its first.
        negative_windows (`str`, *optional*, defaults to `"sampled"`): the one window of any other document that
            trains: any of them, at random, so that negatives are not all beginnings of texts, or its `"first"`.
        window_seed (`int`, *optional*, defaults to 42): of the sampled windows.
        shard_queries (`int`, *optional*, defaults to 8): queries that are saved together.
        skip_missing (`bool`, *optional*, defaults to `False`): whether what does not fit together is counted and left
            out instead of being an error.
    """

    k: int = 1000
    passage_words: int = 150
    passage_overlap: int = 75
    passage_title: bool = False
    positive_windows: int = 30
    negative_windows: str = "sampled"
    window_seed: int = 42
    shard_queries: int = 8
    skip_missing: bool = False

    def __post_init__(self):
        for name in ("positive_windows", "shard_queries"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.negative_windows not in NEGATIVE_WINDOWS:
            raise ValueError(
                f"negative_windows must be one of {', '.join(NEGATIVE_WINDOWS)}, not {self.negative_windows!r}"
            )

    @property
    def window(self) -> tuple[int, int, bool]:
        return self.passage_words, self.passage_overlap, self.passage_title


def training_windows(query_id: str, doc_id: str, count: int, grade: int, options: WindowOptions) -> Sequence[int]:
    """Which of a document's `count` windows train for a query; the same ones wherever and whenever it is asked."""
    if grade > 0:
        return range(min(count, options.positive_windows))
    if options.negative_windows == "first":
        return [0]
    # Only random() itself is promised to give the same sequence in every Python version.
    return [int(random.Random(f"{options.window_seed} {query_id} {doc_id}").random() * count)]


def build_maxp(
    collection: Collection,
    run: str | os.PathLike,
    output: str | os.PathLike,
    options: WindowOptions | None = None,
    groups: GroupOptions | None = None,
    source: Mapping | None = None,
    progress: bool = True,
) -> dict[str, dict]:
    """
    Makes two folders of groups: `output/train` to train on, `output/test` to validate and test on.

    Both are as [`load_groups`] opens them; a candidate's id is there once for each of its windows.

    Args:
        collection ([`Collection`]): queries, documents, judgments and folds.
        run (`str` or `os.PathLike`): the TREC run that names the candidates.
        output (`str` or `os.PathLike`): a new folder, or one begun with the same settings.
        options ([`WindowOptions`], *optional*): which windows.
        groups ([`GroupOptions`], *optional*): by default 64 windows a group, none shared, no prototypes.
        source (`Mapping`, *optional*): how the collection was opened.
        progress (`bool`, *optional*, defaults to `True`): whether to show progress bars.

    Returns:
        `dict[str, dict]`: the settings and counts of both.
    """
    output, options = Path(output), options or WindowOptions()
    groups = groups or pointwise_groups(skip_missing=options.skip_missing)
    if groups.group_overlap or groups.prototypes != "none":
        raise ValueError("windows are scored one by one: groups of them share nothing and have no prototypes")
    candidates = find_candidates(collection, run, options.k, *options.window, options.skip_missing, progress)
    made = {}
    for name, kind in (("train", "train"), ("test", "all")):
        folder = output / "windows" / name
        write_windows(collection, candidates, file_sha256(run), folder, kind, options, source, progress)
        made[name] = build_groups(folder, output / name, collection, groups)
    return made


def pointwise_groups(**fields) -> GroupOptions:
    """Groups for a model that scores every pair alone: 64 pairs a step, as many as the paper's batch."""
    return GroupOptions(**{"num_prototypes": 0, "group_size": 64, "group_overlap": 0, "prototypes": "none", **fields})


def write_windows(
    collection: Collection,
    candidates: Candidates,
    run_sha256: str,
    output: Path,
    kind: str,
    options: WindowOptions,
    source: Mapping | None = None,
    progress: bool = True,
) -> dict:
    """
    Writes windows in the layout of selected passages, from which [`build_groups`] makes groups.

    Args:
        kind (`str`): `"train"` (by the judgments) or `"all"`.
    """
    if kind not in WINDOWS:
        raise ValueError(f"windows are written to {', '.join(WINDOWS)}, not {kind!r}")
    qrels = collection.qrels() if kind == "train" else {}
    settings = {
        "step": SELECTION,
        "format": 1,
        "collection": collection.name,
        "source": None if source is None else dict(source),
        "first_stage": candidates.tag,
        "selector_kind": "windows",
        "selector": "self",  # a model that was trained on windows picks the best one by itself
        "windows": kind,
        **asdict(options),
        "sha256": {
            "run": run_sha256,
            **candidates.sha256,
            "judged": json_sha256([[query_id, list(grades.items())] for query_id, grades in qrels.items()]),
        },
    }
    done = claim_folder(output, settings)
    if done is not None:
        return done
    query_ids, size = list(candidates.queries), options.shard_queries
    shards = [query_ids[start : start + size] for start in range(0, len(query_ids), size)]
    for number, shard in enumerate(tqdm(shards, desc=f"Cutting ({kind})", unit=" shards", disable=not progress)):
        path = output / "shards" / f"{number:05d}.parquet"
        if not path.exists():
            rows = [row for query_id in shard for row in _rows(collection, candidates, query_id, kind, qrels, options)]
            with atomic_open(path, "wb") as file:
                pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), file, compression="zstd")
    pairs = sum(pq.read_metadata(output / "shards" / f"{n:05d}.parquet").num_rows for n in range(len(shards)))
    counts = {
        "shards": len(shards),
        "queries": len(query_ids),
        "documents": len(candidates.windows),
        "passages": sum(candidates.windows.values()),
        "pairs": pairs,
        "pair_passages": pairs,
        "truncated": None,
        "skipped": candidates.skipped,
    }
    return write_settings(output, settings, counts)


def _rows(
    collection: Collection, candidates: Candidates, query_id: str, kind: str, qrels: Mapping, options: WindowOptions
) -> Iterator[dict]:
    """The windows of one query's candidates, documents in first-stage order, windows in text order."""
    ranked, grades = candidates.ranked[query_id], qrels.get(query_id, {})
    found = collection.lookup(ranked)
    cut = cut_documents([as_dict(found[doc_id]) for doc_id in ranked], *options.window)
    for rank, (doc_id, document) in enumerate(zip(ranked, cut, strict=True), start=1):
        count = len(document.spans)
        kept = range(count)
        if kind == "train":
            kept = training_windows(query_id, doc_id, count, grades.get(doc_id, 0), options)
        for window in kept:
            yield {
                "query_id": query_id,
                "query": candidates.queries[query_id],
                "doc_id": doc_id,
                "rank": rank,
                "first_stage_score": ranked[doc_id],
                "score": float(-rank),  # no selector has scored it: the order of the run
                "window": window,
                "windows": count,
                "truncated": None,
                "passage": document.text(window),
            }
