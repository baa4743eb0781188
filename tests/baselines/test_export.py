"""Exported cross-encoders: what they say of their training, and folders that are whole, or not there."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertForSequenceClassification

from modeling_cobert.baselines.cross_encoder import export_cross_encoder, is_exported
from modeling_cobert.ranking.seen import seen_queries

ROOT = Path(__file__).resolve().parents[2]
POINTWISE = {"use_calibrator": False, "use_scorer": False, "encoder_pooling": "pooler"}


@pytest.fixture
def model(tmp_path) -> Path:
    folder = tiny.checkpoint(tmp_path / "model", **POINTWISE)
    (folder / "settings.json").write_text(json.dumps({"seen": {"words": ["q1", "q2"]}, "counts": {}}))
    return folder


def contents(folder: Path) -> dict[Path, bytes | None]:
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def test_what_the_model_has_seen_goes_with_it(model, tmp_path):
    export_cross_encoder(model, tmp_path / "out")
    assert seen_queries(tmp_path / "out") == {"words": ["q1", "q2"]}
    assert isinstance(
        AutoModelForSequenceClassification.from_pretrained(tmp_path / "out"), BertForSequenceClassification
    )
    assert AutoTokenizer.from_pretrained(tmp_path / "out")("bees")["input_ids"]
    assert str(tmp_path) not in (tmp_path / "out" / "settings.json").read_text()
    assert not (tmp_path / "out" / ".lock").exists()


def test_nothing_beside_the_new_folder_is_touched(model, tmp_path):
    (tmp_path / ".out.tmp").mkdir()
    (tmp_path / ".out.tmp" / "notes").write_text("mine")
    (tmp_path / ".other.tmp").write_text("mine")
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    before = contents(tmp_path)
    for name in ("out", "other", "link"):
        export_cross_encoder(model, tmp_path / name)
        assert is_exported(tmp_path / name)
    assert (tmp_path / "link").is_symlink() and (tmp_path / "empty" / "model.safetensors").exists()
    after = contents(tmp_path)
    assert all(after[path] == content for path, content in before.items())
    new = {"empty", "link", "other", "out"}
    assert {path.relative_to(tmp_path).parts[0] for path in after.keys() - before.keys()} <= new


def test_what_is_no_new_folder_is_refused(model, tmp_path, refuse):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes").write_text("mine")
    (tmp_path / "nowhere").symlink_to("not-there")
    before = contents(tmp_path)
    for name, message in (
        ("file", "there is something already, a file: give a new folder"),
        ("full", "there is something already: give a new folder"),
        ("full/..", "there is something already: give a new folder"),
        ("nowhere", "a link that leads nowhere: give a new folder"),
    ):
        output = f"{tmp_path}/{name}"
        assert f"--output {output}: {message}" in refuse("export", "--model", model, "--output", output)
    assert contents(tmp_path) == before


def test_a_full_disk_leaves_nothing(model, tmp_path, monkeypatch):
    def full(self, folder, **kwargs):
        Path(folder).mkdir(exist_ok=True)
        (Path(folder) / "model.safetensors").write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = contents(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(BertForSequenceClassification, "save_pretrained", full)
        with pytest.raises(OSError, match="No space left on device: '.*out'"):
            export_cross_encoder(model, tmp_path / "deep" / "out")
    assert contents(tmp_path) == before


KILLED = """
import os, signal, sys
from modeling_cobert.baselines import cross_encoder

cross_encoder.write_settings = lambda *args: os.kill(os.getpid(), signal.SIGKILL)
cross_encoder.export_cross_encoder(*sys.argv[1:])
"""


def test_a_killed_export_is_gone_on_with(model, tmp_path):
    """And it is not taken for a whole one, whatever was there when it was killed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", KILLED, str(model), str(tmp_path / "out")]
    assert subprocess.run(command, env=environment, capture_output=True).returncode == -9
    assert (tmp_path / "out").exists() and not is_exported(tmp_path / "out")
    export_cross_encoder(model, tmp_path / "out")
    assert is_exported(tmp_path / "out") and seen_queries(tmp_path / "out")


HOLDER = """
import sys, time
from modeling_cobert.steps.folders import claim_folder

claim_folder(sys.argv[1], {"step": "export"})
print("claimed", flush=True)
time.sleep(600)
"""


def test_of_two_at_once_the_second_is_refused_before_it_works(model, tmp_path, refuse):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "out")]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as first:
        try:
            assert first.stdout.readline() == "claimed\n"
            said = refuse("export", "--model", "a model that is not even read", "--output", tmp_path / "out")
            assert f"out: process {first.pid} on " in said and "works in it: wait until it is done" in said
        finally:
            first.kill()


def test_a_folder_of_an_earlier_version_is_whole(model, tmp_path):
    export_cross_encoder(model, tmp_path / "out")
    (tmp_path / "out" / "settings.json").unlink()
    assert is_exported(tmp_path / "out") and not is_exported(tmp_path / "none")
