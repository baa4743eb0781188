"""Runs compared: `python data_scripts/compare_runs.py --help`, or `cobert compare`."""

from modeling_cobert.cli import run

if __name__ == "__main__":
    run("compare")
