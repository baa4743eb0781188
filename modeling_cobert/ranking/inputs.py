"""What is re-ranked: prepared rows, or a collection and a run; checked at the door, encoded query by query."""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property

from torch import Tensor

from ..collections.collection import Collection
from ..collections.folds import Fold
from ..collections.judgments import check_grades, check_known_documents
from ..data.candidates import Candidates, find_candidates
from ..data.groups import Grouping, GroupOptions
from ..data.rows import RowsFolder, load_rows
from ..data.words import KeptWords, list_words
from ..modeling_cobert import CoBertForGroupwiseRanking
from ..words_cobert import WordVectors
from .ranker import EncodedQuery, Ranker

logger = logging.getLogger(__name__)

# Of the first queries the words, and how alike they make the documents, stay in memory: of 500 candidates about two
# megabytes. There is room for so many pairs of documents.
KEPT_PAIRS = 2**26


def chosen_queries(
    known: Sequence[str], query_ids: Sequence[str] | None, fold: int | None, folds: Sequence[Fold] | None, source: str
) -> list[str]:
    """
    The queries to evaluate, in the order of `known`.

    Args:
        known (`list[str]`): all there are.
        query_ids (`list[str]`, *optional*): only these; one that is not known is an error.
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
    if query_ids is not None:
        unknown = [query_id for query_id in query_ids if query_id not in chosen]
        if unknown:
            raise ValueError(f"{source}: {len(unknown)} queries asked for are not there, such as {unknown[0]!r}")
        chosen &= set(query_ids)
    if not chosen:
        raise ValueError(
            f"{source}: no query is left: what --split, --fold and --query_ids ask for has none in common"
        )
    return [query_id for query_id in known if query_id in chosen]


def check_groups(ranker: Ranker, options: GroupOptions) -> None:
    """Groups that the model cannot read are an error; prototypes that its calibrator misses, a warning."""
    config, grouping = ranker.model.config, ranker.group_options(options)
    if config.use_scorer and config.scorer_positions and grouping.group_size > config.group_size:
        raise ValueError(
            f"groups of {grouping.group_size}, but the model's scorer has positions for {config.group_size}: give "
            f"--group_size {config.group_size}"
        )
    if config.use_calibrator and (grouping.prototypes == "none" or not grouping.num_prototypes):
        logger.warning("no prototypes, so the model's calibrator has nothing to work with")


def check_texts(model: CoBertForGroupwiseRanking, rows: RowsFolder) -> None:
    """A model that learns from the words of whole documents needs them."""
    if model.config.reads_words and not rows.has_texts:
        raise ValueError(
            f"{rows.folder}: the model reads the words of whole documents (feedback_weight, or neighbour_weight "
            "without content), these rows have only passages: prepare others with --keep_texts"
        )


def grouping_for(ranker: Ranker, options: GroupOptions, selector: str) -> Grouping:
    """The options for lists that `selector` has scored: the best of one that keeps the order are the first."""
    chosen = ranker.group_options(options)
    if selector == "first-stage" and chosen.prototypes == "selector":
        return replace(chosen, prototypes="first-stage")  # the same, and says so when the order changes
    return chosen


@dataclass(frozen=True)
class RowsInputs:
    """
    Queries of a folder of rows, with their passages as stored; see [`rows_inputs`].

    Args:
        rows ([`RowsFolder`]): the folder.
        query_ids (`list[str]`): the queries to re-rank.
        qrels (`dict[str, dict[str, int]]` or `None`): the judgments that count.
        options ([`GroupOptions`], *optional*): how to group; as the model's config says by default.
        vectors, content (`Callable`, *optional*): query id to what the encoder, and the bi-encoder of a model with
            `content_size`, gave for its passages, where that is at hand.
    """

    rows: RowsFolder
    query_ids: Sequence[str]
    qrels: dict[str, dict[str, int]] | None
    options: GroupOptions = field(default_factory=GroupOptions)
    vectors: Callable[[str], Tensor] | None = None
    content: Callable[[str], Tensor] | None = None
    _words: dict[str, KeptWords] = field(default_factory=dict, repr=False, compare=False)

    @property
    def name(self) -> str:
        return self.rows.name

    @property
    def tag(self) -> str:
        return str(self.rows.settings["first_stage"])

    @property
    def k(self) -> int:
        return int(self.rows.settings["k"])

    @property
    def skipped(self) -> dict[str, int]:
        return {kind: count for kind, count in self.rows.settings["counts"]["skipped"].items() if count}

    @cached_property
    def queries(self) -> dict[str, str]:
        texts = self.rows.dataset(self.query_ids).select_columns(["query_id", "query"])
        return {row["query_id"]: row["query"] for row in texts}

    @cached_property
    def run(self) -> dict[str, dict[str, float]]:
        return {query_id: self.rows.run[query_id] for query_id in self.query_ids}

    def settings(self, ranker: Ranker) -> dict:
        """Everything but the model that the result depends on, with fingerprints."""
        grouping = asdict(ranker.group_options(self.options))
        content = {"content_sha256": ranker.selector_fingerprint()} if ranker.model.config.content_size else {}
        rows = {"rows": self.rows.fingerprint, "files": self.rows.files_sha256}
        return {"inputs": "rows", **rows, "grouping": grouping, **content}

    def check(self, ranker: Ranker) -> None:
        """Raises, before any work, what would be wrong with this model on these inputs."""
        check_groups(ranker, self.options)
        check_texts(ranker.model, self.rows)
        for name in ("passage_words", "passage_overlap", "passage_title"):
            here, own = self.rows.settings[name], getattr(ranker.model.config, name)
            if here != own:
                logger.warning("%s: %s is %s here, the model's is %s", self.rows.folder, name, here, own)
        here, own = self.rows.settings["selector"], ranker.model.config.selector
        if ranker.model.start is not None and here != own:
            logger.warning(
                "%s: selected by %s, but the model starts from scores of %s: they may be of another kind than those "
                "that it has learned from",
                self.rows.folder,
                here,
                own,
            )
        ranker.check_queries(self.queries)

    def encode(self, ranker: Ranker, query_id: str, advance: Callable | None = None) -> EncodedQuery:
        """One query, encoded."""
        row, options = self.rows.row(query_id), grouping_for(ranker, self.options, self.rows.settings["selector"])
        if self.vectors is not None:
            vectors = self.vectors(query_id).to(ranker.model.device)
        else:
            vectors = ranker.encode_passages(row["query"], row["passages"], advance)
        if self.content is not None:
            content = self.content(query_id).to(vectors.device)
        else:
            content = ranker.embed_passages(row["passages"])
        return EncodedQuery(
            query_id=query_id,
            query=row["query"],
            doc_ids=row["doc_ids"],
            texts=row["passages"],
            vectors=vectors,
            selector_scores=row["selector_scores"],
            first_stage_scores=row["first_stage_scores"],
            content=content,
            words=self._count_words(row) if ranker.model.config.reads_words else None,
            grouping=options,
            prototypes=options.choose_prototypes(row["selector_scores"]),
        )

    def _count_words(self, row: Mapping) -> WordVectors:
        """The words of a row's documents; those of the first queries are kept, since a training ranks them again."""
        known = self._words.get(row["query_id"])
        if known is not None:
            return known
        words = list_words(row["texts"])
        if sum(kept.count**2 for kept in self._words.values()) + words.count**2 > KEPT_PAIRS:
            return words
        return self._words.setdefault(row["query_id"], KeptWords(**vars(words)))


