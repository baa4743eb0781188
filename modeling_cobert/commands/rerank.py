"""Ranks a file of documents for one query.

    cobert rerank --model models/cobert --query "how do bees see" docs.jsonl

The documents are in first-stage order, one JSON object a line: `text`, perhaps `title`, perhaps `_id` (or `id`). With
`--plain` each line is a text. Without a file, or with `-`, they are read from standard input:

    grep -rh bees notes/ | cobert rerank --model models/cobert --query "how do bees see" --plain --top_k 3
"""

import argparse
import json
import logging
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch

from ..collections.trec import numbered_lines
from ..evaluation.tables import visible
from ..ranking.ranker import Ranker
from ..ranking.ties import strict_scores

LOG_LEVEL = logging.WARNING
STDIN = "-"
SNIPPET = 80

_WHITE_SPACE = re.compile(r"\s")


@dataclass
class RerankOptions:
    """The model, the query, the documents, and how the ranking is printed."""

    model: str = field(metadata={"help": "Folder or Hub id of a Co-BERT."})
    query: str = field(metadata={"help": "The query; it is never truncated."})
    documents: str = field(
        default=STDIN, metadata={"help": "Documents (.jsonl), compressed if it ends in .gz; - is standard input."}
    )
    plain: bool = field(default=False, metadata={"help": "Each line is the text of a document, not JSON."})
    top_k: int | None = field(default=None, metadata={"help": "How many documents to print; by default all."})
    selector: str | None = field(
        default=None,
        metadata={
            "help": "self, lexical, first-stage, or a cross-encoder or bi-encoder that chooses passages and "
            "prototypes; by default what the model's config says."
        },
    )
    batch_tokens: int | None = field(
        default=None,
        metadata={"help": "The most tokens of a batch, padding included; by default 16384, or 1024 on a CPU."},
    )
    format: str = field(
        default="text",
        metadata={
            "help": "text: rank, score, id (or place, from 0), how the text begins; jsonl: rank, index (the place), "
            "id, score (a logit) and probability; trec: a run, for which every document needs an id of its own.",
            "choices": ["text", "jsonl", "trec"],
        },
    )
    query_id: str = field(default="1", metadata={"help": "The query's id in a TREC run."})
    tag: str = field(default="co-bert", metadata={"help": "The system's name in a TREC run."})
    use_cpu: bool = field(default=False, metadata={"help": "Use no accelerator, even if there is one."})

    def __post_init__(self):
        if not self.query.strip():
            raise ValueError("the query is empty")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k must be at least 1, got {self.top_k}")
        if self.format == "trec" and self.plain:
            raise ValueError("plain lines have no ids, and a TREC run needs them: give JSON lines with an _id")
        for name, value in (("query_id", self.query_id), ("tag", self.tag)):
            if not value or _WHITE_SPACE.search(value):
                raise ValueError(f"{name} must be non-empty and without white space, got {value!r}")


ARGUMENTS = (RerankOptions,)


def configure(parser: argparse.ArgumentParser) -> None:
    """The documents may be given without `--documents`."""
    parser.add_argument("documents", nargs="?", default=argparse.SUPPRESS, help="The same as --documents.")


def read_documents(options: RerankOptions) -> list[dict]:
    """The documents: `id` (or `None`), `title` and `text` of each."""
    name = "<stdin>" if options.documents == STDIN else options.documents
    lines = stdin_lines(name) if options.documents == STDIN else numbered_lines(options.documents)
    documents, first_seen = [], {}
    for number, line in lines:
        where = f"{name}:{number}"
        if not line.strip():
            raise ValueError(f"{where}: blank line; remove it")
        document = {"id": None, "title": "", "text": line} if options.plain else parse_document(line, where)
        if options.format == "trec":
            check_id(document["id"], where, first_seen)
        documents.append(document)
    if not documents:
        raise ValueError(f"{name}:1: no documents")
    return documents


def stdin_lines(name: str) -> Iterator[tuple[int, str]]:
    """Standard input as [`numbered_lines`] gives a file, whatever the terminal's own encoding is."""
    for number, line in enumerate(sys.stdin.buffer, start=1):
        try:
            yield number, line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise ValueError(f"{name}:{number}: not UTF-8 ({error.reason} at byte {error.start})") from None


