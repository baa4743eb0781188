"""What each part gives, on any collection: from the first stage over mixtures to Co-BERT, twins beside each other."""

import json
import logging
import math
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ..baselines.mixture import MixtureOptions, mix_sources
from ..checkpoint_cobert import load_config
from ..collections.collection import Collection
from ..collections.judgments import check_judgments
from ..collections.options import SplitOptions
from ..collections.splits import plan_splits
from ..collections.trec import read_run
from ..configuration_cobert import CoBertConfig
from ..data.groups import GroupOptions
from ..data.preparation import prepare
from ..data.rows import RowsFolder
from ..data.selection import SelectionOptions
from ..evaluation.measures import DEFAULT_MEASURES, Evaluation, evaluate_run, parse_measures
from ..evaluation.significance import Comparison, compare_runs
from ..evaluation.tables import Table, changes_table, results_table
from ..loss_cobert import LOSSES
from ..retrieval.options import MODELS, RetrievalOptions
from ..selection_cobert import BiEncoderSelector, check_encoder
from ..steps.files import write_json
from ..steps.folders import check_begun
from ..steps.limits import check_numbers
from ..training.arguments import VARIANTS, CoBertTrainingArguments, DataOptions, ModelOptions
from ..training.initial import check_sources
from ..training.train import RESULTS, train

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class System:
    """
    A trained row of the table.

    Args:
        name (`str`): its folder, and in `--only`.
        label (`str`): in the table.
        variant (`str`): as for `cobert train`.
        starts (`bool`): whether it starts from what is known.
        words (`bool`): whether it learns from the words of the best documents.
        near (`str`, *optional*): what neighbours that draw each other are alike in: `content`, `words` or `both`. A
            model that is told content sees it in calibrator and scorer too.
        voters (`str`, *optional*): which of them draw: `all` (the default), or the `promising` ones.
    """

    name: str
    label: str
    variant: str
    starts: bool = False
    words: bool = False
    near: str | None = None
    voters: str | None = None


CHOICE = "nDCG@20"
FIRST_STAGE, BI_ENCODER, MIXTURE = "First stage", "Bi-encoder", "First stage + bi-encoder, tuned"
TWIN = System("start", "Start: what is known, weights learned", "neither", starts=True)
POINTWISE = System("pointwise", "Pointwise (BERT-Base)", "neither")
SYSTEMS = (
    POINTWISE,
    System("calibrator", "Co-BERT, calibrator only", "calibrator"),
    System("scorer", "Co-BERT, scorer only", "scorer"),
    System("cobert", "Co-BERT, as in the paper", "full"),
    TWIN,
    System("start-cobert", "Co-BERT + start", "full", starts=True),
    System("start-content-cobert", "Co-BERT + start + content", "full", starts=True, near="content"),
    System("start-content", "Start + neighbours by content", "neither", starts=True, near="content"),
    System("start-words", "Start + feedback by words", "neither", starts=True, words=True),
    System("start-neighbours", "Start + neighbours by words", "neither", starts=True, near="words"),
    System(
        "start-promising", "Start + promising neighbours by words", "neither", True, near="words", voters="promising"
    ),
    System("start-words-neighbours", "Start + feedback and neighbours by words", "neither", True, True, "words"),
    System(
        "start-words-content", "Start + feedback by words + neighbours by content", "neither", True, True, "content"
    ),
    System("start-words-content-cobert", "Co-BERT + start + words + content", "full", True, True, "content"),
    System("start-words-both", "Start + words + promising neighbours", "neither", True, True, "both", "promising"),
    System("start-words-both-cobert", "Co-BERT + all of these", "full", True, True, "both", "promising"),
)

# What lies in a folder of gains that was begun.
FOLDERS = ("prepared", "vectors", "mixture", *(system.name for system in SYSTEMS))


