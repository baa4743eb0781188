"""Training of a model that starts from what is known: every part at its own rate, content from the rows' selector."""

import pickle

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiny
import torch
from safetensors.torch import load_file
from tiny_rows import make_rows

from modeling_cobert import CoBertForGroupwiseRanking
from modeling_cobert.collections.trec import read_run
from modeling_cobert.data.rows import load_rows
from modeling_cobert.data.selection import TEXTS
from modeling_cobert.ranking import inputs as inputs_module
from modeling_cobert.ranking.inputs import rows_inputs
from modeling_cobert.ranking.loading import load_cobert
from modeling_cobert.ranking.ranker import Ranker, rank_query
from modeling_cobert.steps.folders import read_settings, write_settings
from modeling_cobert.training import frozen as frozen_module
from modeling_cobert.training.frozen import ContentVectors
from modeling_cobert.training.initial import initial_model
from modeling_cobert.training.train import train

START = {"starting_weights": [0.5, 1.0, 0.5]}
ONE_EPOCH = {"num_train_epochs": 1, "eval_strategy": "no", "load_best_model_at_end": False, "save_strategy": "no"}


@pytest.fixture(scope="module")
def bi_encoder(tmp_path_factory) -> str:
    return str(tiny.bert_checkpoint(tmp_path_factory.mktemp("bi"), layers=2, hidden_size=20))


@pytest.fixture(scope="module")
def embedded(tmp_path_factory, bi_encoder):
    """Rows that say a bi-encoder has selected them."""
    folder = make_rows(tmp_path_factory.mktemp("rows"))
    settings = read_settings(folder)
    counts = settings.pop("counts")
    write_settings(folder, {**settings, "selector": bi_encoder, "selector_kind": "bi-encoder"}, counts)
    return folder


@pytest.fixture(scope="module")
def with_texts(tmp_path_factory):
    """Rows that keep whole documents."""
    folder = make_rows(tmp_path_factory.mktemp("texts"))
    for path in folder.rglob("*.parquet"):
        table = pq.read_table(path)
        texts = [
            [f"{tiny.WORDS[i % 5]} {passage}" for i, passage in enumerate(row)]
            for row in table["passages"].to_pylist()
        ]
        pq.write_table(table.append_column(TEXTS, pa.array(texts, TEXTS.type)), path)
    settings = read_settings(folder)
    counts = settings.pop("counts")
    write_settings(folder, {**settings, "keep_texts": True}, counts)
    return folder


@pytest.mark.parametrize("part", ["feedback", "neighbours"])
def test_words_are_learned_from_and_rank_as_training_does(arguments, with_texts, tmp_path, monkeypatch, part):
    weight = {"feedback": "feedback_weight", "neighbours": "neighbour_weight"}[part]
    model = {**START, weight: 0.4, "loss": "approx_ndcg"}
    options = arguments(model=model, data={"rows": str(with_texts)}, start_learning_rate=0.02, **ONE_EPOCH)
    train(*options)
    made = load_cobert(tmp_path / "out")
    assert getattr(made, part).weight.item() != pytest.approx(0.4) and made.config.loss == "approx_ndcg"
    assert (made.feedback is None) == (part == "neighbours") and (made.neighbours is None) == (part == "feedback")
    run, rows = read_run(tmp_path / "out" / "test.trec"), load_rows(with_texts)
    ranker, inputs = Ranker.wrap(made), rows_inputs(with_texts, split="test")
    for query_id in rows.splits["test"]:
        assert list(rank_query(ranker, inputs, query_id)) == list(run[query_id])
    # What is kept in memory for the next time changes nothing, nor does it that there is no room for it.
    ranked = [rank_query(ranker, inputs, query_id) for query_id in rows.splits["test"]]
    monkeypatch.setattr(inputs_module, "KEPT_PAIRS", 30)
    short = rows_inputs(with_texts, split="test")
    assert [rank_query(ranker, short, query_id) for query_id in rows.splits["test"]] == ranked
    assert sum(words.count**2 for words in short._words.values()) <= 30


@pytest.mark.parametrize("weight", ["feedback_weight", "neighbour_weight"])
def test_words_want_whole_documents(arguments, embedded, with_texts, tmp_path, weight):
    model = {**START, weight: 0.4}
    with pytest.raises(ValueError, match="these rows have only passages: prepare others with --keep_texts"):
        train(*arguments(model=model, data={"rows": str(embedded)}, **ONE_EPOCH))
    rows = {"rows": str(with_texts), "train_rows": str(embedded)}
    with pytest.raises(ValueError, match="whose content or words are read"):
        train(*arguments(model=model, data=rows, output_dir=str(tmp_path / "other"), **ONE_EPOCH))


@pytest.mark.parametrize(
    ("rates", "moved"),
    [
        ({"start_learning_rate": 0.0}, {"encoder", "context"}),
        ({"context_learning_rate": 0.0}, {"encoder", "start"}),
        ({"learning_rate": 0.0, "start_learning_rate": 0.01, "context_learning_rate": 0.01}, {"start", "context"}),
    ],
)
def test_every_part_learns_at_its_own_rate(arguments, embedded, tmp_path, rates, moved):
    options = arguments(
        model={**START, "content": True, "neighbour_weight": 0.3}, data={"rows": str(embedded)}, **ONE_EPOCH | rates
    )
    torch.manual_seed(options[3].seed)
    before = initial_model(options[0], load_rows(embedded).settings, options[2]).state_dict()
    train(*options)
    after = load_file(tmp_path / "out" / "model.safetensors")
    parts = {
        "encoder": ("encoder.encoder.layer.0.attention.self.query.weight", "prototype_weight.weight"),
        "context": ("classifier.weight",),
        "start": ("start.weight", "neighbours.weight"),
    }
    for part, names in parts.items():
        for name in names:
            assert torch.equal(before[name], after[name]) == (part not in moved), name


