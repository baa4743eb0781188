"""The model, and what it re-ranks: options of the API and of the commands alike."""

import logging
from dataclasses import dataclass, field
from pathlib import Path

import torch

from ..collections.collection import read_judgments
from ..collections.options import CollectionOptions
from ..collections.trec import numbered_lines
from ..data.groups import GroupOptions
from ..data.rows import load_rows
from ..steps.limits import MOST_THREADS, check_numbers
from .inputs import collection_inputs, rows_inputs
from .ranker import Inputs, Ranker

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class InputOptions(CollectionOptions):
    """What is re-ranked: prepared rows, or a collection and a run."""

    collection: str = field(
        default="", metadata={"help": "Instead of rows: a folder (BEIR or TREC files), irds:<id>, or demo."}
    )
    rows: str | None = field(default=None, metadata={"help": "A folder of rows that cobert prepare made."})
    run: str | None = field(default=None, metadata={"help": "With a collection: the TREC run to re-rank."})
    k: int | None = field(
        default=None, metadata={"help": "With a collection: how many documents of a query to re-rank. Default: 1000."}
    )
    fold: int | None = field(default=None, metadata={"help": "Only the test queries of this fold, from 1."})
    query_ids: list[str] | None = field(
        default=None,
        metadata={"help": "Only these query ids, or one file that has an id a line; a name that is both is an id."},
    )

    def __post_init__(self):
        check_numbers(self, 1, "k", "fold")

    def open_inputs(self, groups: GroupOptions | None = None, progress: bool = True) -> Inputs:
        """Opens what is to be re-ranked."""
        if self.qrels is not None and not Path(self.qrels).is_file():
            raise FileNotFoundError(f"{self.qrels}: no such file of judgments")
        if (self.rows is None) == (not self.collection):
            raise ValueError("give either --rows, or --collection and --run")
        if self.rows is not None:
            for name in ("run", "queries", "documents", "k", "skip_missing"):
                if getattr(self, name) not in (None, False):
                    raise ValueError(f"--{name} goes with --collection: rows hold their own")
            qrels = None if self.qrels is None else read_judgments(self.qrels)
            inputs = rows_inputs(self.rows, self.split, self.fold, self.chosen_ids(), qrels, groups)
            inputs.rows.check_judgments(inputs.rows.qrels if qrels is None else qrels, self.qrels)
            return inputs
        if self.run is None:
            raise ValueError("--collection needs --run, the first stage's TREC run: make one with cobert retrieve")
        k = 1000 if self.k is None else self.k
        return collection_inputs(self.open(), self.run, k, self.fold, self.chosen_ids(), groups, progress)

    def chosen_ids(self) -> list[str] | None:
        """The ids of `--query_ids`, from the command line or the file; what may be both is an id."""
        given = self.query_ids
        if given is None or len(given) != 1 or not Path(given[0]).is_file():
            return given
        if given[0] in self._known_ids():
            logger.warning(
                "--query_ids %s: the query, not the file of the same name, which would be ./%s", given[0], given[0]
            )
            return given
        ids = [line.strip() for _, line in numbered_lines(given[0]) if line.strip()]
        if not ids:
            raise ValueError(f"{given[0]}:1: no query ids in the file")
        return ids

    def _known_ids(self) -> set[str]:
        if self.rows is None:
            return set(self.open().queries())
        return {query_id for split in load_rows(self.rows).splits.values() for query_id in split}


@dataclass(frozen=True)
class RankerOptions:
    """The model, and how it computes."""

    model: str = field(metadata={"help": "Folder or Hub id of a Co-BERT."})
    selector: str | None = field(
        default=None,
        metadata={
            "help": "self, lexical, first-stage, or a cross-encoder or bi-encoder that chooses passages and "
            "prototypes, where no rows hold them; by default what the model's config says."
        },
    )
    batch_tokens: int | None = field(
        default=None,
        metadata={"help": "The most tokens of a batch, padding included; by default 16384, or 1024 on a CPU."},
    )
    threads: int | None = field(
        default=None,
        metadata={"help": "Threads of each process on a CPU: so many batches are worked on at the same time."},
    )
    dtype: str = field(
        default="float32",
        metadata={"help": "The numbers to compute in.", "choices": ["float32", "float16", "bfloat16"]},
    )
    use_cpu: bool = field(default=False, metadata={"help": "Use no accelerator, even if there is one."})

    def __post_init__(self):
        check_numbers(self, 1, "threads", most=MOST_THREADS)

    def load(self, inputs: InputOptions | None = None, device: torch.device | str = "cpu") -> Ranker:
        """Loads the model, and sets the number of threads."""
        if self.selector is not None and inputs is not None and inputs.rows is not None:
            raise ValueError("--selector goes with --collection: rows hold their own passages")
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        return Ranker.load(self.model, self.selector, self.batch_tokens, device, getattr(torch, self.dtype))
