"""Rows: what is in them, splits and folds, `load_dataset` and `load_rows`, bad input."""

import errno
import json
import os
import pickle
import random
import shutil
import struct

import datasets
import pyarrow.parquet as pq
import pytest
import small_collection as small
import tiny
from datasets import List, Value
from huggingface_hub import DatasetCard

from modeling_cobert.collections.collection import open_collection
from modeling_cobert.collections.folds import rotate_parts, write_folds
from modeling_cobert.collections.options import SplitOptions
from modeling_cobert.collections.trec import read_qrels
from modeling_cobert.data.rows import build_rows, load_rows
from modeling_cobert.data.selection import SelectionOptions, read_selected, select_passages
from modeling_cobert.ranking.inputs import rows_inputs

K = 15
LISTS = {
    "doc_ids": "string",
    "passages": "string",
    "ranks": "int32",
    "first_stage_scores": "float64",
    "selector_scores": "float64",
    "grades": "int32",
}
COLUMNS = {"query_id": Value("string"), "query": Value("string")} | {
    name: List(Value(kind)) for name, kind in LISTS.items()
}
ONE_FILE = "data/test-00000-of-00001.parquet"


@pytest.fixture(autouse=True)
def private_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    small.write_collection(folder / "collection")
    small.write_run(folder / "run.trec")
    options = SelectionOptions("lexical", k=K, passage_words=10, passage_overlap=4, shard_queries=2)
    collection = open_collection(folder / "collection")
    select_passages(collection, folder / "run.trec", folder / "selected", options, progress=False)
    return folder


def build(folder, output, skip_missing=False, collection=None, **options):
    collection = collection or open_collection(folder / "collection", skip_missing=skip_missing)
    return build_rows(folder / "selected", output, collection, SplitOptions(**options))


def test_the_folder_holds_every_query_once_and_load_dataset_opens_it(folder, tmp_path):
    settings = build(folder, tmp_path / "out", folds="random")
    loaded = datasets.load_dataset(str(tmp_path / "out"))
    assert list(loaded) == settings["splits"] == [f"fold_{number}" for number in range(1, 6)]
    selected = {row["query_id"]: row for row in read_selected(folder / "selected").read()}
    qrels = open_collection(folder / "collection").qrels()
    seen = []
    for rows in loaded.values():
        assert rows.features == COLUMNS
        for row in rows:
            query_id = row["query_id"]
            ranked = small.ranking(folder / "run.trec", query_id, K)
            assert row["query"] == small.QUERIES[query_id]
            assert list(zip(row["doc_ids"], row["first_stage_scores"], strict=True)) == ranked
            assert row["ranks"] == list(range(1, K + 1))
            assert row["grades"] == [qrels[query_id].get(doc_id, 0) for doc_id, _ in ranked]
            for name in ("passages", "selector_scores"):
                assert row[name] == selected[query_id][name]
            seen.append(query_id)
    assert sorted(seen) == sorted(small.QUERIES)
    counts = settings["counts"]
    pairs = [(query_id, doc_id) for query_id, row in selected.items() for doc_id in row["doc_ids"]]
    assert (counts["queries"], counts["pairs"]) == (len(selected), len(pairs))
    assert counts["unjudged"] == sum(doc_id not in qrels[query_id] for query_id, doc_id in pairs)
    assert counts["relevant"] == sum(qrels[query_id].get(doc_id, 0) > 0 for query_id, doc_id in pairs)
    assert counts["relevant_judged"] == sum(grade > 0 for grades in qrels.values() for grade in grades.values())
    assert 0 < counts["relevant"] < counts["relevant_judged"]


