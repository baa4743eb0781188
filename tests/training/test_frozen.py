"""Frozen vectors: encoded once, resumed, never stale; and the recipe from pointwise to the whole."""

import json
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from safetensors.torch import load_file

from modeling_cobert import CoBertForGroupwiseRanking
from modeling_cobert.commands import train as train_command
from modeling_cobert.data.collator import GroupCollator
from modeling_cobert.data.rows import load_rows
from modeling_cobert.training import frozen as frozen_module
from modeling_cobert.training.arguments import ModelOptions
from modeling_cobert.training.frozen import FrozenVectors, VectorCollator, fingerprint
from modeling_cobert.training.initial import initial_model
from modeling_cobert.training.trainer import GroupTrainer


@pytest.fixture
def model(tmp_path):
    made = tiny.model(num_prototypes=2)
    made.tokenizer = tiny.tokenizer(tmp_path / "tokenizer")
    return made


@pytest.fixture
def collator(model):
    return GroupCollator(model.tokenizer, model.config.max_length, model.num_prototypes)


@pytest.fixture
def rows(groups):
    return load_rows(groups).dataset()


def weights(folder):
    return load_file(Path(folder) / "model.safetensors")


def test_vectors_are_what_the_encoder_gives_each_pair_once(model, collator, rows, tmp_path, monkeypatch):
    encoded = []
    encode = model.encode
    monkeypatch.setattr(model, "encode", lambda **batch: encoded.append(len(batch["input_ids"])) or encode(**batch))
    frozen = FrozenVectors(model.train(), collator, rows, tmp_path / "cache")
    frozen.encode()
    assert model.training, "the mode of the model has changed"
    pairs = {
        (row["query"], passage) for row in rows for passage in row["prototype_passages"] + row["candidate_passages"]
    }
    assert sum(encoded) == len(pairs) == len(np.load(frozen.path)) == 6 * 9
    monkeypatch.undo()
    model.eval()
    data = frozen.groups(rows)
    batch = VectorCollator(model.num_prototypes)([data[0], data[5]])
    expected = collator([rows[0], rows[5]])
    torch.testing.assert_close(model(**batch).logits, model(**expected).logits, atol=1e-5, rtol=0)
    assert torch.equal(batch["labels"], expected["labels"])
    assert torch.equal(batch["document_mask"], expected["document_mask"])
    fewer = VectorCollator(1)([data[0]])
    assert torch.equal(fewer["vectors"][0, 1:], batch["vectors"][0, 2:]) and fewer["vectors"].shape[1] == 6


def test_resumes_block_by_block(model, collator, rows, tmp_path, monkeypatch):
    monkeypatch.setattr(frozen_module, "BLOCK", 7)
    whole = FrozenVectors(model, collator, rows, tmp_path / "whole")
    whole.encode()
    broken = FrozenVectors(model, collator, rows, tmp_path / "broken")
    encode, calls = model.encode, []

    def fail_at_third(**batch):
        if len(calls) == 3:
            raise KeyboardInterrupt
        calls.append(len(batch["input_ids"]))
        return encode(**batch)

    with monkeypatch.context() as patch:
        patch.setattr(model, "encode", fail_at_third)
        with pytest.raises(KeyboardInterrupt):
            broken.encode()
    assert not broken.path.exists()
    done = sum(calls)
    calls.clear()
    with monkeypatch.context() as patch:
        patch.setattr(model, "encode", lambda **batch: calls.append(len(batch["input_ids"])) or encode(**batch))
        again = FrozenVectors(model, collator, rows, tmp_path / "broken")
        again.encode()
        assert done == 21 and sum(calls) == 54 - 21
        again.encode()
        assert sum(calls) == 54 - 21, "encoded again"
    assert again.path.read_bytes() == whole.path.read_bytes()


