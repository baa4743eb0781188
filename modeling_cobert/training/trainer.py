"""What Hugging Face's Trainer lacks for groups: feeding, measures of whole queries, checkpoints that are whole."""

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from transformers import Trainer, TrainerCallback
from transformers.trainer import TRAINING_ARGS_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, rotate_checkpoints

from ..evaluation.measures import DEFAULT_MEASURES, parse_measures
from ..ranking.merging import measure_run, merge_groups
from .interruption import COMPLETE, mark_complete
from .sampler import GroupSampler

logger = logging.getLogger(__name__)


class GroupTrainer(Trainer):
    """
    A Trainer for [`CoBertForGroupwiseRanking`].

    - Groups are fed as `feed_order` says, the same after a resumption and on any number of processes.
    - `evaluate` and `predict` merge the groups of a query first; measures are ir_measures' over whole queries.
    - A loss that is not finite stops the training and names the queries.
    - A checkpoint is complete or recognised as incomplete; older ones go only when the new one is whole.

    Args:
        qrels (`Mapping[str, Mapping[str, int]]`): query id to document id to grade.
        feed_order (`str`, *optional*, defaults to `"shuffled"`): see [`GroupSampler`].
        note (`dict`, *optional*): goes into every checkpoint, such as the queries that the model has seen.
        card (`Callable`, *optional*): writes the model card into a folder.
        kwargs: as for `Trainer`. Data sets are those of [`load_groups`], or [`FrozenGroups`] over them.
    """

    def __init__(
        self,
        *args,
        qrels: Mapping[str, Mapping[str, int]],
        feed_order: str = "shuffled",
        note: dict | None = None,
        card=None,
        **kwargs,
    ):
        training_args = kwargs["args"]
        measures = list(DEFAULT_MEASURES)
        chosen = (training_args.metric_for_best_model or "loss").removeprefix("eval_")
        if chosen != "loss":
            measures.append(chosen)
            training_args.metric_for_best_model = str(parse_measures([chosen])[0])
        self.measures = [str(measure) for measure in parse_measures(measures)]
        self.qrels, self.feed_order, self.note, self.card = qrels, feed_order, note or {}, card
        self.evaluated = None
        super().__init__(
            *args,
            compute_metrics=self._measure,
            preprocess_logits_for_metrics=_only_logits,
            **kwargs,
        )

    def rank(self, rows) -> dict[str, dict[str, float]]:
        """Scores every document of the queries in `rows`: query id to document id to score, best first."""
        logits = self.predict(rows).predictions
        return merge_groups(_texts(rows), logits, self.model.config.overlap_merge)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        query_ids = inputs.pop("query_ids", None)
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        if not torch.isfinite(loss).all():
            raise FloatingPointError(
                f"the loss is {loss.mean().item()} at step {self.state.global_step}, query "
                f"{', '.join(map(repr, query_ids or ['?']))}: lower the learning rate, or use bf16 or "
                "fp32 in place of fp16"
            )
        return (loss, outputs) if return_outputs else loss

    def evaluation_loop(self, dataloader, *args, **kwargs):
        self.evaluated = _texts(dataloader.dataset)
        return super().evaluation_loop(dataloader, *args, **kwargs)

    def _measure(self, prediction) -> dict[str, float]:
        run = merge_groups(self.evaluated, prediction.predictions, self.model.config.overlap_merge)
        return measure_run(run, self.qrels, self.measures)

    def _get_train_sampler(self, train_dataset=None):
        if self.args.train_sampling_strategy != "random":
            return super()._get_train_sampler(train_dataset)
        rows = _texts(self.train_dataset if train_dataset is None else train_dataset)
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        sampler = GroupSampler(list(rows["query_id"]), list(rows["group"]), self.feed_order, seed)
        self.callback_handler.remove_callback(_SetEpoch)
        self.add_callback(_SetEpoch(sampler))
        return sampler

    def _save(self, output_dir=None, state_dict=None):
        super()._save(output_dir, state_dict)
        # A pickle, with the paths and perhaps the token of this machine in it; settings.json says what matters.
        Path(output_dir or self.args.output_dir, TRAINING_ARGS_NAME).unlink(missing_ok=True)

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
            rotate_checkpoints(folder, self.args.save_total_limit, self.state.best_model_checkpoint, use_mtime=True)

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


class _SetEpoch(TrainerCallback):
    """Tells the sampler the epoch; a data loader that skips its first batches, after a resumption, does not."""

    def __init__(self, sampler: GroupSampler):
        self.sampler = sampler

    def on_epoch_begin(self, args, state, control, **kwargs):
        self.sampler.set_epoch(int(state.epoch or 0))


def _texts(rows):
    """The groups themselves, also where vectors stand in for their texts."""
    return rows if hasattr(rows, "select_columns") else rows.rows


def _only_logits(outputs, labels):
    return outputs[0] if isinstance(outputs, tuple) else outputs