def test_two_folders_of_one_name_are_two_datasets(folder, tmp_path):
    """`load_dataset` caches by a folder's name and card: neither may it mix up two, nor keep one that was replaced."""
    for parent, folds in (("a", "none"), ("b", "none"), ("c", "random")):
        build(folder, tmp_path / parent / "rows", folds=folds)
    small.write_collection(tmp_path / "collection")
    lines = (tmp_path / "collection" / "qrels" / "test.tsv").read_text(encoding="utf-8").replace("\t2\n", "\t1\n")
    (tmp_path / "collection" / "qrels" / "test.tsv").write_text(lines, encoding="utf-8")
    options = SplitOptions("none")
    build_rows(folder / "selected", tmp_path / "d" / "rows", open_collection(tmp_path / "collection"), options)
    a, b, c, d = (datasets.load_dataset(str(tmp_path / parent / "rows")) for parent in "abcd")
    assert a["test"].to_list() == b["test"].to_list() != d["test"].to_list()
    assert list(c) == [f"fold_{number}" for number in range(1, 6)]
    assert max(grade for row in d["test"] for grade in row["grades"]) == 1
    assert load_rows(tmp_path / "d" / "rows").dataset().to_list() == d["test"].to_list()


def test_rows_made_anew_are_read_anew_even_where_the_clock_stood_still(folder, tmp_path):
    """Or was set back, or files were copied with their times: `datasets` knows a file by its path and time."""
    found = []
    small.write_collection(tmp_path / "collection")
    judged = tmp_path / "collection" / "qrels" / "test.tsv"
    for grade in (1, 3):
        judged.write_text(judged.read_text(encoding="utf-8").replace("\t2\n", f"\t{grade}\n"), encoding="utf-8")
        shutil.rmtree(tmp_path / "rows", ignore_errors=True)
        collection = open_collection(tmp_path / "collection")
        build_rows(folder / "selected", tmp_path / "rows", collection, SplitOptions("none"))
        for path in (tmp_path / "rows").rglob("*"):
            os.utime(path, (10**9, 10**9))
        found.append(load_rows(tmp_path / "rows").dataset().to_list())
        judged.write_text(judged.read_text(encoding="utf-8").replace(f"\t{grade}\n", "\t2\n"), encoding="utf-8")
    assert [max(grade for row in rows for grade in row["grades"]) for rows in found] == [1, 3]


def test_a_cache_that_cannot_be_written_is_named(folder, tmp_path, monkeypatch):
    build(folder, tmp_path / "rows")

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match=f"full: '{datasets.config.HF_DATASETS_CACHE}/"):
        load_rows(tmp_path / "rows").dataset()


def flip(path):
    """One bit of a first-stage score."""
    content = path.read_bytes()
    place = content.index(struct.pack("<d", load_rows(path.parents[2] / "out").run["q1"].popitem()[1]))
    path.write_bytes(content[: place + 6] + bytes([content[place + 6] ^ 1]) + content[place + 7 :])


@pytest.mark.parametrize(
    ("harm", "kind"),
    [
        (flip, "arrow"),
        (lambda path: path.write_bytes(path.read_bytes()[:-100]), "arrow"),
        (lambda path: path.write_bytes(b""), "arrow"),
        (lambda path: path.unlink(), "arrow"),
        (lambda path: path.write_bytes(b"\xff"), "sha256"),
        (lambda path: path.unlink(), "sha256"),
    ],
)
def test_a_copy_that_is_not_as_it_was_written_is_made_anew(folder, tmp_path, monkeypatch, caplog, harm, kind):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    build(folder, tmp_path / "out", folds="random")
    written = load_rows(tmp_path / "out").dataset().to_list()
    (path,) = (tmp_path / "cache").rglob(f"*.{kind}")
    harm(path)
    copy = path.with_suffix(".arrow")
    there = copy.exists()
    caplog.clear()
    assert load_rows(tmp_path / "out").dataset().to_list() == written
    assert (f"{copy}: damaged, and made anew" in caplog.text) == there
    caplog.clear()
    found = load_rows(tmp_path / "out").dataset()
    assert found.to_list() == written and not caplog.text
    assert pickle.loads(pickle.dumps(found)).to_list() == written  # as a loader's workers get it
    assert len(pickle.dumps(found)) < 20_000  # by the name of the copy, which they read in place


def test_run_and_judgments_are_read_back(folder, tmp_path):
    build(folder, tmp_path / "out", folds="round-robin")
    opened = load_rows(tmp_path / "out")
    assert {q: list(documents.items()) for q, documents in opened.run.items()} == {
        query_id: small.ranking(folder / "run.trec", query_id, K) for query_id in small.QUERIES
    }
    assert read_qrels(tmp_path / "out" / "qrels.trec") == open_collection(folder / "collection").qrels()
    assert opened.qrels == read_qrels(tmp_path / "out" / "qrels.trec")


