"""Preparation: from a collection to rows in one resumable go."""

import os
from pathlib import Path

from ..collections.collection import Collection
from ..collections.judgments import known_judgments
from ..collections.options import SplitOptions
from ..collections.splits import check_splits, plan_splits
from ..retrieval.options import RetrievalOptions
from ..retrieval.retrieve import retrieve_to_folder
from ..steps.processes import process_state
from .rows import RowsFolder, build_rows, load_rows
from .selection import SelectionOptions, check_selector, select_passages


def prepare(
    collection: Collection,
    output: str | os.PathLike,
    selection: SelectionOptions,
    splits: SplitOptions | None = None,
    retrieval: RetrievalOptions | None = None,
    run: str | os.PathLike | None = None,
    progress: bool = True,
) -> RowsFolder:
    """
    First stage (unless there is a run), selection and rows: `output/run`, `output/selected` and `output/rows`.

    A step that is complete for the same settings is not done again. Under `torchrun` or `accelerate launch` selection
    is done by all processes.

    Args:
        collection ([`Collection`]): what to prepare.
        output (`str` or `os.PathLike`): a folder, new or from the same call before.
        selection ([`SelectionOptions`]): how to select passages.
        splits ([`SplitOptions`], *optional*): how to split the queries.
        retrieval ([`RetrievalOptions`], *optional*): the first stage, where there is no run.
        run (`str` or `os.PathLike`, *optional*): a TREC run made elsewhere.
        progress (`bool`, *optional*, defaults to `True`): whether to show progress bars.
    """
    output, state = Path(output), process_state()
    # What can be wrong with judgments, folds and selector is said before hours of work, not after them.
    check_selector(selection)
    qrels = known_judgments(collection)
    plan_splits(collection, list(collection.queries()), splits, judged=bool(qrels))
    if run is None:
        run = output / "run" / "run.trec"
        with state.main_process_first():
            retrieve_to_folder(collection, run.parent, retrieval or RetrievalOptions(), selection.k)

    def check(query_ids: list[str]) -> None:
        check_splits(collection, query_ids, splits, bool(qrels))

    select_passages(collection, run, output / "selected", selection, progress=progress, check=check)
    with state.main_process_first():
        build_rows(output / "selected", output / "rows", collection, splits, qrels)
    return load_rows(output / "rows")
