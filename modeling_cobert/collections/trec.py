"""TREC run and qrels files: strict reading, atomic writing, and trec_eval's own order of documents.

trec_eval ignores the rank column. It keeps scores in single precision (checked against pytrec_eval: 16777217 and
16777216 tie, as do 1 and 1 + 1e-12), sorts by falling score, and breaks ties by falling document id, compared byte by
byte. Byte order of UTF-8 is code point order, which is how Python compares strings.
"""

import gzip
import math
import os
import re
import sys
import zlib
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import IO, cast

import numpy as np

from ..steps.files import atomic_open

# Plain ASCII numbers: float() and int() alone would also take "nan", "1_000" and digits of other scripts.
_SCORE = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_GRADE = re.compile(r"[+-]?[0-9]{1,9}")
# trec_eval counts grades in tables as long as the highest one: what is far above all scales would fill the memory.
HIGHEST_GRADE = 10_000
# The longest line, in bytes. A packed or damaged file may have one that fills the memory.
LONGEST_LINE = 1 << 28
# What C's isspace() takes for a separator; str.split() would also split at a no-break space inside an id.
_SPACE = re.compile(r"[ \t\n\r\v\f]")
_FLOAT32_MAX = float(np.finfo(np.float32).max)


def numbered_lines(path: str | os.PathLike) -> Iterator[tuple[int, str]]:
    """
    Yields (line number from 1, text without line end) of a UTF-8 file, gzip-compressed if its name ends in `.gz`, or
    of standard input (`-`).

    Raises a `ValueError` that begins with `path:line:` for bytes that are not UTF-8 and for a damaged gzip file.
    """
    opener = gzip.open if str(path).endswith(".gz") else open
    number = 0
    with nullcontext(sys.stdin.buffer) if path == "-" else opener(path, "rb") as opened:
        file = cast(IO[bytes], opened)
        try:
            for number, line in bounded_lines(file, path):  # noqa: B007
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                yield number, text.rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}:{number}: not UTF-8 ({error.reason} at byte {error.start})") from None
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{path}:{number + 1}: damaged gzip file ({error})") from None


def bounded_lines(file: IO[bytes], path: str | os.PathLike) -> Iterator[tuple[int, bytes]]:
    """Yields (line number from 1, line) of an open file; one line that is too long to be any text is an error."""
    number = 0
    while line := file.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            raise ValueError(f"{path}:{number}: a line of more than {LONGEST_LINE >> 20} MB, which is no document")
        yield number, line


def trec_columns(path: str | os.PathLike, count: int, names: str) -> Iterator[tuple[int, list[str]]]:
    """
    Yields (line number, columns) of a file whose every line has `count` columns split by white space.

    Args:
        path (`str` or `os.PathLike`): the file.
        count (`int`): how many columns every line must have.
        names (`str`): what the columns are, for the error message.
    """
    number = 0
    for number, line in numbered_lines(path):  # noqa: B007
        columns = [column for column in _SPACE.split(line) if column]
        if not columns:
            raise ValueError(f"{path}:{number}: blank line; remove it")
        if "\0" in line:
            raise ValueError(f"{path}:{number}: a NUL character, which would end an id in trec_eval: remove it")
        if len(columns) != count:
            raise ValueError(f"{path}:{number}: expected {count} columns ({names}), found {len(columns)}")
        yield number, columns
    if number == 0:
        raise ValueError(f"{path}:1: the file is empty")


def parse_grade(text: str, where: str) -> int:
    """Returns the integer grade in `text`, or raises a `ValueError` that begins with `where`."""
    if not _GRADE.fullmatch(text) or abs(int(text)) > HIGHEST_GRADE:
        raise ValueError(f"{where}: the grade must be an integer of at most {HIGHEST_GRADE}, found {text!r}")
    return int(text)


def _parse_score(text: str, where: str) -> float:
    score = float(text) if _SCORE.fullmatch(text) else math.nan
    if not abs(score) <= _FLOAT32_MAX:
        raise ValueError(f"{where}: the score must be a finite number within single precision, found {text!r}")
    return score


def trec_order(scores: Mapping[str, float]) -> list[str]:
    """
    Returns the document ids of one query in the order in which trec_eval ranks them.

    Args:
        scores (`Mapping[str, float]`): document id to score. Scores are compared in single precision, ties are broken
            by falling document id.

    Example:

    ```python
    >>> trec_order({"d1": 0.5, "d2": 2.0, "d3": 0.5})
    ['d2', 'd3', 'd1']
    ```
    """
    single = np.fromiter(scores.values(), dtype=np.float64, count=len(scores))
    if not (np.abs(single) <= _FLOAT32_MAX).all():
        bad = next(doc_id for doc_id, score in scores.items() if not abs(score) <= _FLOAT32_MAX)
        raise ValueError(f"document {bad!r}: the score must be finite within single precision, found {scores[bad]!r}")
    pairs = sorted(zip(single.astype(np.float32).tolist(), scores, strict=True), reverse=True)
    return [doc_id for _, doc_id in pairs]


