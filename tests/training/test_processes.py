"""Two real processes on a CPU: the same training as one with twice the accumulation."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
import torch
from safetensors.torch import load_file

from modeling_cobert.collections.trec import write_run
from modeling_cobert.commands import train as train_command
from modeling_cobert.data.rows import load_rows
from modeling_cobert.ranking.seen import COMPLETE
from modeling_cobert.training.arguments import TeacherOptions

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
# Each ends with the option that takes the port.
LAUNCHERS = {
    "torchrun": [str(BIN / "torchrun"), "--nproc_per_node", "2", "--master_port"],
    "accelerate": [
        *(str(BIN / "accelerate"), "launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1"),
        *("--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port"),
    ],
}


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


# The script, but its second process alone receives SIGTERM, in the middle of the second epoch.
TERMINATED = """
import os, signal
from modeling_cobert.cli import run
from modeling_cobert.training.trainer import GroupTrainer

step = GroupTrainer.training_step

def terminated(self, *args):
    if self.state.global_step == 5 and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGTERM)
    return step(self, *args)

GroupTrainer.training_step = terminated
run("train")
"""


@pytest.mark.parametrize(
    ("launcher", "options", "interrupt", "taught"),
    [
        ("torchrun", {"encoder_chunk_size": 3, "num_train_epochs": 2}, True, False),
        ("accelerate", {"freeze_encoder": True, "num_train_epochs": 1}, False, True),
    ],
)
def test_two_processes_equal_one_with_accumulation(launcher, options, interrupt, taught, arguments, rows, tmp_path):
    encoder = tiny.bert_checkpoint(
        tmp_path / "encoder", layers=4, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    options = {"optim": "sgd", "learning_rate": 0.01, **options}
    two, one = tmp_path / "two", tmp_path / "one"
    command = ["--rows", rows, "--encoder", encoder, "--calibrator_layers", 1, "--scorer_layers", 2]
    command += ["--num_prototypes", 2, "--group_size", 5, "--group_overlap", 1]
    command += ["--max_length", 32, "--output_dir", two, "--use_cpu", "True", "--disable_tqdm", "True"]
    teacher = None
    if taught:  # the first stage teaches, upside down
        run = load_rows(rows).run
        write_run(tmp_path / "run.trec", {q: {d: -s for d, s in scores.items()} for q, scores in run.items()}, "down")
        teacher = TeacherOptions(str(tmp_path / "run.trec"), teacher_weight=0.75)
        command += ["--teacher", teacher.teacher, "--teacher_weight", teacher.weight]
    for name, value in options.items():
        command += [f"--{name}", value]

    def launch(script):
        return subprocess.run(
            [*LAUNCHERS[launcher], free_port(), str(script), *map(str, command)],
            env={**os.environ, "PYTHONPATH": str(ROOT), "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )

    if interrupt:
        (tmp_path / "terminated.py").write_text(TERMINATED)
        stopped = launch(tmp_path / "terminated.py")
        assert stopped.returncode != 0 and "step 6 is saved" in stopped.stderr, stopped.stderr[-3000:]
        assert (two / "checkpoint-6" / COMPLETE).exists() and not (two / "test.trec").exists()
    done = launch(ROOT / "train_cobert.py")
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("| test, full |") == 1, "not printed exactly once"
    train_command.main(
        *arguments(model={"encoder": str(encoder)}, output_dir=str(one), gradient_accumulation_steps=2, **options),
        teacher,
    )
    # The settings say how many groups one step of all processes took: two, of one each.
    assert json.loads((two / "settings.json").read_text()) == json.loads((one / "settings.json").read_text()) | {
        "counts": json.loads((two / "results.json").read_text())
    }
    first, second = load_file(one / "model.safetensors"), load_file(two / "model.safetensors")
    for name, value in first.items():
        torch.testing.assert_close(second[name], value, atol=1e-5, rtol=0, msg=name)
    results = [json.loads((folder / "results.json").read_text()) for folder in (one, two)]
    assert results[1]["validation"] == pytest.approx(results[0]["validation"])
    assert results[1]["test"] == pytest.approx(results[0]["test"])