@dataclass(frozen=True)
class GainsOptions:
    """What is compared, and at what size. The defaults suit a small collection on a CPU."""

    output: str = field(metadata={"help": "A new folder, or one that was begun: what is done is not done again."})
    encoder: str = field(metadata={"help": "Hub id or folder of a BERT, best a cross-encoder, for all trained rows."})
    bi_encoder: str = field(
        metadata={"help": "Hub id or folder of the bi-encoder that selects passages and says what they are about."}
    )
    only: list[str] | None = field(
        default=None,
        metadata={
            "help": "Train only these rows, and the start that they are compared with; there are "
            f"{', '.join(system.name for system in SYSTEMS)}."
        },
    )
    first_stage: str = field(default="bm25", metadata={"help": "The first stage.", "choices": list(MODELS)})
    k: int = field(
        default=100,
        metadata={
            "help": "How many documents are re-ranked, all in one group. Context gains by depth, but where pairs "
            "are read each costs time."
        },
    )
    passage_words: int = field(default=40, metadata={"help": "Words of a passage, behind its title."})
    passage_overlap: int = field(default=20, metadata={"help": "Words that neighbouring passages share."})
    max_length: int = field(default=192, metadata={"help": "The most tokens of a query-passage pair."})
    starting_weights: list[float] | None = field(
        default=None,
        metadata={
            "help": "Of own relevance, selector and first stage. Default: 1 1 0.5 for a cross-encoder, 0 1 0.5 for an "
            "encoder that has no head for relevance yet."
        },
    )
    feedback_weight: float = field(default=0.5, metadata={"help": "Where words are: the feedback's, at the start."})
    neighbour_weight: float = field(default=0.2, metadata={"help": "Where neighbours are: theirs, at the start."})
    loss: str = field(default="approx_ndcg", metadata={"help": "Of all trained rows.", "choices": list(LOSSES)})
    train_encoder: bool = field(
        default=False,
        metadata={"help": "Train end to end, as the paper does; by default the encoder is frozen."},
    )
    learning_rate: float = field(default=1e-4, metadata={"help": "Of encoder (if trained) and its relevance head."})
    context_learning_rate: float = field(default=5e-5, metadata={"help": "Of calibrator, scorer and what is on them."})
    start_learning_rate: float = field(default=2e-2, metadata={"help": "Of the starting weights."})
    epochs: float = field(default=5.0, metadata={"help": "Passes over the training queries."})
    select_by: str = field(
        default="nDCG@20",
        metadata={"help": "What chooses the epoch on the validation queries: a measure, or loss."},
    )
    seeds: list[int] = field(default_factory=lambda: [42], metadata={"help": "A training each; values are averaged."})
    max_steps: int = field(default=-1, metadata={"help": "Stop each training after so many steps, for a quick look."})

    use_cpu: bool = field(default=False, metadata={"help": "Use no accelerator, even if there is one."})

    def __post_init__(self):
        names = [system.name for system in SYSTEMS]
        unknown = [name for name in self.only or () if name not in names]
        if unknown:
            raise ValueError(f"--only {unknown[0]}: there is no such row; the rows are {', '.join(names)}")
        if not self.seeds:
            raise ValueError("--seeds needs one seed at least")
        for seed in self.seeds:
            check_numbers(SimpleNamespace(seeds=seed), 0, "seeds", most=2**32 - 1)
        if self.select_by != "loss":
            parse_measures([self.select_by])
        if self.train_encoder and self.starting_weights and not self.starting_weights[0]:
            raise ValueError(
                "--train_encoder: with --starting_weights 0 .. the start reads nothing of the encoder: give its own "
                "relevance a weight, such as 1 1 0.5"
            )

    @property
    def systems(self) -> list[System]:
        """The trained rows; what the others are measured against is always there."""
        return [s for s in SYSTEMS if self.only is None or s.name in self.only or s is TWIN]


def known_weights(encoder: str) -> list[float]:
    """A cross-encoder knows relevance; an encoder without a head for it has nothing to say before it has learned."""
    architectures = load_config(encoder).architectures or [""]
    return [1.0, 1.0, 0.5] if architectures[0].endswith("ForSequenceClassification") else [0.0, 1.0, 0.5]


@dataclass(frozen=True)
class Gains:
    """
    The finished table.

    Args:
        rows ([`RowsFolder`]): what everything was measured on.
        evaluations (`dict[str, Evaluation]`): label to result, in the table's order; means over the seeds.
        comparisons (`list[Comparison]`): of each row with the twins without context: the one that has the same start
            and, where it is trained, the pointwise one.
        folders (`dict[str, Path]`): label of a trained row to the folder of its first seed's training.
        validation (`dict[str, float]`): label of a trained row, or of the tuned mixture, to its nDCG@20 on the
            validation queries, the mean of its folds and seeds: what a row is to be chosen by.
    """

    rows: RowsFolder
    evaluations: dict[str, Evaluation]
    comparisons: list[Comparison]
    folders: dict[str, Path]
    validation: dict[str, float]

    def tables(self) -> list[Table]:
        """Measures, changes against the twin, and what to choose a row by."""
        names = {system.label: system.name for system in SYSTEMS} | {MIXTURE: "mixture"}
        chosen = Table(
            ["system", f"validation {CHOICE}", "row"],
            [[label, f"{value:.4f}", names[label]] for label, value in self.validation.items()],
            notes=[
                "Choose a row by these: figures of the test queries would flatter what they have chosen. A row's name "
                "is its folder, and what --only takes."
            ],
        )
        return [
            results_table(self.evaluations, self.comparisons, twins(self.evaluations)),
            changes_table(self.comparisons, corrected=False),
            *([chosen] if self.validation else []),
        ]


