"""Interrupted trainings go on as if nothing had happened: same weights to the bit, same run file."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tiny_rows import GROUPS

from modeling_cobert.commands import train as train_command
from modeling_cobert.ranking.seen import COMPLETE
from modeling_cobert.training import trainer as trainer_module
from modeling_cobert.training.arguments import CoBertTrainingArguments, DataOptions, ModelOptions
from modeling_cobert.training.interruption import last_complete_checkpoint
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
    for name in ("checkpoint-9", "checkpoint-10"):
        (tmp_path / name / COMPLETE).write_text("{}")
    assert last_complete_checkpoint(tmp_path) == str(tmp_path / "checkpoint-10")
    assert not (tmp_path / "checkpoint-100").exists() and (tmp_path / "checkpoint-x").exists()
