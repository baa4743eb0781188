"""Selection: cuts the documents of a run into passages and keeps the best one of each for its query.

```bash
python data_scripts/retrieve.py --collection demo --output runs/demo.trec
python data_scripts/select_passages.py --collection demo --run runs/demo.trec --selector lexical --output selected/demo
```

With the paper's kind of selector (`--selector cross-encoder/ms-marco-MiniLM-L-6-v2`), on two processes, a GPU each
where there are some: `accelerate launch --num_processes 2 data_scripts/select_passages.py ...`, or
`torchrun --nproc_per_node 2 -- data_scripts/select_passages.py ...` (the `--` ends torchrun's own options).
Killed at any point, the same command goes on; the result is the same to the byte. So it is on any number of processes;
only, on a CPU, launchers give each process fewer threads, which changes the last bits: then fix `--threads`.
"""

import logging
import sys
from dataclasses import dataclass, field

from transformers import HfArgumentParser

from modeling_cobert.data.arguments import CollectionArguments, SelectionArguments
from modeling_cobert.data.selection import select_passages


@dataclass
class Arguments:
    """What to select from, and where to put it."""

    run: str = field(metadata={"help": "The TREC run whose documents are the candidates."})
    output: str = field(metadata={"help": "A new folder, or one that the same command has begun."})


def main(args: Arguments, collection_args: CollectionArguments, selection_args: SelectionArguments) -> dict:
    """Selects, and returns the settings with the counts."""
    options = selection_args.options(collection_args.skip_missing)
    settings = select_passages(collection_args.open(), args.run, args.output, options, source=collection_args.source())
    for name, count in settings["counts"].items():
        print(f"{name}\t{count}")
    return settings


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    try:
        main(*HfArgumentParser((Arguments, CollectionArguments, SelectionArguments)).parse_args_into_dataclasses())
    except (ValueError, OSError, ImportError) as error:
        sys.exit(f"error: {error}")
