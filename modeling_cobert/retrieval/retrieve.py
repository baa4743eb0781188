"""Retrieval: a collection searched with a first stage, the run in memory or in a folder of its own."""

import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from ..collections.collection import Collection
from ..collections.trec import write_run
from ..steps.folders import claim_folder, claims_end, write_settings
from ..steps.hashing import Fingerprint, json_sha256
from ..steps.progress import progress_bar
from .analysis import Analyzer
from .first_stage import FirstStage, check_queries, rank_all
from .index import build_index
from .options import RetrievalOptions

RUN = "run.trec"


def retrieve(
    collection: Collection,
    options: RetrievalOptions | None = None,
    k: int = 1000,
    queries: Mapping[str, str] | None = None,
) -> dict[str, dict[str, float]]:
    """
    Ranks the documents of a collection for its queries. What is wrong with a query is said before documents are read.

    Args:
        collection ([`Collection`]): what is searched; its `skip_missing` says whether to go on without queries that
            are empty or match nothing.
        options ([`RetrievalOptions`], *optional*): the model, its parameters and the analysis; DPH+KL by default.
        k (`int`, *optional*, defaults to 1000): the most documents of a query.
        queries (`Mapping[str, str]`, *optional*): query id to text; by default the collection's own.

    Returns:
        `dict[str, dict[str, float]]`: query id to document id to score, both in order.

    Example:

    ```python
    >>> from modeling_cobert.collections.collection import open_collection
    >>> run = retrieve(open_collection("demo"), RetrievalOptions("bm25"), k=10)
    >>> len(run["10"])
    10
    ```
    """
    stage = FirstStage(options)
    analyzer = stage.options.make_analyzer()
    queries = _searchable(collection, analyzer, k, queries)
    return _rank(collection, stage, analyzer, queries, k)


@claims_end()
def retrieve_to_folder(
    collection: Collection,
    folder: str | os.PathLike,
    options: RetrievalOptions | None = None,
    k: int = 1000,
) -> dict:
    """
    Does as [`retrieve`] and writes `folder/run.trec`; what is complete for the same settings is not done again.

    Args:
        collection, options, k: as for [`retrieve`].
        folder (`str` or `os.PathLike`): a new folder, or one that the same call has begun.

    Returns:
        `dict`: the settings, with fingerprints of the inputs, and `counts` of queries and lines.
    """
    folder, stage = Path(folder), FirstStage(options)
    analyzer = stage.options.make_analyzer()
    queries = _searchable(collection, analyzer, k)
    settings = {
        "step": "retrieval",
        "format": 2,
        "collection": collection.name,
        **asdict(stage.options),
        "k": k,
        "skip_missing": collection.skip_missing,
        "sha256": {
            "queries": json_sha256(list(queries.items())),
            "documents": _documents_sha256(collection),
            "stopwords": json_sha256(sorted(analyzer.stopwords)),
        },
    }
    finished = claim_folder(folder, settings)
    if finished is not None:
        return finished
    run = _rank(collection, stage, analyzer, queries, k)
    write_run(folder / RUN, run, stage.options.first_stage)
    counts = {"queries": len(run), "lines": sum(map(len, run.values()))}
    return write_settings(folder, settings, counts, [folder / RUN])


def _searchable(
    collection: Collection, analyzer: Analyzer, k: int, queries: Mapping[str, str] | None = None
) -> dict[str, str]:
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    return check_queries(collection.queries() if queries is None else queries, analyzer.query, collection.skip_missing)


def _rank(
    collection: Collection, stage: FirstStage, analyzer: Analyzer, queries: Mapping[str, str], k: int
) -> dict[str, dict[str, float]]:
    return rank_all(stage, build_index(collection.documents(), analyzer), queries, k, collection.skip_missing)


def _documents_sha256(collection: Collection) -> str:
    made = Fingerprint()
    for document in progress_bar(collection.documents(), desc="Reading documents", unit="documents"):
        made.add(document)
    return str(made)
