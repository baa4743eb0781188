"""Joins selected passages with judgments and splits: the same as `cobert rows`."""

from modeling_cobert.cli import run

if __name__ == "__main__":
    run("rows")
