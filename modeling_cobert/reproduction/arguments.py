"""What `cobert reproduce` can be told, with the paper's defaults, and what it refuses at the door."""

from dataclasses import dataclass, field

from ..data.selection import SelectionOptions
from ..steps.limits import check_numbers
from ..training.arguments import CoBertTrainingArguments
from .paper_figures import COLLECTIONS

KEEP = ("models", "all")
# The word for a calibrator or scorer that starts from the encoder's first layers.
FROM_ENCODER = "encoder"


@dataclass(frozen=True)
class ReproductionOptions:
    """What to do, and where it goes."""

    output: str = field(metadata={"help": "A new folder, or one that was begun: what is done is not done again."})
    only: list[str] | None = field(
        default=None, metadata={"help": "These rows only, and what they need; a wrong name lists the rows."}
    )
    dry_run: bool = field(
        default=False, metadata={"help": "List what would be done, with estimates. Nothing is written."}
    )
    speed: float | None = field(
        default=None,
        metadata={"help": "With --dry_run: 10^12 multiply-accumulates a second, to estimate hours with."},
    )
    paper: str | None = field(
        default=None,
        metadata={"help": "The collection whose published figures stand beside ours.", "choices": [*COLLECTIONS]},
    )
    max_queries: int | None = field(
        default=None, metadata={"help": "Only the first judged queries, for a trial; the result is not the paper's."}
    )
    keep: str = field(
        default="models",
        metadata={
            "help": "models: checkpoints go as soon as their fold is tested, its model stays. all: everything stays.",
            "choices": list(KEEP),
        },
    )

    def __post_init__(self):
        if self.speed is not None and not self.speed > 0:
            raise ValueError(f"--speed must be above 0, got {self.speed}")
        check_numbers(self, 1, "max_queries")


@dataclass(frozen=True)
class SystemOptions:
    """The inputs and sizes of all systems."""

    encoder: str = field(
        metadata={"help": "Hub id or folder of a BERT cross-encoder trained on MS MARCO, the start of most rows."}
    )
    bert: str = field(
        default="google-bert/bert-base-uncased",
        metadata={"help": "Hub id or folder of a plain BERT, which the rows without MS MARCO start from."},
    )
    calibrator: str = field(
        default="google/bert_uncased_L-2_H-768_A-12",
        metadata={"help": "Hub id or folder that the calibrator starts from; or encoder, for its first layers."},
    )
    scorer: str = field(
        default="google/bert_uncased_L-4_H-768_A-12",
        metadata={"help": "Hub id or folder that the scorer starts from; or encoder, for its first layers."},
    )
    calibrator_layers: int | None = field(
        default=None, metadata={"help": "With --calibrator encoder: how many layers. Default: 2."}
    )
    scorer_layers: int | None = field(
        default=None, metadata={"help": "With --scorer encoder: how many layers. Default: 4."}
    )
    run: str | None = field(
        default=None, metadata={"help": "A TREC run as initial ranking; by default DPH+KL is computed here."}
    )
    bm25_run: str | None = field(
        default=None, metadata={"help": "A TREC run for the row BM25+RM3; by default it is computed here."}
    )
    expanded_queries: str | None = field(
        default=None,
        metadata={"help": "Queries with search suggestions (.jsonl, .tsv, TREC), for FilteredGoogleQuestions."},
    )
    batch_size: int = field(default=64, metadata={"help": "m + n, the sequences of a group."})
    num_prototypes: int = field(default=4, metadata={"help": "m, the feedback documents of each query."})
    group_overlap: int = field(default=4, metadata={"help": "o, the candidates that neighbouring groups share."})
    study_batches: list[int] = field(
        default_factory=lambda: [32, 48, 64], metadata={"help": "Batch sizes of the hyper-parameter study."}
    )
    study_prototypes: list[int] = field(
        default_factory=lambda: [3, 4, 5, 6], metadata={"help": "Values of m in the hyper-parameter study."}
    )
    study_overlaps: list[int] = field(
        default_factory=lambda: [0, 1, 2, 3, 4, 5], metadata={"help": "Values of o in the hyper-parameter study."}
    )
    qe_passage_words: int = field(default=100, metadata={"help": "BERT-QE: words of a passage."})
    qe_passage_overlap: int = field(default=50, metadata={"help": "BERT-QE: words that neighbours share."})
    qe_max_length: int = field(default=384, metadata={"help": "BERT-QE: the most tokens of a pair."})

    def __post_init__(self):
        check_numbers(self, 1, "batch_size", "qe_passage_words", "qe_max_length")
        check_numbers(self, 0, "num_prototypes", "group_overlap", "qe_passage_overlap")
        if self.qe_passage_overlap >= self.qe_passage_words:
            raise ValueError(
                f"--qe_passage_overlap must be below --qe_passage_words, got {self.qe_passage_overlap} and "
                f"{self.qe_passage_words}"
            )
        for part in ("calibrator", "scorer"):
            if getattr(self, f"{part}_layers") is not None and getattr(self, part) != FROM_ENCODER:
                raise ValueError(f"--{part}_layers is for layers of the encoder: give --{part} {FROM_ENCODER} with it")

    def part(self, name: str) -> str | None:
        """The checkpoint of the calibrator or scorer, `None` for layers of the encoder."""
        return None if getattr(self, name) == FROM_ENCODER else getattr(self, name)


@dataclass(frozen=True)
class PassageOptions(SelectionOptions):
    """How documents are cut and their best passages selected, for all systems but BERT-QE."""

    selector: str = field(
        default="", metadata={"help": "What picks passages and prototypes; by default the encoder's checkpoint."}
    )


def check_training(args: CoBertTrainingArguments) -> None:
    """Refuses training options that a table of many trainings decides itself, or that make none of the paper's."""
    default = CoBertTrainingArguments(use_cpu=args.use_cpu).output_dir
    refused = {
        "output_dir": (args.output_dir != default, "every row has its folder in --output"),
        "push_to_hub": (args.push_to_hub, "a reproduction trains dozens of models; push one with train_cobert.py"),
        "resume_from_checkpoint": (args.resume_from_checkpoint is not None, "rows resume by themselves"),
        "freeze_encoder": (args.freeze_encoder, "the paper trains end to end; use train_cobert.py"),
    }
    for name, (given, why) in refused.items():
        if given:
            raise ValueError(f"--{name} does not apply here: {why}")
