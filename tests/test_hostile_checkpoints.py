"""Files made by an enemy, some of each kind: refused in a line, and no code ran (`make fuzz-hostile` has more)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import hostile_files
import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file

from modeling_cobert import CoBertForGroupwiseRanking
from modeling_cobert.checkpoint_cobert import MOST_COUNTED, check_config, check_weights, load_config
from modeling_cobert.collections import trec
from modeling_cobert.collections.collection import open_collection
from modeling_cobert.collections.trec import read_run
from modeling_cobert.passages_cobert import load_tokenizer
from modeling_cobert.selection_cobert import load_selector

ROOT = Path(__file__).resolve().parents[1]
# Of everything one: the others differ in the option or field alone.
CHOSEN = [
    "code: --model is pytorch_model.bin",
    "code: --selector, bi",
    "code: bert-qe, phase2",
    "code: model.safetensors.index.json of bi",
    "code: auto_map of bert, cross --encoder",
    "code: auto_map of enemy, bi --selector",
    "code: auto_map, flops --bi_encoder",
    "code: auto_map of a tokenizer",
    "code: modules.json",
    "resume: optimizer.pt",
    "resume, given: rng_state.pth",
    "resume: pytorch_model.bin",
    "resume: training_args.bin",
    "size: encoder_config.num_hidden_layers of --model",
    "size: vocab_size of --encoder",
    "size: hidden_size of --selector, cross",
    "size: num_labels of --selector, bi",
    "size: num_prototypes of --checkpoint",
    "weights: a header of 2^63 bytes, cobert",
    "weights: sizes beyond the file, cross",
    "tokenizer: an id of a word, cobert",
    "bomb: a packed run",
    "bomb: rows",
    "path: shards of cobert",
    "path: modules.json",
    "path: split '../../outside'",
]


def test_what_an_enemy_has_made_is_refused():
    """In a process that has read none of it before, and whose memory is limited."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    done = subprocess.run(
        [sys.executable, hostile_files.__file__, "--only", *CHOSEN], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] == f"{len(CHOSEN)} cases, 0 faults"


def test_the_search_sees_code_that_runs_and_files_that_are_accepted(tmp_path):
    box = hostile_files.Sandbox(tmp_path)
    ran = hostile_files.Case(["rerank"], "anything")
    box.marker.touch()
    assert hostile_files.outcome(box, ran, tmp_path / "log").startswith("CODE RAN")
    healthy = hostile_files.Case(box.rerank(box.cobert), str(box.cobert))
    assert hostile_files.outcome(box, healthy, tmp_path / "log").startswith("accepted")
    lost = hostile_files.Case(box.rerank(tmp_path / "nowhere"), "another file")
    assert hostile_files.outcome(box, lost, tmp_path / "log").startswith("does not name another file")


# --- numbers of a config


def rewritten(folder: Path, **fields) -> Path:
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(content | fields))
    return folder


def test_numbers_that_no_model_has(tmp_path):
    folder = tiny.bert_checkpoint(tmp_path / "bert", labels=2)
    assert load_config(folder).num_labels == 2
    for fields in ({"num_labels": MOST_COUNTED + 1}, {"n_layer": 10**6}, {"parts": [{"deep": 10**12}]}):
        with pytest.raises(ValueError, match=f"{folder}: its config.json says .*, which is no model's"):
            check_config(rewritten(tiny.bert_checkpoint(folder, labels=2), **fields))
    (folder / "config.json").write_text("[" * 100_000)
    with pytest.raises((ValueError, OSError), match=str(folder)):
        check_config(folder)


def test_a_config_that_asks_for_more_than_the_weights_are(tmp_path):
    folder = tiny.bert_checkpoint(tmp_path / "bert", labels=2)
    config = load_config(folder)
    built = []

    def build():
        built.append(torch.empty(0).device.type)
        return torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    check_weights(folder, config, build)
    config.vocab_size = 10**9
    with pytest.raises(
        ValueError, match=f"{folder}: its config.json asks for 24,000,000,000 numbers, but its weights"
    ):
        check_weights(folder, config, build)
    assert built == ["meta", "meta"]
    config.num_hidden_layers = 5000
    with pytest.raises(ValueError, match=f"{folder}: its config.json says 5000 layers, but its weights are"):
        check_weights(folder, config, build)
    assert len(built) == 2


def test_healthy_checkpoints_in_one_file_and_in_shards(tmp_path):
    folder = tiny.checkpoint(tmp_path / "whole")
    model = CoBertForGroupwiseRanking.from_pretrained(folder)
    model.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    again = CoBertForGroupwiseRanking.from_pretrained(tmp_path / "shards")
    assert again.loading_faults == ""
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in model.state_dict().items())


def test_a_pickle_is_loaded_only_for_those_who_ask(tmp_path):
    folder = tiny.checkpoint(tmp_path / "model")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(OSError, match="safetensors"):
        CoBertForGroupwiseRanking.from_pretrained(folder)
    assert CoBertForGroupwiseRanking.from_pretrained(folder, use_safetensors=False).loading_faults == ""


# --- weights that are not there: a selector would score at random


@pytest.mark.parametrize("labels", [None, 2])
def test_a_selector_that_lacks_layers_does_not_score(labels, tmp_path):
    folder = tiny.bert_checkpoint(tmp_path / "model", layers=3, labels=labels)
    load_selector(str(folder), 32)
    rewritten(folder, num_hidden_layers=4)
    with pytest.raises(
        ValueError, match=f"{folder}: the checkpoint's weights are not those of its config: 16 missing"
    ):
        load_selector(str(folder), 32)
    with pytest.raises(ValueError, match=f"{folder}: its config.json names 16 weights that it does not have"):
        CoBertForGroupwiseRanking.from_bert_pretrained(folder, calibrator_config={"num_hidden_layers": 1})


def test_a_bi_encoder_needs_no_pooler(tmp_path):
    folder = tiny.bert_checkpoint(tmp_path / "model", layers=3)
    weights = load_file(folder / "model.safetensors")
    save_file({k: v for k, v in weights.items() if "pooler" not in k}, folder / "model.safetensors")
    assert load_selector(str(folder), 32).kind == "bi-encoder"


def test_a_token_beyond_the_encoder(tmp_path):
    folder = tiny.checkpoint(tmp_path / "model")
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"]["vocab"]["bees"] = 4_000_000_000
    (folder / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=f"{folder}: the tokenizer has a token with the number 4000000000"):
        load_tokenizer(folder, len(tiny.VOCAB))


# --- lines without end


def test_a_line_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr(trec, "LONGEST_LINE", 1 << 20)
    (tmp_path / "run.trec").write_bytes(b"q1 Q0 d1 1 1.0 x\n" + b"a" * (1 << 20) + b"a")
    with pytest.raises(ValueError, match="run.trec:2: a line of more than 1 MB"):
        read_run(tmp_path / "run.trec")
    (tmp_path / "queries.jsonl").write_text('{"_id": "q", "text": "bees"}\n')
    line = json.dumps({"_id": "d", "text": "a" * ((1 << 20) - 27)})
    (tmp_path / "corpus.jsonl").write_text(f"{line}\n")
    assert len(line) == 1 << 20 or len(line) < 1 << 20
    (document,) = open_collection(tmp_path).documents()
    assert len(document.text) == (1 << 20) - 27
    (tmp_path / "corpus.jsonl").write_text(f"{line} {line}\n")
    with pytest.raises(ValueError, match="corpus.jsonl:1: a line of more than 1 MB"):
        list(open_collection(tmp_path).documents())
