"""Groups: hand-made rows, splits and folds, `load_dataset` and `load_groups`, bad input."""

import json
import math
import random

import datasets
import pyarrow.parquet as pq
import pytest
import small_collection as small
from datasets import List, Value
from huggingface_hub import DatasetCard

from modeling_cobert.collections.collection import open_collection
from modeling_cobert.collections.folds import rotate_parts, write_folds
from modeling_cobert.collections.trec import read_qrels, read_run
from modeling_cobert.data.groups import GroupOptions, build_groups, group_rows, load_groups
from modeling_cobert.data.selection import SelectedQuery, SelectionOptions, read_selected, select_passages

K = 15
SIDE = {"ids": "string", "passages": "string", "ranks": "int32", "scores": "float32", "grades": "int32"}
COLUMNS = {"query_id": Value("string"), "query": Value("string"), "group": Value("int32")} | {
    f"{role}_{name}": List(Value(kind)) for role in ("prototype", "candidate") for name, kind in SIDE.items()
}


@pytest.fixture(autouse=True)
def private_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("groups")
    small.write_collection(folder / "collection")
    small.write_run(folder / "run.trec")
    options = SelectionOptions("lexical", k=K, passage_words=10, passage_overlap=4, shard_queries=2)
    collection = open_collection(folder / "collection")
    select_passages(collection, folder / "run.trec", folder / "selected", options, progress=False)
    return folder


def build(folder, output, **changes):
    options = GroupOptions(**{"num_prototypes": 3, "group_size": 6, "group_overlap": 2, **changes})
    return build_groups(folder / "selected", output, open_collection(folder / "collection"), options)


def test_rows_by_hand():
    query = SelectedQuery(
        query_id="q",
        query="red",
        doc_ids=["a", "b", "c", "d", "e"],
        ranks=[1, 2, 3, 4, 5],
        first_stage_scores=[9.0, 8.0, 7.0, 6.0, 5.0],
        scores=[0.5, 2.5, 0.5, 2.5, 4.0],
        passages=["A", "B", "C", "D", "E"],
    )
    options = GroupOptions(num_prototypes=3, group_size=3, group_overlap=1)
    rows = list(group_rows(query, {"b": 2, "e": -1, "z": 1}, options))
    prototypes = {
        "prototype_ids": ["e", "b", "d"],  # equal scores in first-stage order
        "prototype_passages": ["E", "B", "D"],
        "prototype_ranks": [5, 2, 4],
        "prototype_scores": [4.0, 2.5, 2.5],
        "prototype_grades": [-1, 2, 0],
    }
    assert rows == [
        {
            "query_id": "q",
            "query": "red",
            "group": 0,
            **prototypes,
            "candidate_ids": ["a", "b", "c"],
            "candidate_passages": ["A", "B", "C"],
            "candidate_ranks": [1, 2, 3],
            "candidate_scores": [0.5, 2.5, 0.5],
            "candidate_grades": [0, 2, 0],
        },
        {
            "query_id": "q",
            "query": "red",
            "group": 1,
            **prototypes,
            "candidate_ids": ["c", "d", "e"],
            "candidate_passages": ["C", "D", "E"],
            "candidate_ranks": [3, 4, 5],
            "candidate_scores": [0.5, 2.5, 4.0],
            "candidate_grades": [0, 0, -1],
        },
    ]
    first = next(group_rows(query, {}, GroupOptions(num_prototypes=2, prototypes="first-stage")))
    assert first["prototype_ids"] == ["a", "b"] and first["candidate_ids"] == query.doc_ids
    assert next(group_rows(query, {}, GroupOptions(prototypes="none")))["prototype_ids"] == []
    assert next(group_rows(query, {}, GroupOptions(num_prototypes=9)))["prototype_ids"] == ["e", "b", "d", "a", "c"]


def test_the_folder_holds_every_query_once_and_load_dataset_opens_it(folder, tmp_path):
    settings = build(folder, tmp_path / "out", folds="random")
    loaded = datasets.load_dataset(str(tmp_path / "out"))
    assert list(loaded) == [f"fold_{number}" for number in range(1, 6)]
    queries = {query.query_id: query for query in read_selected(folder / "selected")}
    qrels = open_collection(folder / "collection").qrels()
    seen = []
    for rows in loaded.values():
        assert rows.features == COLUMNS
        by_query = {}
        for row in rows:
            by_query.setdefault(row["query_id"], []).append(row)
        for query_id, groups in by_query.items():
            query = queries[query_id]
            assert [row["group"] for row in groups] == list(range(math.ceil((K - 2) / 4)))
            ids = groups[0]["candidate_ids"] + [d for row in groups[1:] for d in row["candidate_ids"][2:]]
            assert ids == query.doc_ids
            best = sorted(range(K), key=lambda i: (-query.scores[i], i))[:3]
            for row in groups:
                assert row["query"] == small.QUERIES[query_id]
                assert row["prototype_ranks"] == [i + 1 for i in best]
                for role in ("prototype", "candidate"):
                    places = [rank - 1 for rank in row[f"{role}_ranks"]]
                    assert row[f"{role}_ids"] == [query.doc_ids[i] for i in places]
                    assert row[f"{role}_passages"] == [query.passages[i] for i in places]
                    assert row[f"{role}_scores"] == pytest.approx([query.scores[i] for i in places])
                    assert row[f"{role}_grades"] == [qrels[query_id].get(query.doc_ids[i], 0) for i in places]
        seen += by_query
    assert sorted(seen) == sorted(small.QUERIES)
    counts = settings["counts"]
    pairs = [(query_id, doc_id) for query_id, query in queries.items() for doc_id in query.doc_ids]
    assert (counts["queries"], counts["pairs"]) == (len(queries), len(pairs))
    assert counts["groups"] == sum(map(len, loaded.values()))
    assert counts["unjudged"] == sum(doc_id not in qrels[query_id] for query_id, doc_id in pairs)
    assert counts["relevant"] == sum(qrels[query_id].get(doc_id, 0) > 0 for query_id, doc_id in pairs)


