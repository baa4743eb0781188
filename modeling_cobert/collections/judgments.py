"""What does not fit together in a collection: an error that counts it, or a warning and a count."""

import logging
from collections.abc import Sequence

from .collection import Collection, NoJudgmentsError

logger = logging.getLogger(__name__)


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
    """The number of judged queries that the collection lacks; an error by default, and always where all are so."""
    qrels, queries, source = collection.qrels(), collection.queries(), f"judgments of {collection.name}"
    unknown = [query_id for query_id in qrels if query_id not in queries]
    if len(unknown) == len(qrels):
        raise ValueError(f"{source}: not one judged query is a query of the collection: these are other judgments")
    message = f"{source}: {len(unknown)} of {len(qrels)} judged queries are not in the collection{such_as(unknown)}"
    Problems(collection.skip_missing).found("judged_queries_unknown", len(unknown), message)
    return len(unknown)


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
