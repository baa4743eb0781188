"""What is re-ranked: prepared groups, or a collection and a run; checked at the door, encoded query by query."""

import hashlib
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import datasets
from tqdm.auto import tqdm

from ..collections.collection import Collection
from ..collections.folds import Fold
from ..collections.trec import read_run, trec_columns
from ..data.candidates import as_dict
from ..data.groups import GroupsFolder, load_groups
from ..data.groups_card import split_file
from ..grouping_cobert import best_first, overlapping_spans
from ..reranking_cobert import own_relevance
from ..steps.folders import file_sha256, json_sha256
from .ranker import EncodedQuery, Ranker, check_queries

logger = logging.getLogger(__name__)

# Documents whose text is in memory at the same time while all of them are looked up once.
_LOOKUP = 1000


def chosen_queries(
    known: Sequence[str], queries: Sequence[str] | None, fold: int | None, folds: Sequence[Fold] | None, source: str
) -> list[str]:
    """
    The queries to evaluate, in the order of `known`.

    Args:
        known (`list[str]`): all there are.
        queries (`list[str]`, *optional*): only these; one that is not known is an error.
        fold (`int`, *optional*): only the test queries of this fold, from 1.
        folds (`list[Fold]`, *optional*): the folds that there are.
        source (`str`): where they are from, for errors.
    """
    chosen = set(known)
    if fold is not None:
        if not folds:
            raise ValueError(f"{source}: has no folds, so there is no fold {fold}")
        if not 1 <= fold <= len(folds):
            raise ValueError(f"{source}: has folds 1 to {len(folds)}, so there is no fold {fold}")
        chosen &= set(folds[fold - 1].test)
    if queries is not None:
        unknown = [query_id for query_id in queries if query_id not in chosen]
        if unknown:
            raise ValueError(f"{source}: {len(unknown)} queries asked for are not there, such as {unknown[0]!r}")
        chosen &= set(queries)
    if not chosen:
        raise ValueError(f"{source}: no query is left to evaluate")
    return [query_id for query_id in known if query_id in chosen]


