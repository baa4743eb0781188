"""The command-line options that the data scripts share, as dataclasses for `transformers.HfArgumentParser`."""

from dataclasses import asdict, dataclass, field

from ..collections.collection import Collection, open_collection
from ..retrieval.options import MODELS
from .groups import PROTOTYPES, GroupOptions
from .selection import SelectionOptions


@dataclass
class CollectionArguments:
    """What to work on."""

    collection: str = field(metadata={"help": "A folder (BEIR or TREC files), irds:<id>, or demo."})
    split: str | None = field(
        default=None, metadata={"help": "Only queries judged in these splits: test, or train-graded,dev,test."}
    )
    queries: str | None = field(default=None, metadata={"help": "Queries (.jsonl, .tsv, TREC) instead of its own."})
    qrels: str | None = field(default=None, metadata={"help": "Judgments (.tsv, TREC) instead of its own."})
    documents: str | None = field(default=None, metadata={"help": "Documents (.jsonl) instead of its own."})
    skip_missing: bool = field(
        default=False,
        metadata={"help": "Go on without queries, documents and judgments that do not fit together, and count them."},
    )

    def source(self) -> dict[str, str | None]:
        """How the collection is opened, for a file of settings."""
        return {key: value for key, value in asdict(self).items() if key != "skip_missing"}

    def open(self) -> Collection:
        return open_collection(
            self.collection, self.split, self.queries, self.qrels, self.documents, self.skip_missing
        )


@dataclass
class SelectionArguments:
    """How documents are cut and their best passages selected."""

    selector: str = field(
        metadata={
            "help": "Hub id or folder of a cross-encoder (1 or 2 labels; the paper's way) or of a bi-encoder, "
            "lexical (BM25 on passages), or first-stage (first passage, order of the run)."
        }
    )
    title: bool = field(default=False, metadata={"help": "Put the title before every passage, not only the first."})
    k: int = field(default=1000, metadata={"help": "How many documents of each query are re-ranked."})
    passage_words: int = field(default=150, metadata={"help": "Words of a passage."})
    passage_overlap: int = field(default=75, metadata={"help": "Words that neighbouring passages share."})
    max_length: int = field(default=256, metadata={"help": "The most tokens of a query-passage pair."})
    batch_tokens: int | None = field(
        default=None,
        metadata={"help": "The most tokens of a batch, padding included; by default 16384, or 1024 on a CPU."},
    )
    shard_queries: int = field(default=4, metadata={"help": "Queries that are worked on, and saved, together."})
    tokenizer: str | None = field(
        default=None,
        metadata={"help": "With lexical or first-stage: whose tokens tell which passages will be truncated."},
    )

    def options(self, skip_missing: bool) -> SelectionOptions:
        settings = asdict(self)
        return SelectionOptions(passage_title=settings.pop("title"), skip_missing=skip_missing, **settings)


@dataclass
class GroupArguments:
    """How candidates are grouped and queries split."""

    num_prototypes: int = field(default=4, metadata={"help": "m, the feedback documents of each query."})
    group_size: int = field(default=60, metadata={"help": "n, the candidates of a group."})
    group_overlap: int = field(default=4, metadata={"help": "o, the candidates that neighbouring groups share."})
    prototypes: str = field(
        default="selector",
        metadata={"help": "The best by the selector, the first of the run, or none.", "choices": list(PROTOTYPES)},
    )
    folds: str = field(
        default="auto",
        metadata={
            "help": "A JSON file of folds, round-robin, random, or none (all queries in one split, test). auto: the "
            "collection's own folds, else its own train, validation and test, else random."
        },
    )
    seed: int = field(default=42, metadata={"help": "Of random folds."})

    def options(self, skip_missing: bool) -> GroupOptions:
        return GroupOptions(skip_missing=skip_missing, **asdict(self))


@dataclass
class FirstStageArguments:
    """Where the candidates come from."""

    run: str | None = field(
        default=None, metadata={"help": "A TREC run made elsewhere; by default the collection is searched here."}
    )
    model: str = field(
        default="dph+kl",
        metadata={"help": "The first stage, if there is no run; retrieve.py has its parameters.", "choices": MODELS},
    )
