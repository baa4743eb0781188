"""Mixtures of first stage, selector and runs: the same as `cobert mix`."""

from modeling_cobert.cli import run

if __name__ == "__main__":
    run("mix")
