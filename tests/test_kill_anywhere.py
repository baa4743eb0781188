"""A short walk of killed commands (`make kill-anywhere` goes on), and that the comparison sees what it must."""

import json
import os
import subprocess
import sys
from pathlib import Path

import kill_anywhere
import pytest
from killing import ROOT

pytestmark = pytest.mark.skipif(not Path("/proc/self").exists(), reason="changes are watched by Linux's inotify")


def test_killed_commands_go_on_to_the_same_bytes(tmp_path):
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "kill_anywhere.py"), "--kills", "6", "--seed", "5", "--typed", "0"]
        + ["--steps", "prepared", "context", "--without_troubles", "--repeatable"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert ", 0 faults, " in done.stdout and not list(tmp_path.iterdir())


def test_what_is_left_behind_other_or_half_written_is_seen(tmp_path):
    whole, found = tmp_path / "whole", tmp_path / "found"
    for folder in (whole, found):
        (folder / "checkpoint-1").mkdir(parents=True)
        (folder / "a.json").write_text("{}")
        (folder / "trainer_state.json").write_text(
            json.dumps({"step": 1, "log": [{"train_runtime": len(folder.name)}]})
        )
    assert kill_anywhere.differences(kill_anywhere.tree(whole), kill_anywhere.tree(found)) == []
    (found / ".b.json.12345678.tmp").write_text("{")
    (found / "checkpoint-1" / "state.json").write_text("{")
    assert kill_anywhere.half_written(found) == []
    (found / "a.json").write_text("{")
    (found / "trainer_state.json").write_text('{"step": 2, "log": []}')
    (whole / "none").mkdir()
    assert kill_anywhere.half_written(found) == ["half written: a.json"]
    assert kill_anywhere.differences(kill_anywhere.tree(whole), kill_anywhere.tree(found)) == [
        "left behind: .b.json.12345678.tmp",
        "left behind: checkpoint-1/state.json",
        "missing: none",
        "other bytes: a.json",
        "other bytes: trainer_state.json",
    ]
