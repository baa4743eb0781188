"""The work behind the rows: what they share is done once, each row has a folder, and whatever is done stays done."""

import copy
import json
import logging
import shutil
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import cache, cached_property
from pathlib import Path

from accelerate import PartialState
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ..baselines.bert_qe import BertQeOptions
from ..baselines.cross_encoder import export_cross_encoder, is_exported
from ..baselines.interpolation import run_bert_qe
from ..baselines.maxp import MaxPOptions, build_maxp
from ..collections.options import CollectionOptions, SplitOptions
from ..collections.trec import read_run, write_run
from ..collections.view import CollectionView, expanded_view, open_view, queries_under_test
from ..data.rows import build_rows, load_rows
from ..data.selection import check_selector, select_passages
from ..evaluation.measures import Evaluation, evaluate_run
from ..passages_cobert import PairTokenizer, load_tokenizer
from ..retrieval.options import RetrievalOptions
from ..retrieval.retrieve import RUN, retrieve_to_folder
from ..steps.folders import SETTINGS, check_begun, claim_folder, claims_end, read_settings, write_settings
from ..steps.hashing import file_sha256, json_sha256
from ..training.arguments import VARIANTS, CoBertTrainingArguments, DataOptions, ModelOptions
from ..training.decisive import decisive_options
from ..training.initial import source_name
from ..training.train import summarize, train
from .arguments import PassageOptions, ReproductionOptions, SystemOptions, check_training
from .rows import Row, TrainedRow, chosen_rows, effectiveness_rows, grouping, study_groupings, study_rows

logger = logging.getLogger(__name__)

STEP = "reproduction-row"
# What lies in a folder that was begun: what rows have in common, and the rows.
FOLDERS = ("shared", "rows")


