"""BERT-Base MaxP: rows of many passages a document, to train a pointwise model on and to test it by the best passage.

A relevant document trains with many of its passages, each labelled as the document is (Dai and Callan, 2019), so which
passages there are depends on the judgments: such rows serve for training alone, and testing on them would give the
answers away. Beside them stand rows with every passage of every candidate; its best passage is a document's score.
"""

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ..collections.collection import Collection
from ..collections.judgments import known_judgments
from ..collections.options import SplitOptions
from ..collections.splits import plan_splits
from ..data.candidates import Candidates, CutOptions, find_candidates
from ..data.rows import STEP as ROWS
from ..data.rows import build_rows
from ..data.selection import FORMAT as SELECTION_FORMAT
from ..data.selection import STEP as SELECTION
from ..data.selection import count_selected, shards_of
from ..passages_cobert import cut_documents
from ..steps.folders import SETTINGS, check_begun, claim_folder, claims_end, read_settings, write_settings
from ..steps.hashing import json_sha256
from ..steps.limits import check_numbers
from ..steps.processes import process_state
from ..steps.progress import progress_bar

NEGATIVES = ("sampled", "first")
# The folders of rows: to train on, and to validate and test on.
NAMES = ("train", "test")


@dataclass(frozen=True)
class MaxPOptions(CutOptions):
    """Which passages there are, besides collection and run. The defaults are the paper's."""

    positive_passages: int = field(
        default=30, metadata={"help": "How many passages of a relevant document train, from its first on."}
    )
    negative_passages: str = field(
        default="sampled",
        metadata={
            "help": "The one passage of any other document that trains: sampled, so that negatives are not all "
            "beginnings of texts, or the first.",
            "choices": list(NEGATIVES),
        },
    )
    passage_seed: int = field(default=42, metadata={"help": "Of sampled passages."})
    shard_queries: int = field(default=8, metadata={"help": "Queries that are saved together."})

    def __post_init__(self):
        super().__post_init__()
        check_numbers(self, 1, "positive_passages", "shard_queries")
        if self.negative_passages not in NEGATIVES:
            raise ValueError(
                f"negative_passages must be one of {', '.join(NEGATIVES)}, not {self.negative_passages!r}"
            )


def training_passages(query_id: str, doc_id: str, count: int, grade: int, options: MaxPOptions) -> Sequence[int]:
    """Which of a document's `count` passages train for a query; the same ones wherever and whenever it is asked."""
    if grade > 0:
        return range(min(count, options.positive_passages))
    if options.negative_passages == "first":
        return [0]
    # Only random() itself is promised to give the same sequence in every Python version.
    return [int(random.Random(f"{options.passage_seed} {query_id} {doc_id}").random() * count)]


def build_maxp(
    collection: Collection,
    run: str | os.PathLike,
    output: str | os.PathLike,
    options: MaxPOptions | None = None,
    splits: SplitOptions | None = None,
    progress: bool = True,
) -> dict[str, dict]:
    """
    Makes two folders of rows: `output/train` to train on, `output/test` to validate and test on.

    Both are as [`load_rows`] opens them; a candidate's id is there once for each of its passages. They are for models
    without calibrator and scorer, in groups that share nothing: 64 pairs a step are the paper's batch.

    Args:
        collection ([`Collection`]): queries, documents, judgments and folds.
        run (`str` or `os.PathLike`): the TREC run that names the candidates.
        output (`str` or `os.PathLike`): a new folder, or one begun with the same settings.
        options ([`MaxPOptions`], *optional*): which passages.
        splits ([`SplitOptions`], *optional*): how to split the queries.
        progress (`bool`, *optional*, defaults to `True`): whether to show progress bars.

    Returns:
        `dict[str, dict]`: the settings and counts of both.
    """
    output, options, state = Path(output), options or MaxPOptions(), process_state()
    _check_output(output)
    known = known_judgments(collection)  # raises what would be found after the work
    candidates = find_candidates(collection, run, options.k, progress=progress and state.is_main_process)
    plan_splits(collection, list(candidates.queries), splits, judged=bool(known))
    made = {}
    for name in NAMES:
        folder = output / "passages" / name
        _Passages(collection, candidates, folder, name == "train", options).write(state, progress)
        with state.main_process_first():
            made[name] = build_rows(folder, output / name, collection, splits)
    return made