def test_shares_of_processes_are_the_whole(model, collator, rows, tmp_path, monkeypatch):
    """Two processes by turns: the second waits for nothing here, since the first has prepared the files."""
    monkeypatch.setattr(frozen_module, "BLOCK", 7)
    whole = FrozenVectors(model, collator, rows, tmp_path / "whole")
    whole.encode()
    shared = FrozenVectors(model, collator, rows, tmp_path / "shared")
    with pytest.raises(RuntimeError, match="some blocks were not encoded"):
        shared.encode(process=0, processes=2)
    shared.encode(process=1, processes=2)
    shared.encode(process=0, processes=2)
    assert shared.path.read_bytes() == whole.path.read_bytes()


def test_the_fingerprint_is_of_all_that_makes_the_vectors(model, collator, rows, tmp_path):
    pairs = list(FrozenVectors(model, collator, rows, tmp_path).pairs)
    known = fingerprint(model, collator, pairs)
    assert fingerprint(tiny.model(num_prototypes=2), collator, pairs) == known
    with torch.no_grad():
        model.classifier.bias += 1
    assert fingerprint(model, collator, pairs) == known, "the head makes no vectors"
    others = [
        fingerprint(model, collator, pairs[1:]),
        fingerprint(model, GroupCollator(model.tokenizer, 31, 2), pairs),
        fingerprint(tiny.model(num_prototypes=2, encoder_pooling="pooler"), collator, pairs),
    ]
    with torch.no_grad():
        next(model.encoder.parameters())[0, 0] += 1e-3
    others.append(fingerprint(model, collator, pairs))
    assert len({known, *others}) == 5


def test_a_full_disk_is_said_before_encoding(model, collator, rows, tmp_path, monkeypatch):
    usage = frozen_module.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(frozen_module.shutil, "disk_usage", lambda path: usage._replace(free=100))
    with pytest.raises(OSError, match=r"5,184 bytes of vectors do not fit, 100 are free"):
        FrozenVectors(model, collator, rows, tmp_path / "cache").encode()


def test_equals_training_on_tokens_with_a_frozen_encoder(arguments, tmp_path, monkeypatch):
    """The same training with tokens, where nothing of the encoder requires a gradient and no dropout acts."""
    encoder = tiny.bert_checkpoint(
        tmp_path / "encoder", layers=4, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    model = {"encoder": str(encoder)}
    train_command.main(*arguments(model=model, freeze_encoder=True, output_dir=str(tmp_path / "frozen")))
    init = GroupTrainer.__init__

    def freeze(self, *args, **kwargs):
        kwargs["model"].encoder.requires_grad_(False)
        init(self, *args, **kwargs)

    monkeypatch.setattr(GroupTrainer, "__init__", freeze)
    train_command.main(*arguments(model=model, output_dir=str(tmp_path / "tokens")))
    one, other = weights(tmp_path / "frozen"), weights(tmp_path / "tokens")
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(other[name], value, atol=1e-4, rtol=0, msg=name)
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

    model_args, data_args, training_args = arguments(
        model={"encoder": pointwise}, num_train_epochs=1, freeze_encoder=True, output_dir=context
    )
    first = initial_model(model_args, load_rows(data_args.rows).settings)
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

    train_command.main(model_args, data_args, training_args)
    trained = weights(context)
    for name, value in trained.items():
        assert torch.equal(value, started[name]) == name.startswith("encoder."), name
    assert (Path(context) / "_vectors").is_dir()

    _, data_args, training_args = arguments(num_train_epochs=1, output_dir=whole)
    train_command.main(ModelOptions(checkpoint=context), data_args, training_args)
    assert not torch.equal(weights(whole)["encoder.pooler.dense.bias"], trained["encoder.pooler.dense.bias"])
    settings = json.loads((Path(whole) / "settings.json").read_text())
    assert settings["seen"] == {"tiny": ["q0", "q1", "q2", "q3", "q4"]}
    assert settings["model"]["checkpoint"].startswith("context@")
