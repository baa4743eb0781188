"""Search collections behind one small protocol: BEIR folders, TREC files, `irds:<id>` and the embedded demo.

Nothing past this file knows a format. `open_collection` takes

- a folder: queries in `queries.jsonl` (BEIR), `topics.tsv` (id, tab, text) or `topics.txt` (TREC's `<top>`), judgments
  in `qrels/<split>.tsv` (BEIR, with or without header) or `qrels.txt` (TREC), documents in `corpus.jsonl` with `_id`,
  `title` and `text`, and perhaps `folds.json`;
- `irds:<id>`: a dataset of ir_datasets, such as `irds:disks45/nocr/trec-robust-2004`;
- `demo`: the small collection that comes with the package.
"""

import json
import logging
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from .folds import Fold, read_folds
from .topics import read_topics
from .trec import bounded_lines, numbered_lines, parse_grade, read_qrels

logger = logging.getLogger(__name__)

# A NUL would end an id in trec_eval's own code.
_WHITE_SPACE = re.compile(r"[\s\0]")
_ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
# The names of splits that are disjoint by custom; other files in qrels/ (train-graded.tsv) are taken when asked for.
_STANDARD_SPLITS = ("train", "dev", "validation", "test")


class NoJudgmentsError(FileNotFoundError):
    """A collection has no judgments at all, which only some steps need."""


class Document(NamedTuple):
    """One document: its id, its title (may be empty) and its text (may be empty)."""

    doc_id: str
    title: str
    text: str

    @property
    def full_text(self) -> str:
        """Title and text, as a first stage indexes them."""
        return f"{self.title} {self.text}" if self.title else self.text

    def to_dict(self) -> dict[str, str]:
        """Title and text, as everything that cuts texts takes them."""
        return {"title": self.title, "text": self.text}


class Collection(Protocol):
    """What the rest of the package needs to know of a collection."""

    name: str
    skip_missing: bool  # whether what does not fit together is counted and left out, instead of being an error

    def queries(self) -> dict[str, str]:
        """Query id to text, in file order; of the chosen split only, if one was chosen."""

    def qrels(self, split: str | None = None) -> dict[str, dict[str, int]]:
        """Query id to document id to grade; a [`NoJudgmentsError`] where the collection has no judgments at all."""

    def qrels_source(self) -> str:
        """Where the judgments come from, for errors."""

    def documents(self) -> Iterator[Document]:
        """Every document, in file order."""

    def lookup(self, doc_ids: Iterable[str]) -> dict[str, Document]:
        """Those of `doc_ids` that exist; an id that the collection lacks is not in the result."""

    def folds(self) -> list[Fold] | None:
        """The collection's own cross-validation folds, if it has some."""

    def splits(self) -> tuple[str, ...]:
        """The names that `qrels` takes, where the judgments come in several disjoint splits; else nothing."""


def open_collection(
    name: str | os.PathLike,
    split: str | None = None,
    queries: str | os.PathLike | None = None,
    qrels: str | os.PathLike | None = None,
    documents: str | os.PathLike | None = None,
    skip_missing: bool = False,
) -> Collection:
    """
    Opens a collection by name.

    Args:
        name (`str` or `os.PathLike`): a folder, `irds:<id>` or `demo`.
        split (`str`, *optional*): the judgments to use, such as `"test"`; several are joined with commas
            (`"train-graded,dev"`). `queries()` is then limited to the queries judged in them. Without it, all queries
            and the judgments of all standard splits. An ir_datasets id names its own split.
        queries (`str` or `os.PathLike`, *optional*): a file of queries instead of the collection's own.
        qrels (`str` or `os.PathLike`, *optional*): a file of judgments instead of the collection's own.
        documents (`str` or `os.PathLike`, *optional*): a jsonl file of documents instead of the collection's own.
        skip_missing (`bool`, *optional*, defaults to `False`): whether queries, documents and judgments that do not
            fit together are counted and left out, here and in all steps after, instead of being an error.

    Example:

    ```python
    >>> collection = open_collection("demo")
    >>> len(collection.queries())
    50
    ```
    """
    name = os.fspath(name)
    if name == "demo" or name.startswith("irds:"):
        if split or queries or qrels or documents:
            raise ValueError(
                f"collection {name!r} brings its own files: split, queries, qrels and documents do not apply"
            )
        if name == "demo":
            from .demo import demo_collection

            opened = demo_collection()
        else:
            from .irds import IrdsCollection

            opened = IrdsCollection(name)
        opened.skip_missing = skip_missing
        return opened
    return FolderCollection(Path(name), split, queries, qrels, Path(documents) if documents else None, skip_missing)


