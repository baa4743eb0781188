"""Preparation: killed in every step and resumed, and a summary that slow counting of the same files confirms."""

import json
import shutil
from collections import defaultdict

import pytest
import small_collection as small
import tiny

from modeling_cobert import cli
from modeling_cobert.collections.collection import open_collection
from modeling_cobert.data.preparation import prepare
from modeling_cobert.data.rows import load_rows
from modeling_cobert.data.selection import SelectionOptions
from modeling_cobert.evaluation.summary import summarise
from modeling_cobert.retrieval.options import RetrievalOptions

KILLS = [
    ["after", "run/settings.json"],
    ["before", "run/run.trec"],
    ["after", "run/run.trec"],
    ["before", "selected/vectors/00000.safetensors"],
    ["after", "selected/vectors/00000.safetensors"],
    ["before", "selected/shards/00001.parquet"],
    ["after", "selected/shards/00002.parquet"],
    ["after", "rows/settings.json"],
    ["before", "rows/data/fold_3-00000-of-00001.parquet"],
    ["after", "rows/data/fold_2-00000-of-00001.parquet"],
    ["before", "rows/qrels.trec"],
    ["after", "rows/README.md"],
]


def test_killed_in_every_step_and_resumed_is_the_same_to_the_byte(tmp_path):
    small.write_collection(tmp_path / "collection")
    tiny.bert_checkpoint(tmp_path / "bi-encoder", layers=1)
    collection = open_collection(tmp_path / "collection", skip_missing=True)  # one query matches nothing
    selection = SelectionOptions(str(tmp_path / "bi-encoder"), max_length=24, batch_tokens=200, shard_queries=2)
    rows = prepare(collection, tmp_path / "whole", selection, retrieval=RetrievalOptions("bm25"), progress=False)
    assert rows.folder == tmp_path / "whole" / "rows" and len(rows.dataset()) == len(small.QUERIES) - 1
    argv = ["--collection", str(tmp_path / "collection"), "--output", str(tmp_path / "killed")]
    argv += ["--first_stage", "bm25", "--skip_missing", "--selector", selection.selector]
    argv += ["--max_length", "24", "--batch_tokens", "200", "--shard_queries", "2"]
    (codes,) = small.run_killed([(small.ROOT / "data_scripts" / "prepare.py", argv, KILLS)])
    assert codes == [-9] * len(KILLS) + [0]
    assert small.tree(tmp_path / "killed") == small.tree(tmp_path / "whole")


def test_what_is_lost_is_made_anew_by_the_same_command_and_what_is_changed_is_refused(tmp_path, capsys):
    small.write_collection(tmp_path / "collection")
    argv = ["prepare", "--collection", str(tmp_path / "collection"), "--output", str(tmp_path / "out")]
    argv += ["--first_stage", "bm25", "--skip_missing", "--selector", "lexical", "--shard_queries", "2"]
    cli.main(argv)
    whole = small.tree(tmp_path / "out")
    files = ["run/run.trec", "selected/shards/00001.parquet", "rows/data/fold_2-00000-of-00001.parquet"]
    files += ["rows/folds.json", "rows/qrels.trec"]
    for name in files:
        (tmp_path / "out" / name).unlink()
    with pytest.raises(FileNotFoundError, match="rows/data/fold_2.*: not there any more: the same command"):
        load_rows(tmp_path / "out" / "rows")
    cli.main(argv)
    assert small.tree(tmp_path / "out") == whole
    for name in files:
        path = tmp_path / "out" / name
        content = path.read_bytes()
        path.write_bytes(content[: content.rfind(b"\n", 0, -1) + 1] if name.endswith("trec") else content[:-9])
        with pytest.raises(SystemExit):
            cli.main(argv)
        assert f"{path}: not as it was written" in capsys.readouterr().err
        path.write_bytes(content)


def read_by_hand(folder, split):
    """Texts, queries and judgments of a BEIR folder, with nothing of the package."""
    lines = (folder / "corpus.jsonl").read_text(encoding="utf-8").split("\n")
    documents = {item["_id"]: item for item in map(json.loads, filter(None, lines))}
    lines = (folder / "queries.jsonl").read_text(encoding="utf-8").split("\n")
    queries = {item["_id"] for item in map(json.loads, filter(None, lines))}
    qrels = defaultdict(dict)
    for name in split.split(","):
        for line in (folder / "qrels" / f"{name}.tsv").read_text(encoding="utf-8").split("\n")[1:]:
            if line:
                query_id, doc_id, grade = line.split("\t")
                qrels[query_id][doc_id] = int(grade)
    return documents, queries & set(qrels), qrels


