"""Train, select, test: one split of the queries, or every fold in turn, to be resumed at fold and step."""

import copy
import json
import logging
import math
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

from accelerate import PartialState
from transformers import set_seed
from transformers.trainer import SCHEDULER_NAME

from ..collections.folds import Fold
from ..collections.trec import read_run, write_run
from ..data.collator import GroupCollator
from ..data.groups import GroupsFolder, load_groups
from ..evaluation.measures import DEFAULT_MEASURES
from ..ranking.merging import measure_run
from ..steps.files import atomic_open
from ..steps.folders import claim_folder, json_sha256, read_settings, write_settings
from .arguments import CoBertTrainingArguments, DataArguments, ModelArguments
from .card import write_card
from .checks import add_seen, check_space, check_writable, refuse_seen, seen_queries
from .frozen import FrozenVectors, VectorCollator
from .gradient_cache import encoder_in_chunks
from .initial import in_fold, initial_model, source_name, variant_of
from .interruption import Interruption, last_complete_checkpoint
from .trainer import GroupTrainer

logger = logging.getLogger(__name__)

RUN, RESULTS = "test.trec", "results.json"
# What of TrainingArguments the weights depend on. A resumption may change the others, such as where to log.
DECISIVE = (
    "seed",
    "data_seed",
    "num_train_epochs",
    "max_steps",
    "learning_rate",
    "lr_scheduler_type",
    "warmup_steps",
    "optim",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "weight_decay",
    "max_grad_norm",
    "metric_for_best_model",
    "load_best_model_at_end",
    "bf16",
    "fp16",
)


def train(model_args: ModelArguments, data_args: DataArguments, training_args: CoBertTrainingArguments) -> dict:
    """
    Does what `train_cobert.py` was told.

    Returns:
        `dict`: the results of the split or fold; with `--folds all`, those of `folds`, `mean` (over folds) and
        `all_queries` (the merged run), each with the measures of `test` and `first_stage`.
    """
    groups = load_groups(data_args.groups)
    train_groups = None if data_args.train_groups is None else load_groups(data_args.train_groups)
    output = Path(training_args.output_dir)
    jobs = [
        SplitTraining(model_args, data_args, training_args, groups, split, number, folder, train_groups)
        for number, split, folder in plan_trainings(groups, data_args, output)
    ]
    for job in jobs:  # all doors before the first long way
        job.check()
    results = [job.run() for job in jobs]
    if data_args.folds is None:
        return results[0]
    summary = None
    if training_args.process_index == 0:
        summary = summarize([job.folder for job in jobs], results, groups, output)
    PartialState().wait_for_everyone()
    return summary if summary is not None else json.loads((output / RESULTS).read_text(encoding="utf-8"))


def plan_trainings(
    groups: GroupsFolder, data_args: DataArguments, output: Path
) -> list[tuple[int | None, Fold, Path]]:
    """The number (if it is one of several), queries and folder of every training."""
    if data_args.fold is None and data_args.folds is None:
        if "train" not in groups.splits:
            raise ValueError(
                f"{groups.folder}: no split 'train' (but {', '.join(groups.splits)}): give --fold 1 or --folds all"
            )
        split = Fold(*(groups.splits.get(name, ()) for name in ("train", "validation", "test")))
        return [(None, split, output)]
    if not groups.folds:
        raise ValueError(f"{groups.folder}: there are no folds: leave out --fold and --folds")
    count = len(groups.folds)
    if data_args.fold is not None and not 1 <= data_args.fold <= count:
        raise ValueError(f"--fold {data_args.fold}: {groups.folder} has folds 1 to {count}")
    numbers = range(1, count + 1) if data_args.fold is None else [data_args.fold]
    return [(number, groups.folds[number - 1], output / f"fold-{number}") for number in numbers]


