"""Cross-validation folds of queries: dealt round-robin or at random, read from the JSON files in use, checked."""

import json
import logging
import os
import random
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..steps.files import write_json

logger = logging.getLogger(__name__)

METHODS = ("random", "round-robin")


@dataclass(frozen=True)
class Fold:
    """
    One turn of the cross-validation, as three disjoint tuples of query ids.

    Args:
        train (`tuple[str, ...]`): the queries to learn from; three of five parts in the paper.
        validation (`tuple[str, ...]`): the queries that choose the epoch; one part.
        test (`tuple[str, ...]`): the queries to report on; one part. Each query is tested in at most one fold.
    """

    train: tuple[str, ...]
    validation: tuple[str, ...]
    test: tuple[str, ...]

    def only(self, query_ids: Container[str]) -> "Fold":
        """The same without queries that are not among these."""
        return Fold(*(tuple(q for q in part if q in query_ids) for part in (self.train, self.validation, self.test)))


@dataclass(frozen=True)
class FoldReport:
    """
    Where folds and a collection disagree, in the natural order of the query ids.

    Args:
        untested (`tuple[str, ...]`): queries of the collection that no fold tests.
        unknown (`tuple[str, ...]`): queries of the folds that the collection does not have.
    """

    untested: tuple[str, ...]
    unknown: tuple[str, ...]


def make_folds(query_ids: Iterable[str], method: str = "random", seed: int = 42, num_folds: int = 5) -> list[Fold]:
    """
    Deals queries into `num_folds` parts whose sizes differ by at most one, and rotates the parts into folds.

    The order of `query_ids` does not matter: they are sorted first, ids of digits by their number. `"round-robin"`
    deals the sorted ids one by one; over all 150 GOV2 topics this gives the folds of the paper's authors to the
    letter. Leave out a query and those after it move to another part, so deal all topics, also those without relevant
    documents.

    Args:
        query_ids (`Iterable[str]`): at least `num_folds` different ids.
        method (`str`, *optional*, defaults to `"random"`): `"random"` or `"round-robin"`.
        seed (`int`, *optional*, defaults to 42): of the random deal; one seed, one deal, on every machine.
        num_folds (`int`, *optional*, defaults to 5): at least 3; all parts but two train.

    Returns:
        `list[Fold]`: fold k tests part k and validates on the part after it.

    Example:

    ```python
    >>> make_folds(["1", "2", "3", "4", "10"], method="round-robin")[0]
    Fold(train=('1', '2', '3'), validation=('4',), test=('10',))
    ```
    """
    query_ids = list(query_ids)
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r} for folds: use one of {', '.join(METHODS)}")
    if num_folds < 3:
        raise ValueError(f"train, validation and test need at least 3 folds, got num_folds={num_folds}")
    _check_ids(query_ids, "query ids")
    if len(query_ids) < num_folds:
        raise ValueError(
            f"{len(query_ids)} queries cannot fill {num_folds} folds: each needs a query to test. Bring more, or give "
            "--folds none: all are ranked and measured, none is trained on"
        )
    order = sorted(query_ids, key=_natural)
    if method == "random":
        # Only random() itself is promised to give the same sequence in every Python version; shuffle() is not.
        generator = random.Random(seed)
        draws = {query_id: generator.random() for query_id in order}
        order.sort(key=draws.__getitem__)
    # The authors' first GOV2 fold tests the last of every five topics (705, 710, ..), their fifth the first (701, ..).
    parts = [order[start::num_folds] for start in reversed(range(num_folds))]
    return rotate_parts(parts)


def rotate_parts(parts: Sequence[Iterable[str]]) -> list[Fold]:
    """
    Turns n disjoint parts into n folds: fold k tests part k, validates on part k + 1 (the last one on the first) and
    trains on all others. This is how the authors' files for Robust04 and GOV2 rotate. Ids come out in natural order.
    """
    parts = [tuple(part) for part in parts]
    if len(parts) < 3:
        raise ValueError(f"train, validation and test need at least 3 parts, found {len(parts)}")
    folds = []
    for test in range(len(parts)):
        validation = (test + 1) % len(parts)
        train = (query_id for i, part in enumerate(parts) if i not in (test, validation) for query_id in part)
        folds.append(Fold(*(tuple(sorted(ids, key=_natural)) for ids in (train, parts[validation], parts[test]))))
    _check_disjoint(folds, "parts")
    return folds


def read_folds(path: str | os.PathLike) -> list[Fold]:
    """
    Reads folds from a JSON file in any of the layouts that are in use, and checks that nothing overlaps.

    - `{"1": {"train": [..], "dev": [..], "test": [..]}, ..}`: what [`write_folds`] writes, also with
      `"validation"` in place of `"dev"`;
    - `{"s1": {"train_qids": [..], "predict": {"dev": [..], "test": [..]}}, ..}`: the layout of CEDR;
    - `[[..], [..], ..]`: the parts alone, as Anserini publishes them, which [`rotate_parts`] turns into folds.

    Named folds come in the order of their names, `"2"` before `"10"`; within a fold the file's order of ids is kept.

    Args:
        path (`str` or `os.PathLike`): the file.
    """
    path = Path(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=_unique_keys)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}:{error.lineno}: not JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not a file of folds: {error}") from error
    if isinstance(content, list) and content:
        for number, part in enumerate(content, start=1):
            _check_ids(part, f"{path}: part {number}")
        try:
            return rotate_parts(content)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
    if not isinstance(content, dict) or not content:
        raise ValueError(f"{path}: expected an object of folds or a list of parts, found {_describe(content)}")
    folds = [
        _read_fold(content[name], f"{path}: fold {name!r}") for name in sorted(content, key=lambda n: (len(n), n))
    ]
    _check_disjoint(folds, str(path))
    return folds