def read_queries(path: str | os.PathLike) -> dict[str, str]:
    """
    Reads queries from `.jsonl` (`_id` and `text`), `.tsv` (id, tab, text) or a TREC topics file (`<top>`; the title).

    A query may be empty here: whoever runs it decides what that means.
    """
    if str(path).endswith((".jsonl", ".jsonl.gz")):
        pairs = _jsonl_queries(path)
    elif str(path).endswith((".tsv", ".tsv.gz")):
        pairs = _tsv_queries(path)
    else:
        pairs = read_topics(path)
    queries: dict[str, str] = {}
    for number, query_id, text in pairs:
        if query_id in queries:
            raise ValueError(f"{path}:{number}: query {query_id!r} appears twice")
        queries[_check_id(query_id, f"{path}:{number}")] = text
    if not queries:
        raise ValueError(f"{path}:1: no queries in the file")
    return queries


def _check_id(identifier: object, where: str) -> str:
    if not isinstance(identifier, str) or not identifier or _WHITE_SPACE.search(identifier):
        raise ValueError(f"{where}: an id must be a non-empty string without white space or NUL, found {identifier!r}")
    return identifier


def _parse_json(line: bytes | str, where: str) -> dict:
    try:
        item = json.loads(line)
    except (ValueError, RecursionError) as error:
        reason = "blank line; remove it" if not line.strip() else f"not a JSON object ({error})"
        raise ValueError(f"{where}: {reason}") from None
    if not isinstance(item, dict):
        raise ValueError(f"{where}: not a JSON object, but {type(item).__name__}")
    return item


def _string(item: dict, key: str, where: str) -> str:
    value = item.get(key)
    if not isinstance(value, str):
        raise ValueError(f"{where}: {key!r} must be a string, found {'nothing' if value is None else repr(value)}")
    return value


def parse_document(line: bytes, where: str, default_id: str | None = None) -> Document:
    """
    One line of a jsonl file: `_id`, `text` and perhaps `title`.

    Args:
        line (`bytes`): the line.
        where (`str`): its file and number, for errors.
        default_id (`str`, *optional*): the id of a document that has neither `_id` nor `id`, or `null` there; without
            it, that `_id` is missing is an error.
    """
    item = _parse_json(line, where)
    doc_id = item.get("_id")
    if default_id is not None and doc_id is None:
        doc_id = default_id if item.get("id") is None else str(item["id"])
    elif "_id" not in item:
        raise ValueError(f"{where}: no '_id' in {sorted(item)}")
    title = "" if item.get("title") is None else _string(item, "title", where)
    document = Document(_check_id(doc_id, where), title, _string(item, "text", where))
    if _ESCAPED_SURROGATE.search(line):
        # Half of a surrogate pair can be written in JSON but is no character: no tokenizer or file would take it.
        document = Document(*(part.encode("utf-16", "surrogatepass").decode("utf-16", "replace") for part in document))
    return document


def _jsonl_queries(path: str | os.PathLike) -> Iterator[tuple[int, str, str]]:
    for number, line in numbered_lines(path):
        document = parse_document(line.encode("utf-8"), f"{path}:{number}")
        yield number, document.doc_id, document.text


def _tsv_queries(path: str | os.PathLike) -> Iterator[tuple[int, str, str]]:
    for number, line in numbered_lines(path):
        query_id, tab, text = line.partition("\t")
        if not tab:
            raise ValueError(f"{path}:{number}: expected a query id, a tab and the query, found no tab")
        if "\t" in text.partition("\r")[2]:
            raise ValueError(
                f"{path}:{number}: several queries in one line, with the line ends of old Macs (a lone \\r): write it "
                "with \\n as line ends"
            )
        yield number, query_id, text.strip()


def read_judgments(path: str | os.PathLike) -> dict[str, dict[str, int]]:
    """TREC's four columns, or BEIR's three (split by tabs) with or without a header."""
    first = next((line for _, line in numbered_lines(path)), "")
    if first.count("\t") != 2:
        return read_qrels(path)
    qrels: dict[str, dict[str, int]] = {}
    for number, line in numbered_lines(path):
        columns = line.split("\t")
        if len(columns) != 3:
            raise ValueError(f"{path}:{number}: expected 3 columns (query, document, grade), found {len(columns)}")
        query_id, doc_id, grade = columns
        if number == 1 and grade.strip() in ("score", "relevance", "grade", "label"):
            continue
        grades = qrels.setdefault(_check_id(query_id, f"{path}:{number}"), {})
        if doc_id in grades:
            raise ValueError(f"{path}:{number}: document {doc_id!r} is judged twice for query {query_id!r}")
        grades[_check_id(doc_id, f"{path}:{number}")] = parse_grade(grade.strip(), f"{path}:{number}")
    if not qrels:
        raise ValueError(f"{path}:1: no judgments in the file")
    return qrels


