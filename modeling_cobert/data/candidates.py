"""Queries, run and documents checked against each other before any work, with a count of what does not fit."""

import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from tqdm.auto import tqdm

from ..collections.collection import Collection, Document
from ..collections.trec import read_run, trec_columns
from ..passages_cobert import cut_documents

logger = logging.getLogger(__name__)

# Documents whose text is in memory at the same time while all of them are walked through.
_LOOKUP = 1000


@dataclass(frozen=True)
class Candidates:
    """
    What is to be re-ranked.

    Args:
        queries (`dict[str, str]`): query id to text, in the collection's order; every one has candidates.
        ranked (`dict[str, dict[str, float]]`): query id to document id, first-stage order, to first-stage score.
        windows (`dict[str, int]`): each distinct document and how many passages it is cut into.
        skipped (`dict[str, int]`): how many of each kind did not fit and were left out.
        sha256 (`dict[str, str]`): fingerprints of the `queries` and `documents` above.
        tag (`str`): the name that the run gives to its system.
    """

    queries: dict[str, str]
    ranked: dict[str, dict[str, float]]
    windows: dict[str, int]
    skipped: dict[str, int]
    sha256: dict[str, str]
    tag: str


class _Problems:
    """Counts what does not fit; the first kind found is an error, unless it is to be skipped."""

    def __init__(self, skip_missing: bool):
        self.skip_missing = skip_missing
        self.counts: dict[str, int] = {}

    def found(self, kind: str, count: int, message: str) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + count
        if count and not self.skip_missing:
            raise ValueError(f"{message}. Correct the input, or go on without them with --skip-missing.")
        if count:
            logger.warning("%s: skipped", message)


def find_candidates(
    collection: Collection,
    run: str | os.PathLike,
    k: int,
    passage_words: int,
    passage_overlap: int,
    passage_title: bool = False,
    skip_missing: bool = False,
    progress: bool = True,
) -> Candidates:
    """
    The best `k` documents of each query of the collection, from a TREC run.

    A query of the run that the collection lacks, an empty query, a query without documents and a document that the
    collection lacks are errors; with `skip_missing` they are counted and left out.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    scored = read_run(run)
    tag = next(columns[5] for _, columns in trec_columns(run, 6, "query Q0 document rank score tag"))
    problems = _Problems(skip_missing)
    queries = _check_queries(collection.queries(), scored, f"{run}", problems)
    ranked = {query_id: dict(islice(scored[query_id].items(), k)) for query_id in queries}
    del scored
    named = sorted({doc_id for documents in ranked.values() for doc_id in documents})
    windows, digest = {}, hashlib.sha256()
    bar = tqdm(total=len(named), desc="Checking documents", unit=" documents", disable=not progress, delay=3)
    with bar:
        for documents in _in_pieces(collection, named):
            cut = cut_documents([as_dict(d) for d in documents], passage_words, passage_overlap, passage_title)
            for document, pieces in zip(documents, cut, strict=True):
                windows[document.doc_id] = len(pieces.spans)
                digest.update(json.dumps(document).encode())
            bar.update(min(_LOOKUP, bar.total - bar.n))
    _check_documents(ranked, windows, f"{run}", problems)
    queries = {query_id: text for query_id, text in queries.items() if query_id in ranked}
    if not queries:
        raise ValueError(f"{run}: no query is left to work on")
    fingerprints = {
        "queries": hashlib.sha256(json.dumps(list(queries.items())).encode()).hexdigest(),
        "documents": digest.hexdigest(),
    }
    return Candidates(queries, ranked, windows, problems.counts, fingerprints, tag)


def check_judgments(
    qrels: Mapping[str, Mapping[str, int]], queries: Mapping[str, str], skip_missing: bool, source: str
) -> int:
    """The number of judged queries that the collection lacks; an error by default, and always where all are so."""
    unknown = [query_id for query_id in qrels if query_id not in queries]
    if len(unknown) == len(qrels):
        raise ValueError(f"{source}: not one judged query is a query of the collection: these are other judgments")
    problems = _Problems(skip_missing)
    message = f"{source}: {len(unknown)} of {len(qrels)} judged queries are not in the collection{_such_as(unknown)}"
    problems.found("judged_queries_unknown", len(unknown), message)
    return len(unknown)


def as_dict(document: Document) -> dict[str, str]:
    """A document as everything that cuts texts takes it."""
    return {"title": document.title, "text": document.text}


def _check_queries(
    queries: Mapping[str, str], run: Mapping[str, Mapping], source: str, problems: _Problems
) -> dict[str, str]:
    unknown = [query_id for query_id in run if query_id not in queries]
    message = f"{source}: {len(unknown)} of its {len(run)} queries are not in the collection{_such_as(unknown)}"
    problems.found("run_queries_unknown", len(unknown), message)
    empty = [query_id for query_id, text in queries.items() if not text.strip()]
    problems.found("queries_empty", len(empty), f"{len(empty)} queries of the collection are empty{_such_as(empty)}")
    rest = {query_id: text for query_id, text in queries.items() if text.strip()}
    without = [query_id for query_id in rest if not run.get(query_id)]
    message = f"{source}: {len(without)} of the {len(queries)} queries have no documents{_such_as(without)}"
    problems.found("queries_without_documents", len(without), message)
    return {query_id: text for query_id, text in rest.items() if run.get(query_id)}


def _check_documents(
    ranked: dict[str, dict[str, float]], windows: Mapping[str, int], source: str, problems: _Problems
) -> None:
    """Takes what the collection lacks out of `ranked`."""
    missing = [
        (doc_id, query_id) for query_id, documents in ranked.items() for doc_id in documents if doc_id not in windows
    ]
    distinct = list(dict.fromkeys(doc_id for doc_id, _ in missing))
    message = (
        f"{source}: {len(distinct)} documents ({len(missing)} lines) are not in the collection{_such_as(distinct)}"
    )
    problems.found("documents_missing", len(missing), message)
    for doc_id, query_id in missing:
        del ranked[query_id][doc_id]
    without = [query_id for query_id, documents in ranked.items() if not documents]
    message = f"{source}: {len(without)} queries have no document that is in the collection{_such_as(without)}"
    problems.found("queries_without_documents", len(without), message)
    for query_id in without:
        del ranked[query_id]


def _in_pieces(collection: Collection, doc_ids: Sequence[str]) -> Iterator[list[Document]]:
    for start in range(0, len(doc_ids), _LOOKUP):
        piece = doc_ids[start : start + _LOOKUP]
        found = collection.lookup(piece)
        yield [found[doc_id] for doc_id in piece if doc_id in found]


def _such_as(ids: Sequence[str]) -> str:
    return f", such as {ids[0]!r}" if ids else ""