@pytest.mark.parametrize(
    ("name", "split"),
    [("cranfield", "test"), ("vaswani", "test"), ("time", "test"), ("cacm", "test"), ("nfcorpus", "dev,test")],
)
def test_the_summary_counts_what_is_there(shared_data, tmp_path, name, split):
    if not (shared_data / name).is_dir():
        pytest.skip(f"no {name}")
    k = 30
    selection = SelectionOptions("lexical", k=k, passage_words=100, passage_overlap=50)
    collection = open_collection(shared_data / name, split=split, skip_missing=True)
    rows = prepare(collection, tmp_path, selection, retrieval=RetrievalOptions("bm25"), progress=False)
    summary = summarise(rows)
    documents, queries, qrels = read_by_hand(shared_data / name, split)
    found = defaultdict(list)
    for line in (tmp_path / "run" / "run.trec").read_text().splitlines():
        query_id, _, doc_id, *_ = line.split()
        found[query_id].append(doc_id)
    assert set(found) <= queries and max(map(len, found.values())) == k
    assert summary.queries == len(found)
    assert summary.skipped["queries_without_documents"] == len(queries) - len(found)
    distinct = {doc_id for ids in found.values() for doc_id in ids}
    assert summary.documents == len(distinct)
    assert summary.passages == sum(
        len(small.windows(documents[doc_id]["title"], documents[doc_id]["text"], 100, 50)) for doc_id in distinct
    )
    recalls = []
    for query_id, ids in found.items():
        relevant = {doc_id for doc_id, grade in qrels[query_id].items() if grade > 0}
        recalls.append(len(relevant & set(ids)) / len(relevant))
    assert summary.recall == pytest.approx(sum(recalls) / len(recalls))
    pairs = [(query_id, doc_id) for query_id, ids in found.items() for doc_id in ids]
    assert summary.unjudged == pytest.approx(
        sum(doc_id not in qrels[query_id] for query_id, doc_id in pairs) / len(pairs)
    )
    assert summary.truncated is None
    assert {query_id: list(scores) for query_id, scores in rows.run.items()} == found
    assert (rows.folds is None) == (name == "nfcorpus")


def test_folds_and_judgments_are_checked_before_the_work(tmp_path):
    small.write_collection(tmp_path / "collection")
    parts = [["q1", "3"], ["q-ü", "q4"], ["q5", "q6"]]
    (tmp_path / "collection" / "folds.json").write_text(json.dumps(parts))
    with pytest.raises(ValueError, match="1 of 7 queries are tested in no fold"):
        prepare(open_collection(tmp_path / "collection"), tmp_path / "out", SelectionOptions("lexical"))
    (tmp_path / "qrels.txt").write_text("q1 0 one 1\nx 0 one 1\n")
    collection = open_collection(tmp_path / "collection", qrels=tmp_path / "qrels.txt")
    with pytest.raises(ValueError, match="1 of 2 judged queries are not in the collection"):
        prepare(collection, tmp_path / "out", SelectionOptions("lexical"))
    assert not (tmp_path / "out").exists()


def test_a_collection_without_judgments(tmp_path, caplog):
    collection = small.write_collection(tmp_path / "collection")
    shutil.rmtree(collection / "qrels")
    small.write_run(tmp_path / "run.trec")
    selection = SelectionOptions("lexical", passage_words=10, passage_overlap=4)
    arguments = (open_collection(collection), tmp_path / "out", selection)
    rows = prepare(*arguments, run=tmp_path / "run.trec", progress=False)
    assert caplog.text.count("no judgments: ") == 1
    assert {split: len(ids) for split, ids in rows.splits.items()} == {"train": 7}
    summary = summarise(rows)
    assert (summary.recall, summary.unjudged) == (None, 1.0)
    assert "not measured (no judgments)" in str(summary)
    before = small.tree(tmp_path / "out")
    assert prepare(*arguments, run=tmp_path / "run.trec", progress=False) == rows
    assert small.tree(tmp_path / "out") == before


def test_whole_documents_of_the_demo_by_the_command(tmp_path, capsys):
    argv = ["--collection", "demo", "--first_stage", "bm25", "--selector", "lexical", "--k", "5", "--passage_title"]
    cli.run("prepare", [*argv, "--keep_texts", "--output", str(tmp_path / "out")])
    rows = load_rows(tmp_path / "out" / "rows")
    assert rows.has_texts and str(rows.folder) in capsys.readouterr().out
    documents = {document.doc_id: document for document in open_collection("demo").documents()}
    assert len(rows.dataset()) == 50 and any(document.title for document in documents.values())
    for row in rows.dataset():
        found = [documents[doc_id] for doc_id in row["doc_ids"]]
        assert row["texts"] == [" ".join(filter(None, (document.title, document.text))) for document in found]
    before = small.tree(tmp_path / "out")
    (tmp_path / "out" / "selected" / "shards" / "00001.parquet").unlink()
    settings = json.loads(before["selected/settings.json"]) | {"counts": None}
    (tmp_path / "out" / "selected" / "settings.json").write_text(json.dumps(settings))
    shutil.rmtree(tmp_path / "out" / "rows")
    cli.run("prepare", [*argv, "--keep-texts", "--output", str(tmp_path / "out")])
    assert small.tree(tmp_path / "out") == before


@pytest.mark.parametrize("command", ["prepare", "select"])
def test_help_names_the_option_for_whole_documents(command, capsys):
    with pytest.raises(SystemExit, match="0"):
        cli.run(command, ["--help"])
    assert "Keep whole documents beside their best passages" in " ".join(capsys.readouterr().out.split())


def test_a_run_from_elsewhere_and_a_summary_in_words(tmp_path):
    small.write_collection(tmp_path / "collection")
    small.write_run(tmp_path / "run.trec")
    tiny.bert_checkpoint(tmp_path / "bert", layers=1)
    selection = SelectionOptions(
        "lexical", passage_words=10, passage_overlap=4, max_length=24, tokenizer=str(tmp_path / "bert")
    )
    collection = open_collection(tmp_path / "collection")
    rows = prepare(collection, tmp_path / "out", selection, run=tmp_path / "run.trec", progress=False)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["rows", "selected"]
    assert rows == load_rows(tmp_path / "out" / "rows") and rows.settings["first_stage"] == "made-up"
    summary, counts = summarise(rows), rows.settings["counts"]
    assert 0 < summary.truncated == counts["selected_truncated"] / counts["selected_pair_passages"] < 1
    text = str(summary)
    assert f"share truncated    {summary.truncated:.4f}" in text and "skipped" not in text
    assert "queries            7" in text
