"""The paper's tables from a collection: every system, the ablations, the hyper-parameter study and the cost.

What it would take, with nothing written:

```bash
python data_scripts/reproduce_paper.py --collection irds:disks45/nocr/trec-robust-2004 --run runs/dphkl.trec \
    --encoder models/bert-base-msmarco --output reproduction/robust04 --paper robust04 --dry_run --speed 40
```

The same without `--dry_run` does it, and goes on where it was interrupted, at any row, fold and step. A small trial on
a CPU, with any BERT cross-encoder (all options of TrainingArguments work):

```bash
python data_scripts/reproduce_paper.py --collection demo --encoder MODEL --bert MODEL --calibrator encoder \
    --scorer encoder --selector lexical --k 10 --max_queries 5 --max_length 128 --max_steps 3 \
    --only bm25+rm3 dph+kl bert-base cobert --output trial
```

docs/reproduction.md says what to bring, what to type and how long it takes.
"""

import logging
import sys

from transformers import HfArgumentParser

from modeling_cobert.data.arguments import CollectionArguments
from modeling_cobert.evaluation.tables import Table, to_terminal
from modeling_cobert.reproduction.arguments import ReproductionArguments, SystemArguments
from modeling_cobert.reproduction.estimate import Estimator, model_shape
from modeling_cobert.reproduction.rows import COST
from modeling_cobert.reproduction.tables import write_tables
from modeling_cobert.reproduction.work import Reproduction
from modeling_cobert.training.arguments import CoBertTrainingArguments

CLASSES = (ReproductionArguments, SystemArguments, CollectionArguments, CoBertTrainingArguments)


def main(
    args: ReproductionArguments,
    systems: SystemArguments,
    collection_args: CollectionArguments,
    training_args: CoBertTrainingArguments,
) -> list[Table]:
    """Does the rows that are left and prints the tables; with `--dry_run`, what it would do."""
    work = Reproduction(args, systems, collection_args, training_args)
    if args.dry_run:
        table = Estimator(work).table()
        print(to_terminal(table))
        return [table]
    shape = model_shape(systems, [work.rows[name] for name in work.todo if name != COST])
    work.check()
    for name in work.todo:
        if name == COST:
            _ = work.selected  # its counts are what the cost table is made of
        else:
            work.do(name)
    if not work.process.is_main_process:
        return []
    tables = write_tables(work, shape)
    print("\n".join(to_terminal(table) for table in tables))
    print(f"{work.output / 'tables.md'}\n{work.output / 'report.html'}")
    return tables


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("modeling_cobert.reproduction").setLevel(logging.INFO)
    try:
        main(*HfArgumentParser(CLASSES).parse_args_into_dataclasses())
    except (ValueError, OSError, ImportError) as error:
        sys.exit(f"error: {error}")
