"""Trains a Co-BERT on rows, selects the best epoch on validation queries, tests it on others.

The paper's training, all five folds, on one GPU or several:

    accelerate launch train_cobert.py --rows prepared/robust04/rows --fold all --output_dir outputs/robust04 \\
        --encoder CROSS_ENCODER_OF_BERT_BASE_SIZE \\
        --calibrator google/bert_uncased_L-2_H-768_A-12 --scorer google/bert_uncased_L-4_H-768_A-12

A recipe for little time, also on a CPU: first a pointwise model, then the context parts on its frozen vectors, then,
if wanted, everything end to end. `{fold}` stands for the fold's number, so that no model meets a test query:

    cobert prepare --collection demo --selector lexical --output prepared/demo
    cobert train --rows prepared/demo/rows --fold 1 --output_dir outputs/pointwise --variant neither \\
        --encoder cross-encoder/ms-marco-MiniLM-L-6-v2 --learning_rate 2e-5 --num_train_epochs 1 --max_length 128
    cobert train --rows prepared/demo/rows --fold 1 --output_dir outputs/context --freeze_encoder \\
        --encoder outputs/pointwise/fold-{fold} --learning_rate 1e-4
    cobert train --rows prepared/demo/rows --fold 1 --output_dir outputs/whole \\
        --checkpoint outputs/context/fold-{fold} --num_train_epochs 1 --encoder_chunk_size 8

The paper's BERT-Base is `--variant neither --group_size 64 --group_overlap 0`: batches of 64 pairs, each scored alone
by its document's best passage.

Any TREC run can teach beside the judgments, or in their place: the scores of a cross-encoder, of a bi-encoder, or of
several runs mixed. Rows without judgments are trained on by a teacher alone, and nothing is selected or measured:

    cobert train --rows prepared/demo/rows --fold 1 --output_dir outputs/taught \\
        --encoder cross-encoder/ms-marco-MiniLM-L-6-v2 --teacher runs/teacher.trec --teacher_loss margin_mse
    cobert train --rows prepared/mine/rows --output_dir outputs/taught-alone \\
        --encoder cross-encoder/ms-marco-MiniLM-L-6-v2 --teacher runs/teacher.trec --teacher_weight 1 \\
        --eval_strategy no --load_best_model_at_end False

The same command again goes on where a training was interrupted, at fold and step. SIGTERM saves first. All options of
Hugging Face's TrainingArguments work (`--bf16`, `--gradient_accumulation_steps`, `--report_to`, `--push_to_hub`, ...).
"""

from ..data.groups import GroupOptions
from ..training.arguments import CoBertTrainingArguments, DataOptions, ModelOptions, TeacherOptions
from ..training.checks import check_start
from ..training.train import results_table, train

ARGUMENTS = (ModelOptions, DataOptions, GroupOptions, CoBertTrainingArguments, TeacherOptions)


def main(
    model: ModelOptions,
    data: DataOptions,
    groups: GroupOptions,
    training_args: CoBertTrainingArguments,
    teacher: TeacherOptions | None = None,
) -> dict:
    """Trains, selects and tests; returns the results and prints them on the main process."""
    check_start(model, training_args, data.fold)
    results = train(model, data, groups, training_args, teacher)
    if training_args.process_index == 0:
        print(results_table(results))
    return results
