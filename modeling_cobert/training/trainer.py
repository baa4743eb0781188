"""What Hugging Face's Trainer lacks for groups: feeding, measures of whole queries, checkpoints that are whole."""

import logging
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from accelerate.utils import gather_object
from transformers import PrinterCallback, Trainer, TrainerCallback
from transformers.trainer import TRAINING_ARGS_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, speed_metrics

from ..batches_cobert import one_thread_a_batch
from ..evaluation.measures import DEFAULT_MEASURES, measure_run, parse_measures
from ..loss_cobert import IGNORE, distillation_loss, ranking_loss
from ..ranking.inputs import RowsInputs
from ..ranking.ranker import Ranker
from ..ranking.seen import COMPLETE
from ..ranking.ties import strict_scores
from ..steps.files import files_beside
from ..steps.progress import A_MINUTE
from .arguments import TeacherOptions
from .interruption import mark_complete, remove_older
from .sampler import GroupSampler

logger = logging.getLogger(__name__)
# How far a training is, apart from its figures: whoever runs many of them may want this alone.
progress_logger = logger.getChild("progress")


class GroupTrainer(Trainer):
    """
    A Trainer for [`CoBertForGroupwiseRanking`].

    - Groups are fed as `feed_order` says, the same after a resumption and on any number of processes.
    - `evaluate` ranks whole queries by the one [`Ranker`]; measures are ir_measures'.
    - A loss that is not finite stops the training and names the queries.
    - A checkpoint is complete or recognised as incomplete; older ones go only when the new one is whole.

    Args:
        feed_order (`str`, *optional*, defaults to `"shuffled"`): see [`GroupSampler`].
        note (`dict`, *optional*): goes into every checkpoint, such as the queries that the model has seen.
        card (`Callable`, *optional*): writes the model card into a folder.
        teacher ([`TeacherOptions`], *optional*): how the losses of judgments and of a teacher are mixed, where groups
            have `teacher_scores`.
        kwargs: as for `Trainer`. `train_dataset` is a [`GroupView`], `eval_dataset` a [`RowsInputs`].
    """

    eval_dataset: RowsInputs

    def __init__(
        self,
        *args,
        feed_order: str = "shuffled",
        note: dict | None = None,
        card=None,
        teacher: TeacherOptions | None = None,
        **kwargs,
    ):
        training_args = kwargs["args"]
        measures = list(DEFAULT_MEASURES)
        chosen = (training_args.metric_for_best_model or "loss").removeprefix("eval_")
        if chosen != "loss":
            measures.append(chosen)
            training_args.metric_for_best_model = str(parse_measures([chosen])[0])
        self.measures = [str(measure) for measure in parse_measures(measures)]
        self.feed_order, self.note, self.card = feed_order, note or {}, card
        self.teacher = teacher or TeacherOptions()
        super().__init__(*args, **kwargs)
        if training_args.disable_tqdm:
            self.remove_callback(PrinterCallback)
            self.add_callback(_LineAMinute)

    def rank(self, inputs: RowsInputs) -> tuple[dict[str, dict[str, float]], float]:
        """
        Ranks the queries of `inputs`, shared among the processes.

        Returns:
            Query id to document id, best first, to score; and the mean loss of their groups.
        """
        model = self.accelerator.unwrap_model(self.model)
        training = model.training
        ranker = Ranker.wrap(model)
        mine = list(inputs.query_ids)[self.args.process_index :: self.args.world_size]
        with one_thread_a_batch():
            found = {query_id: _rank(ranker, inputs, query_id) for query_id in mine}
        if self.args.world_size > 1:
            found = {query_id: result for part in gather_object([found]) for query_id, result in part.items()}
        model.train(training)
        losses = [loss for query_id in inputs.query_ids for loss in found[query_id][1]]
        return {query_id: found[query_id][0] for query_id in inputs.query_ids}, math.fsum(losses) / len(losses)

    def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix: str = "eval"):
        inputs, start = self.eval_dataset if eval_dataset is None else eval_dataset, time.time()
        with self.compute_loss_context_manager():  # autocast, where the training has it
            run, loss = self.rank(inputs)
        found = {"loss": loss, **measure_run(inputs.qrels or {}, run, self.measures)}
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in found.items()}
        metrics |= speed_metrics(metric_key_prefix, start, num_samples=len(run))
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        query_ids, teacher_scores = inputs.pop("query_ids", None), inputs.pop("teacher_scores", None)
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        if teacher_scores is not None:
            teacher, mask = self.teacher, inputs["document_mask"][:, -teacher_scores.shape[1] :]
            taught = distillation_loss(teacher.loss, outputs.logits, teacher_scores, mask, teacher.temperature)
            loss = (1 - teacher.weight) * loss + teacher.weight * taught
        if not torch.isfinite(loss).all():
            raise FloatingPointError(
                f"the loss is {loss.mean().item()} at step {self.state.global_step}, query "
                f"{', '.join(map(repr, query_ids or ['?']))}: lower the learning rate, or use bf16 or "
                "fp32 in place of fp16"
            )
        return (loss, outputs) if return_outputs else loss

    def create_optimizer(self, *args):
        """Parts that have learning rates of their own get them; the schedule scales all alike."""
        optimizer = super().create_optimizer(*args)
        rates = {"context": self.args.context_learning_rate, "start": self.args.start_learning_rate}
        parts = {parameter: part_of(name) for name, parameter in self.model.named_parameters()}
        groups = []
        for group in optimizer.param_groups:
            by_part: dict[str, list] = {}
            for parameter in group["params"]:
                by_part.setdefault(parts[parameter], []).append(parameter)
            for part, parameters in by_part.items():
                rate = rates.get(part)
                groups.append({**group, "params": parameters, "lr": group["lr"] if rate is None else rate})
        if any(rate is not None for rate in rates.values()):
            optimizer.param_groups = groups
        return optimizer

    def _get_train_sampler(self, train_dataset=None):
        if self.args.train_sampling_strategy != "random":
            return super()._get_train_sampler(train_dataset)
        groups = self.train_dataset if train_dataset is None else train_dataset
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        sampler = GroupSampler(groups, self.feed_order, seed)
        self.callback_handler.remove_callback(_SetEpoch)
        self.add_callback(_SetEpoch(sampler))
        return sampler

    def _save(self, output_dir=None, state_dict=None):
        folder = Path(output_dir or self.args.output_dir)
        if not self.args.should_save:
            super()._save(str(folder), state_dict)  # its part in gathering what several processes hold; writes nothing
            return
        with files_beside(folder) as beside:
            super()._save(str(beside), state_dict)
            # A pickle, with the paths and perhaps the token of this machine in it; settings.json says what matters.
            (beside / TRAINING_ARGS_NAME).unlink(missing_ok=True)

    def _save_checkpoint(self, model, trial):
        folder = self._get_output_dir(trial)
        checkpoint = os.path.join(folder, f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}")
        if self.args.should_save:  # one of an earlier training, that could not be resumed, is not whole any more
            Path(checkpoint, COMPLETE).unlink(missing_ok=True)
        with self._all_kept():
            super()._save_checkpoint(model, trial)
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            mark_complete(checkpoint, {"step": self.state.global_step, **self.note})
            remove_older(checkpoint, self.args.save_total_limit, self.state.best_model_checkpoint)

    def _finalize_training(self, *args):
        # With a limit of 1 the last checkpoint would go here, and a process killed before the test would train again.
        with self._all_kept():
            return super()._finalize_training(*args)

    @contextmanager
    def _all_kept(self) -> Iterator[None]:
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            yield
        finally:
            self.args.save_total_limit = limit

    def create_model_card(self, *args, **kwargs):
        if self.card is None:
            super().create_model_card(*args, **kwargs)
        elif self.is_world_process_zero():
            self.card(self.args.output_dir)


