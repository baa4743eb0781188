"""BERT-Base MaxP: rows of many passages a document, to train a pointwise model on and to test it by the best passage.

    cobert retrieve --collection demo --output runs/demo.trec
    cobert maxp --collection demo --run runs/demo.trec --output rows/demo-maxp

Then `cobert train --variant neither --rows rows/demo-maxp/test --train_rows rows/demo-maxp/train --group_size 64
--group_overlap 0`: batches of 64 pairs, each scored alone.
"""

from ..baselines.maxp import MaxPOptions, build_maxp
from ..collections.options import CollectionOptions, SplitOptions
from .options import RunOptions

ARGUMENTS = (RunOptions, CollectionOptions, MaxPOptions, SplitOptions)


def main(
    options: RunOptions, collection: CollectionOptions, passages: MaxPOptions, splits: SplitOptions
) -> dict[str, dict]:
    """Cuts, and returns the settings with the counts."""
    made = build_maxp(collection.open(), options.run, options.output, passages, splits)
    for name, settings in made.items():
        counts = settings["counts"]
        print(f"{options.output}/{name}: {counts['queries']} queries, {counts['pairs']} passages")
    return made
