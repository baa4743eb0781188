"""Which query goes to which split: cross-validation folds, or the collection's own train, validation and test."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from .collection import Collection
from .folds import METHODS, Fold, check_folds, make_folds, read_folds
from .options import SplitOptions

logger = logging.getLogger(__name__)

_NAMES = {"train": "train", "dev": "validation", "validation": "validation", "test": "test"}


@dataclass(frozen=True)
class SplitPlan:
    """
    Where each query goes.

    Args:
        splits (`dict[str, tuple[str, ...]]`): split name to query ids, in the order given to [`plan_splits`].
        folds (`list[Fold]` or `None`): the folds, over those queries only.
        skipped (`dict[str, int]`): how many queries of each kind were left out.
        source (`str`): what decided.
    """

    splits: dict[str, tuple[str, ...]]
    folds: list[Fold] | None
    skipped: dict[str, int]
    source: str

    @property
    def turns(self) -> list[Fold]:
        """The folds or, where there are none, the one turn of the splits train, validation and test."""
        return self.folds or [Fold(*(self.splits.get(name, ()) for name in ("train", "validation", "test")))]

    @cached_property
    def split_of(self) -> dict[str, str]:
        return {query_id: split for split, query_ids in self.splits.items() for query_id in query_ids}


def plan_splits(
    collection: Collection,
    query_ids: Sequence[str],
    options: SplitOptions | None = None,
    skip_missing: bool | None = None,
    judged: bool = True,
) -> SplitPlan:
    """
    Assigns queries to splits, each to at most one. Split `fold_i` holds what fold i tests.

    Args:
        collection ([`Collection`]): whose queries, own folds and own splits count.
        query_ids (`list[str]`): the queries that there are candidates for.
        options ([`SplitOptions`], *optional*): which folds; the collection's own by default.
        skip_missing (`bool`, *optional*): whether queries outside of all splits are left out, and folds for other
            queries cut down, instead of being an error; by default what the collection says.
        judged (`bool`, *optional*, defaults to `True`): whether the collection has judgments. Without them, and
            without folds that are given, all queries are there to train on.
    """
    options = options or SplitOptions()
    folds, seed = options.folds, options.fold_seed
    skip_missing = collection.skip_missing if skip_missing is None else skip_missing
    if folds == "none":
        return SplitPlan({"test": tuple(query_ids)}, None, {}, "none")
    if folds == "auto":
        own = collection.folds()
        if own is not None:
            return _by_folds(own, query_ids, skip_missing, f"folds of {collection.name}")
        if not judged:
            return SplitPlan({"train": tuple(query_ids)}, None, {}, "no judgments")
        if collection.splits():
            return _by_own_splits(collection, query_ids, skip_missing)
        logger.warning("%s has no folds of its own: its queries are dealt at random, seed %d", collection.name, seed)
        folds = "random"
    if folds in METHODS:
        # All queries are dealt, so that nobody's fold depends on what a first stage found.
        dealt = make_folds(collection.queries(), folds, seed)
        return _by_folds(dealt, query_ids, True, f"{folds} folds of {collection.name}")
    if not Path(folds).is_file():
        choices = ", ".join(("auto", "none", *METHODS))
        raise FileNotFoundError(f"--folds {folds}: no such file: give a JSON file of folds, or one of {choices}")
    return _by_folds(read_folds(folds), query_ids, skip_missing, folds)


def check_splits(
    collection: Collection, query_ids: Sequence[str], options: SplitOptions | None = None, judged: bool = True
) -> None:
    """
    Raises, before the work on them, what [`plan_splits`] would raise after it: for instance that without the queries
    that have no documents a fold has none to test.
    """
    if set(query_ids) != collection.queries().keys():  # the plan for all of them is known to work
        plan_splits(collection, query_ids, options, judged=judged)


def _by_folds(folds: Sequence[Fold], query_ids: Sequence[str], skip_missing: bool, source: str) -> SplitPlan:
    report = check_folds(folds, query_ids, skip_missing, source)
    there = set(query_ids)
    kept = [fold.only(there) for fold in folds]
    for number, fold in enumerate(kept, start=1):
        for name in ("train", "validation", "test"):
            if not getattr(fold, name):
                raise ValueError(f"{source}: no query is left to {name} on in fold {number}")
    tested = {query_id: number for number, fold in enumerate(kept, start=1) for query_id in fold.test}
    splits = {
        f"fold_{number}": tuple(query_id for query_id in query_ids if tested.get(query_id) == number)
        for number in range(1, len(kept) + 1)
    }
    skipped = {"queries_in_no_fold": len(report.untested), "fold_queries_unknown": len(report.unknown)}
    return SplitPlan(splits, kept, skipped, source)


def _by_own_splits(collection: Collection, query_ids: Sequence[str], skip_missing: bool) -> SplitPlan:
    split_of: dict[str, str] = {}
    names = []
    for own in collection.splits():
        # "train-graded" is a version of "train".
        name = _NAMES.get(own.partition("-")[0], own.replace("-", "_"))
        names.append(name)
        for query_id in collection.qrels(own):
            if split_of.setdefault(query_id, name) != name:
                raise ValueError(
                    f"{collection.name}: query {query_id!r} is in split {split_of[query_id]!r} and in {name!r}"
                )
    outside = [query_id for query_id in query_ids if query_id not in split_of]
    if outside:
        message = f"{collection.name}: {len(outside)} queries are in no split, such as {outside[0]!r}"
        if not skip_missing:
            raise ValueError(f"{message}. Name a split, or go on without them with --skip_missing.")
        logger.warning("%s: skipped", message)
    splits = {
        name: tuple(query_id for query_id in query_ids if split_of.get(query_id) == name)
        for name in dict.fromkeys(names)
    }
    splits = {name: ids for name, ids in splits.items() if ids}
    return SplitPlan(splits, None, {"queries_in_no_split": len(outside)}, f"splits of {collection.name}")
