"""Trains a Co-BERT on a folder of groups, selects the best epoch, tests it.

As the paper does, on a GPU, all five folds of Robust04:

    accelerate launch train_cobert.py --groups groups/robust04 --folds all --encoder castorini/monobert-large-msmarco \
        --output_dir outputs/robust04

On a CPU, in minutes: a pointwise model, then its context parts on its frozen vectors, then the whole, end to end:

    python train_cobert.py --groups groups/demo --fold 1 --encoder MODEL --variant neither \
        --learning_rate 2e-5 --num_train_epochs 1 --output_dir outputs/pointwise
    python train_cobert.py --groups groups/demo --fold 1 --encoder outputs/pointwise/fold-{fold} --freeze_encoder \
        --learning_rate 1e-4 --output_dir outputs/frozen
    python train_cobert.py --groups groups/demo --fold 1 --checkpoint outputs/frozen/fold-{fold} \
        --num_train_epochs 1 --output_dir outputs/whole

The paper's BERT-Base baseline is `--variant neither` on groups of 64 (`build_groups.py --group_size 64
--group_overlap 0 --prototypes none`): batches of 64 pairs, each scored alone.

The same command again goes on where a training was interrupted. All options of Hugging Face's TrainingArguments work.
"""

import logging

from transformers import HfArgumentParser

from modeling_cobert.training.arguments import CoBertTrainingArguments, DataArguments, ModelArguments
from modeling_cobert.training.cross_validation import results_table, train


def main(model_args: ModelArguments, data_args: DataArguments, training_args: CoBertTrainingArguments) -> dict:
    """Trains, selects and tests; returns the results and prints them on the main process."""
    results = train(model_args, data_args, training_args)
    if training_args.process_index == 0:
        print(results_table(results))
    return results


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    main(*HfArgumentParser((ModelArguments, DataArguments, CoBertTrainingArguments)).parse_args_into_dataclasses())
