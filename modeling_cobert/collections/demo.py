"""The collection that is always there: Python's own language reference, with queries and graded judgments of ours.

The documents are the topics of `pydoc_data.topics`, which every CPython carries (79 in Python 3.11, from 28 to 8,571
words); nothing is downloaded and none of their text is in this package. The queries and judgments are in
`demo_collection.json`. Two keys may hold the same text (`else` and `if`): the text is one document then, under the key
that comes first in the alphabet, with the best of the grades of its keys. Topics that contain others word for word
(`compound` has all of `for`, `try`, ...) stay, judged at least as high as what they contain.
"""

import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from importlib import resources

from .collection import Document
from .folds import Fold

logger = logging.getLogger(__name__)

# Underlines of headings and rulers of tables: only drawing characters, at least three of them.
_RULER = re.compile(r"^[ \t]*[-=*~^+|][-=*~^+| \t]+[-=*~^+|][ \t]*$")
_TABLE_ROW = re.compile(r"^\s*\|\s.*\s\|\s*$")
_CELL_BORDER = re.compile(r"(?<!\S)\|(?!\S)")


def demo_collection(topics: Mapping[str, str] | None = None) -> "DemoCollection":
    """
    Opens the embedded collection; `open_collection("demo")` does the same.

    Args:
        topics (`Mapping[str, str]`, *optional*): topic to text; by default the `pydoc_data.topics` of this Python.

    Example:

    ```python
    >>> collection = demo_collection()
    >>> collection.queries()["10"]
    'Is x += 1 the same as x = x + 1?'
    >>> collection.lookup(["augassign"])["augassign"].title
    'Augmented assignment statements'
    ```
    """
    stored = json.loads(resources.files(__package__).joinpath("demo_collection.json").read_text(encoding="utf-8"))
    return DemoCollection(_pythons_topics() if topics is None else topics, stored["queries"])


def _pythons_topics() -> Mapping[str, str]:
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise ImportError(
            "the demo collection needs pydoc_data, which this Python lacks: install the whole standard library "
            "(on some systems a package of its own), or use another collection"
        ) from error
    return topics


class DemoCollection:
    """
    Topics as documents, with those of `queries` that have a relevant document among them.

    What this Python lacks is dropped and counted in the log: a missing (or blank) topic with its judgments, and a
    query that has no relevant topic left.

    Args:
        topics (`Mapping[str, str]`): topic to text.
        queries (`list[dict]`): objects with `id`, `text` and `judgments`, a mapping of topic to grade.
    """

    name = "demo"
    skip_missing = False

    def __init__(self, topics: Mapping[str, str], queries: list[dict]):
        keys = sorted(key for key, text in topics.items() if text.strip())
        first_key: dict[str, str] = {}
        for key in keys:
            first_key.setdefault(topics[key], key)
        self._documents = {key: _document(key, text) for text, key in first_key.items()}
        self._queries: dict[str, str] = {}
        self._qrels: dict[str, dict[str, int]] = {}
        missing = set()
        for query in queries:
            grades: dict[str, int] = {}
            for key, grade in query["judgments"].items():
                if key not in topics or not topics[key].strip():
                    missing.add(key)
                    continue
                doc_id = first_key[topics[key]]
                grades[doc_id] = max(grade, grades.get(doc_id, 0))
            if any(grade > 0 for grade in grades.values()):
                self._queries[query["id"]] = query["text"]
                self._qrels[query["id"]] = grades
        if missing:
            judged = [(query["id"], key) for query in queries for key in query["judgments"]]
            logger.warning(
                "demo collection: this Python lacks the topics %s; dropped %d of %d judgments and %d of %d queries",
                ", ".join(sorted(missing)),
                sum(key in missing or query_id not in self._queries for query_id, key in judged),
                len(judged),
                len(queries) - len(self._queries),
                len(queries),
            )

    def queries(self) -> dict[str, str]:
        """Query id to text."""
        return dict(self._queries)

    def qrels(self, split: str | None = None) -> dict[str, dict[str, int]]:
        """Query id to document id to grade: 2 answers the query, 1 helps, 0 does not."""
        if split is not None:
            raise ValueError(f"the demo collection has no splits, so no {split!r}; make folds of its queries")
        return {query_id: dict(grades) for query_id, grades in self._qrels.items()}

    def qrels_source(self) -> str:
        return f"judgments of {self.name}"

    def documents(self) -> Iterator[Document]:
        """Every document, by id."""
        return iter(sorted(self._documents.values()))

    def lookup(self, doc_ids: Iterable[str]) -> dict[str, Document]:
        """Those of `doc_ids` that exist."""
        return {doc_id: self._documents[doc_id] for doc_id in doc_ids if doc_id in self._documents}

    def folds(self) -> list[Fold] | None:
        """None: the demo has no folds of its own."""
        return None

    def splits(self) -> tuple[str, ...]:
        """None either."""
        return ()


def _document(key: str, text: str) -> Document:
    """
    The title is the heading, which every topic begins with, or else the key. The text loses its drawing (underlines of
    headings, borders of tables), which would count as words; its words stay as they are.
    """
    lines = text.strip("\n").splitlines()
    title = key.replace("-", " ").capitalize()
    if len(lines) > 1 and lines[0].strip() and _RULER.match(lines[1]):
        title = " ".join(re.sub(r"[\"*`]", "", lines[0]).split())
        lines = lines[2:]
    lines = [
        _CELL_BORDER.sub(" ", line).rstrip() if _TABLE_ROW.match(line) else line
        for line in lines
        if not _RULER.match(line)
    ]
    return Document(key, title, "\n".join(lines).strip("\n"))
