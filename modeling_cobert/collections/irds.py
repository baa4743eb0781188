"""Collections of ir_datasets, under `irds:<id>`."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from .collection import Document, NoJudgmentsError
from .folds import Fold
from .trec import parse_grade


class IrdsCollection:
    """A dataset of ir_datasets; only the documents asked for are looked up, which GOV2 needs."""

    skip_missing = False

    def __init__(self, name: str):
        try:
            import ir_datasets
        except ImportError:
            raise ImportError("irds: collections need ir_datasets: pip install 'modeling-cobert[retrieval]'") from None

        self.name = name
        try:
            self._dataset = ir_datasets.load(name.removeprefix("irds:"))
        except KeyError:
            raise ValueError(f"{name}: ir_datasets knows no such dataset; see https://ir-datasets.com") from None

    def queries(self) -> dict[str, str]:
        self._need("queries")
        with self._fetched("queries"):
            return {query.query_id: query.default_text() for query in self._dataset.queries_iter()}

    def qrels(self, split: str | None = None) -> dict[str, dict[str, int]]:
        if split is not None:
            raise ValueError(f"{self.name}: an ir_datasets id names its own split; leave split {split!r} out")
        if not self._dataset.has("qrels"):
            raise NoJudgmentsError(f"{self.name}: this ir_datasets id has no qrels; a more specific id may have some")
        with self._fetched("judgments"):
            judgments = list(self._dataset.qrels_iter())
        qrels: dict[str, dict[str, int]] = {}
        for judgment in judgments:
            grades = qrels.setdefault(judgment.query_id, {})
            where = f"{self.name}: query {judgment.query_id!r}, document {judgment.doc_id!r}"
            grade = parse_grade(str(judgment.relevance), where)
            if grades.setdefault(judgment.doc_id, grade) != grade:
                raise ValueError(f"{where}: two grades")
        return qrels

    def qrels_source(self) -> str:
        return f"judgments of {self.name}"

    def documents(self) -> Iterator[Document]:
        self._need("docs")
        with self._fetched("documents"):
            yield from map(_irds_document, self._dataset.docs_iter())

    def lookup(self, doc_ids: Iterable[str]) -> dict[str, Document]:
        self._need("docs")
        with self._fetched("documents"):
            found = self._dataset.docs_store().get_many(list(dict.fromkeys(doc_ids)))
        return {doc_id: _irds_document(item) for doc_id, item in found.items()}

    def folds(self) -> list[Fold] | None:
        return None

    def splits(self) -> tuple[str, ...]:
        return ()

    @contextmanager
    def _fetched(self, part: str) -> Iterator[None]:
        """What ir_datasets says of a file that it cannot download tells of neither the id nor a cure."""
        try:
            yield
        except (OSError, RuntimeError, EOFError) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise OSError(
                f"{self.name}: its {part} cannot be fetched ({reason[:300]}): is there a network, and do they need to "
                "be asked for? https://ir-datasets.com says it of each id"
            ) from error

    def _need(self, part: str) -> None:
        if not self._dataset.has(part):
            raise ValueError(f"{self.name}: this ir_datasets id has no {part}; take a more specific id")


def _irds_document(item: Any) -> Document:
    """ir_datasets has a class of document per collection; `default_text` is the part of it that is text."""
    title = item.title if "title" in item._fields else ""
    return Document(item.doc_id, title, item.default_text().removeprefix(title).strip())