def read_run(path: str | os.PathLike) -> dict[str, dict[str, float]]:
    """
    Reads a TREC run: `query Q0 document rank score tag`, six columns a line.

    Args:
        path (`str` or `os.PathLike`): the file, gzip-compressed if it ends in `.gz`.

    Returns:
        `dict[str, dict[str, float]]`: query id (in file order) to document id (in trec_eval's order) to score. The
        rank column is ignored, as trec_eval does.
    """
    run: dict[str, dict[str, float]] = {}
    for number, (query_id, _, doc_id, _, score, _) in trec_columns(path, 6, "query Q0 document rank score tag"):
        scores = run.setdefault(query_id, {})
        if doc_id in scores:
            raise ValueError(f"{path}:{number}: document {doc_id!r} appears twice for query {query_id!r}")
        scores[doc_id] = _parse_score(score, f"{path}:{number}")
    return {query_id: {doc_id: scores[doc_id] for doc_id in trec_order(scores)} for query_id, scores in run.items()}


def read_tag(path: str | os.PathLike) -> str:
    """The name that a run gives to its system, in its first line."""
    return next(columns[5] for _, columns in trec_columns(path, 6, "query Q0 document rank score tag"))


def read_qrels(path: str | os.PathLike) -> dict[str, dict[str, int]]:
    """
    Reads TREC relevance judgments: `query iteration document grade`, four columns a line.

    Args:
        path (`str` or `os.PathLike`): the file, gzip-compressed if it ends in `.gz`.

    Returns:
        `dict[str, dict[str, int]]`: query id to document id to grade, in file order.
    """
    qrels: dict[str, dict[str, int]] = {}
    for number, (query_id, _, doc_id, grade) in trec_columns(path, 4, "query iteration document grade"):
        grades = qrels.setdefault(query_id, {})
        if doc_id in grades:
            raise ValueError(f"{path}:{number}: document {doc_id!r} is judged twice for query {query_id!r}")
        grades[doc_id] = parse_grade(grade, f"{path}:{number}")
    return qrels


def _check_token(path: str | os.PathLike, what: str, token: str) -> str:
    if not token or _SPACE.search(token):
        raise ValueError(f"{path}: {what} {token!r} must be non-empty and without white space in a TREC file")
    if "\0" in token:
        raise ValueError(f"{path}: {what} {token!r} has a NUL, which would end it in trec_eval")
    if token.startswith("\ufeff"):
        raise ValueError(f"{path}: {what} {token!r} begins with a byte order mark, which would be lost on reading")
    return token


def _write_lines(path: str | os.PathLike, lines: Iterator[str]) -> None:
    with atomic_open(path, "wb") as file:
        if Path(path).suffix == ".gz":
            # No name and no time in the header: equal runs are equal bytes.
            with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
                packed.writelines(line.encode("utf-8") for line in lines)
        else:
            file.writelines(line.encode("utf-8") for line in lines)


def write_run(path: str | os.PathLike, run: Mapping[str, Mapping[str, float]], tag: str) -> None:
    """
    Writes a TREC run, each query's documents in trec_eval's order with ranks from 1.

    Args:
        path (`str` or `os.PathLike`): the file; whole or not there. Compressed if it ends in `.gz`.
        run (`Mapping[str, Mapping[str, float]]`): query id to document id to score. A query without documents cannot
            be expressed in the format and is an error: leave it out, and say so.
        tag (`str`): the name of the system, the sixth column.
    """

    def lines() -> Iterator[str]:
        for query_id, scores in run.items():
            _check_token(path, "query id", query_id)
            if not scores:
                raise ValueError(f"{path}: query {query_id!r} has no documents, which a TREC run cannot say")
            for rank, doc_id in enumerate(trec_order(scores), start=1):
                # repr() of a double reads back as the same double, so the order survives the file.
                score = repr(float(scores[doc_id]))
                yield f"{query_id} Q0 {_check_token(path, 'document id', doc_id)} {rank} {score} {tag}\n"

    if not run:
        raise ValueError(f"{path}: the run is empty")
    _check_token(path, "tag", tag)
    _write_lines(path, lines())


def write_qrels(path: str | os.PathLike, qrels: Mapping[str, Mapping[str, int]]) -> None:
    """
    Writes TREC relevance judgments, in the order of `qrels`.

    Args:
        path (`str` or `os.PathLike`): the file; whole or not there. Compressed if it ends in `.gz`.
        qrels (`Mapping[str, Mapping[str, int]]`): query id to document id to integer grade.
    """

    def lines() -> Iterator[str]:
        for query_id, grades in qrels.items():
            _check_token(path, "query id", query_id)
            if not grades:
                raise ValueError(f"{path}: query {query_id!r} has no judgments, which a qrels file cannot say")
            for doc_id, grade in grades.items():
                _check_token(path, "document id", doc_id)
                if int(grade) != grade:
                    raise ValueError(f"{path}: query {query_id!r}, document {doc_id!r}: grade {grade!r} is no integer")
                yield f"{query_id} 0 {doc_id} {int(grade)}\n"

    if not qrels:
        raise ValueError(f"{path}: the qrels are empty")
    _write_lines(path, lines())
