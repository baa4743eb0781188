"""The paper's tables from a collection: every system, the ablations, the hyper-parameter study and the cost.

What it would take, with nothing written:

    cobert reproduce --collection irds:disks45/nocr/trec-robust-2004 --run runs/dphkl.trec \\
        --encoder models/bert-base-msmarco --output reproduction/robust04 --paper robust04 --dry_run --speed 40

The same without `--dry_run` does it, and goes on where it was interrupted, at any row, fold and step. A small trial on
a CPU, with any BERT cross-encoder (all options of TrainingArguments work):

    cobert reproduce --collection demo --encoder MODEL --bert MODEL --calibrator encoder --scorer encoder \\
        --selector lexical --k 10 --max_queries 5 --max_length 128 --max_steps 3 \\
        --only bm25+rm3 dph+kl bert-base cobert --output trial

docs/reproduction.md says what to bring, what to type and how long it takes.
"""

from ..collections.options import CollectionOptions, SplitOptions
from ..evaluation.tables import Table, to_terminal
from ..reproduction.arguments import PassageOptions, ReproductionOptions, SystemOptions
from ..reproduction.estimate import Estimator, model_shape
from ..reproduction.rows import COST
from ..reproduction.tables import write_tables
from ..reproduction.work import Reproduction
from ..training.arguments import CoBertTrainingArguments

ARGUMENTS = (
    ReproductionOptions,
    SystemOptions,
    CollectionOptions,
    SplitOptions,
    PassageOptions,
    CoBertTrainingArguments,
)


def main(
    options: ReproductionOptions,
    systems: SystemOptions,
    collection: CollectionOptions,
    splits: SplitOptions,
    passages: PassageOptions,
    training_args: CoBertTrainingArguments,
) -> list[Table]:
    """Does the rows that are left and prints the tables; with `--dry_run`, what it would do."""
    work = Reproduction(options, systems, collection, splits, passages, training_args)
    if options.dry_run:
        table = Estimator(work).table()
        print(to_terminal(table))
        return [table]
    shape = model_shape(systems, work.selection, [work.rows[name] for name in work.todo if name != COST])
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