def measure_gains(collection: Collection, options: GainsOptions, splits: SplitOptions | None = None) -> Gains:
    """
    Prepares a collection, mixes, trains every row on the same passages and vectors, and compares; resumed after any
    kill. In `options.output`: `prepared`, `vectors`, a folder a row and seed, `results.json`.

    Args:
        collection ([`Collection`]): with judgments.
        options ([`GainsOptions`]): what to compare.
        splits ([`SplitOptions`], *optional*): how queries are split; settings are chosen on validation queries alone.
    """
    output = Path(options.output)
    check_gains(collection, options, splits)
    rows = prepare_rows(collection, options, splits)
    mixed = mix_sources(
        rows, output / "mixture", MixtureOptions(["first-stage", "selector"], measure=CHOICE), progress=False
    )
    runs = {
        FIRST_STAGE: [output / "mixture" / "source-1.trec"],
        BI_ENCODER: [output / "mixture" / "source-2.trec"],
        MIXTURE: [output / "mixture" / "run.trec"],
    }
    folders: dict[str, Path] = {}
    validation = {MIXTURE: math.fsum(fold["validation"] for fold in mixed["folds"]) / len(mixed["folds"])}
    for number, system in enumerate(options.systems, start=1):
        trained = []
        for seed in options.seeds:
            logger.info("row %d of %d, seed %d: %s", number, len(options.systems), seed, system.label)
            trained.append(train_system(rows, system, options, seed))
        folders[system.label] = trained[0]
        found = validation_mean(trained)
        if found is not None:
            validation[system.label] = found
        runs[system.label] = [folder / ("run.trec" if rows.folds else "test.trec") for folder in trained]
        if system is POINTWISE:
            runs |= {label: [path] for label, path in _pointwise_mixtures(rows, trained[0], output).items()}
    tested = set(read_run(runs[TWIN.label][0]))
    qrels = {query_id: grades for query_id, grades in rows.qrels.items() if query_id in tested}
    evaluations = {
        label: average([evaluate_run(qrels, _only(read_run(path), tested)) for path in paths])
        for label, paths in runs.items()
    }
    comparisons = compare_runs(evaluations, twins(evaluations))
    write_json(
        output / "results.json",
        {
            "collection": collection.name,
            "queries": len(qrels),
            "seeds": options.seeds,
            "rows": {label: evaluation.to_dict() for label, evaluation in evaluations.items()},
            "comparisons": [comparison.to_dict() for comparison in comparisons],
            "validation": {label: {CHOICE: value} for label, value in validation.items()},
        },
    )
    return Gains(rows, evaluations, comparisons, folders, validation)


def check_gains(collection: Collection, options: GainsOptions, splits: SplitOptions | None = None) -> None:
    """What can be known to fail in hours fails here, before anything is written."""
    check_begun(options.output, FOLDERS, "--output")
    kind = check_encoder(options.bi_encoder, options.max_length)
    if kind != BiEncoderSelector.kind:
        raise ValueError(
            f"--bi_encoder {options.bi_encoder}: this is a {kind}, which has no vectors of single passages: give a "
            "bi-encoder, and this one as --encoder"
        )
    width = load_config(options.bi_encoder).hidden_size
    for system in options.systems:
        model, _ = _trained_by(system, options, options.seeds[0])
        check_sources(model)
        _check_fields(model, width, options)
    check_judgments(collection)
    qrels = collection.qrels()
    plan = plan_splits(collection, list(collection.queries()), splits)
    for fold in plan.turns:
        for part in ("train", "validation", "test"):
            if not any(qrels.get(query_id) for query_id in getattr(fold, part)):
                raise ValueError(
                    f"--folds: by {plan.source} there is no judged query in {part}, and rows are trained, selected "
                    "and tested: give --folds random, or a file of folds"
                )


def _check_fields(model: ModelOptions, content_size: int, options: GainsOptions) -> None:
    """Raises where no config can be made of the options."""
    config = load_config(options.encoder)
    switches: dict[str, Any] = VARIANTS[model.variant or "full"]
    CoBertConfig(
        encoder_config=(config.encoder_config if config.model_type == CoBertConfig.model_type else config).to_dict(),
        **switches,
        selector=options.bi_encoder,
        group_size=options.k,
        group_overlap=0,
        passage_words=options.passage_words,
        passage_overlap=options.passage_overlap,
        max_length=options.max_length,
        starting_weights=model.starting_weights,
        content_size=content_size if model.content else 0,
        feedback_weight=model.feedback_weight or 0.0,
        neighbour_weight=model.neighbour_weight or 0.0,
    )


