"""Passages as training examples, the best passage at test, and a trained pointwise model as a cross-encoder."""

import json
import shutil
from collections import Counter
from dataclasses import replace

import datasets
import pyarrow.parquet as pq
import pytest
import tiny
import torch
from torch.testing import assert_close

from modeling_cobert import CoBertForGroupwiseRanking, cli
from modeling_cobert.baselines.maxp import MaxPOptions, build_maxp, training_passages
from modeling_cobert.collections.collection import open_collection
from modeling_cobert.collections.trec import read_run
from modeling_cobert.commands import export, maxp
from modeling_cobert.data.groups import Grouping, GroupOptions, GroupView
from modeling_cobert.data.rows import load_rows
from modeling_cobert.passages_cobert import PairTokenizer
from modeling_cobert.ranking.inputs import rows_inputs
from modeling_cobert.ranking.ranker import Ranker, rank_query
from modeling_cobert.ranking.ties import strict_scores
from modeling_cobert.selection_cobert import load_selector
from modeling_cobert.training.arguments import CoBertTrainingArguments, DataOptions, ModelOptions
from modeling_cobert.training.train import train

OPTIONS = MaxPOptions(passage_words=10, passage_overlap=4, positive_passages=3, shard_queries=4)
GROUPS = GroupOptions(group_size=7, group_overlap=0)


def passages_of(document: dict) -> list[str]:
    words, start, found = f"{document['title']} {document['text']}".split(), 0, []
    while True:
        found.append(" ".join(words[start : start + 10]))
        if start + 10 >= len(words):
            return found
        start += 6


def examples(folder) -> dict[str, list[tuple]]:
    """Query to (document, passage, rank, grade) over its row in order, as the files have them."""
    found: dict[str, list[tuple]] = {}
    for row in (row for path in sorted(folder.glob("data/*.parquet")) for row in pq.read_table(path).to_pylist()):
        assert row["query_id"] not in found
        columns = (row[name] for name in ("doc_ids", "passages", "ranks", "grades"))
        found[row["query_id"]] = list(zip(*columns, strict=True))
    return found


@pytest.fixture(scope="module")
def folders(small, tmp_path_factory):
    output = tmp_path_factory.mktemp("maxp")
    build_maxp(small.open(), small.run_file, output, OPTIONS, progress=False)
    return output


def test_lost_files_are_made_anew(small, folders, tmp_path):
    shutil.copytree(folders, tmp_path / "maxp")
    lost = sorted((tmp_path / "maxp").rglob("*.parquet"))[::2]
    lost += [tmp_path / "maxp" / "train" / "folds.json", tmp_path / "maxp" / "test" / "qrels.trec"]
    whole = {path: path.read_bytes() for path in lost}
    for path in lost:
        path.unlink()
    build_maxp(small.open(), small.run_file, tmp_path / "maxp", OPTIONS, progress=False)
    assert {path: path.read_bytes() for path in lost} == whole


def test_which_passages_train():
    options = MaxPOptions()
    assert list(training_passages("q", "d", 100, 1, options)) == list(range(30))
    assert list(training_passages("q", "d", 4, 2, options)) == [0, 1, 2, 3]
    drawn = Counter(training_passages("q", f"d{i}", 4, 0, options)[0] for i in range(400))
    assert sorted(drawn) == [0, 1, 2, 3] and min(drawn.values()) > 60  # 100 each on average; 60 is 4.6 sigma away
    assert [training_passages(f"q{i}", "d", 9, -1, options) for i in range(5)] == [
        training_passages(f"q{i}", "d", 9, 0, options) for i in range(5)
    ]
    assert training_passages("q", "d", 9, 0, replace(options, negative_passages="first")) == [0]
    other = replace(options, passage_seed=7)
    assert any(
        training_passages("q", f"d{i}", 9, 0, options) != training_passages("q", f"d{i}", 9, 0, other)
        for i in range(9)
    )
    with pytest.raises(ValueError, match="positive_passages must be at least 1"):
        MaxPOptions(positive_passages=0)
    with pytest.raises(ValueError, match="negative_passages must be one of sampled, first"):
        MaxPOptions(negative_passages="best")


def test_training_rows(small, folders):
    found = examples(folders / "train")
    assert set(found) == set(small.queries)
    for query_id, rows in found.items():
        expected = []
        for rank, doc_id in enumerate(small.run[query_id], start=1):
            passages, grade = passages_of(small.documents[doc_id]), small.qrels[query_id].get(doc_id, 0)
            for number in training_passages(query_id, doc_id, len(passages), grade, OPTIONS):
                expected.append((doc_id, passages[number], rank, grade))
        assert rows == expected
    several = Counter((query_id, doc_id) for query_id, rows in found.items() for doc_id, *_ in rows)
    assert max(several.values()) == 3  # relevant documents of more passages are cut at positive_passages
    assert all(count == 1 or small.qrels[q].get(d, 0) > 0 for (q, d), count in several.items())


