"""Whole trainings of tiny models: what is trained, selected, tested and saved, against independent computations."""

import json
import shutil
from pathlib import Path

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file
from tiny_rows import make_rows

from modeling_cobert import CoBertForGroupwiseRanking
from modeling_cobert.collections.trec import read_run
from modeling_cobert.commands import train as train_command
from modeling_cobert.data.rows import load_rows
from modeling_cobert.evaluation.measures import evaluate_run
from modeling_cobert.training.arguments import CoBertTrainingArguments, DataOptions, ModelOptions
from modeling_cobert.training.trainer import GroupTrainer


def weights(folder):
    return load_file(Path(folder) / "model.safetensors")


def assert_close(one, other, atol=1e-5):
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(other[name], value, atol=atol, rtol=0, msg=lambda m, n=name: f"{n}: {m}")


def scores_by_rerank(folder, rows, run):
    """The oracle: whole lists through `rerank`, which knows nothing of rows."""
    model = CoBertForGroupwiseRanking.from_pretrained(folder)
    queries, texts = {}, {}
    for row in rows:
        queries[row["query_id"]] = row["query"]
        texts |= dict(zip(row["doc_ids"], row["passages"], strict=True))
    found = {}
    for query_id, query in queries.items():
        ids = list(run[query_id])
        ranking = model.rerank(query, [texts[doc_id] for doc_id in ids])
        found[query_id] = {ids[result["corpus_id"]]: result["score"] for result in ranking}
    return found


@pytest.fixture
def no_dropout(tmp_path):
    return str(
        tiny.bert_checkpoint(
            tmp_path / "no-dropout", layers=4, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
        )
    )


def test_defaults_are_the_papers(tmp_path):
    args = CoBertTrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    assert (args.num_train_epochs, args.per_device_train_batch_size, args.learning_rate) == (5, 1, 3e-6)
    assert (args.warmup_steps, args.lr_scheduler_type, args.weight_decay) == (0.1, "linear", 0.0)
    assert (args.metric_for_best_model, args.greater_is_better, args.load_best_model_at_end) == ("nDCG@20", True, True)
    assert (args.adam_beta1, args.adam_beta2) == (0.9, 0.999) and "adam" in args.optim
    assert args.get_warmup_steps(200) == 20
    assert DataOptions(rows="x").feed_order == "shuffled"


@pytest.mark.parametrize("variant", ["full", "calibrator", "scorer", "neither", "no_residual"])
def test_every_variant_trains_all_its_parts_and_is_tested(arguments, rows, variant, monkeypatch):
    started = {}
    train = GroupTrainer.train

    def remember(self, *args, **kwargs):
        started.update({name: value.clone() for name, value in self.model.state_dict().items()})
        return train(self, *args, **kwargs)

    monkeypatch.setattr(GroupTrainer, "train", remember)
    args = arguments(model={"variant": variant}, num_train_epochs=1)
    results = train_command.main(*args)
    output = Path(args[-1].output_dir)
    trained = weights(output)
    still = [n for n, value in trained.items() if torch.equal(value, started[n])]
    assert not still, f"not trained: {still}"

    config = json.loads((output / "config.json").read_text())
    assert config["selector"] == "lexical" and config["group_size"] == 5 and config["passage_words"] == 10
    folder = load_rows(rows)
    run = read_run(output / "test.trec")
    if variant in ("scorer", "neither"):  # no prototypes that `rerank` would choose otherwise
        for query_id, scores in scores_by_rerank(output, folder.dataset(folder.splits["test"]), folder.run).items():
            assert run[query_id] == pytest.approx(scores, abs=1e-5)
    assert run.keys() == set(folder.splits["test"]) and all(len(scores) == 9 for scores in run.values())
    qrels = {query_id: folder.qrels[query_id] for query_id in run}
    assert results["test"] == pytest.approx(evaluate_run(qrels, run).means)
    assert results["variant"] == variant
    validation = read_run(output / "validation.trec")
    assert validation.keys() == set(folder.splits["validation"])
    qrels = {query_id: folder.qrels[query_id] for query_id in validation}
    assert results["validation"] == pytest.approx(evaluate_run(qrels, validation).means)


@pytest.mark.parametrize("options", [{}, {"freeze_encoder": True}])
def test_the_whole_way_equals_rerank_with_the_same_prototypes(arguments, tmp_path, options):
    """Where the rows' prototypes are those that the model's own selector picks, the run is that of `rerank`."""
    made = make_rows(tmp_path / "rows", selector="first-stage")
    args = arguments(data={"rows": str(made)}, num_train_epochs=1, **options)
    train_command.main(*args)
    folder, output = load_rows(made), Path(args[-1].output_dir)
    run = read_run(output / "test.trec")
    expected = scores_by_rerank(output, folder.dataset(folder.splits["test"]), folder.run)
    for query_id, scores in expected.items():
        assert list(run[query_id]) == list(scores)
        assert run[query_id] == pytest.approx(scores, abs=1e-5)