def test_load_rows_gives_the_rows_of_a_fold_in_file_order(folder, tmp_path):
    build(folder, tmp_path / "out", folds="random")
    opened = load_rows(tmp_path / "out")
    whole = opened.dataset()
    assert whole["query_id"][:] == [query_id for split in opened.splits.values() for query_id in split]
    for number, fold in enumerate(opened.folds, start=1):
        assert set(fold.test) == set(opened.splits[f"fold_{number}"])
        part = opened.dataset(fold.train)
        assert part.to_list() == [row for row in whole.to_list() if row["query_id"] in fold.train]
        parts = [set(fold.train), set(fold.validation), set(fold.test)]
        assert sum(map(len, parts)) == len(set().union(*parts)) == len(small.QUERIES)
    assert {query_id: opened.row(query_id) for query_id in small.QUERIES} == {row["query_id"]: row for row in whole}
    assert len(opened.dataset([])) == 0
    with pytest.raises(ValueError, match="no rows for 1 queries, such as 'nobody'"):
        opened.dataset(["q1", "nobody"])


def test_the_fingerprint_says_what_the_rows_are_not_how_they_were_made(folder, tmp_path):
    collection = open_collection(folder / "collection")
    for size in (1, 3):
        options = SelectionOptions("lexical", k=K, passage_words=10, passage_overlap=4, shard_queries=size)
        select_passages(collection, folder / "run.trec", tmp_path / f"selected-{size}", options, progress=False)
        build_rows(tmp_path / f"selected-{size}", tmp_path / f"rows-{size}", collection, SplitOptions("random"))
    build(folder, tmp_path / "other-folds", folds="random", fold_seed=1)
    prints = [load_rows(tmp_path / name).fingerprint for name in ("rows-1", "rows-3", "other-folds")]
    assert prints[0] == prints[1] != prints[2]
    file = "data/fold_1-00000-of-00001.parquet"
    assert (tmp_path / "rows-1" / file).read_bytes() == (tmp_path / "rows-3" / file).read_bytes()


def test_the_card_names_files_counts_and_settings(folder, tmp_path):
    settings = build(folder, tmp_path / "out", folds="none")
    card = DatasetCard.load(tmp_path / "out" / "README.md")
    files = card.data.configs[0]["data_files"]
    assert files == [{"split": "test", "path": ONE_FILE}]
    assert f"| pairs | {settings['counts']['pairs']} |" in card.text
    assert "| selected truncated | not counted |" in card.text
    exact = json.loads(card.text.split("```json\n")[1].split("\n```")[0])
    assert exact == {key: value for key, value in settings.items() if key not in ("counts", "step")}
    assert load_rows(tmp_path / "out").folds is None


def test_rows_have_whole_documents_where_the_selection_has(folder, tmp_path):
    collection = open_collection(folder / "collection")
    options = SelectionOptions("lexical", k=K, passage_words=10, passage_overlap=4, shard_queries=2, keep_texts=True)
    select_passages(collection, folder / "run.trec", tmp_path / "selected", options, progress=False)
    build(tmp_path, tmp_path / "with", collection=collection, folds="random")
    build(folder, tmp_path / "without", folds="random")
    rows, others = load_rows(tmp_path / "with"), load_rows(tmp_path / "without")
    assert rows.has_texts and not others.has_texts
    assert rows.settings["keep_texts"] is True and "keep_texts" not in others.settings
    assert rows.dataset().features == COLUMNS | {"texts": List(Value("string"))}
    assert list(rows.dataset().features) == [*others.dataset().features, "texts"]
    assert datasets.load_dataset(str(tmp_path / "with"))["fold_1"].features == rows.dataset().features
    selected = read_selected(tmp_path / "selected")
    for row, other in zip(rows.dataset(), others.dataset(), strict=True):
        assert row == other | {"texts": selected.row(row["query_id"])["texts"]}
    assert "\n\nColumn `texts` has" in (tmp_path / "with" / "README.md").read_text(encoding="utf-8")
    assert "texts" not in (tmp_path / "without" / "README.md").read_text(encoding="utf-8")
    # Files and settings must say the same.
    file = "data/fold_1-00000-of-00001.parquet"
    tiny.forget_files(tmp_path / "with")
    shutil.copy(tmp_path / "without" / file, tmp_path / "with" / file)
    with pytest.raises(ValueError, match=f"{file}: damaged .not these columns: query_id, .*grades, texts"):
        load_rows(tmp_path / "with")


