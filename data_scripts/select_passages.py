"""Chooses the best passage of each candidate: the same as `cobert select`."""

from modeling_cobert.cli import run

if __name__ == "__main__":
    run("select")
