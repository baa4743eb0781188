"""Ranks a file of documents for one query.

    cobert rerank --model models/cobert --query "how do bees see" docs.jsonl

The documents are in first-stage order, one JSON object a line: `text`, perhaps `title`, perhaps `_id` (else the
place, from 0), perhaps the first stage's `score`, which a model with starting weights reads (else the order serves).
With `--plain` each line is a text. Without a file, or with `-`, they are read from standard input:

    grep -rh bees notes/ | cobert rerank --model models/cobert --query "how do bees see" --plain --top_k 3
"""

import argparse
import io
import json
import logging
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

from ..collections.collection import Document, parse_document
from ..collections.trec import numbered_lines
from ..ranking.options import RankerOptions
from ..ranking.ties import strict_scores
from ..reranking_cobert import first_stage_scores
from ..steps.processes import process_state
from ..steps.terminal import visible, visible_lines

LOG_LEVEL = logging.WARNING
SNIPPET = 80


@dataclass(frozen=True)
class RerankOptions:
    """The query, the documents, and how the ranking is printed."""

    query: str = field(metadata={"help": "The query; it is never truncated."})
    documents: str = field(
        default="-", metadata={"help": "Documents (.jsonl), compressed if it ends in .gz; - is standard input."}
    )
    plain: bool = field(default=False, metadata={"help": "Each line is the text of a document, not JSON."})
    top_k: int | None = field(default=None, metadata={"help": "How many documents to print; by default all."})
    format: str = field(
        default="text",
        metadata={
            "help": "text: rank, score, id and how the text begins; jsonl: rank, index (the place), id, score (a "
            "logit) and probability; trec: a run.",
            "choices": ["text", "jsonl", "trec"],
        },
    )
    query_id: str = field(default="1", metadata={"help": "The query's id in a TREC run."})
    tag: str = field(default="co-bert", metadata={"help": "The system's name in a TREC run."})

    def __post_init__(self):
        if not self.query.strip():
            raise ValueError("the query is empty")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k must be at least 1, got {self.top_k}")
        for name, value in (("query_id", self.query_id), ("tag", self.tag)):
            if value.split() != [value]:
                raise ValueError(f"{name} must be non-empty and without white space, got {value!r}")

    @property
    def source(self) -> str:
        """What the documents are called in errors."""
        return "<stdin>" if self.documents == "-" else self.documents


ARGUMENTS = (RankerOptions, RerankOptions)


def configure(parser: argparse.ArgumentParser) -> None:
    """The documents may be given without `--documents`, but not in both ways."""
    given: list[str] = []

    def only_one(path: str) -> str:
        if path not in (argparse.SUPPRESS, "-"):  # the defaults pass here too
            given.append(path)
        if len(given) > 1:
            raise argparse.ArgumentTypeError(f"{' and '.join(given)} are given, and one file is ranked")
        return path

    parser.add_argument("documents", nargs="?", default=argparse.SUPPRESS, help="The same as --documents.")
    for action in parser._actions:
        if action.dest == "documents":
            action.type = only_one


def read_documents(options: RerankOptions) -> tuple[list[Document], list[object]]:
    """The documents, each with an id of its own, and the first stage's score of each, or `None`."""
    documents: dict[str, Document] = {}
    scores: list[object] = []
    name = options.source
    for number, line in numbered_lines(options.documents):
        where, place = f"{name}:{number}", str(len(documents))
        if not line.strip():
            raise ValueError(f"{where}: blank line; remove it")
        document = Document(place, "", line) if options.plain else parse_document(line.encode(), where, place)
        if document.doc_id in documents:
            first = list(documents).index(document.doc_id) + 1
            raise ValueError(
                f"{where}: document {document.doc_id!r} appears twice, in line {first} too (a document without an id "
                "has its place, from 0, as its id): give each an id of its own"
            )
        documents[document.doc_id] = document
        scores.append(None if options.plain else json.loads(line).get("score"))
    if not documents:
        raise ValueError(f"{name}:1: no documents")
    return list(documents.values()), scores


def lines(options: RerankOptions, ranking: list[dict], documents: list[Document]) -> Iterator[str]:
    """What is printed: for people, for programs, or for trec_eval, whose order is the model's."""
    ids = [documents[item["corpus_id"]].doc_id for item in ranking]
    strict = strict_scores(ids, [item["score"] for item in ranking])
    for rank, (item, doc_id) in enumerate(zip(ranking, ids, strict=True), start=1):
        if options.format == "trec":
            yield f"{options.query_id} Q0 {doc_id} {rank} {strict[doc_id]!r} {options.tag}"
        elif options.format == "jsonl":
            told = {"rank": rank, "index": item["corpus_id"], "id": doc_id}
            yield json.dumps({**told, "score": item["score"], "probability": item["probability"]}, allow_nan=False)
        else:
            words = " ".join(documents[item["corpus_id"]].full_text.split())
            start = words if len(words) <= SNIPPET else words[: SNIPPET - 3] + "..."
            yield f"{rank}\t{item['score']:.4f}\t{visible(doc_id)}\t{visible(start)}"


def main(ranker_options: RankerOptions, options: RerankOptions) -> list[dict]:
    """Prints the ranking, and returns it as `model.rerank` does."""
    documents, scores = read_documents(options)
    ranker = ranker_options.load(device=process_state(ranker_options.use_cpu).device)
    texts = [document.to_dict() | {"score": score} for document, score in zip(documents, scores, strict=True)]
    if ranker.model.start is not None:
        first_stage_scores(texts, options.source)
    ranking = ranker.model.rerank(
        options.query, texts, options.top_k, selector=ranker.selector, batch_tokens=ranker.batch_tokens
    )
    if options.format == "trec" and isinstance(sys.stdout, io.TextIOWrapper) and not sys.stdout.isatty():
        sys.stdout.reconfigure(encoding="utf-8")  # a run is UTF-8 in every locale
    for line in lines(options, ranking, documents):
        print(visible_lines(line) if sys.stdout.isatty() else line)  # a file gets the ids as they are
    return ranking