@dataclass(frozen=True)
class GroupsInputs:
    """
    A folder of groups: passages, prototypes and groups as stored; see [`groups_inputs`].

    Args:
        groups ([`GroupsFolder`]): the folder.
        query_ids (`list[str]`): the queries to re-rank.
        qrels (`dict[str, dict[str, int]]` or `None`): the judgments that count.
    """

    groups: GroupsFolder
    query_ids: list[str]
    qrels: dict[str, dict[str, int]] | None

    @property
    def name(self) -> str:
        return str(self.groups.settings["collection"])

    @property
    def tag(self) -> str:
        return str(self.groups.settings["first_stage"])

    @property
    def k(self) -> int:
        return int(self.groups.settings["k"])

    @property
    def skipped(self) -> dict[str, int]:
        return {kind: count for kind, count in self.groups.settings["counts"]["skipped"].items() if count}

    @cached_property
    def _rows(self) -> dict[str, list[int]]:
        rows: dict[str, list[int]] = {}
        for number, query_id in enumerate(self._dataset["query_id"]):
            rows.setdefault(query_id, []).append(number)
        return rows

    @cached_property
    def _dataset(self) -> datasets.Dataset:
        # Not load_dataset(folder): its cache takes two folders of one name and layout for the same dataset, and a
        # folder that was made anew for the old one. This one goes by path and time.
        files = [str((self.groups.folder / split_file(split)).resolve()) for split in self.groups.splits]
        return datasets.Dataset.from_parquet(files)

    @cached_property
    def queries(self) -> dict[str, str]:
        texts = self._dataset.select_columns(["query_id", "query"])
        return {query_id: texts[self._rows[query_id][0]]["query"] for query_id in self.query_ids}

    @cached_property
    def run(self) -> dict[str, dict[str, float]]:
        return {query_id: self.groups.run[query_id] for query_id in self.query_ids}

    def group_shape(self, ranker: Ranker) -> tuple[int, int]:
        return self.groups.settings["group_size"], self.groups.settings["group_overlap"]

    def settings(self, ranker: Ranker) -> dict:
        known = {key: value for key, value in self.groups.settings.items() if key not in ("counts", "step", "format")}
        files = {split: file_sha256(self.groups.folder / split_file(split)) for split in self.groups.splits}
        return {"inputs": "groups", "groups": {**known, "files": files}}

    def check(self, ranker: Ranker) -> None:
        config, stored = ranker.model.config, self.groups.settings
        if config.use_scorer and config.scorer_positions and stored["group_size"] > config.group_size:
            raise ValueError(
                f"{self.groups.folder}: groups of {stored['group_size']}, but the model's scorer has positions for "
                f"{config.group_size}: build groups with --group_size {config.group_size}"
            )
        if config.use_calibrator and (stored["prototypes"] == "none" or not stored["num_prototypes"]):
            logger.warning("%s: no prototypes, so the model's calibrator has nothing to work with", self.groups.folder)
        names = ["passage_words", "passage_overlap", "passage_title"]
        names += ["group_size", "group_overlap"] if config.use_scorer else []
        names += ["num_prototypes"] if config.use_calibrator else []
        for name in names:
            own = getattr(config, name)
            if stored[name] != own:
                logger.warning("%s: %s is %s here, the model's is %s", self.groups.folder, name, stored[name], own)
        check_queries(ranker, self.queries)

    def encode(self, ranker: Ranker, query_id: str, advance: Callable | None = None) -> EncodedQuery:
        rows = sorted((self._dataset[number] for number in self._rows[query_id]), key=lambda row: row["group"])
        passages: dict[str, str] = {}
        relevance: dict[str, float] = {}
        for row in rows:
            for doc_id, passage, score in zip(
                row["candidate_ids"], row["candidate_passages"], row["candidate_scores"], strict=True
            ):
                if passages.setdefault(doc_id, passage) != passage:
                    raise ValueError(f"{self.groups.folder}: document {doc_id!r} has two passages")
                relevance.setdefault(doc_id, score)
        doc_ids = list(passages)
        stored, (size, overlap) = self.groups.settings, self.group_shape(ranker)
        windows = overlapping_spans(len(doc_ids), size, overlap)
        if [row["candidate_ids"] for row in rows] != [doc_ids[start:end] for start, end in windows]:
            raise ValueError(f"{self.groups.folder}: its groups are not those that its settings describe")
        return EncodedQuery(
            query_id=query_id,
            query=self.queries[query_id],
            doc_ids=doc_ids,
            texts=list(passages.values()),
            vectors=ranker.encode_passages(self.queries[query_id], list(passages.values()), advance),
            relevance=list(relevance.values()),
            prototypes=self._prototypes(rows, passages)[: ranker.model.num_prototypes],
            group_size=size,
            group_overlap=overlap,
            by_order="first-stage" in (stored["prototypes"], stored["selector"]),
        )

    def _prototypes(self, rows: Sequence[Mapping], passages: Mapping[str, str]) -> list[int]:
        """As the model was fed in training: the first m that are stored."""
        places = {doc_id: place for place, doc_id in enumerate(passages)}
        stored = list(zip(rows[0]["prototype_ids"], rows[0]["prototype_passages"], strict=True))
        for row in rows[1:]:
            if row["prototype_ids"] != rows[0]["prototype_ids"]:
                raise ValueError(f"{self.groups.folder}: groups of one query have different prototypes")
        for doc_id, passage in stored:
            if passages.get(doc_id) != passage:
                raise ValueError(f"{self.groups.folder}: prototype {doc_id!r} is not among the candidates")
        return [places[doc_id] for doc_id, _ in stored]


