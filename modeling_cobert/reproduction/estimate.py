"""What the rows would cost before any of it is done: models, sequences, multiply-accumulates, hours."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice

from ..baselines.maxp import MaxPOptions
from ..checkpoint_cobert import load_config
from ..collections.splits import plan_splits
from ..collections.trec import read_run
from ..cost.folders import selected_workload
from ..cost.macs import (
    PAPER_SHAPE,
    QE_CHUNKS,
    TERA,
    BertShape,
    CoBertShape,
    Workload,
    group_macs,
    passage_macs,
)
from ..cost.paper import DOCUMENTS, PAPER
from ..data.selection import SelectionOptions
from ..evaluation.tables import Table
from ..passages_cobert import cut_documents
from ..selection_cobert import BUILT_IN
from ..steps.folders import SETTINGS, read_settings
from ..training.arguments import VARIANTS
from .arguments import SystemOptions
from .rows import COST, Row, TrainedRow
from .work import Reproduction

# A step of training: forward, and a backward pass of twice as much.
TRAINING = 3
SAMPLE = 500
SELECTION = "(selection, shared)"


@dataclass(frozen=True)
class Estimate:
    """
    What a row takes.

    Args:
        models (`int`): trainings.
        trained, encoded (`float`): sequences through the encoder with and without gradients.
        macs (`float`): multiply-accumulates, by the paper's convention: every sequence at full length, attention
            products not counted, a backward pass as two forward passes.
    """

    models: int = 0
    trained: float = 0
    encoded: float = 0
    macs: float = 0

    def __add__(self, other: "Estimate") -> "Estimate":
        return Estimate(
            self.models + other.models,
            self.trained + other.trained,
            self.encoded + other.encoded,
            self.macs + other.macs,
        )


def model_shape(systems: SystemOptions, selection: SelectionOptions, rows: Iterable[Row] = ()) -> CoBertShape:
    """
    The sizes of the checkpoints, which are opened for that (their configs only), and checked against each other.

    Args:
        systems ([`SystemOptions`]), selection ([`SelectionOptions`]): the checkpoints.
        rows (`Iterable[Row]`, *optional*): what is to be done; a checkpoint that only other rows need is left alone.

    Raises:
        `OSError` where a config cannot be had, `ValueError` where it is no BERT or does not fit.
    """
    encoder = _config(systems.encoder, "encoder")
    rows = list(rows)
    if any(row.start == "bert" for row in rows):
        _config(systems.bert, "bert")
    if any(row.kind == "groups" for row in rows) and selection.selector not in BUILT_IN:
        load_config(selection.selector)
    if encoder.model_type == "cobert":
        encoder = encoder.encoder_config
    parts = {}
    for part, layers in (("calibrator", 2), ("scorer", 4)):
        path = systems.part(part)
        if path is None:
            layers = getattr(systems, f"{part}_layers") or layers
            if layers > encoder.num_hidden_layers:
                raise ValueError(
                    f"the {part} wants the encoder's first {layers} layers, but it has {encoder.num_hidden_layers}: "
                    f"give --{part}_layers"
                )
            parts[part] = BertShape(layers, encoder.hidden_size, encoder.intermediate_size)
            continue
        parts[part] = _config(path, part)
        if parts[part].hidden_size != encoder.hidden_size:
            raise ValueError(
                f"--{part} {path} has hidden size {parts[part].hidden_size}, but the encoder has "
                f"{encoder.hidden_size}: give one of that size, or --{part} encoder"
            )
    sizes = (systems.num_prototypes, systems.batch_size - systems.num_prototypes, systems.group_overlap)
    return CoBertShape(encoder, parts["calibrator"], parts["scorer"], *sizes, selection.max_length)


def _config(path: str, option: str):
    config = load_config(path)
    if config.model_type not in ("bert", "cobert"):
        raise ValueError(f"--{option} {path} is not a BERT: its model_type is {config.model_type!r}")
    return config


class Estimator:
    """
    Estimates of a [`Reproduction`], from counts where they are known and from samples where not; `notes` says which.
    """

    def __init__(self, work: Reproduction):
        self.work, self.notes = work, []
        try:
            self.shape = model_shape(work.systems, work.selection)
        except OSError as error:
            self.shape = replace(PAPER_SHAPE, max_length=work.selection.max_length)
            reason = " ".join(str(error).split())
            self.notes.append(f"sizes of the models: the paper's, since a config could not be opened ({reason})")

    @cached_property
    def workload(self) -> Workload:
        """Queries, candidates of a query, and passages: counted if selection is done, else estimated."""
        counted = selected_workload(self.work.shared / "selected")
        if counted is not None:
            self.notes.append("passages: counted by selection")
            return counted
        queries, candidates = len(self.work.view.queries()), self._candidates()
        return Workload(queries, candidates, math.ceil(queries * candidates * self._passages_a_document))

    def _candidates(self) -> int:
        systems, selection = self.work.systems, self.work.selection
        if systems.run is not None:
            lengths = [min(selection.k, len(scores)) for scores in read_run(systems.run).values()]
            return max(1, round(sum(lengths) / len(lengths)))
        if self.work.options.paper is None and len(self._sample) < SAMPLE:
            return min(selection.k, len(self._sample))  # the whole collection was seen
        return selection.k

    @cached_property
    def _sample(self) -> list:
        return list(islice(self.work.view.documents(), SAMPLE))

    @cached_property
    def _passages_a_document(self) -> float:
        paper = self.work.options.paper
        if paper is not None:
            self.notes.append(f"passages: as many a document as in the paper's {paper}")
            return PAPER[paper].passages / (PAPER[paper].queries * DOCUMENTS)
        documents = [document.to_dict() for document in self._sample]
        cut = cut_documents(documents, *self.work.selection.cut)
        self.notes.append(f"passages: as many a document as in the collection's first {len(documents)} documents")
        return sum(len(document.spans) for document in cut) / len(documents)

    @cached_property
    def _splits(self) -> list[tuple[int, int, int]]:
        """Queries to train, validate and test on, for each training of a row."""
        view = self.work.view
        folds = view.folds() or plan_splits(view, list(view.queries()), skip_missing=True).turns
        return [(len(fold.train), len(fold.validation), len(fold.test)) for fold in folds]

    def of(self, name: str) -> Estimate:
        """What a row takes from nothing, its share of the work with others left out."""
        if name == COST:
            return Estimate()
        row = self.work.rows[name]
        if isinstance(row, TrainedRow) and row.kind == "groups":
            sizes = [float(end - start) for start, end in row.groups.spans(self.workload.documents)]
            return self._training(row, sizes, sizes)
        if isinstance(row, TrainedRow):
            n, passages = row.groups.group_size, self.workload.passages / self.workload.queries
            return self._training(row, _chunks(n, self._training_passages()), _chunks(n, passages))
        if row.kind == "bert-qe":
            work = self.workload
            queries = sum(validation + test for _, validation, test in self._splits)
            each = 1.5 * work.passages / work.queries + work.chunks + QE_CHUNKS * work.documents
            macs = passage_macs(self.shape.encoder, self.work.systems.qe_max_length)
            return Estimate(encoded=queries * each, macs=queries * each * macs)
        return Estimate()

    @property
    def selection(self) -> Estimate:
        """Every passage through the selector; a selector without a network costs nothing here."""
        if self.work.selection.selector in BUILT_IN:
            return Estimate()
        passages = self.workload.passages
        return Estimate(encoded=passages, macs=passages * passage_macs(self.shape.encoder, self.shape.max_length))

    def _training_passages(self) -> float:
        """A relevant document trains with many passages, any other with one; as if all relevant ones were found."""
        qrels, work = self.work.view.qrels(), self.workload
        relevant = sum(grade > 0 for grades in qrels.values() for grade in grades.values()) / work.queries
        passages = work.passages / (work.queries * work.documents)
        return work.documents + min(relevant, work.documents) * (min(passages, MaxPOptions.positive_passages) - 1)

    def _training(self, row: TrainedRow, train: list[float], test: list[float]) -> Estimate:
        """One training a fold; `train` and `test` are the sizes of a query's groups."""
        args, m = self.work.training_args, row.groups.num_prototypes
        variant = {"use_calibrator": True, "use_scorer": True} | VARIANTS[row.variant]
        variant.pop("use_residual", None)
        shape = replace(self.shape, num_prototypes=m, group_size=row.groups.group_size)
        macs = [math.fsum(group_macs(shape, size, **variant) for size in sizes) for sizes in (train, test)]
        sequences = [sum(sizes) + m * len(sizes) for sizes in (train, test)]
        total = Estimate()
        for train_queries, validation_queries, test_queries in self._splits:
            epochs = args.num_train_epochs
            if args.max_steps > 0:
                epochs = args.max_steps * self.work.groups_a_step / (train_queries * len(train))
            seen = epochs * train_queries
            ranked = (0 if args.eval_strategy == "no" else math.ceil(epochs)) * validation_queries + test_queries
            cost = TRAINING * seen * macs[0] + ranked * macs[1]
            total += Estimate(1, seen * sequences[0], ranked * sequences[1], cost)
        return total

    def table(self) -> Table:
        """What would be done now, what is done already, and the sum of the former."""
        speed = self.work.options.speed
        columns = ["Row", "State", "Models to train", "Sequences trained", "encoded", "T MACs"]
        columns += ["Hours"] if speed else []
        entries = []
        selected = self.work.shared / "selected" / SETTINGS
        if any(self.work.rows[n].kind == "groups" for n in self.work.todo if n != COST) or COST in self.work.todo:
            state = "to do"
            if selected.exists():
                state = "begun" if read_settings(selected.parent)["counts"] is None else "done"
            entries.append((SELECTION, state, self.selection))
        for name in self.work.todo:
            state = "at the end" if name == COST else self.work.state_of(name)
            entries.append((name, state, self.of(name)))
        left = sum((estimate for _, state, estimate in entries if state != "done"), Estimate())
        rows = [_line(*entry, speed) for entry in (*entries, ("still to do", "", left))]
        trainings = [name for name in self.work.todo if isinstance(self.work.rows.get(name), TrainedRow)]
        notes = [
            f"{len(trainings)} rows are trained, each in {len(self._splits)} folds: "
            f"{len(trainings) * len(self._splits)} models in all",
            f"{self.workload.queries} queries, {self.workload.documents} candidates each, {self.workload.passages:,} "
            "passages",
            "multiply-accumulates by the paper's convention; a training step counts as three forward passes, a row "
            "that was begun as a whole",
            *self.notes,
        ]
        if not any(row.expanded for row in self.work.rows.values()):
            notes.append("FilteredGoogleQuestions is not among the rows: it needs --expanded_queries")
        return Table(columns, rows, f"What would be done on {self.work.view.name}", notes, text_columns=2)


def _chunks(size: int, passages: float) -> list[float]:
    """The sizes of groups of passages: all full but the last."""
    full = math.ceil(passages / size) - 1
    return [float(size)] * full + [passages - size * full]


def _line(name: str, state: str, estimate: Estimate, speed: float | None) -> list[str]:
    tera = estimate.macs / TERA
    line = [name, state, str(estimate.models), f"{estimate.trained:,.0f}", f"{estimate.encoded:,.0f}"]
    line.append(f"{tera:,.3f}" if tera < 1000 else f"{tera:,.0f}")
    return line + ([f"{tera / speed / 3600:,.2f}"] if speed else [])
