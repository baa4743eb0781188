"""First stage: ranks a collection's documents for its queries and writes a TREC run.

    cobert retrieve --collection demo --output runs/demo.trec --evaluate

By default the paper's initial ranking, DPH+KL with Terrier's parameters; its other one is `--first_stage bm25+rm3`,
with Anserini's. Terrier's own BM25: `--first_stage bm25 --analyzer terrier --k1 1.2 --b 0.75 --k3 8 --idf robertson`.
With `--queries` the collection's queries have other texts, expanded ones for example, under the same ids.
"""

import logging
from dataclasses import dataclass, field, replace

from ..collections.collection import Collection, read_queries
from ..collections.judgments import check_grades, check_known_documents
from ..collections.options import CollectionOptions
from ..collections.trec import write_run
from ..evaluation.measures import mean_values, parse_measures
from ..retrieval.analysis import stopwords_file
from ..retrieval.options import RetrievalOptions
from ..retrieval.retrieve import retrieve
from ..steps.folders import check_outputs
from .options import check_tag

logger = logging.getLogger(__name__)

MEASURES = ("nDCG@20", "AP@1000", "P@20", "R@1000")


@dataclass
class OutputArguments:
    """What comes out."""

    output: str = field(metadata={"help": "The TREC run to write; compressed if it ends in .gz."})
    k: int = field(default=1000, metadata={"help": "The most documents of a query."})
    tag: str | None = field(
        default=None, metadata={"help": "Sixth column of the run; by default the first stage's name."}
    )
    evaluate: bool = field(default=False, metadata={"help": "Also measure the run by the collection's judgments."})

    def __post_init__(self):
        if self.tag is not None:
            check_tag(self.tag)


ARGUMENTS = (CollectionOptions, OutputArguments, RetrievalOptions)


def own_queries(collection: Collection, replaced: dict[str, str]) -> dict[str, str]:
    """The collection's queries; where it has documents alone, those that are given."""
    try:
        return collection.queries()
    except FileNotFoundError:
        if not replaced:
            raise
        return replaced


def replace_texts(own: dict[str, str], replaced: dict[str, str], path: str, skip_missing: bool) -> dict[str, str]:
    """The queries with the texts of a file: other ids in it are an error, or are left out and counted."""
    missing = [query_id for query_id in own if query_id not in replaced]
    unknown = [query_id for query_id in replaced if query_id not in own]
    for query_ids, what in ((missing, "queries of the collection are not in it"), (unknown, "queries are new")):
        if query_ids and not skip_missing:
            raise ValueError(f"{path}: {len(query_ids)} {what}, such as {query_ids[0]!r}; or use --skip_missing")
        if query_ids:
            logger.warning("%s: %d %s; skipped", path, len(query_ids), what)
    return {query_id: replaced[query_id] for query_id in own if query_id in replaced}


def judgments(collection: Collection, queries: dict[str, str], skip_missing: bool) -> dict[str, dict[str, int]]:
    """What to measure by; judgments for queries without text are an error, or are left out and counted."""
    qrels = collection.qrels()
    unknown = [query_id for query_id in qrels if query_id not in queries]
    if unknown and not skip_missing:
        raise ValueError(
            f"{collection.qrels_source()}: {len(unknown)} judged queries have no text, such as {unknown[0]!r}: "
            "correct them, or go on without them with --skip_missing"
        )
    if unknown:
        logger.warning("%d judged queries have no text, such as %r; skipped", len(unknown), unknown[0])
    check_grades(qrels, collection.qrels_source())
    check_known_documents(qrels, collection)
    return {query_id: grades for query_id, grades in qrels.items() if query_id in queries}


def main(collection_args: CollectionOptions, args: OutputArguments, options: RetrievalOptions) -> dict[str, float]:
    """Writes the run; returns its measures, if they were asked for."""
    options.check_read()
    words = stopwords_file(options.stopwords)
    check_outputs({"--output": args.output}, [*collection_args.files(), *([] if words is None else [words])])
    path, skip_missing = collection_args.queries, collection_args.skip_missing
    collection = replace(collection_args, queries=None).open()
    replaced = {} if path is None else read_queries(path)
    own = own_queries(collection, replaced)
    queries = own if path is None else replace_texts(own, replaced, path, skip_missing)
    qrels = judgments(collection, own, skip_missing) if args.evaluate else {}
    run = retrieve(collection, options, args.k, queries)
    write_run(args.output, run, args.tag or options.first_stage)
    print(f"{args.output}: {len(run)} queries, {sum(map(len, run.values()))} lines")
    measures = mean_values(qrels, run, parse_measures(MEASURES)) if args.evaluate else {}
    for name, value in measures.items():
        print(f"{name}\t{value:.4f}")
    return measures
