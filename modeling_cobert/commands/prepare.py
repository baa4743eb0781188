"""From a collection to the rows that Co-BERT trains on, in one go: first stage, passages, grades, splits.

    cobert prepare --collection demo --selector lexical --output prepared/demo

`--selector` with a cross-encoder is the paper's way; `--run` takes a first stage made elsewhere (Robust04, GOV2).
Killed at any point, the same command goes on. The rows are in `prepared/demo/rows`.

A collection without judgments (no `qrels/*.tsv`, no `qrels.txt`) gives rows for re-ranking, or for training with
`--teacher`; unless `--folds` says otherwise, all its queries are in one split, `train`.
"""

from dataclasses import dataclass, field, fields

from ..collections.options import CollectionOptions, SplitOptions
from ..data.preparation import prepare
from ..data.selection import SelectionOptions, check_selector
from ..evaluation.summary import Summary, summarise
from ..retrieval.options import RetrievalOptions
from ..selection_cobert import BUILT_IN, check_encoder, check_room
from ..steps.folders import check_begun
from ..steps.processes import process_state
from .options import OutputOptions


@dataclass(frozen=True)
class PrepareOptions(OutputOptions):
    """Where everything goes, and where the candidates come from."""

    run: str | None = field(
        default=None, metadata={"help": "A TREC run made elsewhere; by default the collection is searched here."}
    )


ARGUMENTS = (PrepareOptions, CollectionOptions, RetrievalOptions, SelectionOptions, SplitOptions)


def main(
    options: PrepareOptions,
    collection: CollectionOptions,
    retrieval: RetrievalOptions,
    selection: SelectionOptions,
    splits: SplitOptions,
) -> Summary:
    """Prepares, and prints a summary."""
    if options.run is not None:
        given = [f.name for f in fields(retrieval) if getattr(retrieval, f.name) != f.default]
        if given:
            raise ValueError(f"--run {options.run} is the first stage, none is made: leave out --{', --'.join(given)}")
    retrieval.check_read()
    check_begun(options.output, ("run", "selected", "rows"), "--output")
    check_selector(selection)
    if selection.selector not in BUILT_IN:
        check_encoder(selection.selector, selection.max_length)
    if selection.tokenizer is not None:
        check_room(selection.tokenizer, selection.max_length)
    rows = prepare(collection.open(), options.output, selection, splits, retrieval, options.run)
    summary = summarise(rows)
    if process_state().is_main_process:
        print(f"{rows.folder}\n{summary}")
    return summary
