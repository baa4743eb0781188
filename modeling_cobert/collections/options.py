"""Which collection to work on, and how its queries are split: options of the API and of the commands alike."""

from dataclasses import dataclass, field
from pathlib import Path

from .collection import Collection, open_collection

# What a collection's folder may hold, beside qrels/*.tsv.
_OWN_FILES = ("corpus.jsonl", "queries.jsonl", "topics.tsv", "topics.txt", "qrels.txt", "folds.json")


@dataclass(frozen=True)
class CollectionOptions:
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

    def open(self) -> Collection:
        return open_collection(
            self.collection, self.split, self.queries, self.qrels, self.documents, self.skip_missing
        )

    def files(self) -> list[Path]:
        """The files that it may be read from, there or not: what no command may write to."""
        named = [Path(path) for path in (self.queries, self.qrels, self.documents) if path is not None]
        if self.collection == "demo" or self.collection.startswith("irds:"):
            return named
        folder = Path(self.collection)
        return [*named, *(folder / name for name in _OWN_FILES), *sorted(folder.glob("qrels/*.tsv"))]


@dataclass(frozen=True)
class SplitOptions:
    """How queries are split into those to learn from, to select by and to test on."""

    folds: str = field(
        default="auto",
        metadata={
            "help": "A JSON file of folds, round-robin, random, or none (all queries in one split, test). auto: the "
            "collection's own folds, else its own train, validation and test, else random; without judgments, which "
            "nothing can be selected or tested by, all queries in one split, train."
        },
    )
    fold_seed: int = field(default=42, metadata={"help": "Of random folds."})

    def __post_init__(self):
        if self.folds not in ("auto", "random") and self.fold_seed != 42:
            raise ValueError(f"--folds {self.folds} draws nothing: leave out --fold_seed")
