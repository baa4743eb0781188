"""BERT-Base MaxP: groups of single windows, to train a pointwise model on and to test it by the best window.

```bash
python data_scripts/retrieve.py --collection demo --output runs/demo.trec
python data_scripts/build_maxp_pairs.py --collection demo --run runs/demo.trec --output groups/demo-maxp
```

Then `train_cobert.py --variant neither --groups groups/demo-maxp/test --train_groups groups/demo-maxp/train`.
"""

import logging
import sys
from dataclasses import asdict, dataclass, field

from transformers import HfArgumentParser

from modeling_cobert.baselines.maxp import NEGATIVE_WINDOWS, WindowOptions, build_maxp, pointwise_groups
from modeling_cobert.data.arguments import CollectionArguments


@dataclass
class Arguments:
    """What to cut, and where to put it."""

    run: str = field(metadata={"help": "The TREC run whose documents are the candidates."})
    output: str = field(metadata={"help": "A new folder, or one that the same command has begun."})
    group_size: int = field(default=64, metadata={"help": "Windows of a group, that is pairs of a training step."})
    folds: str = field(
        default="auto",
        metadata={
            "help": "A JSON file of folds, round-robin, random, or none (all queries in one split, test). auto: the "
            "collection's own folds, else its own train, validation and test, else random."
        },
    )
    seed: int = field(default=42, metadata={"help": "Of random folds."})


@dataclass
class WindowArguments:
    """Which windows there are."""

    k: int = field(default=1000, metadata={"help": "How many documents of each query are re-ranked."})
    passage_words: int = field(default=150, metadata={"help": "Words of a window."})
    passage_overlap: int = field(default=75, metadata={"help": "Words that neighbouring windows share."})
    passage_title: bool = field(default=False, metadata={"help": "Put the title before every window."})
    positive_windows: int = field(
        default=30, metadata={"help": "How many windows of a relevant document train, from its first on."}
    )
    negative_windows: str = field(
        default="sampled",
        metadata={
            "help": "The one window of any other document that trains: sampled, or the first.",
            "choices": list(NEGATIVE_WINDOWS),
        },
    )
    window_seed: int = field(default=42, metadata={"help": "Of sampled windows."})
    shard_queries: int = field(default=8, metadata={"help": "Queries that are saved together."})


def main(args: Arguments, collection_args: CollectionArguments, window_args: WindowArguments) -> dict[str, dict]:
    """Cuts and groups, and returns the settings with the counts."""
    skip_missing = collection_args.skip_missing
    made = build_maxp(
        collection_args.open(),
        args.run,
        args.output,
        WindowOptions(skip_missing=skip_missing, **asdict(window_args)),
        pointwise_groups(group_size=args.group_size, folds=args.folds, seed=args.seed, skip_missing=skip_missing),
        source=collection_args.source(),
    )
    for name, settings in made.items():
        counts = settings["counts"]
        print(
            f"{args.output}/{name}: {counts['queries']} queries, {counts['pairs']} windows, {counts['groups']} groups"
        )
    return made


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    try:
        main(*HfArgumentParser((Arguments, CollectionArguments, WindowArguments)).parse_args_into_dataclasses())
    except (ValueError, OSError, ImportError) as error:
        sys.exit(f"error: {error}")
