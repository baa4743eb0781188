"""Frozen vectors: encoded once, resumed, never stale; and the recipe from pointwise to the whole."""

import json
from pathlib import Path

import pytest
import tiny
import torch
from safetensors.torch import load_file
from tiny_rows import GROUPS

from modeling_cobert import CoBertForGroupwiseRanking
from modeling_cobert.commands import train as train_command
from modeling_cobert.data.collator import GroupCollator
from modeling_cobert.data.groups import GroupView
from modeling_cobert.data.rows import load_rows
from modeling_cobert.passages_cobert import PairTokenizer
from modeling_cobert.training import frozen as frozen_module
from modeling_cobert.training.arguments import ModelOptions
from modeling_cobert.training.frozen import FrozenVectors
from modeling_cobert.training.initial import initial_model
from modeling_cobert.training.trainer import GroupTrainer


@pytest.fixture
def model(tmp_path):
    made = tiny.model(num_prototypes=2)
    made.tokenizer = tiny.tokenizer(tmp_path / "tokenizer")
    return made


@pytest.fixture
def data(rows):
    return load_rows(rows).dataset()


def weights(folder):
    return load_file(Path(folder) / "model.safetensors")


def files(frozen):
    return [path.read_bytes() for path in frozen.paths]


class Process:
    """One of several processes that take turns here: nobody needs to wait."""

    def __init__(self, process_index, num_processes):
        self.process_index, self.num_processes = process_index, num_processes
        self.is_main_process = process_index == 0

    def wait_for_everyone(self):
        pass


def test_vectors_are_what_the_encoder_gives_each_pair_once(model, data, tmp_path, monkeypatch):
    encoded = []
    encode = model.encode
    monkeypatch.setattr(model, "encode", lambda **batch: encoded.append(len(batch["input_ids"])) or encode(**batch))
    frozen = FrozenVectors(model.train(), data, tmp_path / "cache")
    frozen.encode()
    assert model.training, "the mode of the model has changed"
    assert sum(encoded) == frozen.count == 6 * 9
    monkeypatch.undo()
    model.eval()
    tokens, vectors = GroupView(data, GROUPS), GroupView(data, GROUPS, vectors=frozen)
    collator = GroupCollator(PairTokenizer(model.tokenizer, model.config.max_length), model.num_prototypes)
    batch, expected = collator([vectors[0], vectors[5]]), collator([tokens[0], tokens[5]])
    assert set(batch) == {"vectors", "document_mask", "labels"}
    torch.testing.assert_close(model(**batch).logits, model(**expected).logits, atol=1e-5, rtol=0)
    assert torch.equal(batch["labels"], expected["labels"])
    assert torch.equal(batch["document_mask"], expected["document_mask"])
    fewer = GroupCollator(None, num_prototypes=1)([vectors[0]])
    assert torch.equal(fewer["vectors"][0, 1:], batch["vectors"][0, 2:]) and fewer["vectors"].shape[1] == 6


def test_resumes_file_by_file(model, data, tmp_path, monkeypatch):
    monkeypatch.setattr(frozen_module, "PAIRS_A_FILE", 10)  # two queries of nine
    whole = FrozenVectors(model, data, tmp_path / "whole")
    whole.encode()
    assert len(whole.paths) == 3
    broken = FrozenVectors(model, data, tmp_path / "broken")
    encode, calls = model.encode, []

    def fail_in_the_third(**batch):
        if broken.paths[1].exists():
            raise KeyboardInterrupt
        return encode(**batch)

    with monkeypatch.context() as patch:
        patch.setattr(model, "encode", fail_in_the_third)
        with pytest.raises(KeyboardInterrupt):
            broken.encode()
    assert [path.exists() for path in broken.paths] == [True, True, False]
    with monkeypatch.context() as patch:
        patch.setattr(model, "encode", lambda **batch: calls.append(len(batch["input_ids"])) or encode(**batch))
        again = FrozenVectors(model, data, tmp_path / "broken")
        again.encode()
        assert sum(calls) == 18
        again.encode()
        assert sum(calls) == 18, "encoded again"
    assert files(again) == files(whole)


@pytest.mark.parametrize(
    "damage", [lambda content: content[:-4], lambda content: content[:-1] + bytes([content[-1] ^ 1])]
)
def test_damaged_files_are_not_used(model, data, tmp_path, damage):
    frozen = FrozenVectors(model, data, tmp_path / "cache")
    frozen.encode()
    last, expected = data[len(data) - 1]["query_id"], files(frozen)
    frozen.paths[0].write_bytes(damage(expected[0]))
    again = FrozenVectors(model, data, tmp_path / "cache")
    again.encode()
    with pytest.raises(ValueError, match="00000.safetensors: damaged.*: remove it and run again"):
        again(last)
    again.paths[0].unlink()
    once_more = FrozenVectors(model, data, tmp_path / "cache")
    once_more.encode()
    assert files(once_more) == expected and len(once_more(last)) == 9


