"""A tiny folder of rows, as `build_rows` writes it, for trainings of seconds."""

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import tiny

from modeling_cobert.collections.folds import make_folds, write_folds
from modeling_cobert.collections.trec import write_qrels
from modeling_cobert.data.groups import Grouping
from modeling_cobert.data.rows import FORMAT, SCHEMA, STEP
from modeling_cobert.data.rows_card import split_file
from modeling_cobert.steps.folders import write_settings

DOCUMENTS = 9
# Two groups a query.
GROUPS = Grouping(num_prototypes=2, group_size=5, group_overlap=1)


def make_rows(
    folder: Path,
    queries: int = 6,
    folds: int | None = None,
    documents: int = DOCUMENTS,
    selector: str = "lexical",
    judged: bool = True,
) -> Path:
    """Queries of two words; a document that names the first of them is relevant, where there are judgments."""
    generator = random.Random(7)
    names = [f"q{i}" for i in range(queries)]
    fold_list = None if folds is None else make_folds(names, "round-robin", num_folds=folds)
    third = max(1, queries // 6)
    if fold_list is None:
        splits = {"train": names[: -2 * third], "validation": names[-2 * third : -third], "test": names[-third:]}
    else:
        splits = {f"fold_{i}": list(fold.test) for i, fold in enumerate(fold_list, start=1)}
    qrels = {}
    for split, query_ids in splits.items():
        rows = [make_row(generator, query_id, documents, selector) for query_id in query_ids]
        qrels |= {row["query_id"]: dict(zip(row["doc_ids"], row["grades"], strict=True)) for row in rows}
        if not judged:
            rows = [row | {"grades": [None] * documents} for row in rows]
        path = folder / split_file(split)
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), path)
    if judged:
        write_qrels(folder / "qrels.trec", qrels)
    if fold_list is not None:
        write_folds(folder / "folds.json", fold_list)
    settings = {
        "step": STEP,
        "format": FORMAT,
        "collection": "tiny",
        "first_stage": "bm25",
        "selector": selector,
        "k": documents,
        "passage_words": 10,
        "passage_overlap": 4,
        "passage_title": False,
        "splits": list(splits),
        "sha256": {"queries": queries, "folds": folds, "documents": documents},
    }
    settings |= {} if judged else {"judged": False}
    write_settings(folder, settings, {"queries": queries, "skipped": {}})
    return folder


def make_row(generator: random.Random, query_id: str, documents: int, selector: str) -> dict:
    query = generator.sample(tiny.WORDS, 2)
    texts = [" ".join(generator.choices(tiny.WORDS, k=6)) for _ in range(documents)]
    texts[generator.randrange(documents)] += f" {query[0]}"
    matches = [float(sum(word in text.split() for word in query)) for text in texts]
    return {
        "query_id": query_id,
        "query": " ".join(query),
        "doc_ids": [f"{query_id}-d{j}" for j in range(documents)],
        "passages": texts,
        "ranks": list(range(1, documents + 1)),
        "first_stage_scores": [float(documents - j) for j in range(documents)],
        "selector_scores": matches if selector == "lexical" else [float(-j) for j in range(documents)],
        "grades": [int(query[0] in text.split()) for text in texts],
    }
