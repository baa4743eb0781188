"""Windows as training examples, the best window at test, and a trained pointwise model as a cross-encoder."""

import json
import shutil
from collections import Counter
from dataclasses import replace

import datasets
import numpy as np
import pyarrow.parquet as pq
import pytest
import tiny
import torch
from torch.testing import assert_close

import train_cobert
from data_scripts import build_maxp_pairs
from modeling_cobert import CoBertForGroupwiseRanking
from modeling_cobert.baselines.maxp import WindowOptions, build_maxp, pointwise_groups, training_windows
from modeling_cobert.collections.collection import open_collection
from modeling_cobert.collections.trec import read_run
from modeling_cobert.commands import export
from modeling_cobert.data.collator import GroupCollator
from modeling_cobert.data.groups import load_groups
from modeling_cobert.passages_cobert import PairTokenizer
from modeling_cobert.ranking.merging import merge_groups
from modeling_cobert.selection_cobert import load_selector
from modeling_cobert.training.arguments import CoBertTrainingArguments, DataArguments, ModelArguments

OPTIONS = WindowOptions(passage_words=10, passage_overlap=4, positive_windows=3, shard_queries=4)
GROUPS = pointwise_groups(group_size=7)


def windows_of(document: dict) -> list[str]:
    words, start, found = f"{document['title']} {document['text']}".split(), 0, []
    while True:
        found.append(" ".join(words[start : start + 10]))
        if start + 10 >= len(words):
            return found
        start += 6


def examples(folder) -> dict[str, list[tuple]]:
    """Query to (document, passage, rank, grade) over all of its groups in order, as the files have them."""
    found: dict[str, list[tuple]] = {}
    for row in (row for path in sorted(folder.glob("data/*.parquet")) for row in pq.read_table(path).to_pylist()):
        assert row["prototype_ids"] == [] and 1 <= len(row["candidate_ids"]) <= 7
        columns = (row[f"candidate_{name}"] for name in ("ids", "passages", "ranks", "grades"))
        found.setdefault(row["query_id"], []).extend(zip(*columns, strict=True))
    return found


@pytest.fixture(scope="module")
def folders(small, tmp_path_factory):
    output = tmp_path_factory.mktemp("maxp")
    build_maxp(small.open(), small.run_file, output, OPTIONS, GROUPS, progress=False)
    return output


def test_which_windows_train():
    options = WindowOptions()
    assert list(training_windows("q", "d", 100, 1, options)) == list(range(30))
    assert list(training_windows("q", "d", 4, 2, options)) == [0, 1, 2, 3]
    drawn = Counter(training_windows("q", f"d{i}", 4, 0, options)[0] for i in range(400))
    assert sorted(drawn) == [0, 1, 2, 3] and min(drawn.values()) > 60  # 100 each on average; 60 is 4.6 sigma away
    assert [training_windows(f"q{i}", "d", 9, -1, options) for i in range(5)] == [
        training_windows(f"q{i}", "d", 9, 0, options) for i in range(5)
    ]
    assert training_windows("q", "d", 9, 0, replace(options, negative_windows="first")) == [0]
    other = replace(options, window_seed=7)
    assert any(
        training_windows("q", f"d{i}", 9, 0, options) != training_windows("q", f"d{i}", 9, 0, other) for i in range(9)
    )
    with pytest.raises(ValueError, match="positive_windows must be at least 1"):
        WindowOptions(positive_windows=0)
    with pytest.raises(ValueError, match="negative_windows must be one of sampled, first"):
        WindowOptions(negative_windows="best")


def test_training_groups(small, folders):
    found = examples(folders / "train")
    assert set(found) == set(small.queries)
    for query_id, rows in found.items():
        expected = []
        for rank, doc_id in enumerate(small.run[query_id], start=1):
            windows, grade = windows_of(small.documents[doc_id]), small.qrels[query_id].get(doc_id, 0)
            for number in training_windows(query_id, doc_id, len(windows), grade, OPTIONS):
                expected.append((doc_id, windows[number], rank, grade))
        assert rows == expected
    several = Counter((query_id, doc_id) for query_id, rows in found.items() for doc_id, *_ in rows)
    assert max(several.values()) == 3  # relevant documents of more windows are cut at positive_windows
    assert all(count == 1 or small.qrels[q].get(d, 0) > 0 for (q, d), count in several.items())


