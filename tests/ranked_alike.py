"""One ranking, whichever way it is asked for: rows, a collection, training's validation, `model.rerank`."""

import random
import tempfile
from collections.abc import Callable
from pathlib import Path

import tiny_collection

from modeling_cobert.collections.collection import open_collection
from modeling_cobert.ranking.inputs import CollectionInputs, RowsInputs, collection_inputs, rows_inputs
from modeling_cobert.ranking.ranker import Ranker, rerank_queries
from modeling_cobert.training.trainer import _rank

# How the rows are cut, which is how a model must cut that is to rank them alike.
CUT = {"max_length": 64, "passage_words": 10, "passage_overlap": 4, "passage_title": False}


class Folders:
    """A collection, and the rows that each selector makes of it, which are made when they are asked for."""

    def __init__(self, folder: Path, selectors: list[str]):
        self.folder, self.selectors = folder, ["lexical", "first-stage", *selectors]
        self.mine = tiny_collection.make(folder / "mine")
        self.documents = {d.doc_id: d.to_dict() for d in open_collection(self.mine).documents()}
        self._rows: dict[str, Path] = {}

    def collection(self) -> CollectionInputs:
        return collection_inputs(open_collection(self.mine, skip_missing=True), self.mine / "run.trec", progress=False)

    def rows(self, selector: str, query_ids: list[str] | None = None) -> RowsInputs:
        if selector not in self._rows:
            output = self.folder / f"rows-{self.selectors.index(selector)}"
            options = {"max_length": CUT["max_length"], "keep_texts": True}
            self._rows[selector] = tiny_collection.rows(self.mine, output, selector=selector, **options)
        return rows_inputs(self._rows[selector], query_ids=query_ids)


def compare(folders: Folders, model, choose: random.Random, differ: Callable) -> str:
    """How two ways to rank differ, or nothing."""
    selector, query_ids = model.config.selector, choose.sample(list(tiny_collection.QUERIES), 3)
    ranker, collection = Ranker.wrap(model), folders.collection()
    with tempfile.TemporaryDirectory() as output:
        run = rerank_queries(ranker, folders.rows(selector, query_ids), f"{output}/all", progress=False)
        for query_id in query_ids:
            alone = folders.rows(selector, [query_id])
            if rerank_queries(ranker, alone, f"{output}/{query_id}", progress=False) != {query_id: run[query_id]}:
                return f"{query_id}: other bytes in a folder of its own"
    for query_id in query_ids:
        inputs = folders.rows(selector, [query_id])
        validation, losses = _rank(ranker, inputs, query_id)
        if list(validation.items()) != list(run[query_id].items()):
            return f"{query_id}: training's validation has other bytes than the ranker"
        if not all(abs(loss) < 1e30 for loss in losses):
            return f"{query_id}: losses {losses}"
        doc_ids = list(collection.run[query_id])
        given = [{**folders.documents[d], "score": collection.run[query_id][d]} for d in doc_ids]
        ranking = model.rerank(tiny_collection.QUERIES[query_id], given)
        reranked = {doc_ids[result["corpus_id"]]: result["score"] for result in ranking}
        encoded = collection.encode(ranker, query_id)
        ways = {
            "rows": run[query_id],
            "collection": dict(zip(encoded.doc_ids, ranker.score(encoded), strict=True)),
        }
        for way, scores in ways.items():
            if scores.keys() != reranked.keys():
                return f"{query_id}: {way} has other documents than rerank"
            if fault := differ([scores[d] for d in doc_ids], [reranked[d] for d in doc_ids], model):
                return f"{query_id}: {way} against rerank: {fault}"
    return ""