def parse_document(line: str, where: str) -> dict:
    """One JSON line."""
    try:
        item = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: not a JSON object ({error}); for lines of text there is --plain") from None
    if not isinstance(item, dict):
        raise ValueError(f"{where}: not a JSON object, but {type(item).__name__}")
    title = "" if item.get("title") is None else item["title"]
    for key, value in (("text", item.get("text")), ("title", title)):
        if not isinstance(value, str):
            raise ValueError(f"{where}: {key!r} must be a string, found {'nothing' if value is None else repr(value)}")
    identifier = item.get("_id", item.get("id"))
    if isinstance(identifier, int) and not isinstance(identifier, bool):
        identifier = str(identifier)
    if identifier is not None and not isinstance(identifier, str):
        raise ValueError(f"{where}: an id must be a string or an integer, found {identifier!r}")
    return {"id": identifier, "title": whole(title), "text": whole(item["text"])}


def check_id(identifier: str | None, where: str, first_seen: dict[str, str]) -> None:
    """A TREC run needs an id for each document, without white space, each once."""
    if not identifier or _WHITE_SPACE.search(identifier):
        found = "nothing" if identifier is None else repr(identifier)
        raise ValueError(f"{where}: a TREC run needs an '_id' without white space, found {found}")
    if identifier in first_seen:
        raise ValueError(f"{where}: document {identifier!r} appears twice, first in {first_seen[identifier]}")
    first_seen[identifier] = where


def whole(text: str) -> str:
    """Half of a surrogate pair, which JSON and the shell let through, becomes U+FFFD: no tokenizer would take it."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def text_lines(ranking: list[dict], documents: list[dict]) -> Iterator[str]:
    """For people: rank, score, id and how the document begins."""
    for rank, item in enumerate(ranking, start=1):
        document = documents[item["corpus_id"]]
        identifier = str(item["corpus_id"]) if document["id"] is None else document["id"]
        words = " ".join(f"{document['title']} {document['text']}".split())
        start = words if len(words) <= SNIPPET else words[: SNIPPET - 3] + "..."
        yield f"{rank}\t{item['score']:.4f}\t{visible(identifier)}\t{visible(start)}"


def json_lines(ranking: list[dict], documents: list[dict]) -> Iterator[str]:
    """For programs."""
    for rank, item in enumerate(ranking, start=1):
        index = item["corpus_id"]
        told = {"rank": rank, "index": index, "id": documents[index]["id"]}
        yield json.dumps({**told, "score": item["score"], "probability": item["probability"]}, allow_nan=False)


def trec_lines(ranking: list[dict], documents: list[dict], query_id: str, tag: str) -> Iterator[str]:
    """For trec_eval, whose order is the model's: scores fall strictly."""
    doc_ids = [documents[item["corpus_id"]]["id"] for item in ranking]
    scores = strict_scores(doc_ids, [item["score"] for item in ranking])
    for rank, (doc_id, score) in enumerate(scores.items(), start=1):
        yield f"{query_id} Q0 {doc_id} {rank} {score!r} {tag}"


def main(options: RerankOptions) -> list[dict]:
    """Prints the ranking, and returns it as `model.rerank` does."""
    documents = read_documents(options)
    on_accelerator = torch.accelerator.is_available() and not options.use_cpu
    device = torch.accelerator.current_accelerator() if on_accelerator else "cpu"
    ranker = Ranker.load(options.model, options.selector, options.batch_tokens, device)
    ranking = ranker.model.rerank(
        whole(options.query),
        [{"title": document["title"], "text": document["text"]} for document in documents],
        options.top_k,
        selector=ranker.selector,
        batch_tokens=ranker.batch_tokens,
    )
    lines: Iterable[str]
    if options.format == "text":
        lines = text_lines(ranking, documents)
    elif options.format == "jsonl":
        lines = json_lines(ranking, documents)
    else:
        lines = trec_lines(ranking, documents, options.query_id, options.tag)
    for line in lines:
        print(line)
    return ranking