def part_of(parameter: str) -> str:
    """Which learning rate a parameter of the model has: that of the encoder, of the context, or of the start."""
    part = parameter.removeprefix("module.").split(".", 1)[0]  # "module." is there in several processes
    if part in ("start", "feedback", "neighbours"):
        return "start"
    return "context" if part in ("calibrator", "scorer", "classifier", "content") else "encoder"


class _SetEpoch(TrainerCallback):
    """Tells the sampler the epoch; a data loader that skips its first batches, after a resumption, does not."""

    def __init__(self, sampler: GroupSampler):
        self.sampler = sampler

    def on_epoch_begin(self, args, state, control, **kwargs):
        self.sampler.set_epoch(int(state.epoch or 0))


class _LineAMinute(TrainerCallback):
    """Progress for pipes and files, where a bar would be a flood."""

    def __init__(self):
        self.last = time.monotonic()

    def on_log(self, args, state, control, logs=None, **kwargs):
        if state.is_world_process_zero:
            logger.info("%s", logs)

    def on_step_end(self, args, state, control, **kwargs):
        if state.is_world_process_zero and time.monotonic() - self.last >= A_MINUTE:
            self.last = time.monotonic()
            progress_logger.info("step %d of %d, epoch %.2f", state.global_step, state.max_steps, state.epoch or 0)


def _rank(ranker: Ranker, inputs: RowsInputs, query_id: str) -> tuple[dict[str, float], list[float]]:
    """One query's strict scores, and the loss of each of its groups."""
    encoded = inputs.encode(ranker, query_id)
    calibrated, _ = ranker.calibrate(encoded)
    logits = ranker.score_groups(encoded, calibrated)
    grades = [IGNORE if grade is None else grade for grade in inputs.rows.row(query_id)["grades"]]
    losses = [
        ranking_loss(ranker.model.config.loss, torch.tensor([group]), torch.tensor([grades[start:end]])).item()
        for group, (start, end) in zip(logits, encoded.groups, strict=True)
    ]
    return strict_scores(encoded.doc_ids, ranker.merge(encoded.groups, logits)), losses