def groups_inputs(
    folder: str | os.PathLike,
    split: str | None = None,
    fold: int | None = None,
    queries: Sequence[str] | None = None,
    qrels: Mapping[str, Mapping[str, int]] | None = None,
) -> GroupsInputs:
    """
    Queries of a folder of groups.

    Args:
        folder (`str` or `os.PathLike`): what `data_scripts/prepare.py` or `build_groups.py` made.
        split (`str`, *optional*): only these of its splits, joined by commas.
        fold (`int`, *optional*): only what this fold tests, from 1.
        queries (`list[str]`, *optional*): only these.
        qrels (`Mapping`, *optional*): judgments to use instead of the folder's. Those of queries that have no groups
            count too, as zero, unless a split, a fold or queries were asked for.
    """
    groups = load_groups(folder)
    names = split.split(",") if split else list(groups.splits)
    unknown = [name for name in names if name not in groups.splits]
    if unknown:
        raise ValueError(f"{folder}: no split {unknown[0]!r}; there are {', '.join(groups.splits)}")
    known = [query_id for name in names for query_id in groups.splits[name]]
    query_ids = chosen_queries(known, queries, fold, groups.folds, str(folder))
    everything = split is None and fold is None and queries is None
    there = groups.qrels if qrels is None else qrels
    chosen = set(query_ids)
    kept = {
        query_id: dict(grades) for query_id, grades in there.items() if grades and (everything or query_id in chosen)
    }
    return GroupsInputs(groups, query_ids, kept or None)


@dataclass(frozen=True)
class CollectionInputs:
    """
    A collection and a run: passages and prototypes are chosen by the selector; see [`collection_inputs`].

    Args:
        collection ([`Collection`]): where the documents are.
        queries (`dict[str, str]`): the queries to re-rank, each with candidates.
        run (`dict[str, dict[str, float]]`): query id to document id, first-stage order, to first-stage score.
        qrels (`dict[str, dict[str, int]]` or `None`): the judgments that count.
        k (`int`): how many documents of a query there are at most.
        tag (`str`): the run's own name.
        skipped (`dict[str, int]`): what was left out.
        sha256 (`dict[str, str]`): fingerprints.
    """

    collection: Collection
    queries: dict[str, str]
    run: dict[str, dict[str, float]]
    qrels: dict[str, dict[str, int]] | None
    k: int
    tag: str
    skipped: dict[str, int]
    sha256: dict[str, str]

    @property
    def name(self) -> str:
        return self.collection.name

    def group_shape(self, ranker: Ranker) -> tuple[int, int]:
        return ranker.model.config.group_size, ranker.model.config.group_overlap

    def settings(self, ranker: Ranker) -> dict:
        selector = {"selector": ranker.selector, "selector_sha256": ranker.selector_fingerprint()}
        return {"inputs": "collection", "collection": self.name, "k": self.k, "sha256": self.sha256, **selector}

    def check(self, ranker: Ranker) -> None:
        if ranker.selector == "self":
            own_relevance(ranker.model, ranker.model.classifier.weight.detach())  # raises where there is no such head
        check_queries(ranker, self.queries)

    def encode(self, ranker: Ranker, query_id: str, advance: Callable | None = None) -> EncodedQuery:
        doc_ids = list(self.run[query_id])
        found = self.collection.lookup(doc_ids)
        documents = [as_dict(found[doc_id]) for doc_id in doc_ids]
        vectors, relevance = ranker.encode_documents(self.queries[query_id], documents, advance)
        size, overlap = self.group_shape(ranker)
        return EncodedQuery(
            query_id=query_id,
            query=self.queries[query_id],
            doc_ids=doc_ids,
            texts=[document["title"] or document["text"] for document in documents],
            vectors=vectors,
            relevance=relevance,
            prototypes=best_first(relevance, min(ranker.model.num_prototypes, len(doc_ids))),
            group_size=size,
            group_overlap=overlap,
            by_order=ranker.selector == "first-stage",
        )


