"""The benchmarks run as `make bench` types them, here at toy size: what they print, never how long it took."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = {
    "selection": (
        ["--collection", "demo", "--queries", "1", "--k", "2", "--repeat", "1"],
        r"ratio [\d.]+x by",
    ),
    "retrieval": (["--documents", "300", "--k", "20"], r"cobert +"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_benchmark_runs(name, tmp_path):
    pytest.importorskip({"selection": "sentence_transformers", "retrieval": "bm25s"}[name])
    arguments, printed = COMMANDS[name]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), *arguments]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.search(printed, done.stdout), done.stdout
    if name == "selection":
        assert float(re.search(r"largest difference of scores ([\d.e-]+)", done.stdout)[1]) < 1e-4


def test_make_bench_names_scripts_and_options_that_are_there():
    """The recipe as make would run it, without running it."""
    lines = subprocess.run(["make", "-n", "-B", "bench"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    typed = re.findall(r"benchmarks/(\w+)\.py(.*)", lines.replace("\\\n", " "))
    assert {name for name, _ in typed} == {path.stem for path in (ROOT / "benchmarks").glob("*.py")}
    for name, options in typed:
        source = (ROOT / "benchmarks" / f"{name}.py").read_text(encoding="utf-8")
        for option in re.findall(r"--([\w-]+)", options):
            assert f"--{option}" in source or re.search(rf"^    {option}: ", source, flags=re.MULTILINE), option