def _check_output(output: Path) -> None:
    """A folder of something else is not filled, nor one of passages that a call has made on the way."""
    check_begun(output, ("passages", *NAMES), "--output")
    for name in NAMES:
        folder = output / name
        if (folder / SETTINGS).exists() and (step := read_settings(folder).get("step")) != ROWS:
            raise ValueError(
                f"--output {output}: {folder} is the folder of {step!r}, not of {ROWS!r}: give another one"
            )


class _Passages:
    """Passages in the layout of a selection, from which [`build_rows`] makes rows."""

    def __init__(
        self, collection: Collection, candidates: Candidates, output: Path, judged: bool, options: MaxPOptions
    ):
        self.collection, self.candidates, self.output, self.options = collection, candidates, output, options
        self.judged = judged
        self.qrels = collection.qrels() if judged else {}
        self.shards = shards_of(output, list(candidates.queries), options.shard_queries)

    def settings(self) -> dict:
        return {
            "step": SELECTION,
            "format": SELECTION_FORMAT,
            "collection": self.collection.name,
            "skip_missing": self.collection.skip_missing,
            "first_stage": self.candidates.tag,
            "selector_kind": "none",
            "selector": "self",  # a model that was trained on many passages picks the best one by itself
            "chosen_by": "judgments" if self.judged else "nothing",
            **asdict(self.options),
            "sha256": {
                **self.candidates.sha256,
                "judged": json_sha256([[query_id, list(grades.items())] for query_id, grades in self.qrels.items()]),
            },
        }

    @claims_end()
    def write(self, state, progress: bool) -> None:
        settings = self.settings()
        with state.main_process_first():
            done = claim_folder(self.output, settings)
        if done is None:
            total, show = len(self.shards.missing()) // state.num_processes, progress and state.is_main_process
            with progress_bar(desc="Cutting", unit="queries", total=total, show=show) as bar:
                self.shards.fill(lambda query_id: self._row(query_id, bar.update), state)
            if state.is_main_process:
                counts = count_selected(self.shards, self.candidates)
                # Each passage is a pair of its own here, however many its document has.
                counts["pair_passages"] = counts["pairs"]
                write_settings(self.output, settings, counts, self.shards.paths)
        state.wait_for_everyone()

    def _row(self, query_id: str, advance: Callable) -> dict:
        """The passages of one query's candidates, documents in first-stage order, passages in text order."""
        ranked, grades = self.candidates.ranked[query_id], self.qrels.get(query_id, {})
        found = self.collection.lookup(ranked)
        cut = cut_documents([found[doc_id].to_dict() for doc_id in ranked], *self.options.cut)
        places = []  # rank, document, passage
        for rank, (doc_id, document) in enumerate(zip(ranked, cut, strict=True), start=1):
            kept = range(len(document.spans))
            if self.judged:
                kept = training_passages(query_id, doc_id, len(kept), grades.get(doc_id, 0), self.options)
            places += [(rank, doc_id, document, number) for number in kept]
        advance(1)
        return {
            "query": self.candidates.queries[query_id],
            "doc_ids": [doc_id for _, doc_id, _, _ in places],
            "ranks": [rank for rank, _, _, _ in places],
            "first_stage_scores": [ranked[doc_id] for _, doc_id, _, _ in places],
            "selector_scores": [float(-rank) for rank, _, _, _ in places],  # none has scored it: the order of the run
            "passages": [document.text(number) for _, _, document, number in places],
            "passage_numbers": [number for _, _, _, number in places],
            "passage_counts": [len(document.spans) for _, _, document, _ in places],
            "truncated": None,
        }
