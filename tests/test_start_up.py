"""What a command needs before it does anything: the list of commands nothing, an interruption a line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tiny

ROOT = Path(__file__).resolve().parents[1]
HEAVY = ("torch", "transformers", "datasets", "numpy")


def run(code: str, *arguments) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


@pytest.mark.parametrize("argv", [[], ["--help"], ["--version"], ["trian"], ["train", "--help"], ["rerank", "-h"]])
def test_help_needs_no_library(argv):
    code = f"""
import json, sys
from modeling_cobert import cli
try:
    cli.main({argv})
except SystemExit as end:
    assert end.code == (2 if "trian" in {argv} else 0)
print(json.dumps(sorted(set({HEAVY}) & set(sys.modules))))
"""
    done = run(code)
    assert done.returncode == 0 and json.loads(done.stdout.splitlines()[-1]) == [], done.stderr


def test_public_names_are_there_and_no_others():
    code = """
import modeling_cobert
assert set(modeling_cobert.__all__) <= set(dir(modeling_cobert))
for name in modeling_cobert.__all__:
    assert getattr(modeling_cobert, name).__name__ == name
try:
    modeling_cobert.CoBert
except AttributeError as error:
    print(error)
"""
    assert run(code).stdout == "module 'modeling_cobert' has no attribute 'CoBert'\n"


def test_auto_classes_know_it_with_the_first_public_name(tmp_path):
    code = """
import sys
from modeling_cobert import CoBertConfig
from transformers import AutoModel
print(type(AutoModel.from_pretrained(sys.argv[1])).__module__)
"""
    tiny.checkpoint(tmp_path / "model")
    assert run(code, tmp_path / "model").stdout == "modeling_cobert.modeling_cobert\n"


def test_what_is_saved_without_a_public_name_brings_its_code(tmp_path):
    """Whoever reaches into the package gets whole checkpoints too."""
    code = """
import sys
from modeling_cobert.ranking.loading import load_cobert
load_cobert(sys.argv[1]).save_pretrained(sys.argv[2])
"""
    tiny.checkpoint(tmp_path / "model")
    done = run(code, tmp_path / "model", tmp_path / "again")
    assert done.returncode == 0, done.stderr
    saved = json.loads((tmp_path / "again" / "config.json").read_text())
    assert saved["auto_map"] == {
        "AutoConfig": "configuration_cobert.CoBertConfig",
        "AutoModel": "modeling_cobert.CoBertForGroupwiseRanking",
    }
    assert (tmp_path / "again" / "modeling_cobert.py").exists()


def test_an_interruption_while_libraries_are_read_is_a_line():
    code = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
from importlib.abc import MetaPathFinder
from modeling_cobert import cli

class Interrupting(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "torch":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
cli.main(["train", "--help-all"])
"""
    done = run(code)
    assert done.returncode == 130
    assert done.stderr == "interrupted: the same command goes on from what is finished\n"
