"""A small collection on disk, with everything that is odd about documents, and tiny cross-encoders."""

import json
import random
import sys
from pathlib import Path

import datasets
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import tiny  # noqa: E402

from modeling_cobert.collections.collection import open_collection  # noqa: E402
from modeling_cobert.collections.folds import make_folds, write_folds  # noqa: E402
from modeling_cobert.collections.trec import write_run  # noqa: E402

QUERIES, DOCUMENTS = 6, 12


class Small:
    """Six queries in three folds; twelve documents, among them two empty ones, two alike and one of long words."""

    def __init__(self, folder: Path):
        generator = random.Random(3)
        lengths = [2, 9, 31, 40, 17, 1, 12, 26, 5, 0, 0, 20]
        texts = [" ".join(generator.choices(tiny.WORDS, k=length)) for length in lengths]
        texts[7] = texts[3]
        texts[4] += " honey-flower-road/wheel?colour=blue&light=green.bees zebra,zebra,zebra"
        self.documents = {
            f"d{i}": {"title": "red sky" if i % 3 == 0 and text else "", "text": text} for i, text in enumerate(texts)
        }
        self.queries = {f"q{i}": " ".join(generator.sample(tiny.WORDS, 1 + i % 3)) for i in range(QUERIES)}
        self.folder, self.collection_folder = folder, folder / "small"
        (self.collection_folder / "qrels").mkdir(parents=True)
        rows = [{"_id": doc_id, **document} for doc_id, document in self.documents.items()]
        self._jsonl("corpus.jsonl", rows)
        self._jsonl("queries.jsonl", [{"_id": query_id, "text": text} for query_id, text in self.queries.items()])
        self.qrels = {
            query_id: {doc_id: generator.choice([0, 1, 2]) for doc_id in generator.sample(list(self.documents), 6)}
            for query_id in self.queries
        }
        lines = [f"{q}\t{d}\t{grade}" for q, grades in self.qrels.items() for d, grade in grades.items()]
        (self.collection_folder / "qrels" / "test.tsv").write_text(
            "\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n"
        )
        self.folds = make_folds(self.queries, "round-robin", num_folds=3)
        write_folds(self.collection_folder / "folds.json", self.folds)
        # q0 has one candidate, q1 only empty ones, the others most documents.
        self.run = {
            query_id: {doc_id: float(20 - i) for i, doc_id in enumerate(generator.sample(list(self.documents), 10))}
            for query_id in self.queries
        }
        self.run["q0"], self.run["q1"] = {"d2": 1.0}, {"d9": 2.0, "d10": 1.0}
        self.run_file = folder / "run.trec"
        write_run(self.run_file, self.run, "first")

    def _jsonl(self, name: str, rows: list[dict]) -> None:
        (self.collection_folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))

    def open(self):
        return open_collection(self.collection_folder)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """What `datasets` remembers of a folder of the same name, from an earlier run, must not stand in for a new one."""
    before, datasets.config.HF_DATASETS_CACHE = datasets.config.HF_DATASETS_CACHE, tmp_path_factory.mktemp("cache")
    yield
    datasets.config.HF_DATASETS_CACHE = before


@pytest.fixture(scope="session")
def small(tmp_path_factory) -> Small:
    return Small(tmp_path_factory.mktemp("collection"))


@pytest.fixture(scope="session")
def encoders(tmp_path_factory) -> list[str]:
    """Three cross-encoders of different depths, the second with two labels."""
    folder = tmp_path_factory.mktemp("encoders")
    return [
        str(tiny.bert_checkpoint(folder / f"fold-{layers}", layers=layers, labels=labels))
        for layers, labels in ((1, 1), (2, 2), (3, 1))
    ]
