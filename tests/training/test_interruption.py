"""Interrupted trainings go on as if nothing had happened: same weights to the bit, same run file."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file
from tiny_rows import GROUPS

from modeling_cobert.commands import train as train_command
from modeling_cobert.ranking.seen import COMPLETE
from modeling_cobert.training import interruption
from modeling_cobert.training import trainer as trainer_module
from modeling_cobert.training.arguments import CoBertTrainingArguments, DataOptions, ModelOptions
from modeling_cobert.training.interruption import last_complete_checkpoint, remove_older
from modeling_cobert.training.train import SplitTraining
from modeling_cobert.training.trainer import GroupTrainer

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def options():
    return {"num_train_epochs": 3, "learning_rate": 2e-3, "save_total_limit": 1}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, rows, encoder, options):
    """What all others must arrive at."""
    output = tmp_path_factory.mktemp("uninterrupted") / "out"
    train_command.main(
        ModelOptions(encoder=str(encoder), calibrator_layers=1, scorer_layers=2, max_length=32),
        DataOptions(rows=str(rows)),
        GROUPS,
        CoBertTrainingArguments(output_dir=str(output), use_cpu=True, disable_tqdm=True, **options),
    )
    return output


def assert_same(one: Path, other: Path):
    first, second = load_file(one / "model.safetensors"), load_file(other / "model.safetensors")
    assert first.keys() == second.keys()
    assert [name for name in first if not first[name].equal(second[name])] == []
    for name in ("validation.trec", "test.trec", "results.json"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


@pytest.mark.parametrize("at", [3, 7, 8, 21])
def test_sigterm_saves_and_the_same_command_goes_on(arguments, options, uninterrupted, tmp_path, monkeypatch, at):
    """In the middle of an epoch, at its last step (the validation must not be lost), at the first of the next."""
    step = GroupTrainer.training_step

    def terminated(self, *args):
        if self.state.global_step == at:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, *args)

    before = signal.getsignal(signal.SIGTERM)
    with monkeypatch.context() as patch:
        patch.setattr(GroupTrainer, "training_step", terminated)
        with pytest.raises(SystemExit) as stopped:
            train_command.main(*arguments(**options))
    assert stopped.value.code == 143
    assert signal.getsignal(signal.SIGTERM) == before
    assert last_complete_checkpoint(tmp_path / "out").endswith(f"checkpoint-{at + 1}")
    train_command.main(*arguments(**options))
    assert_same(uninterrupted, tmp_path / "out")


KILLED = """
import os, signal, sys
from modeling_cobert.cli import run
from modeling_cobert.training import trainer

mark = trainer.mark_complete

def killed(checkpoint, content):
    if checkpoint.endswith("checkpoint-16"):
        os.truncate(os.path.join(checkpoint, "optimizer.pt"), 100)  # as if the write had not come to its end
        os.kill(os.getpid(), signal.SIGKILL)
    mark(checkpoint, content)

