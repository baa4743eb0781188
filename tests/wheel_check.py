"""The whole way with nothing but the installed package: prepare, train a fold, evaluate, re-rank. Not a pytest file.

`make wheel-test` runs it in a fresh environment that has the wheel without extras, where the repository cannot be
imported (`python -I`, in another folder). One function per step, so that each shows what a user would write.
"""

import argparse
import json
import random
import string
import subprocess
import sys
import tempfile
from pathlib import Path

import transformers
from transformers import AutoModel, BertConfig, BertModel, BertTokenizer

import modeling_cobert
from modeling_cobert import CoBertForGroupwiseRanking

WORDS = (
    "bees see light honey flower red blue green colour car road wheel drive fast slow the a of and in to sky".split()
)
QUERIES, DOCUMENTS, FOUND, FOLD = 10, 40, 12, 1


def check_files(source: Path) -> int:
    """Every file of the package's source must have been installed; returns their number."""
    installed = Path(modeling_cobert.__file__).parent
    if installed == source.resolve():
        raise SystemExit(f"error: {installed} is the source itself, not what the wheel installed")
    names = [p.relative_to(source) for p in source.rglob("*") if p.is_file() and p.suffix not in (".pyc", ".pyo")]
    missing = sorted(str(name) for name in names if not (installed / name).is_file())
    if missing:
        raise SystemExit(f"error: the wheel lacks {', '.join(missing)}")
    return len(names)


def make_encoder(folder: Path) -> Path:
    """A tiny random BERT with its tokenizer."""
    pieces = [*string.ascii_lowercase, *(f"##{letter}" for letter in string.ascii_lowercase)]
    vocabulary = list(dict.fromkeys(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *pieces]))
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    BertTokenizer(vocab=str(folder / "vocab.txt"), do_lower_case=True).save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=24,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=40,
        max_position_embeddings=64,
    )
    transformers.set_seed(0)
    BertModel(config).save_pretrained(folder)
    return folder


def make_collection(folder: Path) -> Path:
    """A BEIR folder with 10 judged queries, and the run of a first stage."""
    choose = random.Random(0)
    (folder / "qrels").mkdir(parents=True)
    corpus = {f"d{i}": " ".join(choose.choices(WORDS, k=5 + i)) for i in range(DOCUMENTS)}
    queries = {f"q{i}": " ".join(choose.sample(WORDS, 3)) for i in range(QUERIES)}
    for name, texts in (("corpus.jsonl", corpus), ("queries.jsonl", queries)):
        rows = [json.dumps({"_id": key, "text": text}) + "\n" for key, text in texts.items()]
        (folder / name).write_text("".join(rows))
    run, qrels = [], ["query-id\tcorpus-id\tscore\n"]
    for query_id in queries:
        found = choose.sample(list(corpus), FOUND)
        run += [f"{query_id} Q0 {doc_id} {rank} {100 - rank} words\n" for rank, doc_id in enumerate(found, start=1)]
        qrels += [f"{query_id}\t{doc_id}\t{i % 3}\n" for i, doc_id in enumerate(found[::2])]
    (folder / "run.trec").write_text("".join(run))
    (folder / "qrels" / "test.tsv").write_text("".join(qrels))
    return folder


def cobert(*command: object) -> str:
    """What the installed command prints."""
    script = Path(sys.executable).with_name("cobert")
    done = subprocess.run([script, *map(str, command)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"error: cobert {' '.join(map(str, command))}\n{done.stderr[-3000:]}")
    return done.stdout


def prepare(collection: Path, output: Path) -> Path:
    passages = ["--passage_words", 10, "--passage_overlap", 4, "--max_length", 32, "--k", FOUND]
    run = collection / "run.trec"
    cobert("prepare", "--collection", collection, "--run", run, "--selector", "lexical", "--output", output, *passages)
    return output / "rows"


def train(rows: Path, encoder: Path, output: Path) -> Path:
    options = ["--group_size", 7, "--group_overlap", 2, "--num_prototypes", 3, "--max_length", 32]
    options += ["--num_train_epochs", 1, "--use_cpu", "True", "--output_dir", output]
    table = cobert("train", "--rows", rows, "--fold", FOLD, "--encoder", encoder, *options)
    assert "| test, full |" in table, table
    model = output / f"fold-{FOLD}"
    for name in (
        "model.safetensors",
        "config.json",
        "README.md",
        "validation.trec",
        "test.trec",
        "modeling_cobert.py",
    ):
        assert (model / name).is_file(), name
    return model


def evaluate(model: Path, rows: Path, output: Path) -> dict[str, float]:
    cobert("eval", "--model", model, "--rows", rows, "--fold", FOLD, "--output", output, "--use_cpu")
    written = json.loads((output / "measures.json").read_text())
    assert 0 <= written["comparison"]["AP@1000"]["p_t_test"] <= 1, written
    results = json.loads((model / "results.json").read_text())
    assert written["measures"] == results["test"], "training and evaluation disagree"
    return written["measures"]


def rerank_texts(model: Path) -> list[int]:
    loaded = AutoModel.from_pretrained(model)
    assert isinstance(loaded, CoBertForGroupwiseRanking), "the installed package is what AutoModel loads"
    results = loaded.rerank(
        "how do bees see", ["honey of bees", "bees see blue light", {"title": "Car", "text": "fast"}]
    )
    order = [result["corpus_id"] for result in results]
    assert sorted(order) == [0, 1, 2], results
    return order


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", type=Path, help="the package's source, to compare the installed files with")
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if options.source:
        print(f"files      {check_files(options.source)} of the package, all installed")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        encoder, collection = make_encoder(folder / "encoder"), make_collection(folder / "collection")
        rows = prepare(collection, folder / "prepared")
        print("prepared  ", len(list(rows.rglob("*"))), "files")
        model = train(rows, encoder, folder / "trained")
        print("trained   ", len(list(model.iterdir())), "files")
        print("evaluated ", evaluate(model, rows, folder / "results"))
        print("re-ranked ", rerank_texts(model))
        print(cobert("rerank", "--model", model, "--query", "bees", collection / "corpus.jsonl", "--top_k", 3), end="")
    print("OK")


if __name__ == "__main__":
    main()
