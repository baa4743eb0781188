"""The house rules that a machine can check: what shipped files may import, and that imports flow one way."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "modeling_cobert"
HEADER = "# Copyright 2026 The Co-BERT authors.\n# SPDX-License-Identifier: Apache-2.0\n"

# What a shipped file may import beside the standard library: the last two are what transformers itself requires.
ALLOWED = {"torch", "transformers", "huggingface_hub", "tqdm"}

# A room imports from rooms above its own line only, and from itself.
ROOMS = [
    {"shipped"},
    {"registration"},
    {"steps"},
    {"collections"},
    {"retrieval"},
    {"data"},
    {"ranking"},
    {"evaluation"},
    {"cost"},
    {"training", "baselines", "analysis", "integrations"},
    {"reproduction"},
    {"commands", "cli"},
]


def shipped_files() -> list[Path]:
    return [PACKAGE / "__init__.py", *sorted(PACKAGE.glob("*_cobert.py"))]


def imports(path: Path) -> list[ast.Import | ast.ImportFrom]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]


def imported_modules(path: Path) -> list[str]:
    """Full names of what a file of the package imports, relative imports resolved."""
    inside = ("modeling_cobert", *path.relative_to(PACKAGE).parent.parts)
    names = []
    for node in imports(path):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
            continue
        base = ".".join(inside[: len(inside) - node.level + 1]) if node.level else ""
        module = ".".join(part for part in (base, node.module or "") if part)
        # `from . import x` names modules after `import`, every other form before it.
        names += [f"{module}.{alias.name}" for alias in node.names] if node.module is None else [module]
    return names


def room_of(module: str) -> str | None:
    """The room of a module of this package; `None` for other packages."""
    parts = module.split(".")
    if parts[0] != "modeling_cobert":
        return None
    if len(parts) == 1 or parts[1].endswith("_cobert") or parts[1] == "__version__":
        return "shipped"
    return parts[1]


def test_imports_of_shipped_files():
    """transformers copies a model's code by following `from .x import y`, and a user has no other package."""
    names = {path.stem for path in shipped_files()}
    for path in shipped_files():
        for node in imports(path):
            where = f"{path.name}:{node.lineno}"
            if isinstance(node, ast.ImportFrom) and node.level:
                assert node.level == 1 and node.module in names, (
                    f"{where}: only `from .x import y`, of files beside it"
                )
                continue
            modules = [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            for module in modules:
                top = module.split(".")[0]
                assert top in ALLOWED or top in sys.stdlib_module_names, f"{where}: {top} may not be there"


def test_the_package_needs_only_those_packages():
    """What the public names read, beside themselves, can be imported without any other package of ours."""
    code = (
        "import json, sys\n"
        "import torch, transformers, huggingface_hub, tqdm.auto\n"
        "from transformers import AutoModelForSequenceClassification, BertModel, Pipeline, PreTrainedModel\n"
        "before = set(sys.modules)\n"
        "from modeling_cobert import *\n"
        "assert 'modeling_cobert.modeling_cobert' in sys.modules\n"
        "print(json.dumps(sorted({name.split('.')[0] for name in set(sys.modules) - before})))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]
    new = set(json.loads(done.stdout.splitlines()[-1])) - set(sys.stdlib_module_names)
    assert new <= ALLOWED | {"modeling_cobert"}


def test_imports_flow_one_way():
    level = {room: number for number, rooms in enumerate(ROOMS) for room in rooms}
    found = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        place = path.relative_to(PACKAGE)
        own = room_of(".".join(("modeling_cobert", *place.with_suffix("").parts)).removesuffix(".__init__"))
        assert own in level, f"{place}: a room without a place in the order"
        for module in imported_modules(path):
            room = room_of(module)
            if room is not None and room != own and not level[room] < level[own]:
                found.add((place.as_posix(), room))
    assert not found


def test_shipped_files_carry_their_licence():
    for path in shipped_files():
        assert path.read_text(encoding="utf-8").startswith(HEADER), path.name


def test_the_page_about_the_house_is_true():
    """Every file that docs/architecture.md names is there and defines what stands beside it; every room is named."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    hops = re.findall(r"((?:\w+/)?\w+\.py) +([A-Za-z_]\w+)", page)
    assert len(hops) >= 15
    for name, defined in hops:
        path = ROOT / "modeling_cobert" / name
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        assert defined in names, f"{name} does not define {defined}"
    for name in re.findall(r"`((?:\w+/)+\w+\.\w+)`", page):
        assert (ROOT / name).exists() or (ROOT / "modeling_cobert" / name).exists(), name
    rooms = {path.parent.name for path in (ROOT / "modeling_cobert").glob("*/__init__.py")}
    assert {room for room in rooms if f"`{room}/`" not in page} == set()