def test_run_and_judgments_lie_beside(folder, tmp_path):
    build(folder, tmp_path / "out", folds="round-robin")
    run = read_run(tmp_path / "out" / "run.trec")
    assert {q: list(documents.items()) for q, documents in run.items()} == {
        query_id: small.ranking(folder / "run.trec", query_id, K) for query_id in small.QUERIES
    }
    assert read_qrels(tmp_path / "out" / "qrels.trec") == open_collection(folder / "collection").qrels()
    opened = load_groups(tmp_path / "out")
    assert opened.run == run and opened.qrels == read_qrels(tmp_path / "out" / "qrels.trec")


def test_load_groups_gives_the_rows_of_a_fold_in_file_order(folder, tmp_path):
    build(folder, tmp_path / "out", folds="random")
    opened = load_groups(tmp_path / "out")
    whole = opened.dataset()
    assert whole["query_id"][:] == [
        query_id for split in opened.splits.values() for query_id in split for _ in range(4)
    ]
    for number, fold in enumerate(opened.folds, start=1):
        assert set(fold.test) == set(opened.splits[f"fold_{number}"])
        part = opened.dataset(fold.train)
        assert part.to_list() == [row for row in whole.to_list() if row["query_id"] in fold.train]
        parts = [set(fold.train), set(fold.validation), set(fold.test)]
        assert sum(map(len, parts)) == len(set().union(*parts)) == len(small.QUERIES)
    assert len(opened.dataset([])) == 0
    with pytest.raises(ValueError, match="no groups for 1 queries, such as 'nobody'"):
        opened.dataset(["q1", "nobody"])


def test_the_card_names_files_counts_and_settings(folder, tmp_path):
    settings = build(folder, tmp_path / "out", folds="none")
    card = DatasetCard.load(tmp_path / "out" / "README.md")
    files = card.data.configs[0]["data_files"]
    assert files == [{"split": "test", "path": "data/test-00000-of-00001.parquet"}]
    assert f"| groups | {settings['counts']['groups']} |" in card.text
    exact = json.loads(card.text.split("```json\n")[1].split("\n```")[0])
    assert exact == {key: value for key, value in settings.items() if key not in ("counts", "step")}
    assert load_groups(tmp_path / "out").folds is None


def test_own_splits_become_train_validation_and_test(folder, tmp_path):
    collection = tmp_path / "collection"
    small.write_collection(collection)
    lines = (collection / "qrels" / "test.tsv").read_text(encoding="utf-8").splitlines(keepends=True)
    wanted = {"train": ["q1", "3", "q5"], "dev": ["q4"], "test": ["q-ü", "q6", "q7"]}
    for name, query_ids in wanted.items():
        part = [line for line in lines if line.split("\t")[0] in query_ids]
        (collection / "qrels" / f"{name}.tsv").write_text("".join(part), encoding="utf-8")
    settings = build_groups(folder / "selected", tmp_path / "out", open_collection(collection), GroupOptions())
    opened = load_groups(tmp_path / "out")
    assert list(opened.splits) == settings["splits"] == ["train", "validation", "test"]
    assert [sorted(ids) for ids in opened.splits.values()] == [sorted(ids) for ids in wanted.values()]
    assert opened.folds is None
    with pytest.raises(ValueError, match="3 queries are in no split"):
        build_groups(folder / "selected", tmp_path / "less", open_collection(collection, split="dev,test"))
    less = build_groups(
        folder / "selected",
        tmp_path / "less",
        open_collection(collection, split="dev,test"),
        GroupOptions(skip_missing=True),
    )
    assert less["counts"]["skipped"]["queries_in_no_split"] == 3 and less["counts"]["queries"] == 4


