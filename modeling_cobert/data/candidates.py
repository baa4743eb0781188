"""Queries, run and documents checked against each other before any work, with a count of what does not fit."""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from ..collections.collection import Collection
from ..collections.judgments import Problems, such_as
from ..collections.trec import read_run, read_tag
from ..grouping_cobert import overlapping_spans
from ..steps.hashing import Fingerprint, json_sha256
from ..steps.limits import check_numbers
from ..steps.progress import progress_bar

logger = logging.getLogger(__name__)

# Documents whose text is in memory at the same time while all of them are walked through.
_LOOKUP = 1000


@dataclass(frozen=True, kw_only=True)
class CutOptions:
    """How many documents of a query there are, and how they are cut into passages. The defaults are the paper's."""

    k: int = field(default=1000, metadata={"help": "How many documents of each query are re-ranked."})
    passage_words: int = field(default=150, metadata={"help": "Words of a passage."})
    passage_overlap: int = field(default=75, metadata={"help": "Words that neighbouring passages share."})
    passage_title: bool = field(
        default=False, metadata={"help": "Put the title before every passage, not only the first."}
    )

    def __post_init__(self):
        overlapping_spans(0, self.passage_words, self.passage_overlap)
        check_numbers(self, 1, "k", "passage_words")

    @property
    def cut(self) -> tuple[int, int, bool]:
        """How documents are cut into passages."""
        return self.passage_words, self.passage_overlap, self.passage_title


@dataclass(frozen=True)
class Candidates:
    """
    What is to be re-ranked.

    Args:
        queries (`dict[str, str]`): query id to text, in the collection's order; every one has candidates.
        ranked (`dict[str, dict[str, float]]`): query id to document id, first-stage order, to first-stage score.
        skipped (`dict[str, int]`): how many of each kind did not fit and were left out.
        sha256 (`dict[str, str]`): fingerprints of run, queries and documents.
        tag (`str`): the name that the run gives to its system.
    """

    queries: dict[str, str]
    ranked: dict[str, dict[str, float]]
    skipped: dict[str, int]
    sha256: dict[str, str]
    tag: str


def find_candidates(
    collection: Collection,
    run: str | os.PathLike,
    k: int,
    query_ids: Sequence[str] | None = None,
    count_missing: bool = False,
    progress: bool = True,
) -> Candidates:
    """
    The best `k` documents of each query of the collection, from a TREC run.

    A query of the run that the collection lacks, an empty query, a query without documents and a document that the
    collection lacks are errors; where the collection's `skip_missing` says so, they are counted and left out.

    Args:
        collection ([`Collection`]): queries and documents.
        run (`str` or `os.PathLike`): the first stage.
        k (`int`): how many documents of each query are re-ranked.
        query_ids (`list[str]`, *optional*): only these; the run may then have other queries.
        count_missing (`bool`, *optional*, defaults to `False`): whether queries that the run has nothing for are just
            named in a warning: to whoever measures, they count as zero.
        progress (`bool`, *optional*, defaults to `True`): whether to show a bar while documents are checked.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    texts, scored, problems = collection.queries(), read_run(run), Problems(collection.skip_missing)
    if not scored.keys() & texts.keys():
        raise ValueError(f"{run}: not one of its {len(scored)} queries is in {collection.name}: is it another's run?")
    if query_ids is None:
        unknown = [query_id for query_id in scored if query_id not in texts]
        message = f"{run}: {len(unknown)} of its {len(scored)} queries are not in the collection{such_as(unknown)}"
        problems.found("run_queries_unknown", len(unknown), message)
    else:
        texts = {query_id: texts[query_id] for query_id in query_ids}
        problems.counts["run_queries_not_asked_for"] = len(scored.keys() - texts.keys())
    queries = _ranked_queries(texts, scored, str(run), problems, count_missing)
    ranked = {query_id: dict(islice(scored[query_id].items(), k)) for query_id in queries}
    del scored
    documents = _check_documents(collection, ranked, str(run), problems, progress)
    queries = {query_id: text for query_id, text in queries.items() if query_id in ranked}
    if not queries:
        raise ValueError(f"{run}: no query is left to work on")
    fingerprints = {
        "run": json_sha256([[query_id, list(scores.items())] for query_id, scores in ranked.items()]),
        "queries": json_sha256(list(queries.items())),
        "documents": documents,
    }
    return Candidates(queries, ranked, problems.counts, fingerprints, read_tag(run))


def _ranked_queries(
    texts: Mapping[str, str], run: Mapping[str, Mapping], source: str, problems: Problems, count_missing: bool
) -> dict[str, str]:
    empty = [query_id for query_id, text in texts.items() if not text.strip()]
    problems.found("queries_empty", len(empty), f"{len(empty)} queries of the collection are empty{such_as(empty)}")
    without = [query_id for query_id, text in texts.items() if text.strip() and query_id not in run]
    message = f"{source}: {len(without)} of the {len(texts)} queries have no documents{such_as(without)}"
    if without and count_missing:
        logger.warning("%s: they count as zero", message)
        problems.counts["queries_without_documents"] = len(without)
    else:
        problems.found("queries_without_documents", len(without), message)
    return {query_id: text for query_id, text in texts.items() if text.strip() and query_id in run}


def _check_documents(
    collection: Collection, ranked: dict[str, dict[str, float]], source: str, problems: Problems, progress: bool
) -> str:
    """The fingerprint of all documents; those that the collection lacks are taken out of `ranked`, or an error."""
    named = sorted({doc_id for documents in ranked.values() for doc_id in documents})
    missing: set[str] = set()
    fingerprint = Fingerprint()
    with progress_bar(desc="Checking documents", unit="documents", total=len(named), show=progress) as bar:
        for start in range(0, len(named), _LOOKUP):
            piece = named[start : start + _LOOKUP]
            found = collection.lookup(piece)
            for doc_id in piece:
                fingerprint.add(found.get(doc_id))
            missing.update(doc_id for doc_id in piece if doc_id not in found)
            bar.update(len(piece))
    lines = [(query_id, doc_id) for query_id, documents in ranked.items() for doc_id in documents if doc_id in missing]
    message = f"{source}: {len(missing)} documents ({len(lines)} lines) are not in {collection.name}"
    problems.found("documents_missing", len(lines), message + such_as(sorted(missing)))
    for query_id, doc_id in lines:
        del ranked[query_id][doc_id]
    without = [query_id for query_id, documents in ranked.items() if not documents]
    message = f"{source}: {len(without)} queries have no document that is in the collection{such_as(without)}"
    problems.found("queries_without_documents", len(without), message)
    for query_id in without:
        del ranked[query_id]
    return str(fingerprint)
