"""What `train_cobert.py` can be told: model, data, and Hugging Face's TrainingArguments with the paper's defaults."""

import math
import sys
from dataclasses import dataclass, field
from typing import ClassVar

from transformers import TrainingArguments
from transformers.integrations import INTEGRATION_TO_CALLBACK, get_available_reporting_integrations

from ..loss_cobert import DISTILLATION_LOSSES, LOSSES
from ..steps.limits import check_numbers

VARIANTS = {
    "full": {},
    "calibrator": {"use_scorer": False},
    "scorer": {"use_calibrator": False},
    "neither": {"use_calibrator": False, "use_scorer": False},
    "no_residual": {"use_residual": False},
}
FEED_ORDERS = ("shuffled", "initial", "reversed")


@dataclass(frozen=True)
class ModelOptions:
    """Where the model starts, and which variant it is."""

    encoder: str | None = field(
        default=None,
        metadata={
            "help": "Hub id or folder that the encoder starts from: a BERT cross-encoder (the paper), a plain BERT, "
            "or a trained Co-BERT whose encoder is to get new context parts. '{fold}' stands for the fold's number."
        },
    )
    calibrator: str | None = field(
        default=None,
        metadata={"help": "Hub id or folder of the calibrator's BERT. Default: the encoder's first layers."},
    )
    scorer: str | None = field(
        default=None, metadata={"help": "Hub id or folder of the scorer's BERT. Default: the encoder's first layers."}
    )
    checkpoint: str | None = field(
        default=None,
        metadata={
            "help": "Folder or Hub id of a whole Co-BERT to go on from, in place of --encoder. '{fold}' stands for "
            "the fold's number."
        },
    )
    variant: str | None = field(
        default=None,
        metadata={
            "choices": list(VARIANTS),
            "help": "full (the default), calibrator only, scorer only, neither (BERT-Base), or full without residual.",
        },
    )
    loss: str | None = field(
        default=None,
        metadata={
            "choices": list(LOSSES),
            "help": "The loss: pointwise (the paper, the default), listwise, ranknet, lambda or approx_ndcg.",
        },
    )
    encoder_pooling: str | None = field(
        default=None,
        metadata={
            "choices": ["cls", "pooler"],
            "help": "What stands for a pair: the raw [CLS] vector or BERT's pooler. Default: pooler for a cross-"
            "encoder (its head reads it), the source's for a Co-BERT, else cls.",
        },
    )
    max_length: int | None = field(
        default=None, metadata={"help": "The most tokens of a query-passage pair. Default: 256, or the source's."}
    )
    calibrator_layers: int | None = field(
        default=None, metadata={"help": "Layers of a calibrator taken from the encoder. Default: 2."}
    )
    scorer_layers: int | None = field(
        default=None, metadata={"help": "Layers of a scorer taken from the encoder. Default: 4."}
    )
    overlap_merge: str | None = field(
        default=None,
        metadata={
            "choices": ["max", "mean", "first", "last"],
            "help": "The score of a document in two groups. Default: max.",
        },
    )

    starting_weights: list[float] | None = field(
        default=None,
        metadata={
            "help": "Start from what is known: weights of the encoder's own relevance, the selector's score and the "
            "first stage's, such as 1 0.5 0.5; calibrator and scorer add to that mixture. Default: as in the paper, "
            "or as in the Co-BERT that --encoder names."
        },
    )
    learn_starting_weights: bool | None = field(
        default=None, metadata={"help": "Whether training changes the starting weights. Default: True."}
    )
    content: bool = field(
        default=False,
        metadata={
            "help": "Content beside interaction: the vectors of the bi-encoder that the rows were selected by go with "
            "the encoder's into calibrator and scorer."
        },
    )
    feedback_weight: float | None = field(
        default=None,
        metadata={
            "help": "With starting weights, and rows prepared with --keep_texts: how much a document gains by words "
            "that it shares with the best documents of the list, to begin with. Default: 0."
        },
    )
    neighbour_weight: float | None = field(
        default=None,
        metadata={
            "help": "With starting weights: how much documents that are alike draw each other's scores, to begin "
            "with. Default: 0."
        },
    )
    neighbour_likeness: str | None = field(
        default=None,
        metadata={
            "choices": ["content", "words", "both"],
            "help": "What neighbours are alike in: content (with --content), words (rows prepared with --keep_texts), "
            "or both, the mean of the two. Default: content with --content, else words.",
        },
    )
    neighbour_voters: str | None = field(
        default=None,
        metadata={
            "choices": ["all", "promising"],
            "help": "Whose scores draw: those of all documents of the group (the default), or of those alone that "
            "start better than its mean.",
        },
    )

    def __post_init__(self):
        if (self.encoder is None) == (self.checkpoint is None):
            raise ValueError("name either --encoder (and perhaps --calibrator, --scorer) or --checkpoint")
        if self.checkpoint is not None:
            fixed = ("calibrator", "scorer", "encoder_pooling", "calibrator_layers", "scorer_layers")
            fixed += ("starting_weights", "feedback_weight", "neighbour_weight", "neighbour_likeness")
            fixed += ("neighbour_voters",)
            given = [f"--{name}" for name in fixed if getattr(self, name) is not None]
            given += ["--content"] * self.content
            if given:
                raise ValueError(f"--checkpoint is a whole model: {', '.join(given)} cannot change it; use --encoder")
        switches = VARIANTS.get(self.variant or "full", {})
        parts = ("calibrator", "scorer")
        for part, name in [*((part, part) for part in parts), *((part, f"{part}_layers") for part in parts)]:
            if getattr(self, name) is not None and not switches.get(f"use_{part}", True):
                raise ValueError(
                    f"--variant {self.variant} has no {part}: leave out --{name}, or choose another variant"
                )


