"""What does not fit together in a collection: an error that counts it, or a warning and a count."""

import logging
from collections.abc import Iterable, Mapping, Sequence

from .collection import Collection, NoJudgmentsError

logger = logging.getLogger(__name__)

# Judged documents that are looked up at a time; as a rule the first of them is there.
_LOOKUP = 1000


class Problems:
    """Counts what does not fit; the first kind found is an error, unless it is to be skipped."""

    def __init__(self, skip_missing: bool):
        self.skip_missing = skip_missing
        self.counts: dict[str, int] = {}

    def found(self, kind: str, count: int, message: str) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + count
        if count and not self.skip_missing:
            raise ValueError(f"{message}. Correct the input, or go on without them with --skip_missing.")
        if count:
            logger.warning("%s: skipped", message)


def check_judgments(collection: Collection) -> int:
    """
    The number of judged queries that the collection lacks; an error by default, and always where all are so. That not
    one judged document is in the collection, or none is relevant, is an error too: every measure would be zero.
    """
    qrels, queries, source = collection.qrels(), collection.queries(), f"judgments of {collection.name}"
    unknown = [query_id for query_id in qrels if query_id not in queries]
    if len(unknown) == len(qrels):
        raise ValueError(f"{source}: not one judged query is a query of the collection: these are other judgments")
    message = f"{source}: {len(unknown)} of {len(qrels)} judged queries are not in the collection{such_as(unknown)}"
    Problems(collection.skip_missing).found("judged_queries_unknown", len(unknown), message)
    check_grades(qrels, collection.qrels_source())
    check_known_documents(qrels, collection)
    return len(unknown)


def check_grades(qrels: Mapping[str, Mapping[str, int]], source: str) -> None:
    """Some document must be relevant."""
    grades = [grade for judged in qrels.values() for grade in judged.values()]
    if max(grades, default=1) <= 0:
        raise ValueError(
            f"{source}: not one of its {len(grades)} grades is above 0: no document is relevant, nothing can be "
            "learnt, and every measure is 0: give judgments with grades of 1 and more"
        )


def check_known_documents(qrels: Mapping[str, Mapping[str, int]], collection: Collection) -> None:
    """Some judged document must be one of the collection's."""
    named = list(dict.fromkeys(doc_id for judged in qrels.values() for doc_id in judged))
    if any(collection.lookup(named[start : start + _LOOKUP]) for start in range(0, len(named), _LOOKUP)):
        return
    if named:
        known = next(iter(collection.documents())).doc_id
        raise _other_ids(collection.qrels_source(), named[0], known, collection.name)


def check_found_documents(
    qrels: Mapping[str, Mapping[str, int]], runs: Iterable[Mapping[str, Iterable[str]]], source: str, where: str
) -> None:
    """Some judged document must be in one of the runs, or in the candidates of rows."""
    found = {doc_id for run in runs for ranked in run.values() for doc_id in ranked}
    named = next((doc_id for judged in qrels.values() for doc_id in judged), None)
    if named is not None and found and not any(doc_id in found for judged in qrels.values() for doc_id in judged):
        raise _other_ids(source, named, min(found), where)


def check_judged_queries(
    qrels: Mapping[str, Mapping[str, int]], runs: Mapping[str, Mapping[str, Mapping[str, float]]], source: str
) -> None:
    """Each run, by the name of its file, must have a judged query: one of others would have measures of zero."""
    for path, run in runs.items():
        if run and not any(query_id in qrels for query_id in run):
            raise ValueError(
                f"{path}: not one of its {len(run)} queries (such as {min(run)!r}) is judged in {source} (which has "
                f"queries such as {min(qrels, default='')!r}): give a run of the judged queries, or their judgments"
            )


def _other_ids(source: str, judged: str, known: str, where: str) -> ValueError:
    return ValueError(
        f"{source}: not one of the judged documents (such as {judged!r}) is in {where} (which has documents such as "
        f"{known!r}): give judgments with the same ids, or correct the ids"
    )


def known_judgments(collection: Collection) -> dict[str, dict[str, int]]:
    """The judgments, checked; none, with a warning, of a collection that has no judgments at all."""
    try:
        check_judgments(collection)
    except NoJudgmentsError as error:
        logger.warning("%s: rows for re-ranking, or for training with --teacher", error)
        return {}
    return collection.qrels()


def such_as(ids: Sequence[str]) -> str:
    """An example of what is wrong, for the end of a message."""
    return f", such as {ids[0]!r}" if ids else ""
