"""A collection as the rows see it: some of its queries, perhaps with other texts, and one plan of folds for all."""

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

from .collection import Collection, Document, read_queries
from .folds import Fold
from .judgments import check_judgments
from .options import SplitOptions
from .splits import plan_splits


class CollectionView:
    """
    A [`Collection`] with the queries and folds that are given, and all the rest from another one.

    Args:
        base ([`Collection`]): documents, judgments and name.
        texts (`Mapping[str, str]`): query id to text.
        folds (`list[Fold]`, *optional*): the folds; without them, the splits of `base`.
    """

    def __init__(self, base: Collection, texts: Mapping[str, str], folds: list[Fold] | None):
        self.base, self.name, self.skip_missing = base, base.name, base.skip_missing
        self._texts, self._folds = dict(texts), folds

    def queries(self) -> dict[str, str]:
        return dict(self._texts)

    @cached_property
    def _judgments(self) -> dict[str, dict[str, int]]:
        return self.base.qrels()

    def qrels(self, split: str | None = None) -> dict[str, dict[str, int]]:
        judged = self._judgments if split is None else self.base.qrels(split)
        return {query_id: dict(grades) for query_id, grades in judged.items() if query_id in self._texts}

    def qrels_source(self) -> str:
        return self.base.qrels_source()

    def documents(self) -> Iterator[Document]:
        return self.base.documents()

    def lookup(self, doc_ids: Iterable[str]) -> dict[str, Document]:
        return self.base.lookup(doc_ids)

    def folds(self) -> list[Fold] | None:
        return self._folds

    def splits(self) -> tuple[str, ...]:
        return () if self._folds is not None else self.base.splits()


def open_view(base: Collection, options: SplitOptions, max_queries: int | None = None) -> CollectionView:
    """
    The view that every row works on.

    Args:
        base ([`Collection`]): the whole collection.
        options ([`SplitOptions`]): which folds.
        max_queries (`int`, *optional*): only so many judged queries, the first; folds are cut down to them.
    """
    queries, qrels = base.queries(), base.qrels()
    check_judgments(base)
    trimmed = max_queries is not None
    if trimmed:
        queries = {q: queries[q] for q in [q for q in queries if qrels.get(q)][:max_queries]}
        own = base.folds()
        base = CollectionView(base, queries, None if own is None else [fold.only(queries) for fold in own])
    plan = plan_splits(base, list(queries), options, base.skip_missing or trimmed)
    if plan.folds is None and not {"train", "validation", "test"} <= plan.splits.keys():
        raise ValueError(
            f"{plan.source}: {', '.join(plan.splits)} is not enough to train, select and test: give --folds random, "
            "or a file of folds"
        )
    return CollectionView(base, queries, plan.folds)


def queries_under_test(view: CollectionView) -> tuple[str, ...]:
    """The queries that every row is measured on: those of all test folds, or of the split `test`."""
    folds = view.folds()
    if folds is None:
        # What does not fit was an error, or was counted, when the view was opened.
        return plan_splits(view, list(view.queries()), skip_missing=True).splits["test"]
    tested = {query_id for fold in folds for query_id in fold.test}
    return tuple(query_id for query_id in view.queries() if query_id in tested)


def expanded_view(view: CollectionView, path: str) -> CollectionView:
    """The same queries with the texts of a file, which must have every one of them."""
    replaced = read_queries(path)
    missing = [query_id for query_id in view.queries() if not replaced.get(query_id, "").strip()]
    if missing:
        raise ValueError(
            f"{path}: {len(missing)} of {len(view.queries())} queries have no expanded text, such as {missing[0]!r}: "
            "give each query a line, with its own text where there is no suggestion"
        )
    return CollectionView(view.base, {query_id: replaced[query_id] for query_id in view.queries()}, view.folds())