@dataclass(frozen=True)
class DataOptions:
    """Which rows, which queries of them, and in which order."""

    rows: str = field(metadata={"help": "The folder of rows that cobert prepare made."})
    train_rows: str | None = field(
        default=None,
        metadata={
            "help": "Other rows of the same queries to train on, such as those of cobert maxp; selection and test "
            "stay with --rows."
        },
    )
    fold: str | None = field(
        default=None,
        metadata={
            "help": "Train, select and test on this fold (1, 2, ..) of the rows' folds; or all: every fold in turn, "
            "then the table and one run over all queries."
        },
    )
    feed_order: str = field(
        default="shuffled",
        metadata={
            "choices": list(FEED_ORDERS),
            "help": "Order of the groups in an epoch: shuffled over all queries (the paper), or, with queries "
            "shuffled, a query's groups in first-stage order (initial) or from the last to the first (reversed).",
        },
    )
    random_edges: bool = field(
        default=False,
        metadata={"help": "Draw the edges between a query's groups anew in each epoch; the paper's never move."},
    )

    def __post_init__(self):
        if self.fold is not None and self.fold != "all" and not (self.fold.isascii() and self.fold.isdigit()):
            raise ValueError(f"--fold must be the number of a fold, or all, not {self.fold!r}")


@dataclass(frozen=True)
class TeacherOptions:
    """Scores to learn from, beside judgments or in their place."""

    teacher: str | None = field(
        default=None,
        metadata={
            "help": "A TREC run whose scores teach: of any cross-encoder, bi-encoder or mixture, for the training "
            "queries; of others nothing is read. '{fold}' stands for the fold's number."
        },
    )
    teacher_loss: str | None = field(
        default=None,
        metadata={
            "choices": list(DISTILLATION_LOSSES),
            "help": "How it teaches: kl (the default; the group's scores as a distribution) or margin_mse (the "
            "differences of scores).",
        },
    )
    teacher_weight: float | None = field(
        default=None,
        metadata={
            "help": "The teacher's share of the loss, from 0 to 1; the rest is that of the judgments. With 1 there "
            "need be none. Default: 0.5."
        },
    )
    teacher_temperature: float | None = field(
        default=None, metadata={"help": "What the teacher's scores are divided by. Default: 1."}
    )

    def __post_init__(self):
        names = ("teacher_loss", "teacher_weight", "teacher_temperature")
        given = [f"--{name}" for name in names if getattr(self, name) is not None]
        if self.teacher is None and given:
            raise ValueError(f"{', '.join(given)} without a teacher: name its run with --teacher, or leave it out")
        if self.loss not in DISTILLATION_LOSSES:
            raise ValueError(f"--teacher_loss must be one of {', '.join(DISTILLATION_LOSSES)}, not {self.loss!r}")
        if not 0 <= self.weight <= 1:
            raise ValueError(f"--teacher_weight must be from 0 to 1, got {self.weight:g}")
        if not 0 < self.temperature < math.inf:
            raise ValueError(f"--teacher_temperature must be above 0, got {self.temperature:g}")

    @property
    def loss(self) -> str:
        return self.teacher_loss or "kl"

    @property
    def weight(self) -> float:
        """Of the teacher's loss; 0 where there is no teacher."""
        given = 0.5 if self.teacher_weight is None else self.teacher_weight
        return 0.0 if self.teacher is None else given

    @property
    def temperature(self) -> float:
        return 1.0 if self.teacher_temperature is None else self.teacher_temperature


