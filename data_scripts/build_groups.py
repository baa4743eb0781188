"""Groups: turns selected passages into prototypes, groups and splits, as a dataset that `load_dataset` opens.

```bash
python data_scripts/build_groups.py --selected selected/demo --output groups/demo
python -c "import datasets; print(datasets.load_dataset('groups/demo'))"
```
"""

import logging
import sys
from dataclasses import dataclass, field

from transformers import HfArgumentParser

from modeling_cobert.data.arguments import CollectionArguments, GroupArguments
from modeling_cobert.data.groups import build_groups
from modeling_cobert.steps.folders import read_settings


@dataclass
class Arguments:
    """What to group, and where to put it."""

    selected: str = field(metadata={"help": "The folder that select_passages.py has made."})
    output: str = field(metadata={"help": "A new folder, or one that the same command has begun."})
    collection: str | None = field(
        default=None, metadata={"help": "Where judgments and folds are, if not where selection found its queries."}
    )
    qrels: str | None = field(default=None, metadata={"help": "Judgments instead of the collection's own."})
    skip_missing: bool = field(
        default=False,
        metadata={"help": "Go on without judgments and queries that do not fit together, and count them."},
    )


def main(args: Arguments, group_args: GroupArguments) -> dict:
    """Groups, and returns the settings with the counts."""
    source = read_settings(args.selected, "selection")["source"] or {}
    source = {**source, **{name: value for name in ("collection", "qrels") if (value := getattr(args, name))}}
    if "collection" not in source:
        raise ValueError(f"{args.selected} does not say where its collection is: give --collection")
    collection = CollectionArguments(**source, skip_missing=args.skip_missing).open()
    settings = build_groups(args.selected, args.output, collection, group_args.options(args.skip_missing))
    for name, count in settings["counts"].items():
        print(f"{name}\t{count}")
    return settings


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    try:
        main(*HfArgumentParser((Arguments, GroupArguments)).parse_args_into_dataclasses())
    except (ValueError, OSError, ImportError) as error:
        sys.exit(f"error: {error}")
