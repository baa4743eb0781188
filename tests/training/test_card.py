"""The model card: what the Hub reads, what a person reads, and what must not be in it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
from hub_server import LoopbackHub
from huggingface_hub import ModelCard

from modeling_cobert.commands import train as train_command
from modeling_cobert.training.card import write_card

ROOT = Path(__file__).resolve().parents[2]
RESULTS = {
    "epoch": 3.0,
    "queries": 50,
    "validation": {"nDCG@20": 0.5},
    "test": {"P@20": 0.4, "nDCG@20": 0.52344, "AP@1000": 0.3},
    "first_stage": {"P@20": 0.35, "nDCG@20": 0.41, "AP@1000": 0.28},
}
TRAINING = {
    "num_train_epochs": 5.0,
    "max_steps": -1,
    "learning_rate": 3e-6,
    "warmup_steps": 0.1,
    "lr_scheduler_type": "linear",
    "optim": "adamw_torch",
    "seed": 42,
}


def settings(**model):
    return {
        "train": ["1", "2", "3"],
        "validation": ["4"],
        "fold": None,
        "freeze_encoder": False,
        "groups_a_step": 1,
        "feed_order": "shuffled",
        "model": {"encoder": None, "calibrator": None, "scorer": None, "checkpoint": None, "loss": None} | model,
        "training": TRAINING,
    }


def card(folder, config=None, rows=None, results=RESULTS, hub_id=None, **model):
    folder.mkdir(exist_ok=True)
    known = {"collection": "cranfield", "first_stage": "bm25"} | (rows or {})
    write_card(folder, config or tiny.config(), known, settings(**model), results, hub_id)
    return ModelCard.load(folder / "README.md")


def test_metadata(tmp_path):
    made = card(
        tmp_path / "m",
        tiny.config(encoder_config=tiny.bert_config(5, 4, 40, name_or_path="org/cross-encoder")),
        hub_id="org/co-bert-cranfield",
        encoder="org/cross-encoder",
        scorer="google/bert_uncased_L-4_H-768_A-12",
        calibrator="folder@0123456789ab",
    )
    data = made.data.to_dict()
    assert (data["pipeline_tag"], data["library_name"], data["datasets"]) == (
        "text-ranking",
        "transformers",
        ["cranfield"],
    )
    assert data["base_model"] == ["org/cross-encoder", "google/bert_uncased_L-4_H-768_A-12"]
    assert {r.metric_name: r.metric_value for r in made.data.eval_results} == {
        "P@20": 0.4,
        "nDCG@20": 0.5234,
        "AP@1000": 0.3,
    }
    assert {(r.task_type, r.dataset_type, r.dataset_split) for r in made.data.eval_results} == {
        ("text-ranking", "cranfield", "test")
    }
    assert 'from_pretrained("org/co-bert-cranfield", trust_remote_code=True)' in made.text
    assert "| first stage (bm25) | 0.3500 | 0.4100 | 0.2800 |\n| this model | 0.4000 | 0.5234 | 0.3000 |" in made.text
    assert "| learning rate | 3e-06 |" in made.text and "2104.08523" in made.text
    assert "Trained on 3 queries of cranfield, selected on 1" in made.text


def test_the_text_follows_the_variant(tmp_path):
    full = card(tmp_path / "a").text
    assert "1 layers calibrates" in full and "2 layers scores" in full and "(variant:" not in full
    neither = card(tmp_path / "b", tiny.config(**tiny.VARIANTS["neither"]), results={}).text
    assert "calibrates" not in neither and "jointly" not in neither and "(variant: neither)" in neither
    assert "Not tested yet." in neither


def test_no_path_and_no_markup_of_others(tmp_path):
    nasty = "evil | <img src=x> `code` [link](http://x)\n# heading"
    made = card(
        tmp_path / "m",
        tiny.config(selector=str(tmp_path / "models" / "my-cross-encoder")),
        {"collection": nasty, "first_stage": str(tmp_path / "runs" / "bm25.trec")},
    )
    whole = (tmp_path / "m" / "README.md").read_text()
    assert str(tmp_path) not in whole and str(tmp_path.parent) not in whole
    assert "`my-cross-encoder` picks" in made.text.replace("\n", " ").replace("\\-", "-") and "bm25.trec" in made.text
    assert "<img" not in made.text.replace("\\<img", "") and "\n# heading" not in made.text
    assert made.data.datasets == ["evil-img-src-x-code-link-http-x-heading"]


def test_it_says_what_was_trained(tmp_path):
    assert "| epochs | 5 |" in card(tmp_path / "epochs").text and "| steps |" not in card(tmp_path / "epochs").text
    whole = settings() | {"training": TRAINING | {"max_steps": 2}}
    write_card(tmp_path, tiny.config(), {"collection": "cranfield"}, whole, {})
    text = (tmp_path / "README.md").read_text()
    assert "| steps | 2 |" in text and "| epochs |" not in text


def test_a_teacher_is_one_line(tmp_path):
    teacher = {"tag": "ce|x", "sha256": "0123456789abcdef", "loss": "margin_mse", "weight": 0.25, "temperature": 2.0}
    for weight, loss in ((0.25, True), (1, False)):
        whole = settings() | {"teacher": teacher | {"weight": weight}}
        write_card(tmp_path, tiny.config(), {"collection": "cranfield"}, whole, {})
        text = (tmp_path / "README.md").read_text()
        how = f"margin\\_mse, weight {weight}, temperature 2"
        assert f"| teacher | the run ce\\|x (0123456789ab), {how} |" in text
        assert ("| loss | pointwise |" in text) == loss
    assert "teacher" not in card(tmp_path / "none").text


@pytest.mark.parametrize("where", ["folder", "hub"])
def test_trained_pushed_and_used_as_the_card_says(where, arguments, rows, encoder, tmp_path):
    """The snippet of the card runs, where the package cannot be imported; nothing of this machine is on the Hub."""
    with LoopbackHub() as hub:
        environment = hub.env(tmp_path / "home")
        if where == "folder":
            train_command.main(*arguments(num_train_epochs=1, freeze_encoder=True))
            text = (tmp_path / "out" / "README.md").read_text()
            assert 'from_pretrained("out", trust_remote_code=True)' in text
        else:
            command = ["--rows", rows, "--encoder", encoder, "--calibrator_layers", 1, "--scorer_layers", 2]
            command += ["--num_prototypes", 2, "--group_size", 5, "--group_overlap", 1]
            command += ["--max_length", 32, "--output_dir", tmp_path / "out", "--use_cpu", "True", "--freeze_encoder"]
            command += ["--num_train_epochs", 1, "--push_to_hub", "--hub_model_id", "org/tiny-co-bert"]
            done = subprocess.run(
                [sys.executable, str(ROOT / "train_cobert.py"), *map(str, command)],
                env={**environment, "PYTHONPATH": str(ROOT)},
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, done.stderr[-3000:]
            files = hub.files("org/tiny-co-bert")
            text = files["README.md"].decode()
            assert {"model.safetensors", "config.json", "modeling_cobert.py", "tokenizer.json"} <= set(files)
            assert not [
                name for name in files if name.startswith(("checkpoint-", "_")) or name.endswith((".bin", ".pt"))
            ]
            leaks = [name for name, content in files.items() if str(tmp_path).encode() in content]
            assert leaks == []
        snippet = re.search(r"```python\n(.*?)```", text, re.DOTALL).group(1)
        used = subprocess.run(
            [sys.executable, "-c", "import sys; sys.modules['modeling_cobert'] = None\n" + snippet],
            env={**environment, "PYTHONPATH": "", "HF_MODULES_CACHE": str(tmp_path / "modules")},
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
    assert used.returncode == 0, used.stderr[-3000:]
    assert sorted(line.split(" ", 1)[1] for line in used.stdout.splitlines()) == [
        "Bees make honey.",
        "Bees see ultraviolet light.",
        "Cars need fuel.",
    ]


def test_a_card_says_what_is_read(tmp_path):
    """Of the pair, of words and of neighbours: nothing that the model does not do."""
    neither = {"use_calibrator": False, "use_scorer": False, "starting_weights": [0.0, 1.0, 0.5]}
    for name, fields, said, unsaid in (
        ("paper", {}, ["reads each query-passage pair", "linear head"], ["no pair is read", "like words"]),
        ("start", neither, ["no pair is read", "a mixture of these"], ["reads each", "own relevance", "linear head"]),
        ("near", neither | {"neighbour_weight": 0.2}, ["no pair is read", "of like words"], ["linear head"]),
        ("own", neither | {"starting_weights": [1.0, 0.0, 0.5]}, ["reads each", "own relevance"], ["no pair"]),
    ):
        text = card(tmp_path / name, tiny.config(**fields)).content
        assert all(words in text for words in said) and not any(words in text for words in unsaid), name