def collection_inputs(
    collection: Collection,
    run: str | os.PathLike,
    k: int = 1000,
    fold: int | None = None,
    queries: Sequence[str] | None = None,
    skip_missing: bool = False,
    progress: bool = True,
) -> CollectionInputs:
    """
    The best `k` documents of each query of a collection, from a TREC run.

    Queries that the run has no documents for are named in a warning, and count as zero. Documents that the collection
    lacks are an error, unless they are to be skipped.

    Args:
        collection ([`Collection`]): queries, documents and, perhaps, judgments.
        run (`str` or `os.PathLike`): the first stage.
        k (`int`, *optional*, defaults to 1000): how many documents of each query are re-ranked.
        fold (`int`, *optional*): only what this fold of the collection tests, from 1.
        queries (`list[str]`, *optional*): only these.
        skip_missing (`bool`, *optional*, defaults to `False`): leave out, and count, documents that are not there.
        progress (`bool`, *optional*, defaults to `True`): whether to show a bar while documents are checked.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    texts, scored = collection.queries(), read_run(run)
    if not scored.keys() & texts.keys():
        raise ValueError(f"{run}: not one of its {len(scored)} queries is in {collection.name}: is it another's run?")
    folds = collection.folds() if fold is not None else None
    query_ids = chosen_queries(list(texts), queries, fold, folds, collection.name)
    skipped = {"run_queries_not_asked_for": len(scored.keys() - set(query_ids))}
    without = [query_id for query_id in query_ids if query_id not in scored]
    skipped["queries_without_documents"] = len(without)
    if without:
        logger.warning("%s: no documents for %d of %d queries: %s", run, len(without), len(query_ids), without[:5])
    ranked = {query_id: dict(islice(scored[query_id].items(), k)) for query_id in query_ids if query_id in scored}
    if not ranked:
        raise ValueError(f"{run}: has no documents for any of the {len(query_ids)} queries asked for")
    digest = _check_documents(collection, ranked, str(run), skipped, skip_missing, progress)
    tag = next(columns[5] for _, columns in trec_columns(run, 6, "query Q0 document rank score tag"))
    chosen = {query_id: texts[query_id] for query_id in ranked}
    return CollectionInputs(
        collection=collection,
        queries=chosen,
        run=ranked,
        qrels=_judgments(collection, query_ids),
        k=k,
        tag=tag,
        skipped={kind: count for kind, count in skipped.items() if count},
        sha256={
            "run": json_sha256([[query_id, list(scores.items())] for query_id, scores in ranked.items()]),
            "queries": json_sha256(list(chosen.items())),
            "documents": digest,
        },
    )


def _check_documents(
    collection: Collection, ranked: dict, source: str, skipped: dict[str, int], skip_missing: bool, progress: bool
) -> str:
    """The fingerprint of all documents; those that the collection lacks are taken out of `ranked`, or an error."""
    named = sorted({doc_id for documents in ranked.values() for doc_id in documents})
    missing, digest = set(), hashlib.sha256()
    bar = tqdm(total=len(named), desc="Checking documents", unit=" documents", disable=not progress, delay=3)
    with bar:
        for start in range(0, len(named), _LOOKUP):
            piece = named[start : start + _LOOKUP]
            found = collection.lookup(piece)
            missing.update(doc_id for doc_id in piece if doc_id not in found)
            for doc_id in piece:
                digest.update(json.dumps(found.get(doc_id)).encode())
            bar.update(len(piece))
    if not missing:
        return digest.hexdigest()
    message = f"{source}: {len(missing)} documents are not in {collection.name}, such as {min(missing)!r}"
    if not skip_missing:
        raise ValueError(f"{message}. Correct the input, or go on without them with --skip_missing.")
    logger.warning("%s: skipped", message)
    skipped["documents_missing"] = len(missing)
    for query_id in list(ranked):
        ranked[query_id] = {doc_id: score for doc_id, score in ranked[query_id].items() if doc_id not in missing}
        if not ranked[query_id]:
            del ranked[query_id]
            skipped["queries_without_documents"] += 1
    if not ranked:
        raise ValueError(f"{source}: not one of its documents is in {collection.name}")
    return digest.hexdigest()


def _judgments(collection: Collection, query_ids: Sequence[str]) -> dict[str, dict[str, int]] | None:
    try:
        qrels = collection.qrels()
    except FileNotFoundError as error:
        logger.warning("%s: nothing is measured", error)
        return None
    judged = {query_id: qrels[query_id] for query_id in query_ids if qrels.get(query_id)}
    if not judged:
        logger.warning("%s: none of the %d queries is judged: nothing is measured", collection.name, len(query_ids))
    return judged or None