def test_own_splits_become_train_validation_and_test(folder, tmp_path):
    collection = tmp_path / "collection"
    small.write_collection(collection)
    lines = (collection / "qrels" / "test.tsv").read_text(encoding="utf-8").splitlines(keepends=True)
    wanted = {"train": ["q1", "3", "q5"], "dev": ["q4"], "test": ["q-ü", "q6", "q7"]}
    for name, query_ids in wanted.items():
        part = [line for line in lines if line.split("\t")[0] in query_ids]
        (collection / "qrels" / f"{name}.tsv").write_text("".join(part), encoding="utf-8")
    settings = build_rows(folder / "selected", tmp_path / "out", open_collection(collection))
    opened = load_rows(tmp_path / "out")
    assert list(opened.splits) == settings["splits"] == ["train", "validation", "test"]
    assert [sorted(ids) for ids in opened.splits.values()] == [sorted(ids) for ids in wanted.values()]
    assert opened.folds is None
    with pytest.raises(ValueError, match="3 queries are in no split.*--skip_missing"):
        build_rows(folder / "selected", tmp_path / "less", open_collection(collection, split="dev,test"))
    skipping = open_collection(collection, split="dev,test", skip_missing=True)
    less = build_rows(folder / "selected", tmp_path / "less", skipping)
    assert less["counts"]["skipped"]["queries_in_no_split"] == 3 and less["counts"]["queries"] == 4


