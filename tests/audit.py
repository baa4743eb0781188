"""Known vulnerabilities of what is installed beside a Co-BERT, by pip-audit; no answer is never taken for a good one.

make audit
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path


def told(report: dict) -> tuple[list[str], bool]:
    """A line for each finding and each package that nobody could say anything of, and whether all is well."""
    packages = report.get("dependencies", [])
    asked = [package for package in packages if "vulns" in package]
    lines = []
    for package in packages:
        for found in package.get("vulns", []):
            cure = ", ".join(found.get("fix_versions", [])) or "nothing"
            lines.append(f"{package['name']} {package['version']}: {found['id']}, mended by {cure}")
        if "vulns" not in package:
            lines.append(f"{package['name']}: NOT AUDITED ({package.get('skip_reason', 'no reason told')})")
    count = sum(len(package["vulns"]) for package in asked)
    lines.append(f"{len(asked)} of {len(packages)} packages audited, {count} known vulnerabilities")
    return lines, bool(asked) and not count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pip_audit", required=True, help="The program, installed beside nothing that is audited.")
    parser.add_argument("--packages", required=True, help="The folder of packages to audit.")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        command = [args.pip_audit, "--path", args.packages, "--skip-editable", "--progress-spinner", "off"]
        done = subprocess.run(
            [*command, "--format", "json", "--output", str(report)], capture_output=True, text=True, errors="replace"
        )
        try:
            content = json.loads(report.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            reason = " ".join((done.stderr.strip().splitlines() or ["it said nothing"])[-1].split())[:300]
            print(f"NOTHING WAS AUDITED: the service of known vulnerabilities did not answer ({reason})")
            sys.exit(2)
    lines, well = told(content)
    print("\n".join(lines))
    sys.exit(not well)


if __name__ == "__main__":
    main()