def rows_inputs(
    folder: str | os.PathLike,
    split: str | None = None,
    fold: int | None = None,
    query_ids: Sequence[str] | None = None,
    qrels: Mapping[str, Mapping[str, int]] | None = None,
    options: GroupOptions | None = None,
) -> RowsInputs:
    """
    Queries of a folder of rows.

    Args:
        folder (`str` or `os.PathLike`): what `cobert prepare` or `cobert rows` made.
        split (`str`, *optional*): only these of its splits, joined by commas.
        fold (`int`, *optional*): only what this fold tests, from 1.
        query_ids (`list[str]`, *optional*): only these.
        qrels (`Mapping`, *optional*): judgments to use instead of the folder's. Those of queries that have no row
            count too, as zero, unless a split, a fold or queries were asked for.
        options ([`GroupOptions`], *optional*): how to group.
    """
    rows = load_rows(folder)
    rows.check_testable()
    names = split.split(",") if split else list(rows.splits)
    unknown = [name for name in names if name not in rows.splits]
    if unknown:
        raise ValueError(f"{folder}: no split {unknown[0]!r}; there are {', '.join(rows.splits)}")
    known = [query_id for name in names for query_id in rows.splits[name]]
    chosen = chosen_queries(known, query_ids, fold, rows.folds, str(folder))
    everything = split is None and fold is None and query_ids is None
    there = rows.qrels if qrels is None else qrels
    kept = {q: dict(grades) for q, grades in there.items() if grades and (everything or q in set(chosen))}
    return RowsInputs(rows, chosen, kept or None, options or GroupOptions())


