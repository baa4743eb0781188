"""Standard streams that are closed, full, or of a locale that cannot write everything."""

import os
import shlex
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
import tiny_collection

from modeling_cobert import cli

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": str(ROOT),
    "HF_HUB_OFFLINE": "1",
    "PYTHONUNBUFFERED": "",
}
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def shell(line: str, cwd: Path, **environment) -> subprocess.CompletedProcess:
    """Runs a line of shell in which COBERT is the command."""
    line = line.replace("COBERT", f"{shlex.quote(sys.executable)} -m modeling_cobert.cli", 1)
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {line}"],
        env={**ENVIRONMENT, **environment},
        cwd=cwd,
        capture_output=True,
        timeout=300,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tiny_collection.make(tmp_path_factory.mktemp("collection") / "words")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return tiny.checkpoint(tmp_path_factory.mktemp("models") / "cobert")


@pytest.fixture
def full(tmp_path) -> Path:
    """A device that is always full, as /dev/full is: a node of our own, so that nothing can happen to that one."""
    path = tmp_path / "full"
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 7))
        with open(path, "wb", buffering=0) as file:
            file.write(b"x")
    except PermissionError:
        pytest.skip("making a device needs root")
    except OSError:
        return path
    raise AssertionError("not full")


@pytest.mark.parametrize("command", ["COBERT", "COBERT flops --help"])
def test_nobody_reads(command, tmp_path):
    done = shell(f"{command} | true", tmp_path)
    assert done.returncode in (0, 141) and not done.stderr
    read, write = os.pipe()
    os.close(read)
    try:
        argv = [sys.executable, "-m", *command.replace("COBERT", "modeling_cobert.cli").split()]
        known = subprocess.run(argv, env=ENVIRONMENT, cwd=tmp_path, stdout=write, stderr=subprocess.PIPE, timeout=300)
    finally:
        os.close(write)
    assert (known.returncode, known.stderr) == (141, b"")


@pytest.mark.parametrize("command", ["COBERT", "COBERT flops --format json", "COBERT flops --help"])
def test_a_full_device(command, full, tmp_path):
    done = shell(f"{command} > {full}", tmp_path)
    said = done.stderr.decode()
    assert done.returncode == 1 and said.count("\n") == 1, said
    assert said.startswith("error: [Errno 28] No space left on device: 'standard output': free some space")


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams(closed, folder, tmp_path):
    command = f"COBERT retrieve --collection {folder} --first_stage bm25 --skip_missing --output run.trec"
    assert shell(f"{command} {closed}", tmp_path).returncode == 0
    closed_too = (tmp_path / "run.trec").read_bytes()
    assert shell(command, tmp_path).returncode == 0
    assert (tmp_path / "run.trec").read_bytes() == closed_too
    assert shell(f"COBERT {closed}", tmp_path).returncode == 0


def test_no_documents_from_a_closed_stream(model, tmp_path):
    done = shell(f"COBERT rerank --model {model} --query sky <&-", tmp_path)
    assert (done.returncode, done.stderr) == (1, b"error: <stdin>:1: no documents\n")


# --- locales


def test_a_query_is_the_same_in_every_locale(model, tmp_path):
    (tmp_path / "docs.jsonl").write_text('{"_id": "é", "text": "blue sky"}\n{"_id": "b", "text": "red car señor"}\n')
    command = f"COBERT rerank --model {model} --query 'blue señor' --use_cpu --format trec docs.jsonl"
    here, there = (shell(command, tmp_path, **more) for more in ({"PYTHONUTF8": "1"}, ASCII))
    assert here.returncode == there.returncode == 0, there.stderr
    assert here.stdout == there.stdout and "é".encode() in there.stdout
    text = shell(command.replace("--format trec ", ""), tmp_path, **ASCII)
    assert text.returncode == 0 and rb"\xe9" in text.stdout


def test_arguments_that_are_no_utf8(model, tmp_path):
    for more in ({"PYTHONUTF8": "1"}, ASCII):
        done = shell(rf"COBERT rerank --model {model} --query $'how se\xf1or' --use_cpu", tmp_path, **more)
        assert (done.returncode, done.stdout) == (1, b"") and done.stderr.endswith(b": not UTF-8: write it in UTF-8\n")


def test_a_comparison_in_an_ascii_locale(folder, tmp_path):
    (tmp_path / "é.trec").write_bytes((folder / "run.trec").read_bytes())
    command = f"COBERT compare --collection {folder} --baselines é.trec --runs ñ={folder}/run.trec --html out.html"
    done = shell(command, tmp_path, **ASCII)
    assert done.returncode == 0, done.stderr
    assert rb"\xf1" in done.stdout and "ñ" in (tmp_path / "out.html").read_text(encoding="utf-8")


def test_arguments_are_decoded_once():
    assert cli._as_utf8("how señor") == "how señor"
    escaped = "how señor".encode().decode("ascii", "surrogateescape")
    assert cli._as_utf8(escaped) == "how señor"


def test_a_stream_whose_file_was_exchanged_beneath_it(tmp_path):
    """As test runners and services do it: Python takes it for a file still, where it could seek."""
    code = (
        "import os, sys\n"
        "from modeling_cobert import cli\n"
        "reading, writing = os.pipe()\n"
        "os.dup2(writing, 1)\n"
        "cli.main(['--version'])\n"
        "sys.stdout.flush()\n"
        "sys.stderr.write(os.read(reading, 100).decode())\n"
    )
    with open(tmp_path / "out", "wb") as out:
        done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, stdout=out, stderr=subprocess.PIPE)
    assert done.returncode == 0 and done.stderr.startswith(b"cobert ")