@dataclass
class SplitTraining:
    """
    One training on some queries, its selection on others and its test on yet others.

    Args:
        model_args, data_args, args: what `train_cobert.py` was told.
        groups ([`GroupsFolder`]): the groups.
        split ([`Fold`]): the queries.
        number (`int`, *optional*): of the fold.
        folder (`Path`): where the model, its checkpoints, `test.trec` and `results.json` go.
        train_groups ([`GroupsFolder`], *optional*): other groups to train on.
    """

    model_args: ModelArguments
    data_args: DataArguments
    args: CoBertTrainingArguments
    groups: GroupsFolder
    split: Fold
    number: int | None
    folder: Path
    train_groups: GroupsFolder | None = None

    def __post_init__(self):
        self.top = Path(self.args.output_dir)
        self.args = copy.copy(self.args)
        self.args.output_dir = str(self.folder)
        if self.number is not None and self.args.hub_model_id is not None:
            self.args.hub_model_id = f"{self.args.hub_model_id}-fold-{self.number}"

    @property
    def collection(self) -> str:
        return str(self.groups.settings.get("collection", "unnamed"))

    @property
    def main_process(self) -> bool:
        return self.args.process_index == 0

    @cached_property
    def settings(self) -> dict:
        """All that the result depends on, without where anything lies."""
        arguments = asdict(self.model_args)
        for name in ("encoder", "calibrator", "scorer", "checkpoint"):
            arguments[name] = source_name(in_fold(arguments[name], self.number))
        start = in_fold(self.model_args.checkpoint or self.model_args.encoder, self.number)
        other = {} if self.train_groups is None else {"train_groups": _fingerprint(self.train_groups)}
        batch = self.args.train_batch_size * self.args.gradient_accumulation_steps
        return {
            "step": "training",
            "collection": self.collection,
            "groups": _fingerprint(self.groups),
            **other,
            "fold": self.number,
            **asdict(self.split),
            "seen": add_seen(seen_queries(start), self.collection, self.split.train + self.split.validation),
            "model": arguments,
            "feed_order": self.data_args.feed_order,
            "freeze_encoder": self.args.freeze_encoder,
            "groups_a_step": batch * self.args.world_size,
            "training": {name: _plain(getattr(self.args, name)) for name in DECISIVE},
        }

    def check(self) -> None:
        """What can be known to fail fails here, before any training."""
        if not self.split.validation and self.args.eval_strategy != "no":
            raise ValueError(
                "there are no validation queries to select by: give --eval_strategy no and "
                "--load_best_model_at_end False, or groups with a split 'validation'"
            )
        if self.groups.settings.get("windows") == "train":
            raise ValueError(
                f"{self.groups.folder}: its windows were chosen by the judgments, a test on them would mean nothing: "
                "give it as --train_groups, and the folder beside it as --groups"
            )
        if self.train_groups is not None:
            if self.args.freeze_encoder:
                raise ValueError("--train_groups is for training the encoder: leave it out with --freeze_encoder")
            self.train_groups.dataset(self.split.train)  # raises where a query has no groups
        refuse_seen(self.settings["seen"], self.collection, self.split.test, str(self.folder))
        if self.main_process:
            check_writable(self.folder)
            claim_folder(self.folder, self.settings)

    def run(self) -> dict:
        """Trains and tests, goes on where it was interrupted, or returns the results that are there."""
        PartialState().wait_for_everyone()
        done = read_settings(self.folder)["counts"]
        if done is not None:
            logger.warning("%s: done before", self.folder)
            return done
        set_seed(self.args.seed)
        model = initial_model(self.model_args, self.groups.settings, self.number)
        trainer = self._trainer(model)
        interruption = Interruption()
        trainer.add_callback(interruption)
        with interruption.listening(), encoder_in_chunks(model, self.args.encoder_chunk_size):
            trainer.train(resume_from_checkpoint=self._checkpoint())
        trainer.save_model(_internal_call=True)
        results = self._test(trainer, model)
        if self.main_process:
            _write_json(self.folder / RESULTS, results)
            write_card(self.folder, model.config, self.groups.settings, self.settings, results, self.args.hub_model_id)
        if self.args.push_to_hub:
            trainer.push_to_hub()
        PartialState().wait_for_everyone()
        if self.main_process:
            write_settings(self.folder, self.settings, results)  # last: it is the mark that all is done
        return results

    def _trainer(self, model) -> GroupTrainer:
        if model.num_prototypes and not any(self._rows(self.split.train)["prototype_ids"]):
            raise ValueError(f"{self.groups.folder}: groups without prototypes cannot train a calibrator")
        collator = GroupCollator(
            model.find_tokenizer(), model.config.max_length, model.num_prototypes, with_query_ids=True
        )
        rows = [(self.train_groups or self.groups).dataset(self.split.train), self._rows(self.split.validation)]
        if self.args.freeze_encoder:
            model.encoder.requires_grad_(False)
        steps = math.ceil(self.args.num_train_epochs * len(rows[0]) / self.settings["groups_a_step"])
        if self.main_process:
            check_space(self.folder, model, self.args, self.args.max_steps if self.args.max_steps > 0 else steps)
        self.frozen = None
        if self.args.freeze_encoder:
            self.frozen = self._encode(model.to(self.args.device), collator)
            rows = [self.frozen.groups(part) if len(part) else part for part in rows]
            collator = VectorCollator(model.num_prototypes, with_query_ids=True)
        return GroupTrainer(
            model=model,
            args=self.args,
            data_collator=collator,
            train_dataset=rows[0],
            eval_dataset=rows[1] if len(rows[1]) else None,
            qrels=self.groups.qrels,
            feed_order=self.data_args.feed_order,
            note={"seen": self.settings["seen"]},
            card=lambda folder: write_card(
                folder, model.config, self.groups.settings, self.settings, self._results(), self.args.hub_model_id
            ),
        )

    def _rows(self, queries: tuple[str, ...]):
        return self.groups.dataset(queries)

    def _encode(self, model, collator: GroupCollator) -> FrozenVectors:
        queries = {*self.split.train, *self.split.validation, *self.split.test}
        frozen = FrozenVectors(model, collator, self._rows(queries), self.args.vectors_dir or self.top / "_vectors")
        state = PartialState()
        frozen.encode(process=state.process_index, processes=state.num_processes, wait=state.wait_for_everyone)
        return frozen

    def _checkpoint(self) -> str | None:
        given = self.args.resume_from_checkpoint
        if isinstance(given, str) and given.lower() not in ("true", "false"):
            return given
        found = last_complete_checkpoint(self.folder) if self.main_process else None
        PartialState().wait_for_everyone()  # what was half written is gone now
        found = found if self.main_process else last_complete_checkpoint(self.folder)
        if found is not None and not Path(found, SCHEDULER_NAME).exists():
            logger.warning("%s has no optimizer (--save_only_model): the training starts over", found)
            return None
        return found

    def _test(self, trainer: GroupTrainer, model) -> dict:
        results = {"variant": variant_of(model.config), **_best(trainer)}
        if not self.split.test:
            return results
        refuse_seen(seen_queries(self.folder), self.collection, self.split.test, str(self.folder))
        rows = self._rows(self.split.test)
        run = trainer.rank(rows if self.frozen is None else self.frozen.groups(rows))
        first = {query_id: self.groups.run[query_id] for query_id in run}
        if self.main_process:
            write_run(self.folder / RUN, run, f"co-bert-{results['variant'].replace(', ', '-').replace(' ', '-')}")
        return results | {
            "queries": sum(bool(self.groups.qrels.get(query_id)) for query_id in run),
            "test": measure_run(run, self.groups.qrels, DEFAULT_MEASURES),
            "first_stage": measure_run(first, self.groups.qrels, DEFAULT_MEASURES),
        }

    def _results(self) -> dict:
        path = self.folder / RESULTS
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def summarize(folders: list[Path], results: list[dict], groups: GroupsFolder, output: Path) -> dict:
    """The merged run over all queries (`run.trec`) and the averaged results (`results.json`)."""
    merged: dict[str, dict[str, float]] = {}
    for folder in folders:
        merged |= read_run(folder / RUN)
    write_run(output / "run.trec", merged, f"co-bert-{results[0]['variant'].replace(', ', '-').replace(' ', '-')}")
    first = {query_id: groups.run[query_id] for query_id in merged}
    mean = {
        kind: {name: math.fsum(r[kind][name] for r in results) / len(results) for name in results[0][kind]}
        for kind in ("test", "first_stage")
    }
    summary = {
        "folds": results,
        "mean": mean,
        "all_queries": {
            "queries": sum(bool(groups.qrels.get(query_id)) for query_id in merged),
            "test": measure_run(merged, groups.qrels, DEFAULT_MEASURES),
            "first_stage": measure_run(first, groups.qrels, DEFAULT_MEASURES),
        },
    }
    _write_json(output / RESULTS, summary)
    return summary


