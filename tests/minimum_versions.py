"""The lowest versions that setup.py allows, as pip wants to be told them; torch, whose builds differ, as it is given.

make minimum-versions            # installs these in a fresh environment and runs the tests that they concern
"""

import argparse
import ast
import sys
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]


def lowest(requirement: str) -> str:
    """`"a>=1.2,<2"` -> `"a==1.2"`; a requirement that has no lower bound promises what nobody has tried."""
    parsed = Requirement(requirement)
    bounds = [bound.version for bound in parsed.specifier if bound.operator in (">=", "==", "~=")]
    if len(bounds) != 1:
        raise ValueError(f"setup.py: {requirement!r} has no lowest version")
    return f"{parsed.name}=={bounds[0]}"


def core_requirements(setup: Path) -> list[str]:
    """What `install_requires` lists, read without running setup.py."""
    for node in ast.parse(setup.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "CORE":
            return ast.literal_eval(node.value)
    raise ValueError(f"{setup}: no list CORE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", help="The version of torch, where its lowest has no build for this machine.")
    args = parser.parse_args()
    lines = [lowest(requirement) for requirement in core_requirements(ROOT / "setup.py")]
    if args.torch:
        lines = [f"torch=={args.torch}" if line.startswith("torch==") else line for line in lines]
    sys.stdout.write("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    main()