@dataclass
class CoBertTrainingArguments(TrainingArguments):
    """
    TrainingArguments with the paper's defaults: 5 epochs, one group a step, Adam at 3e-6, 10 % warm-up, linear decay,
    the epoch with the best validation nDCG@20. Adam is AdamW with `weight_decay` 0, which is Hugging Face's default.
    """

    # What of the options that are inherited `--help` explains; all others are behind `--help-all`.
    OFTEN_USED: ClassVar = (
        *("seed", "max_steps", "gradient_accumulation_steps", "gradient_checkpointing", "bf16", "fp16", "use_cpu"),
        *("logging_steps", "report_to", "resume_from_checkpoint", "push_to_hub", "hub_model_id", "hub_private_repo"),
    )

    do_train: bool = field(default=True, metadata={"help": "Must stay True: cobert eval is what only measures."})
    output_dir: str = field(default="trainer_output", metadata={"help": "Where the model and its checkpoints go."})
    per_device_train_batch_size: int = field(
        default=1, metadata={"help": "Groups a step and device; a group is n candidates with their m prototypes."}
    )
    num_train_epochs: float = field(default=5.0, metadata={"help": "Passes over all groups."})
    learning_rate: float = field(default=3e-6, metadata={"help": "The highest learning rate, after warm-up."})
    warmup_steps: float = field(default=0.1, metadata={"help": "Warm-up: a share of all steps below 1, else steps."})
    eval_strategy: str = field(default="epoch", metadata={"help": "When to rank the validation queries."})
    save_strategy: str = field(default="epoch", metadata={"help": "When to save a checkpoint."})
    save_total_limit: int | None = field(default=2, metadata={"help": "How many checkpoints to keep."})
    load_best_model_at_end: bool = field(default=True, metadata={"help": "Whether the best epoch is the result."})
    metric_for_best_model: str | None = field(
        default="nDCG@20", metadata={"help": "Any measure of ir_measures, over whole validation queries; or loss."}
    )
    remove_unused_columns: bool = field(default=False, metadata={"help": "Must stay False: the collator reads them."})
    hub_strategy: str = field(default="end", metadata={"help": "When to push, with --push_to_hub."})
    encoder_chunk_size: int | None = field(
        default=None,
        metadata={
            "help": "Exact training in little memory: at most this many pairs have activations at a time, at about a "
            "third more time. Default: all at once."
        },
    )
    context_learning_rate: float | None = field(
        default=None,
        metadata={
            "help": "The highest learning rate of calibrator, scorer, the head on them and content. Default: that of "
            "the encoder, --learning_rate."
        },
    )
    start_learning_rate: float | None = field(
        default=None,
        metadata={
            "help": "The highest learning rate of the few starting weights, which want larger steps than layers do. "
            "Default: --learning_rate."
        },
    )
    freeze_encoder: bool = field(
        default=False,
        metadata={"help": "Encode every pair once, keep the vectors on disk, train calibrator, scorer and head."},
    )
    vectors_dir: str | None = field(
        default=None,
        metadata={"help": "Where --freeze_encoder keeps vectors. Default: the folder _vectors in the output folder."},
    )

    def __post_init__(self):
        # In a pipe or a file, bars would be a flood: there the trainer writes a line a minute.
        if self.disable_tqdm is None:
            self.disable_tqdm = not sys.stderr.isatty()
        check_numbers(self, -1, "max_steps")  # -1 stands for none
        if self.max_steps == 0:
            raise ValueError("--max_steps 0 trains nothing: give a number above 0, or leave it out")
        if not self.do_train:
            raise ValueError("--do_train False: this command trains; cobert eval measures a model that is there")
        if self.label_smoothing_factor != 0:
            raise ValueError("--label_smoothing_factor is for classes, which our losses do not have: leave it out")
        for name in ("warmup_steps", "logging_steps", "eval_steps", "save_steps"):
            if getattr(self, name) is not None and not math.isfinite(getattr(self, name)):
                raise ValueError(f"--{name} must be a finite number, got {getattr(self, name)}")
        if self.metric_for_best_model == "":
            raise ValueError("--metric_for_best_model is empty: name a measure, such as nDCG@20, or loss")
        super().__post_init__()
        if self.device.type == "cpu":
            self.dataloader_pin_memory = False  # there is nothing to pin it for, and every loader would warn
        if self.remove_unused_columns:
            raise ValueError("--remove_unused_columns must stay False: the collator reads the rows' columns")
        if not math.isfinite(self.num_train_epochs) or (self.max_steps <= 0 and self.num_train_epochs <= 0):
            raise ValueError(
                f"--num_train_epochs {self.num_train_epochs:g} trains nothing: give a number above 0, or --max_steps"
            )
        for name in ("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name} must be at least 1, got {getattr(self, name)}")
        for name in ("learning_rate", "context_learning_rate", "start_learning_rate"):
            rate = getattr(self, name)
            if rate is not None and not 0 <= rate <= 1:
                raise ValueError(f"--{name} must be from 0 to 1, got {rate:g}")
        if self.encoder_chunk_size is not None and self.encoder_chunk_size < 1:
            raise ValueError(f"--encoder_chunk_size must be at least 1, got {self.encoder_chunk_size}")
        if self.freeze_encoder and self.encoder_chunk_size is not None:
            raise ValueError("--encoder_chunk_size is for training the encoder: leave it out with --freeze_encoder")
        self._check_reports()

    def _check_reports(self) -> None:
        """What reports need a package for; the Trainer would say so only after the model is made."""
        there = [*get_available_reporting_integrations(), "flyte"]  # which transformers does not look for
        for name in self.report_to if isinstance(self.report_to, list) else [self.report_to]:
            if name in INTEGRATION_TO_CALLBACK and name not in there:
                package = name.replace("_", "-")
                raise ValueError(f"--report_to {name}: not installed: pip install {package}, or leave it out")
