"""Train, select, test: one split of the queries, or every fold in turn, to be resumed at fold and step."""

import copy
import json
import logging
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path

from accelerate import PartialState
from transformers import set_seed
from transformers.trainer import SCHEDULER_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ..collections.folds import Fold
from ..collections.trec import read_run, write_run
from ..data.collator import GroupCollator
from ..data.groups import GroupOptions, GroupView
from ..data.rows import RowsFolder, load_rows
from ..evaluation.measures import DEFAULT_MEASURES, measure_run
from ..passages_cobert import PairTokenizer
from ..ranking.inputs import RowsInputs, check_texts
from ..ranking.seen import COMPLETE, add_seen, refuse_seen, seen_queries
from ..reranking_cobert import content_selector
from ..steps.files import full_disk_named, write_json
from ..steps.folders import (
    FILES,
    SETTINGS,
    check_folder,
    check_writable,
    claim_folder,
    claims_end,
    write_settings,
)
from .arguments import CoBertTrainingArguments, DataOptions, ModelOptions, TeacherOptions
from .card import write_card
from .checks import (
    check_comparisons,
    check_named,
    check_results,
    check_resumable,
    check_same_queries,
    check_space,
    check_top,
    named_checkpoint,
    state_named,
)
from .decisive import decisive_options
from .frozen import ContentVectors, FrozenVectors, NoVectors
from .gradient_cache import encoder_in_chunks
from .initial import check_sources, in_fold, initial_model, source_name, text_files_sha256, variant_of
from .interruption import ANEW, Interruption, best_checkpoint, last_complete_checkpoint, remove_older
from .plan import plan_trainings
from .teacher import read_teacher, teacher_path, teacher_settings
from .trainer import GroupTrainer

logger = logging.getLogger(__name__)

RUN, VALIDATION_RUN, RESULTS = "test.trec", "validation.trec", "results.json"
# What a finished training must have. Checkpoints may be removed then, and a card is there to be edited.
KEPT = ("*.json", "*.py", "*.safetensors", "*.trec")
CURE = (
    "Test it on others; with --fold all, start every fold from its own model ('{fold}' in --encoder or --checkpoint "
    "stands for the fold's number)."
)


def train(
    model_options: ModelOptions,
    data_options: DataOptions,
    group_options: GroupOptions,
    training_args: CoBertTrainingArguments,
    teacher_options: TeacherOptions | None = None,
) -> dict:
    """
    Does what `train_cobert.py` was told.

    Returns:
        `dict`: the results of the split or fold; with `--fold all`, those of `folds`, `mean` (over folds) and
        `all_queries` (the merged run), each with the measures of `test` and `first_stage`.
    """
    rows = load_rows(data_options.rows)
    train_rows = None if data_options.train_rows is None else load_rows(data_options.train_rows)
    output, teacher = Path(training_args.output_dir), teacher_options or TeacherOptions()
    jobs = [
        SplitTraining(
            model_options, data_options, group_options, training_args, rows, split, number, folder, train_rows, teacher
        )
        for number, split, folder in plan_trainings(rows, data_options, output)
    ]
    if data_options.fold == "all" and training_args.process_index == 0:
        check_top(output, len(jobs), [teacher_path(teacher, job.number) for job in jobs if teacher.teacher])
    for job in jobs:  # all doors before the first long way
        job.check()
    results = [job.run() for job in jobs]
    if data_options.fold != "all":
        return results[0]
    summary = None
    if training_args.process_index == 0:
        summary = summarize([job.folder for job in jobs], results, rows, output)
    PartialState().wait_for_everyone()
    return summary if summary is not None else json.loads((output / RESULTS).read_text(encoding="utf-8"))