@dataclass
class FolderCollection:
    """A collection of files in a folder, BEIR's or TREC's; see the module's first lines for their names."""

    folder: Path
    split: str | None = None
    queries_file: str | os.PathLike | None = None
    qrels_file: str | os.PathLike | None = None
    documents_file: Path | None = None
    skip_missing: bool = False

    def __post_init__(self) -> None:
        if not self.folder.is_dir():
            raise FileNotFoundError(f"{self.folder}: no such collection; give a folder, irds:<id> or demo")
        if self.split and self.qrels_file:
            raise ValueError(f"{self.folder}: give a split or a file of judgments, not both")
        self.name = self.folder.resolve().name
        self._documents_path = self.documents_file or self.folder / "corpus.jsonl"
        self._offsets: dict[str, int] | None = None

    def queries(self) -> dict[str, str]:
        path = self.queries_file
        if path is None:
            names = ("queries.jsonl", "topics.tsv", "topics.txt")
            path = next((self.folder / name for name in names if (self.folder / name).exists()), None)
            if path is None:
                raise FileNotFoundError(f"{self.folder}: none of {', '.join(names)} is there")
        queries = read_queries(path)
        if self.split is None:
            return queries
        judged = self.qrels()
        missing = [query_id for query_id in judged if query_id not in queries]
        if missing:
            message = (
                f"{path}: {len(missing)} judged queries of split {self.split!r} are not there, such as {missing[0]!r}"
            )
            if not self.skip_missing:
                raise ValueError(f"{message}; are these judgments for other queries?")
            logger.warning("%s; skipped", message)
        return {query_id: text for query_id, text in queries.items() if query_id in judged}

    def qrels(self, split: str | None = None) -> dict[str, dict[str, int]]:
        merged: dict[str, dict[str, int]] = {}
        for path in self._qrels_files(split or self.split):
            for query_id, grades in read_judgments(path).items():
                known = merged.setdefault(query_id, {})
                twice = known.keys() & grades.keys()
                if twice:
                    raise ValueError(
                        f"{path}: query {query_id!r}, document {min(twice)!r} is judged in another split too"
                    )
                known.update(grades)
        return merged

    def qrels_source(self) -> str:
        return ", ".join(map(str, self._qrels_files(self.split)))

    def _qrels_files(self, split: str | None) -> list[Path]:
        if self.qrels_file is not None:
            return [Path(self.qrels_file)]
        there = {path.stem: path for path in sorted(self.folder.glob("qrels/*.tsv"))}
        if not there and split is None:
            if (self.folder / "qrels.txt").exists():
                return [self.folder / "qrels.txt"]
            raise NoJudgmentsError(f"{self.folder}: no judgments: neither qrels/*.tsv nor qrels.txt is there")
        wanted = split.split(",") if split else [name for name in _STANDARD_SPLITS if name in there]
        if not wanted and len(there) == 1:
            wanted = list(there)
        if not wanted or not set(wanted) <= set(there):
            raise FileNotFoundError(
                f"{self.folder}: no judgments for split {split!r}; there are {sorted(there) or 'none'}"
            )
        return [there[name] for name in wanted]

    def documents(self) -> Iterator[Document]:
        offsets: dict[str, int] = {}
        offset = 0
        with self._open_documents() as file:
            for number, line in bounded_lines(file, self._documents_path):
                document = parse_document(line, f"{self._documents_path}:{number}")
                if document.doc_id in offsets:
                    raise ValueError(f"{self._documents_path}:{number}: document {document.doc_id!r} appears twice")
                offsets[document.doc_id] = offset
                offset += len(line)
                yield document
        if not offsets:
            raise ValueError(f"{self._documents_path}:1: no documents in the file")
        self._offsets = offsets

    def lookup(self, doc_ids: Iterable[str]) -> dict[str, Document]:
        if self._offsets is None:
            for _ in self.documents():  # one walk notes where each document begins; their text is not kept
                pass
        offsets = self._offsets or {}
        found = sorted({(offsets[doc_id], doc_id) for doc_id in doc_ids if doc_id in offsets})
        documents = {}
        with self._open_documents() as file:
            for offset, doc_id in found:
                file.seek(offset)
                document = parse_document(file.readline(), f"{self._documents_path}: byte {offset}")
                if document.doc_id != doc_id:
                    raise ValueError(f"{self._documents_path}: byte {offset}: the file has changed while in use")
                documents[doc_id] = document
        return documents

    def _open_documents(self):
        if not self._documents_path.exists():
            raise FileNotFoundError(
                f"{self._documents_path}: no documents; make a jsonl file with _id, title and text of each document"
            )
        return open(self._documents_path, "rb")

    def folds(self) -> list[Fold] | None:
        path = self.folder / "folds.json"
        return read_folds(path) if path.exists() else None

    def splits(self) -> tuple[str, ...]:
        if self.qrels_file is not None or not any(self.folder.glob("qrels/*.tsv")):
            return ()
        names = tuple(path.stem for path in self._qrels_files(self.split))
        return names if len(names) > 1 else ()
