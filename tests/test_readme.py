"""README's examples run as written: the Python one beside what `make demo` leaves, and a folder of one's own."""

import re
import subprocess
import sys
from pathlib import Path

import tiny

from modeling_cobert.collections.collection import open_collection

ROOT = Path(__file__).resolve().parents[1]


def test_the_example_runs_as_written(tmp_path):
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    (folder,) = re.findall(r'from_pretrained\("([^"]+)"', example)
    tiny.checkpoint(tmp_path / folder)
    done = subprocess.run([sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = done.stdout.splitlines()
    assert len(lines) == 2 and all(re.match(r"[012] -?\d+\.\d+ \S", line) for line in lines)


def test_the_folder_of_ones_own_is_a_collection(tmp_path):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (lines,) = (block for block in re.findall(r"```bash\n(.*?)```", readme, re.DOTALL) if block.startswith("mkdir"))
    subprocess.run(["sh", "-e", "-c", lines], cwd=tmp_path, check=True)
    mine = open_collection(str(tmp_path / "data/mine"))
    assert mine.queries() == {"q1": "how do bees see colour"} and mine.qrels() == {"q1": {"d1": 1}}
    assert mine.lookup(["d1"])["d1"].full_text == "Bees They see ultraviolet, blue and green light."


def test_every_file_that_the_tree_names_is_there():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    pattern = r"^(?:│? {0,3})*(?:[├└]── )?([\w./-]+\.(?:py|md|svg|json|html|txt|toml))\s"
    named = re.findall(pattern, readme, flags=re.MULTILINE)
    missing = [name for name in named if not list(ROOT.rglob(Path(name).name))]
    assert not missing
