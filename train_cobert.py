"""Trains a Co-BERT on a folder of groups, selects the best epoch on validation queries, tests it on others.

The paper's training, all five folds, on one GPU or several:

```bash
accelerate launch train_cobert.py --groups prepared/robust04/groups --folds all --output_dir outputs/robust04 \\
    --encoder CROSS_ENCODER_OF_BERT_BASE_SIZE \\
    --calibrator google/bert_uncased_L-2_H-768_A-12 --scorer google/bert_uncased_L-4_H-768_A-12
```

A recipe for little time, also on a CPU: first a pointwise model, then the context parts on its frozen vectors, then,
if wanted, everything end to end. `{fold}` stands for the fold's number, so that no model meets a test query:

```bash
python data_scripts/prepare.py --collection demo --selector lexical --output prepared/demo
python train_cobert.py --groups prepared/demo/groups --fold 1 --output_dir outputs/pointwise --variant neither \\
    --encoder cross-encoder/ms-marco-MiniLM-L-6-v2 --learning_rate 2e-5 --num_train_epochs 1 --max_length 128
python train_cobert.py --groups prepared/demo/groups --fold 1 --output_dir outputs/context --freeze_encoder \\
    --encoder outputs/pointwise/fold-{fold} --learning_rate 1e-4
python train_cobert.py --groups prepared/demo/groups --fold 1 --output_dir outputs/whole \\
    --checkpoint outputs/context/fold-{fold} --num_train_epochs 1 --encoder_chunk_size 8
```

The paper's BERT-Base is `--variant neither` on groups of 64 without prototypes (`build_groups.py --group_size 64
--group_overlap 0 --prototypes none`): batches of 64 pairs, each scored alone by its document's best passage.

The same command again goes on where a training was interrupted, at fold and step. SIGTERM saves first. All options of
Hugging Face's TrainingArguments work (`--bf16`, `--gradient_accumulation_steps`, `--report_to`, `--push_to_hub`, ...).
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