def results_table(results: dict) -> str:
    """The results of [`train`] as a Markdown table, the first stage beside the re-ranked."""
    names = list(DEFAULT_MEASURES)
    lines = [f"| queries | best epoch | {' | '.join(names)} |", "|---|---|" + "---|" * len(names)]

    def line(label: str, epoch: str, values: dict | None) -> None:
        if values:
            lines.append(f"| {label} | {epoch} | {' | '.join(f'{values[name]:.4f}' for name in names)} |")

    folds = results.get("folds", [])
    for number, fold in enumerate(folds, start=1):
        line(f"fold {number}: {fold['queries']}", f"{fold['epoch']:g}", fold["test"])
    if folds:
        line("mean of the folds", "", results["mean"]["test"])
        line(f"all {results['all_queries']['queries']}", "", results["all_queries"]["test"])
        line("all, first stage", "", results["all_queries"]["first_stage"])
    else:
        line(f"validation, {results['variant']}", f"{results['epoch']:g}", results.get("validation"))
        line(f"test, {results['variant']}", f"{results['epoch']:g}", results.get("test"))
        line("test, first stage", "", results.get("first_stage"))
    return "\n".join(lines)


def _best(trainer: GroupTrainer) -> dict:
    """The step that was selected (else the last), its epoch, and what it reached on the validation queries."""
    state = trainer.state
    step = state.best_global_step if trainer.args.load_best_model_at_end else state.global_step
    step = step or state.global_step
    for entry in state.log_history:
        values = {name: entry[f"eval_{name}"] for name in trainer.measures if f"eval_{name}" in entry}
        if entry.get("step") == step and values:
            return {"step": step, "epoch": entry["epoch"], "validation": values}
    return {"step": step, "epoch": state.epoch}


def _fingerprint(groups: GroupsFolder) -> str:
    # What the groups are, not where they came from and in what portions they were made.
    passing = ("counts", "source", "batch_tokens", "shard_queries")
    return json_sha256({key: value for key, value in groups.settings.items() if key not in passing})


def _plain(value):
    return getattr(value, "value", value)


def _write_json(path: Path, content: dict) -> None:
    with atomic_open(path) as file:
        json.dump(content, file, indent=1)
        file.write("\n")