def test_test_rows_hold_every_passage_whatever_the_judgments(small, folders, tmp_path):
    found = examples(folders / "test")
    for query_id, rows in found.items():
        expected = [
            (doc_id, passage, rank, small.qrels[query_id].get(doc_id, 0))
            for rank, doc_id in enumerate(small.run[query_id], start=1)
            for passage in passages_of(small.documents[doc_id])
        ]
        assert rows == expected
    shutil.copytree(small.collection_folder, tmp_path / "small")
    lines = [f"{query_id}\td1\t1" for query_id in small.queries]
    (tmp_path / "small" / "qrels" / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n")
    build_maxp(open_collection(tmp_path / "small"), small.run_file, tmp_path / "out", OPTIONS, progress=False)
    other = examples(tmp_path / "out" / "test")
    assert {q: [row[:3] for row in rows] for q, rows in other.items()} == {
        q: [row[:3] for row in rows] for q, rows in found.items()
    }
    assert examples(tmp_path / "out" / "train") != examples(folders / "train")


def test_folders_open_like_any_rows(small, folders):
    rows = load_rows(folders / "test")
    assert rows.run == small.run and rows.folds == small.folds and rows.settings["selector"] == "self"
    assert set(datasets.load_dataset(str(folders / "train"))) == {"fold_1", "fold_2", "fold_3"}
    # 7 pairs a step that share nothing, and no prototypes: the rows are cut into batches when they are trained on
    grouping = Grouping(num_prototypes=0, group_size=7, group_overlap=0)
    groups = list(GroupView(rows.dataset(["q3"]), grouping))
    pairs = examples(folders / "test")["q3"]
    for name, place in (("passages", 1), ("grades", 3)):
        expected = [[pair[place] for pair in pairs[start : start + 7]] for start in range(0, len(pairs), 7)]
        assert [group[name] for group in groups] == expected
    assert all(group["prototype_passages"] == [] for group in groups)
    again = build_maxp(small.open(), small.run_file, folders, OPTIONS, progress=False)
    assert again["test"]["counts"]["pairs"] == sum(len(pairs) for pairs in examples(folders / "test").values())
    with pytest.raises(ValueError, match="positive_passages is 3, now 4"):
        build_maxp(small.open(), small.run_file, folders, replace(OPTIONS, positive_passages=4), progress=False)


@pytest.mark.parametrize("merge", ["max", "mean"])
def test_best_passage_is_what_the_model_selects_by_itself(small, folders, tmp_path, merge):
    """Whatever merges the scores of a passage in two groups, a document's score is that of its best passage."""
    model = tiny.model(use_calibrator=False, use_scorer=False, selector="self", overlap_merge=merge)
    model.tokenizer = tiny.tokenizer(tmp_path / "tokenizer")
    ranker, inputs = Ranker.wrap(model), rows_inputs(folders / "test")
    for query_id in small.queries:
        documents = [small.documents[doc_id] for doc_id in small.run[query_id]]
        ranked = model.rerank(small.queries[query_id], documents)
        expected = {list(small.run[query_id])[item["corpus_id"]]: item["score"] for item in ranked}
        assert rank_query(ranker, inputs, query_id) == pytest.approx(expected, abs=1e-5)


def test_a_score_that_is_no_number_is_not_lost():
    assert strict_scores(["a", "a", "b"], [0.25, 0.75, 0.5]) == {"a": 0.75, "b": 0.5}
    with pytest.raises(ValueError, match="document 'a' has the score nan"):
        strict_scores(["a", "a", "b"], [0.25, float("nan"), 0.5])


def training(output, encoder, data, **options):
    return (
        ModelOptions(encoder=encoder, variant="neither", encoder_pooling="pooler", max_length=32),
        DataOptions(**data),
        GROUPS,
        CoBertTrainingArguments(
            output_dir=str(output), use_cpu=True, disable_tqdm=True, num_train_epochs=1, learning_rate=1e-3, **options
        ),
    )


def test_trains_tests_and_serves_as_cross_encoder(small, encoders, folders, tmp_path, capsys):
    tested, trained = str(folders / "test"), str(folders / "train")
    with pytest.raises(ValueError, match="chosen by the judgments, a test on them would mean nothing"):
        train(*training(tmp_path / "cheat", encoders[0], {"rows": trained, "fold": "1"}))
    data = {"rows": tested, "train_rows": trained, "fold": "1"}
    with pytest.raises(ValueError, match="leave it out with --freeze_encoder"):
        train(*training(tmp_path / "frozen", encoders[0], data, freeze_encoder=True))
    results = train(*training(tmp_path / "out", encoders[0], data))
    folder = tmp_path / "out" / "fold-1"
    settings = json.loads((folder / "settings.json").read_text())
    assert settings["train_rows"] != settings["rows"]
    lengths = [
        len(pairs) for query_id, pairs in examples(folders / "train").items() if query_id in small.folds[0].train
    ]
    assert results["step"] == sum(-(-length // 7) for length in lengths)  # one group of the training rows a step
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


def test_command(small, tmp_path, capsys):
    words = ["--collection", small.collection_folder, "--run", small.run_file, "--output", tmp_path / "out"]
    made = maxp.main(*cli.parse("maxp", maxp, [str(word) for word in words]))
    assert made["train"]["positive_passages"] == 30 and made["train"]["chosen_by"] == "judgments"
    assert f"out/test: 6 queries, {made['test']['counts']['pairs']} passages" in capsys.readouterr().out
