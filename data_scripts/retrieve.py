"""First stage: ranks a collection's documents for its queries and writes a TREC run.

The paper's initial ranking, and its other first stage, both with the parameters of the systems they come from:

```bash
python data_scripts/retrieve.py --collection data/vaswani --model dph+kl --k 1000 --output runs/vaswani.trec
python data_scripts/retrieve.py --collection data/vaswani --model bm25+rm3 --output runs/vaswani.trec --evaluate
```

Terrier's own BM25: `--model bm25 --analyzer terrier --k1 1.2 --b 0.75 --k3 8 --idf robertson`.
"""

import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from transformers import HfArgumentParser

from modeling_cobert.collections.collection import Collection, open_collection, read_queries
from modeling_cobert.collections.trec import write_run
from modeling_cobert.retrieval.analysis import ANALYZERS, STEMMERS, Analyzer
from modeling_cobert.retrieval.first_stage import IDFS, MODELS, FirstStage, check_queries, rank_all
from modeling_cobert.retrieval.index import build_index

logger = logging.getLogger("retrieve")


@dataclass
class RetrievalArguments:
    """What to search, how, and where the run goes."""

    collection: str = field(metadata={"help": "A folder (BEIR or TREC files), irds:<id>, or demo."})
    output: str = field(metadata={"help": "The TREC run to write; compressed if it ends in .gz."})
    model: str = field(default="dph+kl", metadata={"help": "The first-stage model.", "choices": MODELS})
    k: int = field(default=1000, metadata={"help": "The most documents per query."})
    split: str | None = field(default=None, metadata={"help": "Only queries judged in this split, e.g. test."})
    queries: str | None = field(
        default=None,
        metadata={"help": "Replaced or expanded queries for the same query ids: .jsonl, .tsv or TREC topics."},
    )
    documents: str | None = field(default=None, metadata={"help": "Documents as jsonl, if not in the folder itself."})
    tag: str | None = field(default=None, metadata={"help": "Sixth column of the run; by default the model's name."})
    skip_missing: bool = field(
        default=False, metadata={"help": "Go on without queries that are empty or match nothing, and count them."}
    )
    evaluate: bool = field(
        default=False, metadata={"help": "Also measure the run against the collection's judgments."}
    )


@dataclass
class ModelArguments:
    """The analysis of text and the parameters of the models."""

    analyzer: str | None = field(
        default=None,
        metadata={
            "help": "Tokeniser and stop list; by default terrier for DPH, anserini for BM25.",
            "choices": ANALYZERS,
        },
    )
    stemmer: str = field(default="porter", metadata={"help": "english is Porter 2.", "choices": STEMMERS})
    stopwords: str | None = field(
        default=None, metadata={"help": "terrier, lucene, none, or a file of words; by default the analyzer's own."}
    )
    index_stopwords: bool = field(default=False, metadata={"help": "Drop stop words from queries only, as PISA does."})
    k1: float = field(default=0.9, metadata={"help": "BM25: saturation of term frequency."})
    b: float = field(default=0.4, metadata={"help": "BM25: share of length normalisation."})
    k3: float | None = field(default=None, metadata={"help": "BM25: saturation of query term frequency; Terrier: 8."})
    idf: str = field(default="lucene", metadata={"help": "BM25: robertson may be negative.", "choices": IDFS})
    feedback_docs: int | None = field(default=None, metadata={"help": "Expansion: documents; RM3 10, KL 3."})
    feedback_terms: int = field(default=10, metadata={"help": "Expansion: terms."})
    original_weight: float = field(default=0.5, metadata={"help": "RM3: the original query's share."})
    beta: float | None = field(default=None, metadata={"help": "KL: Rocchio's beta; by default parameter-free."})


def chosen_queries(args: RetrievalArguments, collection: Collection) -> dict[str, str]:
    """The collection's queries, or their replacements from a file, which must be for the same ids."""
    own = collection.queries()
    if args.queries is None:
        return own
    replaced = read_queries(args.queries)
    missing = [query_id for query_id in own if query_id not in replaced]
    unknown = [query_id for query_id in replaced if query_id not in own]
    for query_ids, what in ((missing, "queries of the collection are not in it"), (unknown, "queries are new")):
        if query_ids and not args.skip_missing:
            raise ValueError(
                f"{args.queries}: {len(query_ids)} {what}, such as {query_ids[0]!r}; or use --skip_missing"
            )
        if query_ids:
            logger.warning("%s: %d %s; skipped", args.queries, len(query_ids), what)
    return {query_id: replaced[query_id] for query_id in own if query_id in replaced}


def judgments(args: RetrievalArguments, collection: Collection) -> dict[str, dict[str, int]]:
    """The judgments to measure against; those for queries without text are an error, or skipped."""
    own, qrels = collection.queries(), collection.qrels()
    unknown = [query_id for query_id in qrels if query_id not in own]
    if unknown and not args.skip_missing:
        raise ValueError(f"{args.collection}: {len(unknown)} judged queries have no text, such as {unknown[0]!r}")
    if unknown:
        logger.warning("%d judged queries have no text, such as %r; skipped", len(unknown), unknown[0])
    return {query_id: grades for query_id, grades in qrels.items() if query_id in own}


def measure(run: Mapping[str, Mapping[str, float]], qrels: Mapping[str, Mapping[str, int]]) -> dict[str, float]:
    """nDCG@20, AP@1000, P@20 and R@1000 over all judged queries; a judged query without a ranking counts as zero."""
    import ir_measures
    from ir_measures import AP, P, R, nDCG

    values = ir_measures.calc_aggregate([nDCG @ 20, AP @ 1000, P @ 20, R @ 1000], qrels, run)
    return {str(measure): value for measure, value in sorted(values.items(), key=lambda item: str(item[0]))}


def run_numpy(args: RetrievalArguments, model_args: ModelArguments, stage: FirstStage, collection: Collection) -> dict:
    """Ranks in memory."""
    name = model_args.analyzer or stage.default_analyzer
    analyzer = Analyzer(name, model_args.stemmer, model_args.stopwords, model_args.index_stopwords)
    # Whatever is wrong with the queries is said before the documents are read.
    queries = check_queries(chosen_queries(args, collection), analyzer.query, args.skip_missing)
    index = build_index(collection.documents(), analyzer)
    return rank_all(stage, index, queries, args.k, args.skip_missing)


def main(args: RetrievalArguments, model_args: ModelArguments) -> dict[str, float]:
    """Writes the run; returns its measures, if they were asked for."""
    parameters = {f.name: getattr(model_args, f.name) for f in fields(FirstStage) if f.name != "model"}
    stage = FirstStage(args.model, **parameters)
    if args.k < 1:
        raise ValueError(f"--k must be at least 1, got {args.k}")
    if Path(args.output).is_dir():
        raise ValueError(f"{args.output}: is a folder; --output is the name of a file")
    Path(args.output).parent.mkdir(parents=True, exist_ok=True)
    collection = open_collection(args.collection, args.split, documents=args.documents, skip_missing=args.skip_missing)
    qrels = judgments(args, collection) if args.evaluate else {}
    run = run_numpy(args, model_args, stage, collection)
    write_run(args.output, run, args.tag or args.model)
    print(f"{args.output}: {len(run)} queries, {sum(map(len, run.values()))} lines")
    measures = measure(run, qrels) if args.evaluate else {}
    for name, value in measures.items():
        print(f"{name}\t{value:.4f}")
    return measures


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    try:
        main(*HfArgumentParser((RetrievalArguments, ModelArguments)).parse_args_into_dataclasses())
    except (ValueError, OSError, ImportError) as error:
        sys.exit(f"error: {error}")