def write_folds(path: str | os.PathLike, folds: Sequence[Fold]) -> None:
    """Writes `folds` in the layout of the authors' files, whole or not at all; [`read_folds`] gives them back."""
    _check_disjoint(folds, str(path))
    content = {
        str(number): {"train": fold.train, "dev": fold.validation, "test": fold.test}
        for number, fold in enumerate(folds, start=1)
    }
    write_json(path, content)


def check_folds(
    folds: Sequence[Fold], query_ids: Iterable[str], skip_missing: bool = False, source: str = "folds"
) -> FoldReport:
    """
    Checks folds against the queries of a collection before any work starts.

    Overlap between the parts of a fold, or between two test parts, is always an error. A query that no fold tests, or
    that only the folds know, is an error too, unless `skip_missing`; then both are counted in a warning and returned.

    Args:
        folds (`Sequence[Fold]`): the folds.
        query_ids (`Iterable[str]`): the ids of the collection's queries.
        skip_missing (`bool`, *optional*, defaults to `False`): go on where folds and collection disagree.
        source (`str`, *optional*, defaults to `"folds"`): the name of the folds in errors, best their file.
    """
    _check_disjoint(folds, source)
    query_ids = set(query_ids)
    tested = {query_id for fold in folds for query_id in fold.test}
    named = tested.union(*(fold.train + fold.validation for fold in folds))
    report = FoldReport(
        untested=tuple(sorted(query_ids - tested, key=_natural)),
        unknown=tuple(sorted(named - query_ids, key=_natural)),
    )
    problems = []
    if report.untested:
        problems.append(
            f"{len(report.untested)} of {len(query_ids)} queries are tested in no fold ({_few(report.untested)})"
        )
    if report.unknown:
        problems.append(
            f"{len(report.unknown)} queries of the folds are not in the collection ({_few(report.unknown)})"
        )
    if problems and not skip_missing:
        raise ValueError(f"{source}: {'; '.join(problems)}. Use other folds, or skip what is missing.")
    for problem in problems:
        logger.warning("%s: %s", source, problem)
    return report


def _read_fold(content: object, where: str) -> Fold:
    """One fold of a JSON object, in the authors' layout or in that of CEDR."""
    if not isinstance(content, dict):
        raise ValueError(f"{where}: expected an object with train, dev and test, found {_describe(content)}")
    if set(content) == {"train_qids", "predict"} and isinstance(content["predict"], dict):
        content = {"train": content["train_qids"], **content["predict"]}
    keys = set(content)
    if keys == {"train", "validation", "test"}:
        content = {"train": content["train"], "dev": content["validation"], "test": content["test"]}
    elif keys != {"train", "dev", "test"}:
        raise ValueError(
            f"{where}: expected the keys train, dev, test (or train_qids and predict with dev, test), "
            f"found {', '.join(sorted(keys)) or 'none'}"
        )
    for name, ids in content.items():
        _check_ids(ids, f"{where}: {name}")
    return Fold(train=tuple(content["train"]), validation=tuple(content["dev"]), test=tuple(content["test"]))


def _check_ids(ids: object, where: str) -> None:
    """Ids are a non-empty list of different strings that can stand in a column of a TREC file."""
    if not isinstance(ids, list | tuple):
        raise ValueError(f"{where}: expected a list of query ids, found {_describe(ids)}")
    if not ids:
        raise ValueError(f"{where}: no query ids")
    for query_id in ids:
        if not isinstance(query_id, str):
            raise ValueError(f"{where}: query ids are strings, found {_describe(query_id)}: put it in quotes")
        if query_id.split() != [query_id]:
            raise ValueError(f"{where}: the query id {query_id!r} is empty or contains white space")
    _check_partition([tuple(ids)], where)


def _check_partition(parts: Sequence[tuple[str, ...]], where: str) -> None:
    """No id occurs twice, be it within a part or in two of them."""
    twice = [query_id for query_id, count in Counter(i for part in parts for i in part).items() if count > 1]
    if twice:
        raise ValueError(f"{where}: {len(twice)} query ids occur more than once ({_few(sorted(twice, key=_natural))})")


def _check_disjoint(folds: Sequence[Fold], source: str) -> None:
    """The parts of each fold do not overlap, nor do the test parts of all folds."""
    if not folds:
        raise ValueError(f"{source}: no folds")
    for number, fold in enumerate(folds, start=1):
        for name in ("train", "validation", "test"):
            _check_ids(getattr(fold, name), f"{source}: fold {number}: {name}")
        _check_partition([fold.train, fold.validation, fold.test], f"{source}: fold {number}: parts overlap")
    _check_partition([fold.test for fold in folds], f"{source}: test parts of different folds overlap")


def _natural(query_id: str) -> tuple:
    """Sorts ids of digits by their number (as text, so of any length) and before all others."""
    if query_id.isascii() and query_id.isdigit():
        digits = query_id.lstrip("0")
        return (0, len(digits), digits, query_id)
    return (1, 0, query_id, query_id)


def _unique_keys(pairs: list[tuple[str, object]]) -> dict:
    """JSON allows a key twice and Python keeps the last, which would lose a fold in silence."""
    keys = dict(pairs)
    if len(keys) < len(pairs):
        raise ValueError(f"the key {Counter(key for key, _ in pairs).most_common(1)[0][0]!r} occurs more than once")
    return keys


def _describe(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= 40 else f"{text[:40]}..."


def _few(ids: Sequence[str]) -> str:
    return ", ".join(ids[:5]) + (", ..." if len(ids) > 5 else "")