def test_folds_from_a_file_and_what_does_not_fit(folder, tmp_path):
    parts = [("q1", "3"), ("q-ü", "q4"), ("q5", "q6", "q7")]
    write_folds(tmp_path / "folds.json", rotate_parts(parts))
    build(folder, tmp_path / "out", folds=str(tmp_path / "folds.json"))
    opened = load_groups(tmp_path / "out")
    assert [set(split) for split in opened.splits.values()] == [set(part) for part in parts]
    write_folds(tmp_path / "other.json", rotate_parts([("q1", "x"), ("q-ü", "q4"), ("q5", "q6", "q7")]))
    with pytest.raises(ValueError, match="tested in no fold.*not in the collection"):
        build(folder, tmp_path / "other", folds=str(tmp_path / "other.json"))
    settings = build(folder, tmp_path / "other", folds=str(tmp_path / "other.json"), skip_missing=True)
    assert settings["counts"]["skipped"]["queries_in_no_fold"] == 1  # "3"
    assert settings["counts"]["skipped"]["fold_queries_unknown"] == 1  # "x"
    assert "3" not in load_groups(tmp_path / "other").run
    content = json.loads((tmp_path / "folds.json").read_text())
    content["1"]["train"].append(content["1"]["test"][0])
    (tmp_path / "overlap.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="parts overlap"):
        build(folder, tmp_path / "overlap", folds=str(tmp_path / "overlap.json"))


def test_judgments_for_other_queries(folder, tmp_path):
    qrels = tmp_path / "qrels.txt"
    qrels.write_text("q1 0 one 1\nstranger 0 one 1\n")
    collection = open_collection(folder / "collection", qrels=qrels)
    with pytest.raises(ValueError, match="1 of 2 judged queries are not in the collection, such as 'stranger'"):
        build_groups(folder / "selected", tmp_path / "out", collection, GroupOptions(folds="none"))
    options = GroupOptions(folds="none", skip_missing=True)
    counts = build_groups(folder / "selected", tmp_path / "out", collection, options)["counts"]
    assert counts["skipped"]["judged_queries_unknown"] == 1
    assert (counts["queries"], counts["queries_unjudged"]) == (7, 6)
    qrels.write_text("stranger 0 one 1\n")
    with pytest.raises(ValueError, match="not one judged query"):
        build_groups(folder / "selected", tmp_path / "none", collection, options)


def test_done_is_done_and_other_settings_do_not_mix(folder, tmp_path):
    settings = build(folder, tmp_path / "out", folds="random")
    before = small.tree(tmp_path / "out")
    assert build(folder, tmp_path / "out", folds="random") == settings
    with pytest.raises(ValueError, match="begun with other settings: num_prototypes is 3, now 2"):
        build(folder, tmp_path / "out", folds="random", num_prototypes=2)
    with pytest.raises(ValueError, match="seed is 42, now 1"):
        build(folder, tmp_path / "out", folds="random", seed=1)
    assert small.tree(tmp_path / "out") == before
    for wrong in ({"group_overlap": 6}, {"prototypes": "best"}, {"num_prototypes": -1}):
        with pytest.raises(ValueError):
            build(folder, tmp_path / "wrong", **wrong)


def test_unfinished_or_foreign_folders_are_refused(folder, tmp_path):
    settings = json.loads((folder / "selected" / "settings.json").read_text())
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "settings.json").write_text(json.dumps({**settings, "counts": None}))
    with pytest.raises(ValueError, match="selection is not finished: run the same command again"):
        build_groups(tmp_path / "half", tmp_path / "out", open_collection(folder / "collection"))
    with pytest.raises(ValueError, match="the folder of 'selection', not of 'groups'"):
        load_groups(folder / "selected")
    with pytest.raises(FileNotFoundError, match="settings.json: not there"):
        load_groups(tmp_path)
    build(folder, tmp_path / "out", folds="none")
    path = tmp_path / "out" / "data" / "test-00000-of-00001.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["candidate_grades"]), path)
    with pytest.raises(ValueError, match="not the columns of groups"):
        load_groups(tmp_path / "out")


def test_many_groups_fill_several_row_groups(tmp_path):
    generator = random.Random(3)
    queries = {f"q{number}": generator.choice(small.WORDS) for number in range(40)}
    small.write_collection(tmp_path / "collection", queries=queries)
    small.write_run(tmp_path / "run.trec", size=20, queries=queries)
    collection = open_collection(tmp_path / "collection")
    select_passages(collection, tmp_path / "run.trec", tmp_path / "selected", SelectionOptions("first-stage"))
    build(tmp_path, tmp_path / "out", folds="none", group_size=4, group_overlap=0, prototypes="none")
    file = pq.ParquetFile(tmp_path / "out" / "data" / "test-00000-of-00001.parquet")
    assert (file.metadata.num_rows, file.num_row_groups) == (200, 2)
    rows = load_groups(tmp_path / "out").dataset()
    assert rows["query_id"][:] == [query_id for query_id in queries for _ in range(5)]
    assert rows["group"][:] == list(range(5)) * 40 and rows[0]["prototype_ids"] == []
