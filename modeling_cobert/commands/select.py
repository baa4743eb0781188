"""Cuts the documents of a run into passages and keeps the best one of each for its query.

    cobert retrieve --collection demo --output runs/demo.trec
    cobert select --collection demo --run runs/demo.trec --selector lexical --output selected/demo

With the paper's kind of selector (`--selector cross-encoder/ms-marco-MiniLM-L-6-v2`), on two processes, a GPU each
where there are some: `torchrun --nproc_per_node 2 -- data_scripts/select_passages.py ...` (the `--` ends torchrun's
own options). Killed at any point, the same command goes on; the result is the same to the byte, on any number of
processes.
"""

from ..collections.options import CollectionOptions
from ..data.selection import SelectionOptions, select_passages
from ..steps.processes import process_state
from .options import RunOptions

ARGUMENTS = (RunOptions, CollectionOptions, SelectionOptions)


def main(options: RunOptions, collection: CollectionOptions, selection: SelectionOptions) -> dict:
    """Selects, prints the counts, and returns the settings with them."""
    settings = select_passages(collection.open(), options.run, options.output, selection)
    if process_state().is_main_process:
        for name, count in settings["counts"].items():
            if name != "query_ids":
                print(f"{name}\t{count}")
    return settings