def test_without_prototypes_there_is_no_calibrator_to_train(arguments, tmp_path):
    """The paper's BERT-Base: batches of pairs, each scored alone."""
    groups = {"prototypes": "none", "group_size": 4, "group_overlap": 0}
    with pytest.raises(ValueError, match="without prototypes no calibrator can be trained"):
        train_command.main(*arguments(groups=groups, output_dir=str(tmp_path / "full")))
    results = train_command.main(*arguments(model={"variant": "neither"}, groups=groups, num_train_epochs=1))
    assert results["variant"] == "neither" and "test" in results


def test_random_edges_are_drawn_anew_and_resume(arguments, tmp_path, monkeypatch):
    """Other weights than with fixed edges, the same ones in the same training, also where it was interrupted."""
    found = {}
    for name, drawn in (("fixed", False), ("drawn", True), ("again", True)):
        data = {"random_edges": drawn}
        train_command.main(*arguments(data=data, output_dir=str(tmp_path / name), num_train_epochs=3))
        found[name] = weights(tmp_path / name)
    assert_close(found["drawn"], found["again"], atol=0)
    assert any(not torch.equal(value, found["drawn"][name]) for name, value in found["fixed"].items())
    step = GroupTrainer.training_step

    def interrupted(self, *args):
        if self.state.global_step == 11:
            raise KeyboardInterrupt
        return step(self, *args)

    def start():
        options = {"num_train_epochs": 3, "output_dir": str(tmp_path / "killed")}
        return train_command.main(*arguments(data={"random_edges": True}, **options))

    with monkeypatch.context() as patch:
        patch.setattr(GroupTrainer, "training_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            start()
    start()
    assert_close(found["drawn"], weights(tmp_path / "killed"), atol=0)


def test_the_best_epoch_is_kept(arguments):
    args = arguments(num_train_epochs=4, learning_rate=5e-3, save_total_limit=9)
    results = train_command.main(*args)
    output = Path(args[-1].output_dir)
    history = json.loads((output / "checkpoint-32" / "trainer_state.json").read_text())["log_history"]
    reached = {entry["step"]: entry["eval_nDCG@20"] for entry in history if "eval_nDCG@20" in entry}
    assert sorted(reached) == [8, 16, 24, 32]
    best = max(reached, key=lambda step: (reached[step], -step))
    assert (results["step"], results["epoch"]) == (best, best / 8)
    assert results["validation"]["nDCG@20"] == reached[best]
    assert_close(weights(output / f"checkpoint-{best}"), weights(output), atol=0)
    assert len({tuple(weights(output / f"checkpoint-{s}")["classifier.bias"].tolist()) for s in reached}) == 4


@pytest.mark.parametrize("kind", ["initial", "reversed"])
def test_feed_order_reaches_the_model(arguments, kind, monkeypatch):
    fed = []
    step = GroupTrainer.training_step
    monkeypatch.setattr(
        GroupTrainer,
        "training_step",
        lambda self, model, inputs, *rest: fed.append(inputs["query_ids"][0]) or step(self, model, inputs, *rest),
    )
    train_command.main(*arguments(data={"feed_order": kind}, num_train_epochs=2))
    assert [fed[i] == fed[i + 1] for i in range(0, 16, 2)] == [True] * 8
    assert fed[:8] != fed[8:]


def test_same_seed_same_weights(arguments, tmp_path):
    found = {}
    for name, seed in (("one", 42), ("two", 42), ("other", 43)):
        train_command.main(*arguments(output_dir=str(tmp_path / name), seed=seed, num_train_epochs=1))
        found[name] = weights(tmp_path / name)
    assert_close(found["one"], found["two"], atol=0)
    for name in ("validation.trec", "test.trec"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    assert any(not torch.equal(value, found["other"][name]) for name, value in found["one"].items())


def test_chunks_accumulation_and_larger_steps_are_the_same_training(arguments, no_dropout, tmp_path):
    """Groups are all of one size here, so the mean over two groups is the mean of their means."""
    ways = {
        "accumulated": {"gradient_accumulation_steps": 2},
        "together": {"per_device_train_batch_size": 2},
        "in chunks": {"gradient_accumulation_steps": 2, "encoder_chunk_size": 3},
        "checkpointed": {"gradient_accumulation_steps": 2, "gradient_checkpointing": True},
    }
    found = {}
    for name, options in ways.items():
        # Adam divides by the gradient's size, which would blow up rounding in a gradient of almost nothing.
        options |= {"optim": "sgd", "num_train_epochs": 1, "learning_rate": 1e-2}
        train_command.main(*arguments(model={"encoder": no_dropout}, output_dir=str(tmp_path / name), **options))
        found[name] = weights(tmp_path / name)
    for name in ways:
        assert_close(found["accumulated"], found[name])


def test_bf16(arguments, tmp_path):
    for name in ("fp32", "bf16"):
        args = arguments(output_dir=str(tmp_path / name), bf16=name == "bf16", num_train_epochs=1)
        results = train_command.main(*args)
        assert 0 <= results["test"]["nDCG@20"] <= 1
    found = {name: weights(tmp_path / name) for name in ("fp32", "bf16")}
    assert all(value.dtype == torch.float32 for value in found["bf16"].values())
    assert any(not torch.equal(value, found["bf16"][name]) for name, value in found["fp32"].items())
    assert_close(found["fp32"], found["bf16"], atol=0.05)


def test_a_loss_that_is_not_finite_stops_with_the_query(arguments, tmp_path):
    broken = tiny.checkpoint(tmp_path / "broken", num_prototypes=2)
    state = load_file(broken / "model.safetensors")
    state["encoder.embeddings.word_embeddings.weight"].fill_(3e38)  # a number still, but no sum of them is
    save_file(state, broken / "model.safetensors", metadata={"format": "pt"})
    _, *rest = arguments()
    with pytest.raises(FloatingPointError, match=r"the loss is nan at step 0, query 'q[0-3]'"):
        train_command.main(ModelOptions(checkpoint=str(broken)), *rest)


def test_done_is_done_and_other_settings_are_refused(arguments, monkeypatch):
    first = train_command.main(*arguments(num_train_epochs=1))
    monkeypatch.setattr(GroupTrainer, "train", lambda *a, **k: pytest.fail("trained again"))
    assert train_command.main(*arguments(num_train_epochs=1)) == first
    with pytest.raises(ValueError, match="begun with other settings: training[.].* is"):
        train_command.main(*arguments(num_train_epochs=1, learning_rate=5e-4))


def test_errors_at_the_door(arguments, folded, tmp_path, monkeypatch):
    monkeypatch.setattr(GroupTrainer, "train", lambda *a, **k: pytest.fail("trained"))
    with pytest.raises(ValueError, match="no split 'train'.*--fold 1 or --fold all"):
        train_command.main(*arguments(data={"rows": str(folded)}))
    with pytest.raises(ValueError, match="there are no folds"):
        train_command.main(*arguments(data={"fold": "1"}))
    with pytest.raises(ValueError, match="has folds 1 to 3"):
        train_command.main(*arguments(data={"rows": str(folded), "fold": "4"}))
    with pytest.raises(FileNotFoundError, match="nowhere"):
        train_command.main(*arguments(data={"rows": str(tmp_path / "nowhere")}))
    with pytest.raises(ValueError, match="--group_overlap must be .*, got size 5 and overlap 5"):
        train_command.main(*arguments(groups={"group_overlap": 5}))
    with pytest.raises(ValueError, match="--fold must be the number of a fold, or all"):
        train_command.main(*arguments(data={"fold": "x"}))
    with pytest.raises(ValueError, match="did you mean nDCG@20"):
        train_command.main(*arguments(metric_for_best_model="nDGC@20", output_dir=str(tmp_path / "measure")))
    with pytest.raises(ValueError, match="either --encoder"):
        ModelOptions()
    with pytest.raises(ValueError, match="--scorer_layers cannot change it"):
        ModelOptions(checkpoint="x", scorer_layers=2)
    whole = tiny.checkpoint(tmp_path / "whole", num_prototypes=2)
    _, *rest = arguments(output_dir=str(tmp_path / "variant"))
    with pytest.raises(ValueError, match="is a 'full' model, not 'neither'.*--encoder"):
        train_command.main(ModelOptions(checkpoint=str(whole), variant="neither"), *rest)


def test_unwritable_folder_and_full_disk_fail_before_training(arguments, tmp_path, monkeypatch):
    monkeypatch.setattr(GroupTrainer, "train", lambda *a, **k: pytest.fail("trained"))
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(OSError, match="cannot write into the output folder"):
        train_command.main(*arguments(output_dir=str(tmp_path / "file" / "out")))
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=200_000))
    with pytest.raises(OSError, match=r"2 checkpoints of .*--save_total_limit"):
        train_command.main(*arguments())
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=2_000_000))
    options = {"save_strategy": "no", "eval_strategy": "no", "load_best_model_at_end": False}
    with pytest.raises(BaseException, match="trained"):  # the model alone fits
        train_command.main(*arguments(output_dir=str(tmp_path / "no-checkpoints"), **options))
