"""A tiny folder of groups, as `build_groups` writes it, for trainings of seconds."""

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import tiny

from modeling_cobert.collections.folds import make_folds, write_folds
from modeling_cobert.collections.trec import write_qrels, write_run
from modeling_cobert.data.groups import SCHEMA, split_file
from modeling_cobert.grouping_cobert import overlapping_spans
from modeling_cobert.steps.folders import write_settings

DOCUMENTS, SIZE, OVERLAP, PROTOTYPES = 9, 5, 1, 2


def make_groups(
    folder: Path,
    queries: int = 6,
    folds: int | None = None,
    documents: int = DOCUMENTS,
    prototypes: int = PROTOTYPES,
) -> Path:
    """Queries of two words; a document that names the first of them is relevant. Two groups a query."""
    generator = random.Random(7)
    names = [f"q{i}" for i in range(queries)]
    fold_list = None if folds is None else make_folds(names, "round-robin", num_folds=folds)
    third = max(1, queries // 6)
    if fold_list is None:
        splits = {"train": names[: -2 * third], "validation": names[-2 * third : -third], "test": names[-third:]}
    else:
        splits = {f"fold_{i}": list(fold.test) for i, fold in enumerate(fold_list, start=1)}
    run, qrels = {}, {}
    for split, query_ids in splits.items():
        rows = []
        for query_id in query_ids:
            query = generator.sample(tiny.WORDS, 2)
            texts = [" ".join(generator.choices(tiny.WORDS, k=6)) for _ in range(documents)]
            texts[generator.randrange(documents)] += f" {query[0]}"
            grades = [int(query[0] in text.split()) for text in texts]
            ids = [f"{query_id}-d{j}" for j in range(documents)]
            run[query_id] = {doc: float(documents - j) for j, doc in enumerate(ids)}
            qrels[query_id] = dict(zip(ids, grades, strict=True))
            best = sorted(range(documents), key=lambda j: -sum(w in texts[j].split() for w in query))[:prototypes]
            for number, window in enumerate(overlapping_spans(documents, SIZE, OVERLAP)):
                row = {"query_id": query_id, "query": " ".join(query), "group": number}
                for role, places in (("prototype", best), ("candidate", range(*window))):
                    row[f"{role}_ids"] = [ids[j] for j in places]
                    row[f"{role}_passages"] = [texts[j] for j in places]
                    row[f"{role}_ranks"] = [j + 1 for j in places]
                    row[f"{role}_scores"] = [float(-j) for j in places]
                    row[f"{role}_grades"] = [grades[j] for j in places]
                rows.append(row)
        path = folder / split_file(split)
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), path)
    write_run(folder / "run.trec", run, "bm25")
    write_qrels(folder / "qrels.trec", qrels)
    if fold_list is not None:
        write_folds(folder / "folds.json", fold_list)
    settings = {
        "step": "groups",
        "collection": "tiny",
        "first_stage": "bm25",
        "selector": "lexical",
        "passage_words": 10,
        "passage_overlap": 4,
        "passage_title": False,
        "num_prototypes": PROTOTYPES,
        "prototypes": "selector" if prototypes else "none",
        "group_size": SIZE,
        "group_overlap": OVERLAP,
        "splits": list(splits),
        "sha256": {"queries": queries, "folds": folds, "documents": documents, "prototypes": prototypes},
    }
    write_settings(folder, settings, {"queries": queries})
    return folder
