"""A saved, trained or pushed checkpoint loads where this package is not, and ranks the same."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file
from transformers import Trainer, TrainingArguments

from modeling_cobert import CoBertForGroupwiseRanking

ROOT = Path(__file__).resolve().parents[1]
QUERY = "how do bees see colour"
DOCUMENTS = ["the car drive", "bees see light " * 9, "", {"title": "honey", "text": "a red flower"}]
NO_PACKAGE = 'import sys; sys.modules["modeling_cobert"] = None\n'  # importing it fails, as where it is not installed

LOAD = """
import json, sys
from transformers import AutoConfig, AutoModel, AutoTokenizer, pipeline
query, documents, *names = json.loads(sys.argv[1])
results = {}
for name in names:
    config = AutoConfig.from_pretrained(name, trust_remote_code=True)
    model = AutoModel.from_pretrained(name, trust_remote_code=True)
    tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=True)
    ranker = pipeline("text-ranking", model=name, trust_remote_code=True, device="cpu")
    results[name] = {
        "class": type(model).__name__,
        "module": type(model).__module__,
        "config": [type(config).__name__, config.num_prototypes, config.selector],
        "rerank": model.rerank(query, documents),
        "with_tokenizer": model.rerank(query, documents, tokenizer=tokenizer),
        "pipeline": ranker({"query": query, "documents": documents}),
    }
if len(sys.argv) > 2:  # saved again by who has no package
    model.save_pretrained(sys.argv[2])
    again = AutoModel.from_pretrained(sys.argv[2], trust_remote_code=True)
    results["again"] = {"rerank": again.rerank(query, documents)}
print(json.dumps(results))
"""

REFUSED = """
import json, sys
from transformers import AutoModel, pipeline
query, documents, *names = json.loads(sys.argv[1])
errors = []
for name in names:
    for ranker in (
        AutoModel.from_pretrained(name, trust_remote_code=True).rerank,
        lambda q, d: pipeline("text-ranking", model=name, trust_remote_code=True, device="cpu")(
            {"query": q, "documents": d}
        ),
    ):
        try:
            errors.append(ranker(query, documents))
        except ValueError as error:
            errors.append(str(error))
print(json.dumps(errors))
"""

PUSH = """
import json, sys
from modeling_cobert import CoBertForGroupwiseRanking
model = CoBertForGroupwiseRanking.from_pretrained(sys.argv[1])
model.push_to_hub("org/cobert-tiny")
print(json.dumps({}))
"""

SAVE_AND_PUSH = """
import json, sys
from huggingface_hub.errors import HfHubHTTPError
from modeling_cobert import CoBertForGroupwiseRanking
model = CoBertForGroupwiseRanking.from_pretrained(sys.argv[1])
options = {"push_to_hub": True, "token": "hf_test", "private": True}
model.save_pretrained(sys.argv[2], repo_id="org/saved", commit_message="Trained on Sunday", **options)
try:
    model.save_pretrained(sys.argv[2], repo_id="org/asked", create_pr=True, **options)
except HfHubHTTPError as error:
    print(json.dumps({"refused": str(error)}))