def test_folds_from_a_file_and_what_does_not_fit(folder, tmp_path):
    parts = [("q1", "3"), ("q-ü", "q4"), ("q5", "q6", "q7")]
    write_folds(tmp_path / "folds.json", rotate_parts(parts))
    build(folder, tmp_path / "out", folds=str(tmp_path / "folds.json"))
    opened = load_rows(tmp_path / "out")
    assert [set(split) for split in opened.splits.values()] == [set(part) for part in parts]
    write_folds(tmp_path / "other.json", rotate_parts([("q1", "x"), ("q-ü", "q4"), ("q5", "q6", "q7")]))
    with pytest.raises(ValueError, match="tested in no fold.*not in the collection"):
        build(folder, tmp_path / "other", folds=str(tmp_path / "other.json"))
    settings = build(folder, tmp_path / "other", folds=str(tmp_path / "other.json"), skip_missing=True)
    assert settings["counts"]["skipped"]["queries_in_no_fold"] == 1  # "3"
    assert settings["counts"]["skipped"]["fold_queries_unknown"] == 1  # "x"
    assert "3" not in load_rows(tmp_path / "other").run
    content = json.loads((tmp_path / "folds.json").read_text())
    content["1"]["train"].append(content["1"]["test"][0])
    (tmp_path / "overlap.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="parts overlap"):
        build(folder, tmp_path / "overlap", folds=str(tmp_path / "overlap.json"))


def test_judgments_for_other_queries(folder, tmp_path):
    qrels = tmp_path / "qrels.txt"
    qrels.write_text("q1 0 one 1\nstranger 0 one 1\n")
    strict, skipping = (open_collection(folder / "collection", qrels=qrels, skip_missing=s) for s in (False, True))
    with pytest.raises(ValueError, match="1 of 2 judged queries are not in the collection, such as 'stranger'"):
        build_rows(folder / "selected", tmp_path / "out", strict, SplitOptions("none"))
    counts = build_rows(folder / "selected", tmp_path / "out", skipping, SplitOptions("none"))["counts"]
    assert counts["skipped"]["judged_queries_unknown"] == 1
    assert (counts["queries"], counts["queries_unjudged"]) == (7, 6)
    qrels.write_text("stranger 0 one 1\n")
    with pytest.raises(ValueError, match="not one judged query"):
        build_rows(folder / "selected", tmp_path / "none", skipping, SplitOptions("none"))


def test_selected_queries_are_those_of_the_collection(folder, tmp_path):
    """Ids alone do not tell: the judgments of another collection would be joined."""
    (tmp_path / "other").mkdir()
    queries = small.QUERIES | {"q4": "something else"}
    small.write_collection(tmp_path / "other", queries=queries)
    where = f"q4' is {small.QUERIES['q4']!r}, but 'something else' in other: give the collection .*.collection"
    with pytest.raises(ValueError, match=f"selected: query '{where}"):
        build_rows(folder / "selected", tmp_path / "out", open_collection(tmp_path / "other"), SplitOptions("none"))
    assert not (tmp_path / "out").exists()
    shutil.copytree(folder / "collection", tmp_path / "moved")  # and called otherwise
    moved = open_collection(tmp_path / "moved")
    build_rows(folder / "selected", tmp_path / "out", moved, SplitOptions("none"))
    lines = (tmp_path / "moved" / "qrels" / "test.tsv").read_text(encoding="utf-8").splitlines(keepends=True)
    some = "".join(line for line in lines if not line.startswith("q4"))
    (tmp_path / "moved" / "qrels" / "some.tsv").write_text(some, encoding="utf-8")
    part = open_collection(tmp_path / "moved", split="some", skip_missing=True)
    assert "q4" not in part.queries()
    build_rows(folder / "selected", tmp_path / "part", part, SplitOptions("none"))


def test_rows_without_judgments(folder, tmp_path, caplog):
    """The rows of the same passages, all grades null; one warning; and evaluation finds nothing to measure by."""
    judged = build(folder, tmp_path / "judged", folds="none")
    collection = tmp_path / "collection"
    small.write_collection(collection)
    shutil.rmtree(collection / "qrels")
    caplog.clear()
    settings = build_rows(folder / "selected", tmp_path / "out", open_collection(collection))
    assert caplog.text.count("no judgments") == 1 and "--teacher" in caplog.text
    rows, others = load_rows(tmp_path / "out"), load_rows(tmp_path / "judged")
    assert list(rows.splits) == ["train"] and not rows.judged and others.judged and rows.qrels == {}
    assert not (tmp_path / "out" / "qrels.trec").exists()
    for row, other in zip(rows.dataset(), others.dataset(), strict=True):
        assert row == other | {"grades": [None] * K}
    counts = settings["counts"]
    assert (counts["queries"], counts["queries_unjudged"]) == (7, 7)
    assert (counts["unjudged"], counts["relevant"], counts["relevant_judged"]) == (counts["pairs"], 0, 0)
    assert rows.fingerprint != others.fingerprint and "judged" not in judged
    assert rows_inputs(tmp_path / "out").qrels is None
    assert datasets.load_dataset(str(tmp_path / "out"))["train"].features == COLUMNS
    dealt = build_rows(folder / "selected", tmp_path / "dealt", open_collection(collection), SplitOptions("random"))
    assert dealt["splits"] == [f"fold_{number}" for number in range(1, 6)]
    # What was asked for and is not there stays an error.
    with pytest.raises(FileNotFoundError, match="no judgments for split 'test'; there are none"):
        build_rows(folder / "selected", tmp_path / "split", open_collection(collection, split="test"))
    with pytest.raises(FileNotFoundError, match="nowhere.txt"):
        build_rows(folder / "selected", tmp_path / "file", open_collection(collection, qrels="nowhere.txt"))


def test_done_is_done_and_other_settings_do_not_mix(folder, tmp_path):
    settings = build(folder, tmp_path / "out", folds="random")
    before = small.tree(tmp_path / "out")
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    assert build(folder, tmp_path / "out", folds="random") == settings
    with pytest.raises(ValueError, match='begun with other settings: .*folds is "random", now "none"'):
        build(folder, tmp_path / "out", folds="none")
    with pytest.raises(ValueError, match="fold_seed is 42, now 1"):
        build(folder, tmp_path / "out", folds="random", fold_seed=1)
    assert small.tree(tmp_path / "out") == before
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")} == times


def test_unfinished_or_foreign_folders_are_refused(folder, tmp_path):
    settings = json.loads((folder / "selected" / "settings.json").read_text())
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "settings.json").write_text(json.dumps({**settings, "counts": None}))
    with pytest.raises(ValueError, match="selection is not finished: run the same command again"):
        build_rows(tmp_path / "half", tmp_path / "out", open_collection(folder / "collection"))
    with pytest.raises(ValueError, match="the folder of 'selection', not of 'rows'"):
        load_rows(folder / "selected")
    with pytest.raises(FileNotFoundError, match="settings.json: not there"):
        load_rows(tmp_path)
    build(folder, tmp_path / "out", folds="none")
    path = tmp_path / "out" / ONE_FILE
    tiny.forget_files(tmp_path / "out")
    pq.write_table(pq.read_table(path).drop_columns(["grades"]), path)
    with pytest.raises(ValueError, match=f"{ONE_FILE}: damaged .not these columns: query_id, .*grades"):
        load_rows(tmp_path / "out")
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match=f"{ONE_FILE}: damaged"):
        load_rows(tmp_path / "out")
    path.unlink()
    with pytest.raises(FileNotFoundError, match=ONE_FILE):
        load_rows(tmp_path / "out")