def twins(labels: Iterable[str]) -> list[str]:
    """What the other rows of a table are measured against."""
    return [system.label for system in (TWIN, POINTWISE) if system.label in labels]


def prepare_rows(collection: Collection, options: GainsOptions, splits: SplitOptions | None = None) -> RowsFolder:
    """First stage and passages, the same for all rows."""
    check_begun(options.output, FOLDERS, "--output")
    selection = SelectionOptions(
        selector=options.bi_encoder,
        k=options.k,
        passage_words=options.passage_words,
        passage_overlap=options.passage_overlap,
        passage_title=True,
        max_length=options.max_length,
        keep_texts=True,
    )
    retrieval = RetrievalOptions(first_stage=options.first_stage)
    return prepare(collection, Path(options.output) / "prepared", selection, splits, retrieval)


def train_system(rows: RowsFolder, system: System, options: GainsOptions, seed: int) -> Path:
    """Trains one row with one seed, on all folds where there are any; returns its folder."""
    model, arguments = _trained_by(system, options, seed)
    # The whole list is one group: without positions the scorer can read it at once.
    groups = GroupOptions(group_size=options.k, group_overlap=0)
    train(model, DataOptions(rows=str(rows.folder), fold="all" if rows.folds else None), groups, arguments)
    folder = Path(arguments.output_dir)
    for checkpoint in folder.rglob(f"{PREFIX_CHECKPOINT_DIR}-*"):
        shutil.rmtree(checkpoint, ignore_errors=True)  # of a training that is tested: they fill the disk
    return folder


def _trained_by(system: System, options: GainsOptions, seed: int) -> tuple[ModelOptions, CoBertTrainingArguments]:
    """What `cobert train` would be told."""
    folder = Path(options.output) / system.name / f"seed-{seed}"
    content = system.near in ("content", "both")
    model = ModelOptions(
        encoder=options.encoder,
        variant=system.variant,
        loss=options.loss,
        max_length=options.max_length,
        starting_weights=(options.starting_weights or known_weights(options.encoder)) if system.starts else None,
        feedback_weight=options.feedback_weight if system.words else None,
        content=content,
        neighbour_weight=None if system.near is None else options.neighbour_weight,
        neighbour_likeness=system.near,
        neighbour_voters=system.voters,
    )
    arguments = CoBertTrainingArguments(
        output_dir=str(folder),
        seed=seed,
        num_train_epochs=options.epochs,
        max_steps=options.max_steps,
        learning_rate=options.learning_rate,
        context_learning_rate=options.context_learning_rate,
        start_learning_rate=options.start_learning_rate,
        freeze_encoder=not options.train_encoder,
        vectors_dir=None if options.train_encoder and not content else str(Path(options.output) / "vectors"),
        save_total_limit=1,
        metric_for_best_model=options.select_by,
        use_cpu=options.use_cpu,
    )
    return model, arguments


def validation_mean(folders: Sequence[Path]) -> float | None:
    """The mean of all seeds' and folds' figures on validation queries; `None` where a look was too quick for one."""
    read = [json.loads((folder / RESULTS).read_text(encoding="utf-8")) for folder in folders]
    parts = [part for results in read for part in results.get("folds", [results])]
    found = [part["validation"][CHOICE] for part in parts if CHOICE in part.get("validation", {})]
    return math.fsum(found) / len(found) if len(found) == len(parts) else None


def _pointwise_mixtures(rows: RowsFolder, folder: Path, output: Path) -> dict[str, Path]:
    """What anybody gets by mixing the pointwise model with what the list already knows."""
    sources = {
        "First stage + pointwise, tuned": ["first-stage", str(folder)],
        "First stage + bi-encoder + pointwise, tuned": ["first-stage", "selector", str(folder)],
    }
    found = {}
    for number, (label, named) in enumerate(sources.items(), start=1):
        mixed = output / f"mixture-pointwise-{number}"
        mix_sources(rows, mixed, MixtureOptions(named), progress=False)
        found[label] = mixed / "run.trec"
    return found


def average(evaluations: Sequence[Evaluation]) -> Evaluation:
    """One result of several seeds: every query's mean, and the mean of the means."""
    first, count = evaluations[0], len(evaluations)
    if count == 1:
        return first
    per_query = {
        measure: {q: math.fsum(e.per_query[measure][q] for e in evaluations) / count for q in values}
        for measure, values in first.per_query.items()
    }
    means = {measure: math.fsum(e.means[measure] for e in evaluations) / count for measure in DEFAULT_MEASURES}
    return replace(first, means=means, per_query=per_query)


def _only(run: Mapping[str, Mapping[str, float]], query_ids: set[str]) -> dict[str, Mapping[str, float]]:
    return {query_id: scores for query_id, scores in run.items() if query_id in query_ids}