trainer.mark_complete = killed
run("train")
"""


def test_kill_9_while_a_checkpoint_is_written(arguments, options, uninterrupted, rows, encoder, tmp_path):
    """What is half there is thrown away, and the checkpoint before it is still there although only one is kept."""
    output = tmp_path / "out"
    command = ["--rows", rows, "--encoder", encoder, "--calibrator_layers", 1, "--scorer_layers", 2]
    command += ["--num_prototypes", 2, "--group_size", 5, "--group_overlap", 1]
    command += ["--max_length", 32, "--output_dir", output, "--use_cpu", "True", "--disable_tqdm", "True"]
    for name, value in options.items():
        command += [f"--{name}", value]
    done = subprocess.run(
        [sys.executable, "-c", KILLED, *map(str, command)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert (output / "checkpoint-16").is_dir() and not (output / "checkpoint-16" / COMPLETE).exists()
    train_command.main(*arguments(**options))
    assert_same(uninterrupted, output)


def test_killed_after_training_before_the_test(arguments, options, uninterrupted, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(SplitTraining, "_test", lambda *a: (_ for _ in ()).throw(MemoryError))
        with pytest.raises(MemoryError):
            train_command.main(*arguments(**options))
    monkeypatch.setattr(GroupTrainer, "training_step", lambda *a: pytest.fail("trained again"))
    train_command.main(*arguments(**options))
    assert_same(uninterrupted, tmp_path / "out")


@pytest.mark.parametrize(
    "name", ["optimizer.pt", "scheduler.pt", "rng_state.pth", "model.safetensors", "trainer_state.json", "config.json"]
)
@pytest.mark.parametrize("how", ["lost", "cut"])
def test_a_damaged_checkpoint_is_no_checkpoint(
    arguments, options, uninterrupted, tmp_path, monkeypatch, caplog, name, how
):
    """Without its optimizer, say, another model would be trained."""
    options = options | {"save_total_limit": 3, "load_best_model_at_end": True}
    with monkeypatch.context() as patch:
        patch.setattr(SplitTraining, "_test", lambda *a: (_ for _ in ()).throw(MemoryError))
        with pytest.raises(MemoryError):
            train_command.main(*arguments(**options))
    path = tmp_path / "out" / "checkpoint-24" / name
    if how == "lost":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    if how == "cut" and name == "trainer_state.json":
        with pytest.raises(ValueError, match="checkpoint-24/trainer_state.json: damaged .*: remove that folder, and"):
            train_command.main(*arguments(**options))
        shutil.rmtree(path.parent)
    train_command.main(*arguments(**options))
    fault = "missing" if how == "lost" else "not as it was written"
    assert (
        not path.parent.is_dir()
        or f"checkpoint-24 is damaged, {name} is {fault}: it is removed" in caplog.text
        or (name == "trainer_state.json")
    )
    assert_same(uninterrupted, tmp_path / "out")


@pytest.mark.parametrize(
    "name", ["optimizer.pt", "scheduler.pt", "rng_state.pth", "model.safetensors", "trainer_state.json", "config.json"]
)
def test_damage_in_a_checkpoint_without_a_list_names_the_checkpoint(arguments, options, tmp_path, monkeypatch, name):
    with monkeypatch.context() as patch:
        patch.setattr(SplitTraining, "_test", lambda *a: (_ for _ in ()).throw(MemoryError))
        with pytest.raises(MemoryError):
            train_command.main(*arguments(**options | {"save_total_limit": 3}))
    shutil.rmtree(tmp_path / "out" / "checkpoint-24")  # so that there are steps to go
    checkpoint = tmp_path / "out" / "checkpoint-16"
    note = json.loads((checkpoint / COMPLETE).read_text())
    del note["made"]
    (checkpoint / COMPLETE).write_text(json.dumps(note))
    path = checkpoint / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(ValueError, match="checkpoint-16.*: remove that folder, and the training goes on from"):
        train_command.main(*arguments(**options | {"save_total_limit": 3}))


def test_a_checkpoint_that_is_named_must_be_whole_and_so_must_the_best_one(arguments, options, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(SplitTraining, "_test", lambda *a: (_ for _ in ()).throw(MemoryError))
        with pytest.raises(MemoryError):
            train_command.main(*arguments(**options))
    last, best = tmp_path / "out" / "checkpoint-24", tmp_path / "out" / "checkpoint-16"
    state = json.loads((last / "trainer_state.json").read_text())
    best = Path(state["best_model_checkpoint"])
    assert best.name != last.name, "the test wants a best one that is not the last"
    shutil.rmtree(best)
    with pytest.raises(ValueError, match=f"the best one before it, .*{best.name}, is not there any more: remove"):
        train_command.main(*arguments(**options))
    (last / "optimizer.pt").unlink()
    with pytest.raises(ValueError, match="checkpoint-24 is damaged, optimizer.pt is missing: remove that folder"):
        train_command.main(*arguments(**options, resume_from_checkpoint=str(last)))


def test_without_optimizers_it_starts_over(arguments, options, uninterrupted, tmp_path, monkeypatch):
    """Going on with a fresh optimizer and schedule would be another training."""
    with monkeypatch.context() as patch:
        patch.setattr(SplitTraining, "_test", lambda *a: (_ for _ in ()).throw(MemoryError))
        with pytest.raises(MemoryError):
            train_command.main(*arguments(**options, save_only_model=True))
    train_command.main(*arguments(**options, save_only_model=True))
    assert_same(uninterrupted, tmp_path / "out")


def test_older_checkpoints_go_only_when_the_new_one_is_whole(arguments, options, tmp_path, monkeypatch):
    there = []

    def look(checkpoint, content):
        there.append(sorted(path.name for path in (tmp_path / "out").glob("checkpoint-*")))
        mark(checkpoint, content)

    mark = trainer_module.mark_complete
    monkeypatch.setattr(trainer_module, "mark_complete", look)
    train_command.main(*arguments(**options | {"num_train_epochs": 2}))
    assert there == [["checkpoint-8"], ["checkpoint-16", "checkpoint-8"]]


def test_last_complete_checkpoint(tmp_path):
    assert last_complete_checkpoint(tmp_path) is None
    for name in ("checkpoint-9", "checkpoint-10", "checkpoint-100", "checkpoint-x"):
        (tmp_path / name).mkdir()
    (tmp_path / "checkpoint-8").mkdir()  # its removal was interrupted
    for name in ("checkpoint-9", "checkpoint-10"):
        (tmp_path / name / COMPLETE).write_text("{}")
    assert last_complete_checkpoint(tmp_path) == str(tmp_path / "checkpoint-10")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-10", "checkpoint-9", "checkpoint-x"]


@pytest.mark.parametrize(
    ("limit", "best", "kept"),
    [
        (None, None, {2, 4, 10, 12}),
        (1, None, {10}),
        (1, "elsewhere/checkpoint-4", {4, 10}),
        (2, "elsewhere/checkpoint-4", {4, 10}),
        (3, "elsewhere/checkpoint-10", {2, 4, 10}),
        (2, None, {4, 10}),
    ],
)
def test_older_checkpoints_are_known_by_their_steps_and_not_by_a_clock(tmp_path, limit, best, kept):
    for age, step in enumerate((10, 4, 12, 2)):  # the newest, 10, seems to be the oldest; 12 is of an earlier training
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        (folder / COMPLETE).write_text("{}")
        os.utime(folder, (10**9 + age, 10**9 + age))
    remove_older(tmp_path / "checkpoint-10", limit, best)
    assert {path.name for path in tmp_path.iterdir()} == {f"checkpoint-{step}" for step in kept}


def test_a_removal_that_is_killed_leaves_no_whole_checkpoint(tmp_path, monkeypatch):
    for step in (4, 8):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / COMPLETE).write_text("{}")
    with monkeypatch.context() as patch:
        patch.setattr(interruption.shutil, "rmtree", lambda path: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            remove_older(tmp_path / "checkpoint-8", 1, None)
    assert last_complete_checkpoint(tmp_path).endswith("checkpoint-8")
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-8"]


def test_moved_after_a_kill_it_still_finds_the_best_epoch(arguments, options, uninterrupted, tmp_path, monkeypatch):
    """The best checkpoint was saved under another path."""
    with monkeypatch.context() as patch:
        patch.setattr(SplitTraining, "_test", lambda *a: (_ for _ in ()).throw(MemoryError))
        with pytest.raises(MemoryError):
            train_command.main(*arguments(**options))
    (tmp_path / "out").rename(tmp_path / "moved")
    train_command.main(*arguments(**options | {"output_dir": str(tmp_path / "moved")}))
    assert json.loads((uninterrupted / "results.json").read_text())["step"] < 24, "the last step was the best anyway"
    assert_same(uninterrupted, tmp_path / "moved")


def change_grade(path: Path) -> None:
    lines = path.read_text().splitlines(keepends=True)
    lines[0] = lines[0].replace(" 0\n", " 1\n") if lines[0].endswith(" 0\n") else lines[0].replace(" 1\n", " 0\n")
    path.write_text("".join(lines))


def change_text(path: Path) -> None:
    table = pq.read_table(path)
    rows = table.to_pylist()
    rows[0]["passages"][0] = "another text"
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)


def change_case(path: Path) -> None:
    path.write_text(path.read_text().replace('"lowercase": true', '"lowercase": false'))


@pytest.mark.parametrize(
    ("file", "change", "named"),
    [
        ("rows/qrels.trec", change_grade, "rows.qrels.trec"),
        ("rows/data/train-00000-of-00001.parquet", change_text, "rows.train"),
        ("encoder/tokenizer.json", change_case, "encoder.tokenizer.json"),
    ],
)
def test_inputs_that_change_after_a_kill_are_refused(
    arguments, rows, encoder, tmp_path, monkeypatch, file, change, named
):
    """Half of an epoch on other texts, grades or tokens than the rest would be no training that anybody asked for."""
    shutil.copytree(rows, tmp_path / "rows")
    shutil.copytree(encoder, tmp_path / "encoder")
    made = arguments(
        model={"encoder": str(tmp_path / "encoder")}, data={"rows": str(tmp_path / "rows")}, num_train_epochs=1
    )
    with monkeypatch.context() as patch:
        patch.setattr(SplitTraining, "_test", lambda *a: (_ for _ in ()).throw(MemoryError))
        with pytest.raises(MemoryError):
            train_command.main(*made)
    before = (tmp_path / file).read_bytes()
    change(tmp_path / file)
    assert (tmp_path / file).read_bytes() != before
    with pytest.raises(ValueError, match=rf"settings.json: begun with other settings: files_sha256.{named} is"):
        train_command.main(*made)
