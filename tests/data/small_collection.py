"""A small hostile collection for the tests of selection and rows, and slow code that says what should come out."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import tiny

WORDS = [
    *tiny.WORDS,
    "honeycomb",
    "Žluťoučký",
    "光",
    "ﬁn",
    "ﷺ",
    "a\u00a0b",
    "[SEP]",
    "[CLS]",
    "##x",
    "\u200b",
    "\ufffd",
]
QUERIES = {
    "q1": "red flower",
    "q-ü": "how do bees see [SEP] the sky?",
    "3": "car",
    "q4": "光 blue",
    "q5": "slow slow slow road",
    "q6": "honey and light",
    "q7": "zzz",
}
ROOT = Path(__file__).resolve().parents[2]
WINDOW = (10, 4)  # words of a passage, and their overlap
MAX_LENGTH = 24


def make_documents(seed: int = 5) -> dict[str, tuple[str, str]]:
    """Id to title and text: empty, one word, exactly a window, one more, long, twice the same, odd characters."""
    generator = random.Random(seed)

    def text(length: int) -> str:
        return " ".join(generator.choice(WORDS) for _ in range(length))

    documents = {
        "empty": ("", ""),
        "title-only": ("the red sky", ""),
        "blank": ("", " \t\n "),
        "one": ("", "honey"),
        "window": ("", text(10)),
        "window+1": ("", text(11)),
        "two-windows": ("", text(16)),
        "twin-a": ("colour", "red and blue and green"),
        "twin-b": ("colour", "red and blue and green"),
        "doc/ü:光,\"'<b>&|`": ("bees [SEP] bees", text(23)),
        "sep": ("[SEP] [SEP]", "[CLS] [SEP] [PAD] [MASK] " * 5),
        "long-word": ("", "x" * 300 + " see"),
        "long": ("the road", text(90)),
    }
    for number in range(12):
        documents[f"d{number}"] = (text(number % 3), text(generator.randrange(1, 45)))
    return documents


def write_collection(folder: Path, documents=None, queries=None) -> Path:
    """A BEIR folder with the documents and queries above and a few judgments."""
    (folder / "qrels").mkdir(parents=True)
    documents, queries = documents or make_documents(), queries or QUERIES
    with open(folder / "corpus.jsonl", "w", encoding="utf-8") as file:
        for doc_id, (title, text) in documents.items():
            file.write(json.dumps({"_id": doc_id, "title": title, "text": text}) + "\n")
    with open(folder / "queries.jsonl", "w", encoding="utf-8") as file:
        for query_id, text in queries.items():
            file.write(json.dumps({"_id": query_id, "text": text}) + "\n")
    generator = random.Random(8)
    with open(folder / "qrels" / "test.tsv", "w", encoding="utf-8") as file:
        for query_id in queries:
            for doc_id in sorted(generator.sample(sorted(documents), 6)):
                file.write(f"{query_id}\t{doc_id}\t{generator.randrange(3)}\n")
    return folder


def write_run(path: Path, seed: int = 9, size: int = 17, documents=None, queries=None) -> Path:
    """A run of `size` random documents a query, with ties."""
    generator = random.Random(seed)
    with open(path, "w", encoding="utf-8") as file:
        for query_id in queries or QUERIES:
            for doc_id in generator.sample(sorted(documents or make_documents()), size):
                file.write(f"{query_id} Q0 {doc_id} 0 {generator.randrange(6)}.5 made-up\n")
    return path


def ranking(path: Path, query_id: str, k: int) -> list[tuple[str, float]]:
    """One query's best documents as trec_eval orders them: by falling score, then falling id."""
    lines = [line.split() for line in path.read_text(encoding="utf-8").split("\n") if line]
    return sorted(
        ((d, float(s)) for q, _, d, _, s, _ in lines if q == query_id), key=lambda p: (p[1], p[0]), reverse=True
    )[:k]


def windows(title: str, text: str, size: int, overlap: int, with_title: bool = False) -> list[str]:
    """The passages of a document, by walking over its words."""
    words = text.split() if with_title else (title + " " + text).split()
    passages, start = [], 0
    while True:
        passage = words[start : start + size]
        passages.append(" ".join((title.split() if with_title else []) + passage))
        if start + size >= len(words):
            return passages
        start += size - overlap


def tree(folder: Path) -> dict[str, bytes]:
    """Every file under a folder, hidden ones too."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def environment() -> dict[str, str]:
    """For a process of our own: one thread, and the package of this very folder."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def run_killed(jobs: list[tuple[Path, list[str], list]]) -> list[list[int]]:
    """Exit codes of scripts that are each killed at some files and then left to end; see killed_children.py."""
    content = json.dumps([{"script": str(script), "argv": argv, "kills": kills} for script, argv, kills in jobs])
    command = [sys.executable, str(Path(__file__).with_name("killed_children.py"))]
    done = subprocess.run(command, input=content, capture_output=True, text=True, env=environment(), timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
