"""Ids, texts and names written by an enemy: a terminal, a page, a card and a table show them; none obeys them."""

import json
import logging
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
import tiny_collection
import yaml

from modeling_cobert import CoBertForGroupwiseRanking, cli
from modeling_cobert.collections.collection import open_collection, read_judgments, read_queries
from modeling_cobert.collections.trec import read_qrels, read_run, write_run
from modeling_cobert.data.rows_card import dataset_card, split_file
from modeling_cobert.evaluation.measures import evaluate_run
from modeling_cobert.steps.failures import LONGEST, told
from modeling_cobert.steps.terminal import VisibleRecord, visible, visible_lines
from modeling_cobert.words_cobert import word_vectors

ROOT = Path(__file__).resolve().parents[1]
# Clears the screen, writes to the clipboard, links, turns the line around, rings, and goes back to its beginning.
ESCAPES = "\x1b[2J\x1b]52;c;ZXZpbA\x07\x1b]8;;javascript:alert(1)\x1b\\x\u202e\u2066\x9b2J\x08"
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
MARKUP = "<script>alert(1)</script><img/src=x/onerror=alert(1)>[x](javascript:alert(1))|`'\"---"
# What `NAME=PATH` may hold has no equals sign.
SYSTEM = f"{ESCAPES}<script>alert(1)</script>[x](javascript:alert(1))|`"
# An id has no white space. The first two are in every file below as they are.
DOC, QUERY, NAME = f"d{ESCAPES}{MARKUP}", f"q{ESCAPES}{MARKUP}", f"s{ESCAPES}{MARKUP}"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory) -> Path:
    """A collection whose first query and document are called so, in all of its files, and whose texts say it too."""
    folder = tiny_collection.make(tmp_path_factory.mktemp("text") / "words")
    first = next(iter(read_run(folder / "run.trec")["q0"]))
    for path in (folder / "corpus.jsonl", folder / "queries.jsonl"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        for row in rows:
            row["_id"] = {first: DOC, "q0": QUERY}.get(row["_id"], row["_id"])
            shown = f" {ESCAPES} {MARKUP}" if path.name == "corpus.jsonl" else " \x1b[2J\u202e" * (row["_id"] == QUERY)
            row["text"] += shown
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for path in (folder / "run.trec", folder / "qrels" / "test.tsv"):
        text = re.sub(rf"\b{first}\b", lambda _: DOC, path.read_bytes().decode())
        text = re.sub(r"\bq0\b", lambda _: QUERY, text)
        path.write_bytes(text.replace(" words\n", f" {NAME}\n").encode())
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return tiny.checkpoint(tmp_path_factory.mktemp("models") / "cobert", max_length=64)


def run(capfd, *argv) -> tuple[int, str]:
    """Exit code, and all that was printed and logged."""
    code = 0
    try:
        cli.main([str(argument) for argument in argv])
    except SystemExit as ended:
        code = ended.code
    out, err = capfd.readouterr()
    return code, out + err


# --- terminals


def test_every_step_shows_and_no_step_obeys(hostile, model, tmp_path, capfd):
    """From the collection to the comparison; what is in files has the ids as they are."""
    common = ["--collection", hostile, "--skip_missing"]
    steps = {
        "prepare": ["prepare", *common, "--run", hostile / "run.trec", "--selector", "lexical"],
        "retrieve": ["retrieve", *common, "--output", tmp_path / "first.trec", "--tag", NAME, "--evaluate"],
        "eval": ["eval", *common, "--run", hostile / "run.trec", "--model", model, "--use_cpu"],
        "explain": ["explain", *common, "--run", hostile / "run.trec", "--model", model, "--use_cpu"],
        "compare": ["compare", *common[:2], "--baselines", f"{SYSTEM}={hostile / 'run.trec'}"],
    }
    steps["prepare"] += ["--output", tmp_path / "prepare", "--folds", "none", "--passage_words", 10]
    steps["prepare"] += ["--passage_overlap", 4]
    steps["eval"] += ["--output", tmp_path / "eval", "--tag", NAME]
    steps["explain"] += ["--output", tmp_path / "why", "--query_ids", QUERY]
    steps["compare"] += [
        "--runs",
        tmp_path / "eval" / "run.trec",
        "--html",
        tmp_path / "report.html",
        "--markdown",
        tmp_path / "table.md",
    ]
    printed = {}
    for name, argv in steps.items():
        code, printed[name] = run(capfd, *argv)
        assert code == 0, printed[name]
        assert not OBEYED.search(printed[name].replace("\r", "")), (name, OBEYED.search(printed[name]))
    assert visible(DOC)[:12] in printed["explain"] and visible(QUERY) in printed["explain"]
    assert visible(SYSTEM) in printed["compare"]
    assert QUERY in read_run(tmp_path / "eval" / "run.trec") and DOC in read_run(tmp_path / "eval" / "run.trec")[QUERY]
    assert NAME in (tmp_path / "first.trec").read_bytes().decode()
    for page in (tmp_path / "why" / "explanation.html", tmp_path / "report.html"):
        check_page(page.read_text(encoding="utf-8"))
    check_markdown((tmp_path / "table.md").read_text(encoding="utf-8"))
    check_dataset_card((tmp_path / "prepare" / "rows" / "README.md").read_text(encoding="utf-8"))


def check_page(page: str) -> None:
    assert not OBEYED.search(page)
    assert "<script" not in page and "<img" not in page and "javascript:" in page  # as text
    assert not re.search(r"""<[^>]*\s(href|src|on\w+)\s*=\s*["']?\s*javascript""", page)


def check_markdown(table: str) -> None:
    """Every row has as many cells as the header, and nothing is left that Markdown or HTML would act on."""
    rows = [line for line in table.splitlines() if line.startswith("|")]
    assert len(rows) >= 4 and len({len(re.findall(r"(?<!\\)\|", row)) for row in rows if row}) <= 3
    assert visible(ESCAPES)[:6].replace("[", "\\[").replace("\\u", "\\\\u") in table
    assert "<script" not in table and "<img" not in table and not OBEYED.search(table)
    assert not re.search(r"(?<!\\)\]\(", table)


def check_dataset_card(card: str) -> None:
    _, head, text = card.split("---\n", 2)
    assert yaml.safe_load(head)["task_categories"] == ["text-ranking"]
    assert not OBEYED.search(text)


@pytest.mark.parametrize("kind", ["text", "trec", "jsonl"])
def test_rerank_tells_a_terminal_from_a_file(kind, model, tmp_path):
    """A terminal sees what the ids are; a pipe gets them as they are."""
    row = {"_id": DOC, "text": f"bees {ESCAPES}"}
    (tmp_path / "docs.jsonl").write_text(json.dumps(row) + "\n")
    command = [sys.executable, "-m", "modeling_cobert.cli", "rerank", "--model", model, "--use_cpu"]
    command += ["--query", "bees", "--format", kind, tmp_path / "docs.jsonl"]
    command, environment = list(map(str, command)), {**os.environ, "PYTHONPATH": str(ROOT)}
    piped = subprocess.run(command, env=environment, capture_output=True, check=True).stdout.decode()
    ours, theirs = pty.openpty()
    with subprocess.Popen(command, env=environment, stdout=theirs, stderr=subprocess.DEVNULL) as process:
        os.close(theirs)
        shown = b""
        try:
            while part := os.read(ours, 1 << 16):
                shown += part
        except OSError:  # how a terminal of Linux says that nobody writes to it any more
            pass
        assert process.wait() == 0
    os.close(ours)
    assert not OBEYED.search(shown.decode().replace("\r\n", "\n"))
    if kind == "trec":
        assert piped.split(" ")[2] == DOC and visible(DOC) in shown.decode()
    if kind == "jsonl":
        assert json.loads(piped)["id"] == DOC


def test_errors_show_names(tmp_path, capfd):
    nowhere = tmp_path / f"no{ESCAPES}where".replace("/", "")
    code, said = run(capfd, "retrieve", "--collection", nowhere, "--output", tmp_path / "run.trec")
    assert code == 1 and said.startswith("error: ") and said.count("\n") == 1 and not OBEYED.search(said)
    code, said = run(capfd, "retrieve", "--collection", nowhere, "--output", tmp_path / "run.trec", "--debug")
    assert code == 1 and "Traceback" in said and not OBEYED.search(said)
    code, said = run(capfd, "retrieve", "--collection", "demo", "--output", "x", f"--{ESCAPES}", ESCAPES)
    assert code == 2 and "unrecognized arguments" in said and not OBEYED.search(said)
    code, said = run(capfd, ESCAPES)
    assert code == 2 and not OBEYED.search(said)


def test_an_error_that_quotes_a_whole_document_is_short():
    line = told(ValueError(f"corpus.jsonl:7: found {'x' * 10**7}: shorten it"))
    assert line.startswith("corpus.jsonl:7: found x") and line.endswith("x: shorten it") and len(line) < LONGEST + 10


def test_logs_of_every_library_are_visible():
    for name in ("modeling_cobert.data", "transformers.modeling_utils"):
        record = VisibleRecord(name, logging.WARNING, "x.py", 1, "found %s\n\x1b[1mbold\x1b[0m", (ESCAPES,), None)
        assert record.getMessage() == f"found {visible(ESCAPES)}\nbold"
    assert visible_lines("a\tb\n\x1b[2Jc\r") == "a\tb\n\\u001b[2Jc\\u000d"


# --- ids that would break a file's columns


@pytest.mark.parametrize("character", [" ", "\t", "\n", "\r", "\x0b", "\x0c", "\u00a0", "\u2028", "\x85", "\0"])
def test_ids_that_are_not_one_word(character, tmp_path):
    evil = f"a{character}b"
    corpus, queries = tmp_path / "corpus.jsonl", tmp_path / "queries.jsonl"
    row = json.dumps({"_id": evil, "text": "bees"})
    for path in (corpus, queries):
        path.write_text(f"{json.dumps({'_id': 'x', 'text': 'bees'})}\n{row}\n")
    with pytest.raises(ValueError, match=r"corpus.jsonl:2: an id must be a non-empty string without white space"):
        list(open_collection(tmp_path).documents())
    with pytest.raises(ValueError, match=r"queries.jsonl:2: an id must be a non-empty string without white space"):
        read_queries(queries)
    if character not in "\n\r\t":
        (tmp_path / "qrels.tsv").write_text(f"q\tx\t1\nq\t{evil}\t1\n", encoding="utf-8")
        with pytest.raises(ValueError, match=r"qrels.tsv:2: an id must be"):
            read_judgments(tmp_path / "qrels.tsv")


def test_a_nul_would_end_an_id(tmp_path):
    """trec_eval's own code is C, to which "a\\0b" and "a\\0c" are one document."""
    (tmp_path / "run.trec").write_bytes(b"q Q0 d 1 2.0 x\nq Q0 a\0b 2 1.0 x\n")
    with pytest.raises(ValueError, match="run.trec:2: a NUL"):
        read_run(tmp_path / "run.trec")
    (tmp_path / "qrels.txt").write_bytes(b"q 0 a\0b 1\n")
    with pytest.raises(ValueError, match="qrels.txt:1: a NUL"):
        read_qrels(tmp_path / "qrels.txt")
    with pytest.raises(ValueError, match="NUL"):
        write_run(tmp_path / "out.trec", {"q": {"a\0b": 1.0}}, "tag")
    assert not (tmp_path / "out.trec").exists()


@pytest.mark.parametrize("doc_id", ["../../x", "/etc/nowhere", "..", "a/b", "~", "con", "$(id)", "-rf", "*"])
def test_ids_are_no_paths(doc_id, hostile, model, tmp_path, capfd):
    """No file is called as a query or a document is."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "queries.jsonl").write_text(json.dumps({"_id": doc_id, "text": "bees"}) + "\n")
    (tmp_path / "in" / "corpus.jsonl").write_text(json.dumps({"_id": doc_id, "text": "bees see"}) + "\n")
    (tmp_path / "in" / "run.trec").write_text(f"{doc_id} Q0 {doc_id} 1 1.0 {doc_id}\n")
    common = ["--collection", tmp_path / "in", "--run", tmp_path / "in" / "run.trec", "--model", model, "--use_cpu"]
    before = {path.relative_to(tmp_path) for path in tmp_path.rglob("*")}
    code, said = run(capfd, "explain", *common, "--query_ids", doc_id, "--output", tmp_path / "out" / "why")
    assert code == 0 or doc_id == "-rf", said
    made = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")} - {p.as_posix() for p in before}
    assert made <= {"out", "out/why", "out/why/explanation.json", "out/why/explanation.html"}
    evaluate_run({doc_id: {doc_id: 1}}, {doc_id: {doc_id: 1.0}}, ["nDCG@20"])


@pytest.mark.parametrize("split", ["../x", "a/b", "a\\b", "", "a\nb", "a\0b"])
def test_splits_are_parts_of_a_file_name(split):
    with pytest.raises(ValueError, match="no split can be called"):
        split_file(split)


def test_a_dataset_card_keeps_its_head():
    """Names in the settings may say anything: they are in a block of code, which they cannot end."""
    evil = f'---\n"quoted": {{evil}}\n```\n{MARKUP}{ESCAPES}'
    settings = {"collection": evil, "splits": ["train"], "selector": evil}
    card = dataset_card(settings, {"queries": 3, "skipped": {}})
    check_dataset_card(card)
    block = re.search(r"```json\n(.*?)\n```", card, flags=re.DOTALL)[1]
    assert json.loads(block)["collection"] == evil


# --- much text


@pytest.mark.parametrize(
    "text",
    ["bees see light " * 20_000, "a" * 1_000_000, "\0" * 300_000, "e" + "\u0301" * 100_000, "\ud800 bees " * 9000],
    ids=["words", "one word", "NUL", "combining", "surrogates"],
)
def test_long_texts_are_ranked_and_long_queries_refused(text, model):
    ranker = CoBertForGroupwiseRanking.from_pretrained(model)
    ranking = ranker.rerank("bees see", [text, "red car", {"title": text[:1000], "text": "bees"}])
    assert sorted(item["corpus_id"] for item in ranking) == [0, 1, 2]
    assert all(abs(item["score"]) < 1e9 for item in ranking)
    assert word_vectors([text, "bees see"]) is not None
    if len(text.split()) > 100:
        with pytest.raises(ValueError, match="the query has .* tokens, but a row of 64 has room for") as refused:
            ranker.rerank(text, ["bees"])
        assert len(str(refused.value)) < 500
