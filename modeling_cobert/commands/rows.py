"""Joins selected passages with judgments and splits: a row a query, as a dataset that `load_dataset` opens.

    cobert rows --selected selected/demo --collection demo --output rows/demo

Training and evaluation cut the rows into groups when they read them. A collection without judgments gives rows for
re-ranking, or for training with `--teacher`.
"""

from dataclasses import dataclass, field

from ..collections.options import CollectionOptions, SplitOptions
from ..data.rows import build_rows
from .options import OutputOptions


@dataclass(frozen=True)
class JoinOptions(OutputOptions):
    """What to join, and where the result goes."""

    selected: str = field(metadata={"help": "The folder that cobert select has made."})


ARGUMENTS = (JoinOptions, CollectionOptions, SplitOptions)


def main(options: JoinOptions, collection: CollectionOptions, splits: SplitOptions) -> dict:
    """Joins, prints the counts, and returns the settings with them."""
    settings = build_rows(options.selected, options.output, collection.open(), splits)
    for name, count in settings["counts"].items():
        print(f"{name}\t{count}")
    return settings