@dataclass
class SplitTraining:
    """
    One training on some queries, its selection on others and its test on yet others.

    Args:
        model_options, data_options, group_options, args: what `train_cobert.py` was told.
        rows ([`RowsFolder`]): the rows.
        split ([`Fold`]): the queries.
        number (`int`, *optional*): of the fold.
        folder (`Path`): where the model, its checkpoints, `validation.trec`, `test.trec` and `results.json` go.
        train_rows ([`RowsFolder`], *optional*): other rows to train on.
        teacher_options ([`TeacherOptions`], *optional*): whose scores to learn from.
    """

    model_options: ModelOptions
    data_options: DataOptions
    group_options: GroupOptions
    args: CoBertTrainingArguments
    rows: RowsFolder
    split: Fold
    number: int | None
    folder: Path
    train_rows: RowsFolder | None = None
    teacher_options: TeacherOptions = field(default_factory=TeacherOptions)

    def __post_init__(self):
        self.top = Path(self.args.output_dir)
        self.args = copy.copy(self.args)
        self.args.output_dir = str(self.folder)
        if self.number is not None and self.args.hub_model_id is not None:
            self.args.hub_model_id = f"{self.args.hub_model_id}-fold-{self.number}"

    @property
    def main_process(self) -> bool:
        return self.args.process_index == 0

    @cached_property
    def settings(self) -> dict:
        """All that the result depends on, without where anything lies."""
        options = asdict(self.model_options)
        for name in ("encoder", "calibrator", "scorer", "checkpoint"):
            options[name] = source_name(in_fold(options[name], self.number))
        other: dict = {} if self.train_rows is None else {"train_rows": self.train_rows.fingerprint}
        if self.teacher_options.teacher is not None:
            other["teacher"] = teacher_settings(self.teacher_options, self.number)
        batch = self.args.train_batch_size * self.args.gradient_accumulation_steps
        return {
            "step": "training",
            "collection": self.rows.name,
            "rows": self.rows.fingerprint,
            **other,
            "fold": self.number,
            **asdict(self.split),
            "seen": add_seen(self._seen_before(), self.rows.name, self.split.train + self.split.validation),
            "model": options,
            "groups": asdict(self.group_options),
            "feed_order": self.data_options.feed_order,
            "random_edges": self.data_options.random_edges,
            "freeze_encoder": self.args.freeze_encoder,
            "groups_a_step": batch * self.args.world_size,
            "training": decisive_options(self.args),
            FILES: self._files_sha256(),
        }

    def _files_sha256(self) -> dict[str, dict[str, str]]:
        """Files that may change between a kill and the next start, and are named by nothing else here."""
        made = {"rows": {**self.rows.files_sha256, **self.rows.qrels_sha256}}
        if self.train_rows is not None:
            made["train_rows"] = self.train_rows.files_sha256
        for name in ("encoder", "calibrator", "scorer", "checkpoint"):
            path = in_fold(getattr(self.model_options, name), self.number)
            if path is not None and os.path.isdir(path):
                made[name] = text_files_sha256(path)
        return made

    @cached_property
    def teacher(self) -> dict[str, dict[str, float]] | None:
        """The teacher's scores of the training queries; of validation and test it says nothing here."""
        if self.teacher_options.teacher is None:
            return None
        rows = (self.train_rows or self.rows).dataset(self.split.train).select_columns(["query_id", "doc_ids"])
        return read_teacher(self.teacher_options, {row["query_id"]: set(row["doc_ids"]) for row in rows}, self.number)

    def check(self) -> None:
        """What can be known to fail fails here, before any training."""
        self._check_judgments()
        if self.rows.settings.get("chosen_by") == "judgments":
            raise ValueError(
                f"{self.rows.folder}: its passages were chosen by the judgments, a test on them would mean nothing: "
                "give it as --train_rows, and the folder beside it as --rows"
            )
        if self.train_rows is not None:
            if self.args.freeze_encoder:
                raise ValueError("--train_rows is for training the encoder: leave it out with --freeze_encoder")
            check_same_queries(self.rows, self.train_rows, self.split.train)
        check_sources(self.model_options, self.number)
        self._check_vectors()
        _ = self.teacher  # raises where its run does not fit
        refuse_seen(self.settings["seen"], self.rows.name, self.split.test, str(self.folder), CURE)
        named = self._named_checkpoint()
        if named is not None:
            check_named(named, self.settings)
        if self.main_process:
            check_writable(self.folder, "--output_dir")
            self._done()

    def _seen_before(self) -> dict[str, list[str]]:
        """What the checkpoints that the model starts from have seen."""
        options, seen = self.model_options, dict[str, list[str]]()
        for source in (options.checkpoint or options.encoder, options.calibrator, options.scorer):
            for collection, query_ids in seen_queries(in_fold(source, self.number)).items():
                seen = add_seen(seen, collection, query_ids)
        return seen

    def _named_checkpoint(self) -> str | None:
        """What `--resume_from_checkpoint` names; not one of this training that was gone on from, and then removed."""
        named = named_checkpoint(self.args)
        if named is None or Path(named).is_dir() or Path(named).absolute().parent != self.folder.absolute():
            return named
        later = any(self.folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*/{COMPLETE}"))
        return None if later or check_folder(self.folder, self.settings) is not None else named

    def _check_judgments(self) -> None:
        self.rows.check_judgments(self.rows.qrels)
        if not (self.train_rows or self.rows).judged and self.teacher_options.weight < 1:
            raise ValueError(
                f"{(self.train_rows or self.rows).folder}: rows without judgments: give --teacher and "
                "--teacher_weight 1, and a teacher's scores are learnt from alone"
            )
        if self.args.eval_strategy != "no" and not any(map(self.rows.qrels.get, self.split.validation)):
            there = "none of the validation queries is judged" if self.split.validation else "no validation queries"
            raise ValueError(
                f"there is nothing to select by, {there}: give --eval_strategy no and --load_best_model_at_end "
                "False, or rows with a split 'validation' and its judgments"
            )

    def _check_vectors(self) -> None:
        """Vectors have a folder of their own: what lies among the files of a step is nobody's."""
        folder = self.args.vectors_dir
        if folder is not None and (Path(folder, SETTINGS).exists() or Path(folder).resolve() == self.folder.resolve()):
            raise ValueError(f"--vectors_dir {folder}: is the folder of another step, or of this one: give a new one")

    def _done(self) -> dict | None:
        """The results that are there, if any."""
        done = check_folder(self.folder, self.settings)
        if done is not None:
            check_results(self.folder / SETTINGS, done["counts"])
        return None if done is None else done["counts"]

    @claims_end()
    def run(self) -> dict:
        """Trains and tests, goes on where it was interrupted, or returns the results that are there."""
        PartialState().wait_for_everyone()
        done = self._done()
        PartialState().wait_for_everyone()  # nobody claims before all have looked
        if done is not None:
            logger.warning("%s: done before", self.folder)
            return done
        set_seed(self.args.seed)
        model = initial_model(self.model_options, self.rows.settings, self.group_options, self.number)
        self._check_model(model)
        if self.main_process:  # only now: what is refused leaves no folder that another command could not use
            claim_folder(self.folder, self.settings)
        PartialState().wait_for_everyone()
        trainer = self._trainer(model)
        interruption = Interruption()
        trainer.add_callback(interruption)
        chunks = encoder_in_chunks(model, self.args.encoder_chunk_size)
        checkpoint = self._checkpoint()
        check_resumable(checkpoint)
        with full_disk_named(self.folder), interruption.listening(), chunks:
            with state_named(checkpoint):
                trainer.train(resume_from_checkpoint=checkpoint)
            trainer.save_model(_internal_call=True)
        results = self._test(trainer, model)
        if self.main_process:
            write_json(self.folder / RESULTS, results)
            self._write_card(model, self.folder)
        if self.args.push_to_hub:
            trainer.push_to_hub()
        PartialState().wait_for_everyone()
        if self.main_process:
            files = (path for kind in KEPT for path in sorted(self.folder.glob(kind)) if path.name != SETTINGS)
            write_settings(self.folder, self.settings, results, files)  # last: it is the mark that all is done
        return results

    def _check_model(self, model) -> None:
        """What can be known to fail once the model is there, and before anything is written."""
        options = self.group_options.of_model(model.config)
        if model.num_prototypes and not (options.num_prototypes and options.prototypes != "none"):
            raise ValueError("without prototypes no calibrator can be trained: leave out --prototypes none")
        rows = (self.train_rows or self.rows).dataset(self.split.train)
        longest = max(map(len, rows.select_columns(["doc_ids"])["doc_ids"]), default=0)
        check_comparisons(model.config.loss, options.group_size, longest, self.teacher is not None)
        if self.args.vectors_dir is not None and not (self.args.freeze_encoder or model.config.content_size):
            raise ValueError(
                "--vectors_dir is where --freeze_encoder and --content keep vectors: leave it out, or give one of them"
            )
        if (model.config.content_size or model.config.reads_words) and self.train_rows is not None:
            raise ValueError(
                "--train_rows has other passages than --rows, whose content or words are read: leave out one of them"
            )
        if not (model.config.reads_pairs or self.args.freeze_encoder):
            raise ValueError(
                "--starting_weights begins with 0 and there is neither calibrator nor scorer, so nothing reads what "
                "the encoder makes of a pair, and there is nothing to train in it: give --freeze_encoder, or a weight"
            )
        check_texts(model, self.rows)

    def _trainer(self, model) -> GroupTrainer:
        options = self.group_options.of_model(model.config)
        if self.args.freeze_encoder:
            model.encoder.requires_grad_(False)
        self.vectors, self.content = self._encode(model.to(self.args.device))
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        groups = GroupView(
            (self.train_rows or self.rows).dataset(self.split.train),
            options,
            seed if self.data_options.random_edges else None,
            self.vectors,
            self.teacher,
            model.start is not None,
            self.content,
            model.config.reads_words,
        )
        steps = math.ceil(self.args.num_train_epochs * len(groups) / self.settings["groups_a_step"])
        if self.main_process:
            check_space(self.folder, model, self.args, self.args.max_steps if self.args.max_steps > 0 else steps)
        pairs = PairTokenizer(model.find_tokenizer(), model.config.max_length)
        return GroupTrainer(
            model=model,
            args=self.args,
            data_collator=GroupCollator(pairs, model.num_prototypes, with_query_ids=True),
            train_dataset=groups,
            eval_dataset=self._inputs(self.split.validation) if self.split.validation else None,
            feed_order=self.data_options.feed_order,
            note={"seen": self.settings["seen"], "settings": self.settings},
            card=lambda folder: self._write_card(model, folder),
            teacher=self.teacher_options,
        )

    def _inputs(self, query_ids: tuple[str, ...]) -> RowsInputs:
        qrels = {q: self.rows.qrels[q] for q in query_ids if self.rows.qrels.get(q)}
        return RowsInputs(self.rows, query_ids, qrels, self.group_options, self.vectors, self.content)

    def _encode(self, model) -> tuple[FrozenVectors | NoVectors | None, ContentVectors | None]:
        """What no step changes, encoded once: a frozen encoder's vectors, and what the passages are about."""
        rows = self.rows.dataset({*self.split.train, *self.split.validation, *self.split.test})
        folder = self.args.vectors_dir or self.top / "_vectors"
        vectors: FrozenVectors | NoVectors | None = None
        if self.args.freeze_encoder:
            read = model.config.reads_pairs
            vectors = FrozenVectors(model, rows, folder) if read else NoVectors(rows, model.config.hidden_size)
        content = ContentVectors(content_selector(model), rows, folder) if model.config.content_size else None
        for stored in (vectors, content):
            if stored is not None:
                stored.encode(state=PartialState())
        return vectors, content

    def _checkpoint(self) -> str | None:
        named = self._named_checkpoint()
        found = last_complete_checkpoint(self.folder) if named is None and self.main_process else named
        if found is not None and self.main_process:
            best = best_checkpoint(found)
            if self.args.load_best_model_at_end and best is not None and not Path(best).is_dir():
                raise ValueError(f"{found}: the best one before it, {best}, is not there any more: {ANEW}")
            if named is None:  # a kill may have come before this was done
                remove_older(found, self.args.save_total_limit, best)
        PartialState().wait_for_everyone()  # what was half written is gone now
        if named is not None:
            return named
        found = found if self.main_process else last_complete_checkpoint(self.folder)
        if found is not None and not Path(found, SCHEDULER_NAME).exists():
            logger.warning("%s has no optimizer (--save_only_model): the training starts over", found)
            return None
        return found

    def _test(self, trainer: GroupTrainer, model) -> dict:
        results = {"variant": variant_of(model.config), **_best(trainer)}
        if self.split.validation:  # `cobert mix` tunes weights on it
            self._rank(trainer, self._inputs(self.split.validation), VALIDATION_RUN, results["variant"])
        if not self.split.test:
            return results
        refuse_seen(seen_queries(self.folder), self.rows.name, self.split.test, str(self.folder), CURE)
        inputs = self._inputs(self.split.test)
        run = self._rank(trainer, inputs, RUN, results["variant"])
        return results | _measure(run, inputs.run, self.rows.qrels)

    def _rank(self, trainer: GroupTrainer, inputs: RowsInputs, name: str, variant: str) -> dict[str, dict[str, float]]:
        run, _ = trainer.rank(inputs)  # in float32, as `cobert eval` ranks
        if self.main_process:
            write_run(self.folder / name, run, tag_of(variant))
        return run

    def _write_card(self, model, folder: str | Path) -> None:
        path = self.folder / RESULTS
        results = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        write_card(folder, model.config, self.rows.settings, self.settings, results, self.args.hub_model_id)


def tag_of(variant: str) -> str:
    """The name of a variant in the sixth column of a run."""
    return f"co-bert-{variant.replace(', ', '-').replace(' ', '-')}"


def _measure(run: Mapping, first_stage: Mapping, qrels: Mapping) -> dict:
    if not any(map(qrels.get, run)):
        logger.warning("none of the %d test queries is judged: they are ranked, nothing is measured", len(run))
        return {}
    return {
        "queries": sum(bool(qrels.get(query_id)) for query_id in run),
        "test": measure_run(qrels, run, DEFAULT_MEASURES),
        "first_stage": measure_run(qrels, first_stage, DEFAULT_MEASURES),
    }


def summarize(folders: list[Path], results: list[dict], rows: RowsFolder, output: Path) -> dict:
    """The merged run over all queries (`run.trec`) and the averaged results (`results.json`)."""
    merged: dict[str, dict[str, float]] = {}
    for folder in folders:
        merged |= read_run(folder / RUN)
    write_run(output / "run.trec", merged, tag_of(results[0]["variant"]))
    measured = [r for r in results if "test" in r]
    mean = {
        kind: {name: math.fsum(r[kind][name] for r in measured) / len(measured) for name in measured[0][kind]}
        for kind in ("test", "first_stage")
        if measured
    }
    first = {query_id: rows.run[query_id] for query_id in merged}
    summary = {"folds": results, "mean": mean, "all_queries": _measure(merged, first, rows.qrels)}
    write_json(output / RESULTS, summary)
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
        line(f"fold {number}: {fold.get('queries')}", f"{fold['epoch']:g}", fold.get("test"))
    if folds and results["mean"]:
        line("mean of the folds", "", results["mean"]["test"])
        line(f"all {results['all_queries']['queries']}", "", results["all_queries"]["test"])
        line("all, first stage", "", results["all_queries"]["first_stage"])
    elif not folds:
        line(f"validation, {results['variant']}", f"{results['epoch']:g}", results.get("validation"))
        line(f"test, {results['variant']}", f"{results['epoch']:g}", results.get("test"))
        line("test, first stage", "", results.get("first_stage"))
    return "\n".join(lines) if len(lines) > 2 else "nothing was measured: no query that was ranked has judgments"


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