def test_content_is_the_bi_encoders_and_kept(embedded, bi_encoder, tmp_path):
    rows = load_rows(embedded).dataset()
    made = tiny.model(**START, content_size=20, selector=bi_encoder)
    chooser = made.text_side.find_selector(bi_encoder, 32, "cpu")
    stored = ContentVectors(chooser, rows, tmp_path)
    stored.encode()
    row = rows[2]
    expected = chooser.embed_texts(row["passages"], batch_tokens=64)
    torch.testing.assert_close(stored(row["query_id"]), expected, atol=1e-6, rtol=0)
    stamps = [path.stat().st_mtime_ns for path in stored.paths]
    again = ContentVectors(chooser, rows, tmp_path)
    again.encode()
    assert [path.stat().st_mtime_ns for path in again.paths] == stamps


def test_a_passage_of_many_lists_is_embedded_once(bi_encoder, tmp_path, monkeypatch):
    """More passages than a block has, in lists that share them; every list gets its own back, in its order."""
    monkeypatch.setattr(frozen_module, "PASSAGES_A_BLOCK", 4)
    texts = [f"{a} {b}" for a in tiny.WORDS[:5] for b in tiny.WORDS[5:8]]
    lists = {"q": texts[:9], "r": texts[8:3:-1] + texts[:2], "s": [texts[14]] * 3}
    rows = [{"query_id": q, "query": q, "passages": passages} for q, passages in lists.items()]
    chooser = tiny.model().text_side.find_selector(bi_encoder, 32, "cpu")
    embedded: list[str] = []
    embed = chooser.embed_texts
    with monkeypatch.context() as counting:
        counting.setattr(chooser, "embed_texts", lambda texts, *more: embedded.extend(texts) or embed(texts, *more))
        ContentVectors(chooser, rows, tmp_path).encode()
    assert sorted(embedded) == sorted(texts[:9] + [texts[14]])
    for kept in (1024, 1):
        monkeypatch.setattr(frozen_module, "KEPT_BLOCKS", kept)
        again = pickle.loads(pickle.dumps(ContentVectors(chooser, rows, tmp_path)))  # as loaders send it to workers
        for query_id, passages in lists.items():
            torch.testing.assert_close(again(query_id), embed(passages, 64), atol=1e-6, rtol=0)


def test_an_encoder_without_a_say_is_not_run(arguments, with_texts, tmp_path, monkeypatch):
    """No pair is encoded in training or test, and none can be learned from."""
    model = {"starting_weights": [0.0, 1.0, 0.5], "feedback_weight": 0.4, "variant": "neither"}
    given = {"model": model, "data": {"rows": str(with_texts)}, "start_learning_rate": 0.02, **ONE_EPOCH}
    with pytest.raises(ValueError, match="nothing reads what the encoder makes of a pair.* give --freeze_encoder"):
        train(*arguments(**given))
    assert not (tmp_path / "out").exists()

    def refuse(*args, **kwargs):
        raise AssertionError("a pair was encoded")

    monkeypatch.setattr(CoBertForGroupwiseRanking, "encode", refuse)
    train(*arguments(**given, freeze_encoder=True))
    made, run = load_cobert(tmp_path / "out"), read_run(tmp_path / "out" / "test.trec")
    assert made.start.weight[0] == 0 and made.start.weight[1] != 1
    inputs = rows_inputs(with_texts, split="test")
    assert {q: list(rank_query(Ranker.wrap(made), inputs, q)) for q in run} == {q: list(run[q]) for q in run}


@pytest.mark.parametrize("frozen", [False, True])
def test_frozen_or_not_a_trained_model_ranks_as_it_was_tested(arguments, embedded, tmp_path, frozen):
    model = {**START, "content": True, "neighbour_weight": 0.3}
    options = arguments(model=model, data={"rows": str(embedded)}, freeze_encoder=frozen, start_learning_rate=0.05)
    train(*options)
    made = load_cobert(tmp_path / "out")
    assert made.start.weight.tolist() != pytest.approx(START["starting_weights"]) and made.config.content_size == 20
    run = read_run(tmp_path / "out" / "test.trec")
    inputs = rows_inputs(embedded, split="test")
    assert {q: list(rank_query(Ranker.wrap(made), inputs, q)) for q in run} == {q: list(run[q]) for q in run}


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"content": True}, "--content needs rows that a bi-encoder has selected.* selected by 'lexical'"),
        (
            {"checkpoint": "x", "encoder": None, "calibrator_layers": None, "scorer_layers": None, **START},
            "whole model",
        ),
    ],
)
def test_what_cannot_be_is_refused(arguments, model, message):
    with pytest.raises(ValueError, match=message):
        train(*arguments(model=model))


@pytest.mark.parametrize("rate", [-1.0, 1.1, float("nan"), float("inf")])
def test_rates_are_checked(arguments, rate):
    with pytest.raises(ValueError, match="--context_learning_rate must be from 0 to 1"):
        arguments(context_learning_rate=rate)