@dataclass(frozen=True)
class CollectionInputs:
    """
    A collection and a run: passages and prototypes are chosen by the selector; see [`collection_inputs`].

    Args:
        collection ([`Collection`]): where the documents are.
        candidates ([`Candidates`]): what of it is re-ranked.
        qrels (`dict[str, dict[str, int]]` or `None`): the judgments that count.
        k (`int`): how many documents of a query there are at most.
        options ([`GroupOptions`], *optional*): how to group; as the model's config says by default.
    """

    collection: Collection
    candidates: Candidates
    qrels: dict[str, dict[str, int]] | None
    k: int
    options: GroupOptions = field(default_factory=GroupOptions)

    @property
    def name(self) -> str:
        return self.collection.name

    @property
    def tag(self) -> str:
        return self.candidates.tag

    @property
    def queries(self) -> dict[str, str]:
        return self.candidates.queries

    @property
    def run(self) -> dict[str, dict[str, float]]:
        return self.candidates.ranked

    @property
    def skipped(self) -> dict[str, int]:
        return {kind: count for kind, count in self.candidates.skipped.items() if count}

    def settings(self, ranker: Ranker) -> dict:
        return {
            "inputs": "collection",
            "collection": self.name,
            "k": self.k,
            "sha256": self.candidates.sha256,
            "selector": ranker.selector,
            "selector_sha256": ranker.selector_fingerprint(),
            "grouping": asdict(ranker.group_options(self.options)),
        }

    def check(self, ranker: Ranker) -> None:
        if ranker.selector == "self":
            ranker.model.own_relevance(ranker.model.classifier.weight.detach())  # raises where there is no such head
        check_groups(ranker, self.options)
        ranker.check_queries(self.queries)

    def encode(self, ranker: Ranker, query_id: str, advance: Callable | None = None) -> EncodedQuery:
        doc_ids = list(self.run[query_id])
        found = self.collection.lookup(doc_ids)
        documents = [found[doc_id].to_dict() for doc_id in doc_ids]
        encoded = ranker.encode_documents(self.queries[query_id], documents, advance)
        options = grouping_for(ranker, self.options, ranker.selector)
        return EncodedQuery(
            query_id=query_id,
            query=self.queries[query_id],
            doc_ids=doc_ids,
            texts=[document["title"] or document["text"] for document in documents],
            vectors=encoded.vectors,
            selector_scores=encoded.selector_scores,
            first_stage_scores=list(self.run[query_id].values()),
            content=encoded.content,
            words=encoded.words,
            grouping=options,
            prototypes=options.choose_prototypes(encoded.selector_scores),
        )


def collection_inputs(
    collection: Collection,
    run: str | os.PathLike,
    k: int = 1000,
    fold: int | None = None,
    query_ids: Sequence[str] | None = None,
    options: GroupOptions | None = None,
    progress: bool = True,
) -> CollectionInputs:
    """
    The best `k` documents of each query of a collection, from a TREC run.

    Queries that the run has no documents for are named in a warning, and count as zero. Documents that the collection
    lacks are an error, unless its `skip_missing` says otherwise.

    Args:
        collection ([`Collection`]): queries, documents and, perhaps, judgments.
        run (`str` or `os.PathLike`): the first stage.
        k (`int`, *optional*, defaults to 1000): how many documents of each query are re-ranked.
        fold (`int`, *optional*): only what this fold of the collection tests, from 1.
        query_ids (`list[str]`, *optional*): only these.
        options ([`GroupOptions`], *optional*): how to group.
        progress (`bool`, *optional*, defaults to `True`): whether to show a bar while documents are checked.
    """
    folds = collection.folds() if fold is not None else None
    chosen = chosen_queries(list(collection.queries()), query_ids, fold, folds, collection.name)
    candidates = find_candidates(collection, run, k, chosen, count_missing=True, progress=progress)
    return CollectionInputs(collection, candidates, _judgments(collection, chosen), k, options or GroupOptions())


def _judgments(collection: Collection, query_ids: Sequence[str]) -> dict[str, dict[str, int]] | None:
    try:
        qrels = collection.qrels()
    except FileNotFoundError as error:
        logger.warning("%s: nothing is measured", error)
        return None
    check_grades(qrels, collection.qrels_source())
    check_known_documents(qrels, collection)
    judged = {query_id: qrels[query_id] for query_id in query_ids if qrels.get(query_id)}
    if not judged:
        logger.warning("%s: none of the %d queries is judged: nothing is measured", collection.name, len(query_ids))
    return judged or None