def test_shares_of_processes_are_the_whole(model, data, tmp_path, monkeypatch):
    monkeypatch.setattr(frozen_module, "PAIRS_A_FILE", 10)
    whole, shared = (FrozenVectors(model, data, tmp_path / name) for name in ("whole", "shared"))
    whole.encode()
    shared.encode(state=Process(0, 2))
    assert [path.exists() for path in shared.paths] == [True, False, True]
    shared.encode(state=Process(1, 2))
    shared.encode(state=Process(0, 2))
    assert files(shared) == files(whole)


def test_the_fingerprint_is_of_all_that_makes_the_vectors(model, data, tmp_path):
    def name(made, rows=data):
        made.tokenizer = model.tokenizer
        return FrozenVectors(made, rows, tmp_path).folder.name

    known = name(model)
    assert name(tiny.model(num_prototypes=2)) == known
    with torch.no_grad():
        model.classifier.bias += 1
    assert name(model) == known, "the head makes no vectors"
    others = [
        name(model, data.select(range(5))),
        name(tiny.model(num_prototypes=2, max_length=31)),
        name(tiny.model(num_prototypes=2, encoder_pooling="pooler")),
    ]
    with torch.no_grad():
        next(model.encoder.parameters())[0, 0] += 1e-3
    others.append(name(model))
    assert len({known, *others}) == 5


def test_a_full_disk_is_said_before_encoding(model, data, tmp_path, monkeypatch):
    usage = frozen_module.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(frozen_module.shutil, "disk_usage", lambda path: usage._replace(free=100))
    with pytest.raises(OSError, match=r"5,184 bytes of vectors do not fit, 100 are free"):
        FrozenVectors(model, data, tmp_path / "cache").encode()


def test_equals_training_on_tokens_with_a_frozen_encoder(arguments, tmp_path, monkeypatch):
    """The same training with tokens, where nothing of the encoder requires a gradient and no dropout acts."""
    encoder = tiny.bert_checkpoint(
        tmp_path / "encoder", layers=4, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    # Adam divides by the gradient's size, which would blow up rounding in a gradient of almost nothing.
    options = {"model": {"encoder": str(encoder)}, "optim": "sgd", "learning_rate": 0.1}
    train_command.main(*arguments(**options, freeze_encoder=True, output_dir=str(tmp_path / "frozen")))
    init = GroupTrainer.__init__

    def freeze(self, *args, **kwargs):
        kwargs["model"].encoder.requires_grad_(False)
        init(self, *args, **kwargs)

    monkeypatch.setattr(GroupTrainer, "__init__", freeze)
    train_command.main(*arguments(**options, output_dir=str(tmp_path / "tokens")))
    one, other = weights(tmp_path / "frozen"), weights(tmp_path / "tokens")
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(other[name], value, atol=1e-5, rtol=0, msg=name)
    start = load_file(encoder / "model.safetensors")
    assert torch.equal(
        one["encoder.encoder.layer.3.output.dense.weight"], start["encoder.layer.3.output.dense.weight"]
    )
    reloaded = CoBertForGroupwiseRanking.from_pretrained(tmp_path / "frozen")
    assert len(reloaded.rerank("bees see", ["bees see light", "car"])) == 2


def test_the_recipe(arguments, tmp_path, encoder):
    """Pointwise, then the context parts on its frozen vectors, then end to end; each stage starts from the last."""
    names = ("pointwise", "context", "whole")
    pointwise, context, whole = (str(tmp_path / name) for name in names)
    train_command.main(*arguments(model={"variant": "neither"}, num_train_epochs=1, output_dir=pointwise))

    args = arguments(model={"encoder": pointwise}, num_train_epochs=1, freeze_encoder=True, output_dir=context)
    first = initial_model(args[0], load_rows(args[1].rows).settings, GROUPS)
    started = {name: value.clone() for name, value in first.state_dict().items()}
    base = weights(pointwise)
    assert first.config.encoder_pooling == "pooler" and first.config.max_length == 32
    assert torch.equal(started["prototype_weight.weight"], base["classifier.weight"])
    assert torch.equal(started["prototype_weight.bias"], base["classifier.bias"])
    for name, value in base.items():
        if name.startswith("encoder."):
            assert torch.equal(started[name], value)
    for layer, part in ((0, "calibrator"), (1, "scorer")):
        name = f"encoder.layer.{layer}.attention.self.query.weight"
        assert torch.equal(started[f"{part}.{name}"], base[f"encoder.{name}"])

    train_command.main(*args)
    trained = weights(context)
    for name, value in trained.items():
        assert torch.equal(value, started[name]) == name.startswith("encoder."), name
    assert (Path(context) / "_vectors").is_dir()

    _, *rest = arguments(num_train_epochs=1, output_dir=whole)
    train_command.main(ModelOptions(checkpoint=context), *rest)
    assert not torch.equal(weights(whole)["encoder.pooler.dense.bias"], trained["encoder.pooler.dense.bias"])
    settings = json.loads((Path(whole) / "settings.json").read_text())
    assert settings["seen"] == {"tiny": ["q0", "q1", "q2", "q3", "q4"]}
    assert settings["model"]["checkpoint"].startswith("context@")