"""


def run(code: str, *args: str, env: dict | None = None, cwd: Path) -> dict:
    done = subprocess.run(
        [sys.executable, "-c", code, *args], capture_output=True, text=True, env=env, cwd=cwd, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    return tiny.checkpoint(tmp_path_factory.mktemp("saved"), selector="self")


@pytest.fixture(scope="module")
def trained(saved, tmp_path_factory) -> Path:
    """A checkpoint that the plain Trainer wrote."""
    model = CoBertForGroupwiseRanking.from_pretrained(saved)
    folder = tmp_path_factory.mktemp("trained")
    groups = [{name: value[0] for name, value in tiny.batch(groups=1, seed=seed).items()} for seed in range(2)]
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=2,
        save_steps=2,
        per_device_train_batch_size=1,
        learning_rate=0.01,
        remove_unused_columns=False,
        disable_tqdm=True,
        use_cpu=True,
    )

    def collate(rows):
        return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}

    Trainer(
        model, arguments, data_collator=collate, train_dataset=groups, processing_class=model.find_tokenizer()
    ).train()
    return folder / "checkpoint-2"


def check(found: dict, expected: list[dict]) -> None:
    for way in ("rerank", "with_tokenizer", "pipeline"):
        assert [r["corpus_id"] for r in found[way]] == [r["corpus_id"] for r in expected]
        assert [r["score"] for r in found[way]] == pytest.approx([r["score"] for r in expected], abs=1e-5)


def test_saved_and_trained_checkpoints(saved, trained, tmp_path):
    names = [str(saved), str(trained)]
    results = run(
        NO_PACKAGE + LOAD,
        json.dumps([QUERY, DOCUMENTS, *names]),
        str(tmp_path / "again"),
        cwd=tmp_path,
        env=child_environment(tmp_path),
    )
    expected = {name: CoBertForGroupwiseRanking.from_pretrained(name).rerank(QUERY, DOCUMENTS) for name in names}
    assert expected[names[0]] != expected[names[1]]  # training did change it
    for name in names:
        assert results[name]["class"] == "CoBertForGroupwiseRanking"
        assert results[name]["module"].startswith("transformers_modules.")
        assert results[name]["config"] == ["CoBertConfig", tiny.M, "self"]
        check(results[name], expected[name])
    scores = [r["score"] for r in results["again"]["rerank"]]
    assert scores == pytest.approx([r["score"] for r in expected[names[1]]], abs=1e-5)
    # What was saved again is complete: the same files, code and tokenizer included.
    files = {path.name for path in saved.iterdir()} - {"vocab.txt"}
    assert {path.name for path in (tmp_path / "again").iterdir() if path.is_file()} == files
    assert "pipeline_cobert.py" in files and "__init__.py" not in files


def test_what_is_not_whole_is_refused(saved, tmp_path):
    lacking, mute = (Path(shutil.copytree(saved, tmp_path / name)) for name in ("lacking", "mute"))
    weights = load_file(lacking / "model.safetensors")
    del weights["classifier.weight"]
    save_file(weights, lacking / "model.safetensors", metadata={"format": "pt"})
    for path in [*mute.glob("tokenizer*"), mute / "vocab.txt"]:
        path.unlink()
    names = [str(lacking), str(mute)]
    errors = run(
        NO_PACKAGE + REFUSED, json.dumps([QUERY, DOCUMENTS, *names]), cwd=tmp_path, env=child_environment(tmp_path)
    )
    assert ["1 missing, such as classifier.weight" in error for error in errors] == [True, True, False, False]
    # The last one is refused by transformers itself.
    assert "the tokenizer knows no words" in errors[2] and "backend tokenizer" in errors[3]


def test_a_checkpoint_that_starts_from_known_scores_and_content(tmp_path):
    bi_encoder = tiny.bert_checkpoint(tmp_path / "bi", layers=2, hidden_size=20)
    start = {"starting_weights": [0.5, 1.0, 0.7], "content_size": 20, "neighbour_weight": 0.5}
    start["feedback_weight"] = 0.7
    saved = tiny.checkpoint(tmp_path / "saved", selector=str(bi_encoder), **start)
    documents = [
        {"text": text, "score": float(-i)} for i, text in enumerate(["the car", "bees see light", "", "a sky"])
    ]
    results = run(
        NO_PACKAGE + LOAD, json.dumps([QUERY, documents, str(saved)]), cwd=tmp_path, env=child_environment(tmp_path)
    )
    check(results[str(saved)], CoBertForGroupwiseRanking.from_pretrained(saved).rerank(QUERY, documents))


def child_environment(home: Path) -> dict[str, str]:
    return {**os.environ, "HF_HOME": str(home / "home"), "PYTHONPATH": ""}


def test_hub(saved, hub, tmp_path):
    run(PUSH, str(saved), env=hub.env(tmp_path / "pusher", PYTHONPATH=str(ROOT)), cwd=tmp_path)
    assert {"config.json", "model.safetensors", "tokenizer.json", "modeling_cobert.py"} <= set(
        hub.files("org/cobert-tiny")
    )
    expected = CoBertForGroupwiseRanking.from_pretrained(saved).rerank(QUERY, DOCUMENTS)
    request = json.dumps([QUERY, DOCUMENTS, "org/cobert-tiny"])
    env = hub.env(tmp_path / "reader", PYTHONPATH="")
    found = run(NO_PACKAGE + LOAD, request, env=env, cwd=tmp_path)
    check(found["org/cobert-tiny"], expected)
    asked = len(hub.requests)
    offline = run(NO_PACKAGE + LOAD, request, env={**env, "HF_HUB_OFFLINE": "1"}, cwd=tmp_path)
    check(offline["org/cobert-tiny"], expected)
    assert len(hub.requests) == asked


def test_saving_pushes_everything_in_one_commit(saved, hub, tmp_path):
    """Weights, code and tokenizer go together, so all of the Hub's options hold for all of them."""
    env = hub.env(tmp_path / "pusher", PYTHONPATH=str(ROOT))
    told = run(SAVE_AND_PUSH, str(saved), str(tmp_path / "out"), env=env, cwd=tmp_path)
    files = set(hub.files("org/saved"))
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= files
    assert {path.name for path in saved.glob("*_cobert.py")} <= files
    repo = hub.repo("org/saved")
    assert repo.private and [c.title for c in repo.commits.values()].count("Trained on Sunday") == 1
    assert len(repo.commits) == 2  # the repository's own first one, and ours
    # This Hub has no pull requests: asked for one, it says so, and nothing may have gone past it to the main branch.
    assert "no pull requests" in told["refused"]
    assert hub.files("org/asked").keys() <= {".gitattributes"}


def test_import_needs_torch_and_transformers_only():
    """None of the other packages is imported with the model, nor need it be there."""
    others = [
        "accelerate",
        "datasets",
        "evaluate",
        "ir_measures",
        "ir_datasets",
        "scipy",
        "Stemmer",
        "bm25s",
        "sentence_transformers",
    ]
    block = f"import sys, json\nfor name in {others}:\n    sys.modules[name] = None\n"
    run(block + "import modeling_cobert\nprint(json.dumps({}))", cwd=ROOT)
