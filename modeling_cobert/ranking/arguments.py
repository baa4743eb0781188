"""The command-line options that the evaluation scripts share, as dataclasses for `transformers.HfArgumentParser`."""

from dataclasses import dataclass, field
from pathlib import Path

import torch

from ..collections.collection import FolderCollection, open_collection
from ..collections.trec import numbered_lines
from .inputs import collection_inputs, groups_inputs
from .ranker import Inputs, Ranker


@dataclass
class RankingArguments:
    """The model, and what it re-ranks: groups, or a collection and a run."""

    model: str = field(metadata={"help": "Folder or Hub id of a Co-BERT."})
    groups: str | None = field(default=None, metadata={"help": "A folder that prepare.py or build_groups.py made."})
    collection: str | None = field(
        default=None, metadata={"help": "Instead of groups: a folder (BEIR or TREC files), irds:<id>, or demo."}
    )
    run: str | None = field(default=None, metadata={"help": "With a collection: the TREC run to re-rank."})
    k: int = field(default=1000, metadata={"help": "With a collection: how many documents of a query to re-rank."})
    selector: str | None = field(
        default=None,
        metadata={
            "help": "With a collection: self, lexical, first-stage, or a cross-encoder or bi-encoder that chooses "
            "passages and prototypes; by default what the model's config says."
        },
    )
    split: str | None = field(default=None, metadata={"help": "Only these splits, such as test; joined by commas."})
    fold: int | None = field(default=None, metadata={"help": "Only the test queries of this fold, from 1."})
    queries: list[str] | None = field(
        default=None, metadata={"help": "Only these query ids, or one file that has an id a line."}
    )
    queries_file: str | None = field(
        default=None, metadata={"help": "Queries (.jsonl, .tsv, TREC) instead of the collection's own."}
    )
    qrels: str | None = field(default=None, metadata={"help": "Judgments (.tsv, TREC) instead of the inputs' own."})
    documents: str | None = field(default=None, metadata={"help": "Documents (.jsonl) instead of the collection's."})
    skip_missing: bool = field(
        default=False, metadata={"help": "Go on without documents that the collection lacks, and count them."}
    )
    batch_tokens: int | None = field(
        default=None,
        metadata={"help": "The most tokens of a batch, padding included; by default 16384, or 1024 on a CPU."},
    )
    threads: int | None = field(
        default=None, metadata={"help": "Threads of each process on a CPU; equal threads, equal bytes."}
    )
    dtype: str = field(
        default="float32",
        metadata={"help": "The numbers to compute in.", "choices": ["float32", "float16", "bfloat16"]},
    )
    use_cpu: bool = field(default=False, metadata={"help": "Use no accelerator, even if there is one."})

    def open_inputs(self, progress: bool = True) -> Inputs:
        """Opens what is to be re-ranked."""
        collection_only = {
            "--run": self.run,
            "--selector": self.selector,
            "--queries_file": self.queries_file,
            "--documents": self.documents,
        }
        if self.qrels is not None and not Path(self.qrels).is_file():
            raise FileNotFoundError(f"{self.qrels}: no such file of judgments")
        if (self.groups is None) == (self.collection is None):
            raise ValueError("give either --groups, or --collection and --run")
        if self.groups is not None:
            odd = [name for name, value in collection_only.items() if value is not None]
            if odd:
                raise ValueError(f"{odd[0]} goes with --collection: groups hold their own")
            qrels = None
            if self.qrels is not None:
                qrels = FolderCollection(Path(self.qrels).parent, qrels_file=self.qrels).qrels()
            return groups_inputs(self.groups, self.split, self.fold, self.query_ids(), qrels)
        if self.run is None:
            raise ValueError("--collection needs --run, the first stage's TREC run: make one with retrieve.py")
        collection = open_collection(
            self.collection, self.split, self.queries_file, self.qrels, self.documents, self.skip_missing
        )
        return collection_inputs(
            collection, self.run, self.k, self.fold, self.query_ids(), self.skip_missing, progress
        )

    def load_ranker(self, device: torch.device | str = "cpu") -> Ranker:
        """Loads the model, and sets the number of threads."""
        if self.threads is not None:
            if self.threads < 1:
                raise ValueError(f"threads must be at least 1, got {self.threads}")
            torch.set_num_threads(self.threads)
        return Ranker.load(self.model, self.selector, self.batch_tokens, device, getattr(torch, self.dtype))

    def query_ids(self) -> list[str] | None:
        """The ids of `--queries`, from the command line or the file."""
        if self.queries is None or len(self.queries) != 1 or not Path(self.queries[0]).is_file():
            return self.queries
        ids = [line.strip() for _, line in numbered_lines(self.queries[0]) if line.strip()]
        if not ids:
            raise ValueError(f"{self.queries[0]}:1: no query ids in the file")
        return ids
