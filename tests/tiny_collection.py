"""A tiny collection, its run and its rows, made of the tiny tokenizer's words."""

import json
import random
from pathlib import Path

import tiny

from modeling_cobert.collections.collection import open_collection
from modeling_cobert.collections.options import SplitOptions
from modeling_cobert.data.rows import build_rows
from modeling_cobert.data.selection import SelectionOptions, select_passages

QUERIES = {
    f"q{i}": text
    for i, text in enumerate(
        ["how do bees see", "red car", "the road to the sky", "slow wheel", "blue flower", "honey and light"]
    )
}
# Judged, but the run has nothing for it: it must count as zero.
UNFOUND = "q9"
DOCUMENTS = 40


def make(folder: Path, seed: int = 0) -> Path:
    """Writes `queries.jsonl`, `corpus.jsonl`, `qrels/test.tsv` and `run.trec`; lists are 17 to 22 documents long."""
    choose = random.Random(seed)
    (folder / "qrels").mkdir(parents=True)
    corpus = {
        f"d{i}": {"title": choose.choice(tiny.WORDS), "text": " ".join(choose.choices(tiny.WORDS, k=5 + i))}
        for i in range(DOCUMENTS)
    }
    queries = {**QUERIES, UNFOUND: "green sky"}
    _jsonl(folder / "queries.jsonl", [{"_id": query_id, "text": text} for query_id, text in queries.items()])
    _jsonl(folder / "corpus.jsonl", [{"_id": doc_id, **document} for doc_id, document in corpus.items()])
    lines, judged = [], []
    for number, query_id in enumerate(QUERIES):
        found = choose.sample(list(corpus), 17 + number)
        lines += [f"{query_id} Q0 {d} {rank} {100 - rank} words\n" for rank, d in enumerate(found, start=1)]
        judged += [
            f"{query_id}\t{d}\t{choose.randint(0, 2)}\n" for d in [*found[::2], *choose.sample(list(corpus), 2)]
        ]
    judged.append(f"{UNFOUND}\td3\t1\n")
    (folder / "run.trec").write_text("".join(lines))
    (folder / "qrels" / "test.tsv").write_text("".join(dict.fromkeys(_first_grades(judged))))
    return folder


def rows(folder: Path, output: Path, folds: str = "none", selector: str = "lexical", **options) -> Path:
    """Rows of the collection in `folder`, cut as the tiny models cut."""
    collection = open_collection(folder, skip_missing=True)
    selection = SelectionOptions(selector, passage_words=10, passage_overlap=4, **options)
    select_passages(collection, folder / "run.trec", output / "selected", selection, progress=False)
    build_rows(output / "selected", output / "rows", collection, SplitOptions(folds=folds))
    return output / "rows"


def _jsonl(path: Path, rows: list[dict]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _first_grades(lines: list[str]) -> list[str]:
    seen = {}
    for line in lines:
        seen.setdefault(tuple(line.split("\t")[:2]), line)
    return list(seen.values())
