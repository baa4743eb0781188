"""Preparation: from a collection to groups in one resumable go, with a summary of what came out."""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
from accelerate import PartialState

from ..collections.collection import Collection
from ..collections.splits import plan_splits
from ..retrieval.options import RetrievalOptions
from ..retrieval.retrieve import retrieve_to_folder
from .candidates import check_judgments
from .groups import GroupOptions, build_groups, load_groups
from .selection import SelectionOptions, select_passages

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Summary:
    """
    What came out of [`prepare`]. A share is `None` where there was nothing to count it with.

    Args:
        queries, documents, passages, groups (`int`): queries with groups, distinct documents among their candidates,
            distinct passages of these, and groups.
        recall (`float`): of the first stage at `k`, the ceiling of any re-ranking.
        unjudged (`float`): share of candidates that nobody judged (and that count as not relevant).
        truncated (`float` or `None`): share of query-passage pairs that did not fit into the selector's window.
        skipped (`dict[str, int]`): what was left out, by kind.
    """

    queries: int
    documents: int
    passages: int
    groups: int
    k: int
    recall: float
    unjudged: float
    truncated: float | None
    skipped: dict[str, int]

    def __str__(self) -> str:
        truncated = "not counted (no tokenizer)" if self.truncated is None else f"{self.truncated:.4f}"
        lines = [
            f"queries            {self.queries}",
            f"documents          {self.documents}",
            f"passages           {self.passages}",
            f"groups             {self.groups}",
            f"recall@{self.k:<11} {self.recall:.4f}",
            f"share unjudged     {self.unjudged:.4f}",
            f"share truncated    {truncated}",
        ]
        return "\n".join(lines + [f"skipped: {name} {count}" for name, count in self.skipped.items() if count])


def prepare(
    collection: Collection,
    output: str | os.PathLike,
    selection: SelectionOptions,
    groups: GroupOptions | None = None,
    run: str | os.PathLike | None = None,
    model: str = "dph+kl",
    source: Mapping | None = None,
    progress: bool = True,
) -> Summary:
    """
    First stage (unless there is a run), selection and groups: `output/run`, `output/selected` and `output/groups`.

    A step that is complete for the same settings is not done again. Under `torchrun` or `accelerate launch` selection
    is done by all processes.

    Args:
        collection ([`Collection`]): what to prepare.
        output (`str` or `os.PathLike`): a folder, new or from the same call before.
        selection ([`SelectionOptions`]): how to select passages.
        groups ([`GroupOptions`], *optional*): how to group.
        run (`str` or `os.PathLike`, *optional*): a TREC run made elsewhere.
        model (`str`, *optional*, defaults to `"dph+kl"`): the first stage, where there is no run.
        source (`Mapping`, *optional*): how the collection was opened.
        progress (`bool`, *optional*, defaults to `True`): whether to show progress bars.
    """
    output, groups = Path(output), groups or GroupOptions()
    state = PartialState(cpu=not torch.accelerator.is_available(), timeout=timedelta(days=30))
    queries = collection.queries()
    # What can be wrong with judgments and folds is said before hours of work, not after them.
    check_judgments(collection.qrels(), queries, groups.skip_missing, f"judgments of {collection.name}")
    plan_splits(collection, list(queries), groups.folds, groups.seed, groups.skip_missing)
    if run is None:
        run = output / "run" / "run.trec"
        with state.main_process_first():
            retrieve(collection, run.parent, model, selection.k, selection.skip_missing)
    select_passages(collection, run, output / "selected", selection, source, progress)
    with state.main_process_first():
        build_groups(output / "selected", output / "groups", collection, groups)
    return summarise(output / "groups")


def retrieve(collection: Collection, output: Path, model: str, k: int, skip_missing: bool = False) -> None:
    """Searches the collection with a first-stage model's default parameters; writes `output/run.trec`."""
    collection.skip_missing = skip_missing
    retrieve_to_folder(collection, output, RetrievalOptions(model), k)


def summarise(folder: str | os.PathLike) -> Summary:
    """The summary of a finished folder of groups."""
    import ir_measures

    opened = load_groups(folder)
    counts, k = opened.settings["counts"], opened.settings["k"]
    recall = ir_measures.R @ k
    pair_passages, truncated = counts["selected_pair_passages"], counts["selected_truncated"]
    return Summary(
        queries=counts["queries"],
        documents=counts["selected_documents"],
        passages=counts["selected_passages"],
        groups=counts["groups"],
        k=k,
        recall=ir_measures.calc_aggregate([recall], opened.qrels, opened.run)[recall],
        unjudged=counts["unjudged"] / counts["pairs"],
        truncated=None if truncated is None else truncated / pair_passages,
        skipped=counts["skipped"],
    )
