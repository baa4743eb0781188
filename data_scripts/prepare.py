"""Preparation: one command from a collection to the groups that Co-BERT trains on.

```bash
python data_scripts/prepare.py --collection demo --selector lexical --output prepared/demo
```

`--selector` with a cross-encoder is the paper's way; `--run` takes a first stage made elsewhere (Robust04, GOV2).
Killed at any point, the same command goes on. The groups are in `prepared/demo/groups`.
"""

import logging
import sys
from dataclasses import dataclass, field
from pathlib import Path

from accelerate import PartialState
from transformers import HfArgumentParser

from modeling_cobert.data.arguments import (
    CollectionArguments,
    FirstStageArguments,
    GroupArguments,
    SelectionArguments,
)
from modeling_cobert.data.preparation import Summary, prepare


@dataclass
class Arguments:
    """Where everything goes."""

    output: str = field(metadata={"help": "A new folder, or one that the same command has begun."})


def main(
    args: Arguments,
    collection_args: CollectionArguments,
    first_stage_args: FirstStageArguments,
    selection_args: SelectionArguments,
    group_args: GroupArguments,
) -> Summary:
    """Prepares, and prints a summary."""
    summary = prepare(
        collection_args.open(),
        args.output,
        selection_args.options(collection_args.skip_missing),
        group_args.options(collection_args.skip_missing),
        run=first_stage_args.run,
        model=first_stage_args.model,
        source=collection_args.source(),
    )
    if PartialState().is_main_process:
        print(f"{Path(args.output) / 'groups'}\n{summary}")
    return summary


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    classes = (Arguments, CollectionArguments, FirstStageArguments, SelectionArguments, GroupArguments)
    try:
        main(*HfArgumentParser(classes).parse_args_into_dataclasses())
    except (ValueError, OSError, ImportError) as error:
        sys.exit(f"error: {error}")