def test_test_groups_hold_every_window_whatever_the_judgments(small, folders, tmp_path):
    found = examples(folders / "test")
    for query_id, rows in found.items():
        expected = [
            (doc_id, window, rank, small.qrels[query_id].get(doc_id, 0))
            for rank, doc_id in enumerate(small.run[query_id], start=1)
            for window in windows_of(small.documents[doc_id])
        ]
        assert rows == expected
    shutil.copytree(small.collection_folder, tmp_path / "small")
    lines = [f"{query_id}\td1\t1" for query_id in small.queries]
    (tmp_path / "small" / "qrels" / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n")
    build_maxp(open_collection(tmp_path / "small"), small.run_file, tmp_path / "out", OPTIONS, GROUPS, progress=False)
    other = examples(tmp_path / "out" / "test")
    assert {q: [row[:3] for row in rows] for q, rows in other.items()} == {
        q: [row[:3] for row in rows] for q, rows in found.items()
    }
    assert examples(tmp_path / "out" / "train") != examples(folders / "train")


def test_folders_open_like_any_groups(small, folders):
    groups = load_groups(folders / "test")
    assert groups.run == small.run and groups.folds == small.folds and groups.settings["selector"] == "self"
    assert set(datasets.load_dataset(str(folders / "train"))) == {"fold_1", "fold_2", "fold_3"}
    assert groups.dataset(["q3"])["candidate_ids"][:] == [
        [doc_id for doc_id, *_ in examples(folders / "test")["q3"]][start : start + 7]
        for start in range(0, len(examples(folders / "test")["q3"]), 7)
    ]
    again = build_maxp(small.open(), small.run_file, folders, OPTIONS, GROUPS, progress=False)
    assert again["test"]["counts"]["pairs"] == sum(len(rows) for rows in examples(folders / "test").values())
    with pytest.raises(ValueError, match="positive_windows is 3, now 4"):
        build_maxp(small.open(), small.run_file, folders, replace(OPTIONS, positive_windows=4), GROUPS, progress=False)
    with pytest.raises(ValueError, match="share nothing and have no prototypes"):
        build_maxp(small.open(), small.run_file, folders, OPTIONS, pointwise_groups(group_overlap=1))


@torch.no_grad()
def test_best_window_is_what_the_model_selects_by_itself(small, folders, tmp_path):
    model = tiny.model(use_calibrator=False, use_scorer=False, selector="self")
    tokenizer = tiny.tokenizer(tmp_path / "tokenizer")
    rows = load_groups(folders / "test").dataset()
    batch = GroupCollator(tokenizer, model.config.max_length, 0)(list(rows))
    run = merge_groups(rows, model(**batch).logits.numpy(), "max")
    for query_id, scores in run.items():
        documents = [small.documents[doc_id] for doc_id in small.run[query_id]]
        ranked = model.rerank(small.queries[query_id], documents, tokenizer=tokenizer)
        expected = {list(small.run[query_id])[item["corpus_id"]]: item["score"] for item in ranked}
        assert scores == pytest.approx(expected, abs=1e-5)
    with pytest.raises(ValueError, match="windows of a document merge by max only"):
        merge_groups(rows, model(**batch).logits.numpy(), "mean")


def test_a_score_that_is_no_number_is_not_lost():
    rows = datasets.Dataset.from_list(
        [{"query_id": "q", "group": 0, "candidate_ids": ["a", "a", "b"], "candidate_ranks": [1, 1, 2]}]
    )
    assert merge_groups(rows, np.array([[0.1, 0.7, 0.3, 9.0]]), "max") == {"q": {"a": 0.7, "b": 0.3}}
    with pytest.raises(ValueError, match="not a number"):
        merge_groups(rows, np.array([[0.1, np.nan, 0.3]]), "max")


def training(output, encoder, data, **options):
    return (
        ModelArguments(encoder=encoder, variant="neither", encoder_pooling="pooler", max_length=32),
        DataArguments(**data),
        CoBertTrainingArguments(
            output_dir=str(output), use_cpu=True, disable_tqdm=True, num_train_epochs=1, learning_rate=1e-3, **options
        ),
    )


def test_trains_tests_and_serves_as_cross_encoder(small, encoders, folders, tmp_path, capsys):
    test, train = str(folders / "test"), str(folders / "train")
    with pytest.raises(ValueError, match="chosen by the judgments, a test on them would mean nothing"):
        train_cobert.main(*training(tmp_path / "cheat", encoders[0], {"groups": train, "fold": 1}))
    data = {"groups": test, "train_groups": train, "fold": 1}
    with pytest.raises(ValueError, match="leave it out with --freeze_encoder"):
        train_cobert.main(*training(tmp_path / "frozen", encoders[0], data, freeze_encoder=True))
    results = train_cobert.main(*training(tmp_path / "out", encoders[0], data))
    folder = tmp_path / "out" / "fold-1"
    settings = json.loads((folder / "settings.json").read_text())
    assert settings["train_groups"] != settings["groups"]
    train_rows = sum(row["query_id"] in small.folds[0].train for row in load_groups(train).dataset())
    assert results["step"] == train_rows  # one group of the training folder a step
    model = CoBertForGroupwiseRanking.from_pretrained(folder)
    for query_id, scores in read_run(folder / "test.trec").items():
        ranked = model.rerank(small.queries[query_id], [small.documents[d] for d in small.run[query_id]])
        expected = {list(small.run[query_id])[item["corpus_id"]]: item["score"] for item in ranked}
        assert scores == pytest.approx(expected, abs=1e-5)

    export.main(export.ExportArguments(str(folder), str(tmp_path / "exported")))
    assert "BertForSequenceClassification" in capsys.readouterr().out
    selector = load_selector(str(tmp_path / "exported"), 32)
    assert selector.kind == "cross-encoder" and selector.model.config.num_labels == 1
    pairs = PairTokenizer(model.find_tokenizer(), 32)
    passages = [tokens.ids for tokens in pairs.tokenize(["bees see light", "", "the road is slow and red"])]
    rows = [pairs.pair(pairs.query("honey bees"), passage) for passage in passages]
    with torch.no_grad():
        expected = model.score(model.encode(**pairs.pad(rows)).unsqueeze(0))[0]
    assert_close(torch.tensor(selector.score_rows(rows, 64)), expected)
    with pytest.raises(ValueError, match="there is something already"):
        export.main(export.ExportArguments(str(folder), str(tmp_path / "exported")))


@pytest.mark.parametrize(
    "fields, message",
    [({"use_scorer": False}, "scores documents in context"), ({"use_calibrator": False, "use_scorer": False}, "raw")],
)
def test_what_is_no_cross_encoder_is_not_exported(tmp_path, fields, message):
    tiny.checkpoint(tmp_path / "model", **fields)
    with pytest.raises(ValueError, match=message):
        export.main(export.ExportArguments(str(tmp_path / "model"), str(tmp_path / "out")))
    assert not (tmp_path / "out").exists()


def test_script(small, tmp_path, capsys):
    arguments = build_maxp_pairs.Arguments(run=str(small.run_file), output=str(tmp_path / "out"))
    collection = build_maxp_pairs.CollectionArguments(collection=str(small.collection_folder))
    made = build_maxp_pairs.main(arguments, collection, build_maxp_pairs.WindowArguments())
    assert made["train"]["group_size"] == 64 and made["train"]["num_prototypes"] == 0
    assert f"out/test: 6 queries, {made['test']['counts']['pairs']} windows" in capsys.readouterr().out