def test_folders_of_earlier_versions_are_refused_with_the_command_that_makes_new_ones(folder, tmp_path):
    settings = build(folder, tmp_path / "rows", folds="none")
    selection = json.loads((folder / "selected" / "settings.json").read_text())
    old = {
        "groups": {**settings, "step": "groups", "num_prototypes": 4},
        "format": {**settings, "format": 0},
        "none": {key: value for key, value in settings.items() if key != "format"},
        "selection": {**selection, "format": 1},
    }
    del old["groups"]["format"]
    for name, content in old.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "settings.json").write_text(json.dumps(content))
    for name in ("groups", "format", "none"):
        with pytest.raises(ValueError, match=rf"{name}: .*an earlier version, .*: make it anew with cobert prepare"):
            load_rows(tmp_path / name)
    for name in ("selection", "groups"):
        with pytest.raises(ValueError, match=rf"{name}: .*an earlier version, .*: make it anew with cobert select"):
            build_rows(tmp_path / name, tmp_path / "out", open_collection(folder / "collection"))
    assert not (tmp_path / "out").exists()


def test_a_shard_of_other_queries_is_refused_and_nothing_is_left(folder, tmp_path):
    options = SelectionOptions("first-stage", k=3, shard_queries=2)
    collection = open_collection(folder / "collection")
    select_passages(collection, folder / "run.trec", tmp_path / "selected", options, progress=False)
    shards = tmp_path / "selected" / "shards"
    tiny.forget_files(tmp_path / "selected")
    (shards / "00001.parquet").write_bytes((shards / "00000.parquet").read_bytes())
    with pytest.raises(ValueError, match="00001.parquet: has other queries than '3'"):
        build_rows(tmp_path / "selected", tmp_path / "out", collection, SplitOptions("none"))
    assert not (tmp_path / "out").exists()


def test_many_queries_in_one_file(tmp_path):
    generator = random.Random(3)
    queries = {f"q{number}": generator.choice(small.WORDS) for number in range(40)}
    small.write_collection(tmp_path / "collection", queries=queries)
    small.write_run(tmp_path / "run.trec", size=20, queries=queries)
    collection = open_collection(tmp_path / "collection")
    select_passages(collection, tmp_path / "run.trec", tmp_path / "selected", SelectionOptions("first-stage"))
    build(tmp_path, tmp_path / "out", folds="none")
    assert pq.ParquetFile(tmp_path / "out" / ONE_FILE).metadata.num_rows == 40
    rows = load_rows(tmp_path / "out").dataset()
    assert rows["query_id"][:] == list(queries)
    assert [row["doc_ids"] for row in rows] == [
        [doc_id for doc_id, _ in small.ranking(tmp_path / "run.trec", query_id, 20)] for query_id in queries
    ]