class Reproduction:
    """
    All rows of the paper's tables over one collection, in one folder.

    `output/shared` holds what rows have in common (first stages, selected passages, rows of queries), and
    `output/rows/<row>` what a row trained, its `run.trec` and its manifest `settings.json`.

    Args:
        options ([`ReproductionOptions`]): what to do.
        systems ([`SystemOptions`]): inputs and sizes.
        collection ([`CollectionOptions`]), splits ([`SplitOptions`]): the collection and its folds.
        passages ([`PassageOptions`]): how passages are selected.
        training_args ([`CoBertTrainingArguments`]): of every training.
    """

    def __init__(
        self,
        options: ReproductionOptions,
        systems: SystemOptions,
        collection: CollectionOptions,
        splits: SplitOptions,
        passages: PassageOptions,
        training_args: CoBertTrainingArguments,
    ):
        check_training(training_args)
        self.options, self.systems, self.training_args = options, systems, training_args
        self.selection = replace(passages, selector=passages.selector or systems.encoder)
        self.output = Path(options.output)
        sizes = (systems.batch_size, systems.num_prototypes, systems.group_overlap)
        values = (systems.study_batches, systems.study_prototypes, systems.study_overlaps)
        try:
            self.paper_groups = grouping("calibrator", sizes[0] - sizes[1], sizes[1], sizes[2])
            self.studied = study_groupings(*sizes, *values)
            self.effectiveness = effectiveness_rows(*sizes)
        except ValueError as error:
            names = "--batch_size, --num_prototypes, --group_overlap and the --study_ options"
            raise ValueError(f"{error}; correct {names}") from None
        unable = {row.name for row in self.effectiveness if row.expanded and systems.expanded_queries is None}
        if unable & set(options.only or ()):
            raise ValueError(f"--only {unable.pop()}: this row needs --expanded_queries")
        rows = [row for row in self.effectiveness if row.name not in unable]
        rows += study_rows(self.studied, self.paper_groups)
        self.rows: dict[str, Row] = {row.name: row for row in rows}
        self.todo = chosen_rows(self.rows, options.only)
        self.view: CollectionView = open_view(collection.open(), splits, options.max_queries)
        tested, judged = set(queries_under_test(self.view)), self.view.qrels()
        self.qrels = {query_id: grades for query_id, grades in judged.items() if query_id in tested and grades}
        if not self.qrels:
            raise ValueError(f"{self.view.name}: not one test query is judged")

    # -- what every row depends on ---------------------------------------------------------------------------------

    @cached_property
    def expanded(self) -> CollectionView:
        path = self.systems.expanded_queries
        return self.view if path is None else expanded_view(self.view, path)

    @cached_property
    def _sources(self) -> dict[str, str | None]:
        """Names of the checkpoints, with fingerprints where they are folders; a large file is read once."""
        names = {name: getattr(self.systems, name) for name in ("encoder", "bert")}
        names |= {name: self.systems.part(name) for name in ("calibrator", "scorer")}
        names["selector"] = self.selection.selector
        known = {path: source_name(path) for path in set(names.values())}
        return {name: known[path] for name, path in names.items()}

    @cached_property
    def _fingerprints(self) -> dict[str, str | None]:
        systems, view = self.systems, self.view
        files = {"run": systems.run, "bm25_run": systems.bm25_run, "expanded_queries": systems.expanded_queries}
        return {name: None if path is None else file_sha256(path) for name, path in files.items()} | {
            "queries": json_sha256(list(view.queries().items())),
            "qrels": json_sha256([[query_id, sorted(grades.items())] for query_id, grades in view.qrels().items()]),
            "folds": json_sha256([asdict(fold) for fold in view.folds() or ()]),
        }

    def settings(self, row: Row) -> dict:
        """The manifest of a row before its work: all that its result depends on, as far as options say it."""
        systems = self.systems
        used = ["queries", "qrels", "folds"]
        used += ["bm25_run" if row.model == "bm25+rm3" else "run"]
        used += ["expanded_queries"] if row.expanded else []
        settings: dict = {
            "step": STEP,
            "format": 1,
            "row": {key: value for key, value in asdict(row).items() if key != "label"},
            "collection": self.view.name,
            "k": self.selection.k,
            "sha256": {name: self._fingerprints[name] for name in used},
        }
        if row.kind == "bert-qe":
            names = ("qe_passage_words", "qe_passage_overlap", "qe_max_length")
            before = {name: json_sha256(self.settings(self.rows[name])) for name in row.needs}
            return settings | {name: getattr(systems, name) for name in names} | {"needs": before}
        if not isinstance(row, TrainedRow):
            return settings
        parts = [row.start, *(["selector"] if row.kind == "groups" else []), *self._parts(row)]
        names = ("passage_words", "passage_overlap", "passage_title", "max_length")
        settings |= {name: getattr(self.selection, name) for name in names}
        settings["models"] = {name: self._sources[name] for name in parts}
        settings["layers"] = {part: getattr(systems, f"{part}_layers") for part in self._parts(row)}
        settings["training"] = decisive_options(self.training_args) | {"groups_a_step": self.groups_a_step}
        return settings

    @property
    def groups_a_step(self) -> int:
        args = self.training_args
        return args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size

    @staticmethod
    def _parts(row: TrainedRow) -> list[str]:
        return [part for part in ("calibrator", "scorer") if VARIANTS[row.variant].get(f"use_{part}", True)]

    def folder(self, name: str) -> Path:
        return self.output / "rows" / name

    def state_of(self, name: str) -> str:
        """`to do`, `begun`, `done`, or what is wrong; nothing is touched."""
        if not (self.folder(name) / SETTINGS).exists():
            return "to do"
        known = read_settings(self.folder(name))
        counts = known.pop("counts")
        if known != _as_json(self.settings(self.rows[name])):
            return "begun with other settings"
        return "begun" if counts is None else "done"

    @claims_end()
    def check(self) -> None:
        """What can be known to fail fails here: folders, rows begun with other settings, runs and queries unfit."""
        self._check_output()
        check_selector(self.selection)
        for name in self.rows:
            if (self.folder(name) / SETTINGS).exists():
                claim_folder(self.folder(name), self.settings(self.rows[name]))
        self._check_runs()
        for row in (self.rows[name] for name in self.todo if name in self.rows):
            if isinstance(row, TrainedRow):
                self._check_lengths(row.start, row.expanded)

    def _check_output(self) -> None:
        """The tables must replace none of another command."""
        for name in FOLDERS:
            if (self.output / name / SETTINGS).exists():
                raise ValueError(
                    f"--output {self.output}: not of this command ({self.output / name} is the folder of a step): "
                    "give another folder"
                )
        check_begun(self.output, FOLDERS, "--output")

    def _check_runs(self) -> None:
        """A run of another collection must not be found after hours."""
        bm25 = {name for name, row in self.rows.items() if row.model == "bm25+rm3"}
        used = {"--run": set(self.todo) - bm25, "--bm25_run": set(self.todo) & bm25}
        for (option, rows), path in zip(used.items(), (self.systems.run, self.systems.bm25_run), strict=True):
            if path is not None and rows and self.qrels.keys().isdisjoint(read_run(path)):
                raise ValueError(
                    f"{option} {path}: has no documents for any of the {len(self.qrels)} judged test queries of "
                    f"{self.view.name}, such as {next(iter(self.qrels))!r}: give a run over this collection"
                )

    @cache  # noqa: B019  one object lives as long as the program
    def _check_lengths(self, start: str, expanded: bool) -> None:
        """A query that leaves no room for a passage must not be found after hours."""
        pairs = PairTokenizer(load_tokenizer(getattr(self.systems, start)), self.selection.max_length)
        for query_id, text in (self.expanded if expanded else self.view).queries().items():
            try:
                pairs.query(text)
            except ValueError as error:
                source = self.systems.expanded_queries if expanded else self.view.name
                raise ValueError(f"{source}: query {query_id!r}: {error}") from None

    # -- what rows share -------------------------------------------------------------------------------------------

    @property
    def shared(self) -> Path:
        return self.output / "shared"

    @cached_property
    def process(self) -> PartialState:
        # The Trainer starts the processes anew when it first asks for its device: that must not happen in between.
        self.training_args.device  # noqa: B018
        return PartialState()

    def first_stage(self, model: str) -> Path:
        """The run of a first stage: the user's file, or ours."""
        given = self.systems.run if model == "dph+kl" else self.systems.bm25_run
        if given is not None:
            return Path(given)
        folder = self.shared / model
        with self.process.main_process_first():
            retrieve_to_folder(self.view, folder, RetrievalOptions(first_stage=model), self.selection.k)
        return folder / RUN

    @cached_property
    def initial_run(self) -> Path:
        return self.first_stage("dph+kl")

    @cached_property
    def selected(self) -> Path:
        select_passages(self.view, self.initial_run, self.shared / "selected", self.selection)
        return self.shared / "selected"

    @cached_property
    def prepared(self) -> Path:
        """The selected passages as rows: what all trainings read, however they group."""
        selected = self.selected
        with self.process.main_process_first():
            build_rows(selected, self.shared / "rows", self.view)
        return self.shared / "rows"

    @cache  # noqa: B019  one object lives as long as the program
    def maxp(self, expanded: bool) -> Path:
        """Rows of many passages, for the systems that are trained on them."""
        folder = self.shared / ("maxp-expanded" if expanded else "maxp")
        names = ("k", "passage_words", "passage_overlap", "passage_title")
        options = MaxPOptions(**{name: getattr(self.selection, name) for name in names})
        build_maxp(self.expanded if expanded else self.view, self.initial_run, folder, options)
        return folder

    # -- rows ------------------------------------------------------------------------------------------------------

    @claims_end()
    def do(self, name: str) -> None:
        """Makes a row's run, unless it is there; interrupted at any fold and step, it goes on."""
        row, folder = self.rows[name], self.folder(name)
        with self.process.main_process_first():
            done = claim_folder(folder, self.settings(row))
        self.process.wait_for_everyone()
        if done is not None:
            logger.info("%s: done before", name)
            return
        logger.info("%s: begins", name)
        if isinstance(row, TrainedRow):
            run = self._train(row, folder)
        else:
            run = self._expand(folder) if row.model is None else self._rank(row.model)
        if self.process.is_main_process:
            run = {query_id: run[query_id] for query_id in self.qrels if query_id in run}
            write_run(folder / RUN, run, name)
            found = evaluate_run(self.qrels, run)
            counts = {"queries": found.queries, "missing": len(found.missing), "measures": found.means}
            write_settings(folder, self.settings(row), counts, [folder / RUN])  # last: it is the mark that all is done
        self.process.wait_for_everyone()

    def _rank(self, model: str) -> Mapping[str, Mapping[str, float]]:
        """A first stage, as deep as what is re-ranked."""
        run = read_run(self.first_stage(model))
        return {query_id: dict(list(scores.items())[: self.selection.k]) for query_id, scores in run.items()}

    def _train(self, row: TrainedRow, folder: Path) -> Mapping[str, Mapping[str, float]]:
        if row.kind == "maxp":
            made = self.maxp(row.expanded)
            data = DataOptions(str(made / "test"), str(made / "train"), feed_order=row.feed_order)
        else:
            data = DataOptions(str(self.prepared), feed_order=row.feed_order)
        systems, args = self.systems, copy.copy(self.training_args)
        top = folder / "training"
        args.output_dir = str(top)
        parts: dict = {part: systems.part(part) for part in self._parts(row)}
        parts |= {f"{part}_layers": getattr(systems, f"{part}_layers") for part in self._parts(row)}
        if row.name == "bert-base":
            parts["encoder_pooling"] = "pooler"  # BERT-QE takes it as a cross-encoder, whose head reads the pooler
        start = getattr(systems, row.start)
        model = ModelOptions(encoder=start, variant=row.variant, max_length=self.selection.max_length, **parts)
        rows, results = load_rows(data.rows), []
        for number in [None] if rows.folds is None else range(1, len(rows.folds) + 1):
            chosen = replace(data, fold=None if number is None else str(number))
            results.append(train(model, chosen, row.groups, args))
            self._clean(top if number is None else top / f"fold-{number}")
        if rows.folds is None:
            return read_run(top / "test.trec")
        if self.process.is_main_process:
            summarize([top / f"fold-{number}" for number in range(1, len(rows.folds) + 1)], results, rows, top)
        self.process.wait_for_everyone()
        return read_run(top / RUN)

    def _clean(self, folder: Path) -> None:
        """A tested fold needs its checkpoints no more: with Adam's moments they are three times the model each."""
        if self.options.keep == "models" and self.process.is_main_process:
            for checkpoint in folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*"):
                shutil.rmtree(checkpoint)

    def _expand(self, folder: Path) -> Mapping[str, Mapping[str, float]]:
        """BERT-QE with the models of the row BERT-Base (MS Marco), each for the queries that it did not see."""
        trained, exported = self.folder("bert-base") / "training", folder / "cross-encoders"
        folds = self.view.folds()
        names = ["model"] if folds is None else [f"fold-{number}" for number in range(1, len(folds) + 1)]
        with self.process.main_process_first():
            for name in names:
                if not is_exported(exported / name):
                    export_cross_encoder(trained if folds is None else trained / name, exported / name)
        model, systems = str(exported / ("model" if folds is None else "fold-{fold}")), self.systems
        options = BertQeOptions(
            model,
            model,
            model,
            k=self.selection.k,
            passage_words=systems.qe_passage_words,
            passage_overlap=systems.qe_passage_overlap,
            max_length=systems.qe_max_length,
            batch_tokens=self.selection.batch_tokens,
        )
        run_bert_qe(self.view, self.initial_run, folder / "bert-qe", options)
        return read_run(folder / "bert-qe" / "result" / RUN)

    # -- results ---------------------------------------------------------------------------------------------------

    def evaluations(self) -> dict[str, Evaluation]:
        """The rows that are done, over the same judged test queries; a row that is not done is not there."""
        runs = self.runs()
        return {name: evaluate_run(self.qrels, run) for name, run in runs.items()}

    def runs(self) -> dict[str, dict[str, dict[str, float]]]:
        """The runs of the rows that are done, in the tables' order."""
        return {name: read_run(self.folder(name) / RUN) for name in self.rows if self.state_of(name) == "done"}


def _as_json(settings: dict) -> dict:
    return json.loads(json.dumps(settings))
