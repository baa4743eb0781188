"""Retrieval: the run it writes, the queries it takes, and how it refuses."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from modeling_cobert.collections.collection import open_collection
from modeling_cobert.collections.options import CollectionOptions
from modeling_cobert.collections.trec import read_run
from modeling_cobert.commands.retrieve import OutputArguments, main
from modeling_cobert.retrieval.options import MODELS, RetrievalOptions
from modeling_cobert.retrieval.retrieve import retrieve, retrieve_to_folder

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "tiny"
    (folder / "qrels").mkdir(parents=True)
    texts = ["wings in a slipstream", "heat transfer of wings", "slipstream of propellers", "cooking"]
    documents = [{"_id": f"d{i}", "title": "", "text": text} for i, text in enumerate(texts, start=1)]
    queries = [{"_id": "1", "text": "wing slipstream"}, {"_id": "2", "text": "heated wings"}]
    for name, items in (("corpus", documents), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    (folder / "qrels" / "test.tsv").write_text("1\td1\t1\n")
    return folder


def run_main(folder, output, options=None, k=1000, tag=None, evaluate=False, **collection):
    arguments = CollectionOptions(collection=str(folder), **collection)
    return main(arguments, OutputArguments(str(output), k, tag, evaluate), options or RetrievalOptions())


def test_run(folder, tmp_path, capsys):
    output = tmp_path / "runs" / "bm25.trec"
    measures = run_main(folder, output, RetrievalOptions("bm25"), evaluate=True, tag="mine")
    run = read_run(output)
    assert list(run) == ["1", "2"]
    assert list(run["1"])[0] == "d1" and set(run["1"]) == {"d1", "d2", "d3"}
    assert {line.split()[5] for line in output.read_text().splitlines()} == {"mine"}
    # the only judged document is first; recall and average precision are those of query 1 alone
    assert measures == pytest.approx({"AP@1000": 1.0, "P@20": 1 / 20, "R@1000": 1.0, "nDCG@20": 1.0})
    assert "2 queries, 5 lines" in capsys.readouterr().out


def test_split_k_and_model(folder, tmp_path):
    run_main(folder, tmp_path / "run", RetrievalOptions("dph"), split="test", k=1)
    assert {query: list(docs) for query, docs in read_run(tmp_path / "run").items()} == {"1": ["d1"]}


def test_two_runs_are_the_same_bytes(folder, tmp_path):
    for name in ("a.trec", "b.trec"):
        run_main(folder, tmp_path / name, RetrievalOptions("bm25+rm3"))
    assert (tmp_path / "a.trec").read_bytes() == (tmp_path / "b.trec").read_bytes()


def test_judged_query_without_ranking_counts_as_zero(folder, tmp_path):
    (folder / "qrels" / "test.tsv").write_text("1\td1\t1\n2\td2\t1\n")
    (tmp_path / "q.tsv").write_text("1\twing slipstream\n2\tunheard\n")
    measures = run_main(folder, tmp_path / "run", queries=str(tmp_path / "q.tsv"), skip_missing=True, evaluate=True)
    assert measures["R@1000"] == pytest.approx(0.5)


def test_judgments_for_other_queries(folder, tmp_path, caplog):
    (folder / "qrels" / "test.tsv").write_text("1\td1\t1\n77\td2\t1\n")
    with pytest.raises(ValueError, match="1 judged queries have no text, such as '77'"):
        run_main(folder, tmp_path / "run", evaluate=True)
    assert not (tmp_path / "run").exists()
    assert run_main(folder, tmp_path / "run", evaluate=True, skip_missing=True)["R@1000"] == pytest.approx(1.0)
    assert "1 judged queries have no text" in caplog.text


def test_replaced_queries(folder, tmp_path, caplog):
    queries = tmp_path / "questions.tsv"
    queries.write_text("2\tpropellers\n1\tcooking\n")
    run_main(folder, tmp_path / "run", RetrievalOptions("dph"), queries=str(queries))
    assert {query: list(docs) for query, docs in read_run(tmp_path / "run").items()} == {"1": ["d4"], "2": ["d3"]}
    queries.write_text("1\tcooking\n")
    with pytest.raises(ValueError, match="questions.tsv: 1 queries of the collection are not in it, such as '2'"):
        run_main(folder, tmp_path / "run2", queries=str(queries))
    queries.write_text("1\tcooking\n2\theat\n3\theat\n")
    with pytest.raises(ValueError, match="1 queries are new, such as '3'"):
        run_main(folder, tmp_path / "run2", queries=str(queries))
    assert not (tmp_path / "run2").exists()
    run_main(folder, tmp_path / "run2", queries=str(queries), skip_missing=True)
    assert list(read_run(tmp_path / "run2")) == ["1", "2"]
    assert "1 queries are new; skipped" in caplog.text


def test_empty_query_is_refused_before_the_documents_are_read(folder, tmp_path):
    (folder / "corpus.jsonl").write_text("not json\n")
    (folder / "queries.jsonl").write_text('{"_id": "1", "text": " "}\n')
    with pytest.raises(ValueError, match="query '1' .*no terms"):
        run_main(folder, tmp_path / "run")
    with pytest.raises(ValueError, match="corpus.jsonl:1: not a JSON object"):
        run_main(folder, tmp_path / "run", skip_missing=True)
    assert not (tmp_path / "run").exists()


def test_queries_for_documents_alone(folder, tmp_path):
    (folder / "queries.jsonl").unlink()
    with pytest.raises(FileNotFoundError, match="none of queries.jsonl"):
        run_main(folder, tmp_path / "run")
    (tmp_path / "q.tsv").write_text("x\tcooking\n")
    run_main(folder, tmp_path / "run", queries=str(tmp_path / "q.tsv"))
    assert list(read_run(tmp_path / "run")) == ["x"]


def test_a_query_without_a_new_text_counts_as_zero(folder, tmp_path):
    (folder / "qrels" / "test.tsv").write_text("1\td1\t1\n2\td2\t1\n")
    (tmp_path / "q.tsv").write_text("1\twing slipstream\n")
    measures = run_main(folder, tmp_path / "run", queries=str(tmp_path / "q.tsv"), skip_missing=True, evaluate=True)
    assert measures["R@1000"] == pytest.approx(0.5)


def test_parameters_reach_the_model(folder, tmp_path):
    changes = [{}, {"k1": 2.0}, {"stemmer": "none"}, {"b": 0.0}, {"stopwords": "none"}]
    scores = []
    for change in changes:
        run_main(folder, tmp_path / "run", RetrievalOptions("bm25", **change), skip_missing=True)
        scores.append(read_run(tmp_path / "run"))
    assert all(scores[0] != other for other in scores[1:])


def test_defaults_depend_on_the_model():
    paper, other = RetrievalOptions().resolved(), RetrievalOptions("bm25+rm3").resolved()
    assert (paper.analyzer, paper.stopwords, paper.feedback_docs) == ("terrier", "terrier", 3)
    assert (other.analyzer, other.stopwords, other.feedback_docs) == ("anserini", "lucene", 10)
    assert RetrievalOptions("dph", analyzer="anserini").resolved().stopwords == "lucene"
    # what stands for a default stays one when the model is exchanged
    assert replace(RetrievalOptions(), first_stage="bm25+rm3").resolved() == other


@pytest.mark.parametrize("command", ["retrieve", "prepare"])
@pytest.mark.parametrize(
    ("model", "unread"),
    [
        ("dph", "k1 b k3 idf feedback_docs feedback_terms original_weight beta"),
        ("bm25", "feedback_docs feedback_terms original_weight beta"),
        ("bm25+rm3", "beta"),
        ("dph+kl", "k1 b k3 idf original_weight"),
    ],
)
def test_what_a_first_stage_does_not_read_is_refused(command, model, unread, folder, tmp_path, refuse):
    values = {"idf": "robertson", "feedback_docs": 4, "feedback_terms": 4}
    options = [part for name in unread.split() for part in (f"--{name}", values.get(name, 0.25))]
    argv = [command, "--collection", folder, "--output", tmp_path / "out", "--first_stage", model]
    argv += ["--selector", "lexical"] if command == "prepare" else []
    said = f"--first_stage {model} does not read {', '.join(f'--{name}' for name in unread.split())}: leave it out"
    assert said in refuse(*argv, *options) and not (tmp_path / "out").exists()


def test_every_option_that_a_first_stage_reads_makes_a_difference():
    """So that what is refused, and nothing else, is what would do nothing."""
    values = {"k1": 0.25, "b": 0.9, "k3": 0.25, "idf": "robertson", "feedback_docs": 1, "feedback_terms": 1}
    values |= {"original_weight": 0.1, "beta": 2.5}
    collection, queries = open_collection("demo"), {"x": "make a class of the class of a class"}
    for model in MODELS:
        plain = retrieve(collection, RetrievalOptions(model), queries=queries)
        for name, value in values.items():
            options = RetrievalOptions(model, **{name: value})
            same = retrieve(collection, options, queries=queries) == plain
            try:
                options.check_read()
            except ValueError:
                assert same, f"{model} reads {name}"
            else:
                assert not same, f"{model} does not read {name}"


def test_a_folder_has_the_same_run_and_is_not_done_twice(folder, tmp_path):
    collection, options = open_collection(folder), RetrievalOptions("bm25")
    settings = retrieve_to_folder(collection, tmp_path / "out", options, k=2)
    run = read_run(tmp_path / "out" / "run.trec")
    assert run == retrieve(collection, options, k=2)
    assert settings["counts"] == {"queries": 2, "lines": 4} and settings["analyzer"] == "anserini"
    before = (tmp_path / "out" / "run.trec").stat().st_mtime_ns
    # a default and the value that it stands for are the same settings
    assert retrieve_to_folder(collection, tmp_path / "out", options.resolved(), k=2) == settings
    assert (tmp_path / "out" / "run.trec").stat().st_mtime_ns == before
    with pytest.raises(ValueError, match="begun with other settings: k is 2, now 3"):
        retrieve_to_folder(collection, tmp_path / "out", options, k=3)
    (tmp_path / "words").write_text("wing\n")
    options = RetrievalOptions("bm25", stopwords=str(tmp_path / "words"))
    retrieve_to_folder(collection, tmp_path / "stopped", options)
    (tmp_path / "words").write_text("heat\n")
    with pytest.raises(ValueError, match="begun with other settings: sha256.stopwords is"):
        retrieve_to_folder(collection, tmp_path / "stopped", options)


def test_skip_missing_is_the_collections(folder):
    (folder / "queries.jsonl").write_text('{"_id": "1", "text": "wing"}\n{"_id": "2", "text": "the of"}\n')
    with pytest.raises(ValueError, match="'2' .*has no terms"):
        retrieve(open_collection(folder))
    assert list(retrieve(open_collection(folder, skip_missing=True))) == ["1"]
    with pytest.raises(ValueError, match="k must be at least 1"):
        retrieve(open_collection(folder, skip_missing=True), k=0)


def test_command_line(folder, tmp_path):
    command = [sys.executable, str(ROOT / "data_scripts" / "retrieve.py"), "--collection", str(folder)]
    good = subprocess.run([*command, "--output", str(tmp_path / "run")], cwd=ROOT, capture_output=True, text=True)
    assert good.returncode == 0, good.stderr
    assert list(read_run(tmp_path / "run")) == ["1", "2"]
    bad = subprocess.run([*command, "--output", str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert bad.returncode == 1 and "is a folder" in bad.stderr and "Traceback" not in bad.stderr
