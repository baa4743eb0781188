"""First-stage BM25 against bm25s and PISA: time and peak memory of indexing and retrieving, in one run.

```bash
python benchmarks/retrieval.py --documents 5000                                   # a minute's look
python benchmarks/retrieval.py                                                    # 500,000 documents of 200 words
```

bm25s and PISA come with the extra `bench`, PISA on Linux only. A collection is generated (words of a Zipfian
vocabulary), written once as jsonl, and each system reads it in a process of its own, one thread each, in turn. The
seconds include reading and analysing the text; CPU seconds are there because a busy machine stretches the others. The
last column says how many of the ten best documents a system shares with ours: that all do the same work.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
SYSTEMS = ("cobert", "bm25s", "pisa")
K1, B = 0.9, 0.4
CONSONANTS, VOWELS = "bdfgklmnprtv", "aeiou"


def make_words(count: int) -> list[str]:
    """Distinct pronounceable words, none of which a stemmer or a stop list would touch much."""
    syllables = [consonant + vowel for consonant in CONSONANTS for vowel in VOWELS]
    words = []
    for number in range(count):
        word = ""
        for _ in range(3):
            number, digit = divmod(number, len(syllables))
            word += syllables[digit]
        words.append(word + ("" if not number else syllables[number % len(syllables)]) + "k")
    return words


def generate(folder: Path, documents: int, words: int, vocabulary: int, queries: int, seed: int) -> None:
    """Writes a BEIR folder whose word frequencies fall as 1 / (rank + 2.7)."""
    generator = np.random.default_rng(seed)
    names = np.array(make_words(vocabulary), dtype=object)
    cumulative = np.cumsum(1 / (np.arange(vocabulary) + 2.7))
    cumulative /= cumulative[-1]
    with open(folder / "corpus.jsonl", "w", encoding="utf-8") as file:
        for start in range(0, documents, 1000):
            size = min(1000, documents - start)
            ranks = np.searchsorted(cumulative, generator.random((size, 2 * words)))
            # Lengths from half to one and a half of the mean: equal lengths would make half of all scores ties.
            lengths = generator.integers(words // 2, words + words // 2, size, endpoint=True)
            for number, (row, length) in enumerate(zip(names[ranks], lengths, strict=True), start=start):
                row = row[:length]
                file.write(json.dumps({"_id": f"d{number}", "title": "", "text": " ".join(row)}) + "\n")
    with open(folder / "queries.jsonl", "w", encoding="utf-8") as file:
        for number in range(queries):
            # 2 to 5 words of the same distribution, without the 50 most frequent ones: those would be stop words.
            ranks = np.searchsorted(cumulative, generator.uniform(cumulative[49], 1, generator.integers(2, 6)))
            file.write(json.dumps({"_id": str(number), "text": " ".join(names[ranks])}) + "\n")


def read_texts(path: Path) -> Iterator[tuple[str, str]]:
    with open(path, encoding="utf-8") as file:
        for line in file:
            item = json.loads(line)
            yield item["_id"], item["text"]


def run_cobert(folder: Path, k: int) -> tuple[Callable, Callable]:
    from modeling_cobert.collections.collection import open_collection
    from modeling_cobert.retrieval.first_stage import FirstStage, rank_all
    from modeling_cobert.retrieval.index import build_index
    from modeling_cobert.retrieval.options import RetrievalOptions

    collection = open_collection(folder)
    stage = FirstStage(RetrievalOptions("bm25", k1=K1, b=B))

    def build():
        index = build_index(collection.documents(), stage.options.make_analyzer())
        index.by_term, index.doc_lengths  # noqa: B018 - the term-major half is made on first use; count it as indexing
        return index

    return build, lambda index: rank_all(stage, index, collection.queries(), k, skip_missing=True)


def run_bm25s(folder: Path, k: int) -> tuple[Callable, Callable]:
    import bm25s
    import Stemmer

    analysis = {"stopwords": "en", "stemmer": Stemmer.Stemmer("porter"), "show_progress": False}

    def build():
        doc_ids, texts = zip(*read_texts(folder / "corpus.jsonl"), strict=True)
        retriever = bm25s.BM25(method="lucene", k1=K1, b=B)
        retriever.index(bm25s.tokenize(list(texts), **analysis), show_progress=False)
        return retriever, doc_ids

    def retrieve(built):
        retriever, doc_ids = built
        query_ids, texts = zip(*read_texts(folder / "queries.jsonl"), strict=True)
        rows, scores = retriever.retrieve(bm25s.tokenize(list(texts), **analysis), k=k, show_progress=False)
        return {
            query_id: {doc_ids[row]: float(score) for row, score in zip(*pair, strict=True)}
            for query_id, pair in zip(query_ids, zip(rows, scores, strict=True), strict=True)
        }

    return build, retrieve


def run_pisa(folder: Path, k: int) -> tuple[Callable, Callable]:
    import pandas
    from pyterrier_pisa import PisaIndex

    def build():
        index = PisaIndex(str(folder / "pisa"), text_field="text")
        index.index({"docno": doc_id, "text": text} for doc_id, text in read_texts(folder / "corpus.jsonl"))
        return index.bm25(k1=K1, b=B, num_results=k)

    def retrieve(engine):
        topics = [{"qid": query_id, "query": text} for query_id, text in read_texts(folder / "queries.jsonl")]
        run: dict[str, dict[str, float]] = {}
        result = engine(pandas.DataFrame(topics))
        for query_id, doc_id, score in zip(result.qid, result.docno, result.score, strict=True):
            run.setdefault(query_id, {})[doc_id] = float(score)
        return run

    return build, retrieve


def run_child(system: str, folder: Path, k: int) -> None:
    """Runs one system and prints what it took as the last line, in JSON."""
    build, retrieve = {"cobert": run_cobert, "bm25s": run_bm25s, "pisa": run_pisa}[system](folder, k)
    start = time.perf_counter()
    built = build()
    indexed = time.perf_counter()
    run = retrieve(built)
    end = time.perf_counter()
    busy = time.process_time()  # also the start of the interpreter and the imports
    best = {query_id: sorted(docs, key=docs.get, reverse=True)[:10] for query_id, docs in run.items()}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # Linux counts in KiB
    print(
        "\n"
        + json.dumps({"index": indexed - start, "retrieve": end - indexed, "cpu": busy, "memory": peak, "best": best})
    )


def measure(system: str, python: str, folder: Path, k: int) -> dict | None:
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "IR_DATASETS_HOME": str(folder / "irds"),
    }
    command = [python, str(Path(__file__).resolve()), "--child", system, "--folder", str(folder), "--k", str(k)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        print(f"{system} did not run: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return None
    return json.loads(done.stdout.strip().splitlines()[-1])


def report(results: dict[str, dict]) -> None:
    """Prints a Markdown table of the measurements, each as a ratio of bm25s too."""
    print(
        "| system | index s | retrieve s | total s | / bm25s | CPU s | / bm25s | peak GiB | 10 best shared with ours |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    base = results.get("bm25s")
    for system, result in results.items():
        total = result["index"] + result["retrieve"]
        ratio = f"{total / (base['index'] + base['retrieve']):.2f}" if base else "-"
        cpu_ratio = f"{result['cpu'] / base['cpu']:.2f}" if base else "-"
        ours = results["cobert"]["best"]
        shared = np.mean([len(set(best) & set(ours.get(query, ()))) / 10 for query, best in result["best"].items()])
        print(
            f"| {system} | {result['index']:.1f} | {result['retrieve']:.1f} | {total:.1f} | {ratio} "
            f"| {result['cpu']:.1f} | {cpu_ratio} | {result['memory']:.2f} | {shared:.1%} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=500_000, help="documents in the collection")
    parser.add_argument("--words", type=int, default=200, help="mean words of a document")
    parser.add_argument("--vocabulary", type=int, default=500_000, help="distinct words to draw from")
    parser.add_argument("--queries", type=int, default=250, help="queries of 2 to 5 words")
    parser.add_argument("--k", type=int, default=1000, help="documents retrieved per query")
    parser.add_argument("--seed", type=int, default=1, help="of the generator")
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), choices=SYSTEMS, help="what to compare")
    parser.add_argument("--pisa-python", default=sys.executable, help="an interpreter that has pyterrier-pisa")
    parser.add_argument("--child", choices=SYSTEMS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        run_child(args.child, args.folder, args.k)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        generate(folder, args.documents, args.words, args.vocabulary, args.queries, args.seed)
        size = (folder / "corpus.jsonl").stat().st_size / 2**20
        print(
            f"{args.documents} documents of {args.words} words, {size:.0f} MiB; {args.queries} queries; k = {args.k}\n"
        )
        results = {}
        for system in args.systems:
            result = measure(
                system, args.pisa_python if system == "pisa" else sys.executable, folder, min(args.k, args.documents)
            )
            if result:
                results[system] = result
        report(results)


if __name__ == "__main__":
    main()
