"""What each part gives on a collection: first stage, mixtures, pointwise, Co-BERT with and without its options.

    cobert gains --collection data/cranfield --encoder CROSS_ENCODER --bi_encoder BI_ENCODER --output gains/cranfield

All rows share passages, encoder, data and budget; significance is against the twins without context: the one that has
the same starting scores and, where that row is trained, the pointwise one. Killed at any point, the same command goes
on. A minute's look:

    cobert gains --collection demo --encoder CROSS_ENCODER --bi_encoder BI_ENCODER --k 20 --max_steps 5 --output look
"""

import logging

from ..collections.options import CollectionOptions, SplitOptions
from ..evaluation.tables import to_terminal
from ..reproduction.gains import Gains, GainsOptions, measure_gains

# Dozens of trainings would say the same things of the same rows ..
LOG_LEVEL = logging.ERROR
# .. but for which row is trained, and how far it is.
TOLD = ("modeling_cobert.reproduction.gains", "modeling_cobert.training.trainer.progress")
ARGUMENTS = (CollectionOptions, SplitOptions, GainsOptions)


def main(collection: CollectionOptions, splits: SplitOptions, options: GainsOptions) -> Gains:
    """Measures, and prints the tables."""
    for name in TOLD:
        logging.getLogger(name).setLevel(logging.INFO)
    gains = measure_gains(collection.open(), options, splits)
    print("\n".join(to_terminal(table) for table in gains.tables()))
    print(f"written to {options.output}: results.json, and a folder a row")
    return gains
