"""Explains the ranking of single queries: the same as `cobert explain`."""

from modeling_cobert.cli import run

if __name__ == "__main__":
    run("explain")
