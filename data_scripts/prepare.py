"""From a collection to rows: the same as `cobert prepare`."""

from modeling_cobert.cli import run

if __name__ == "__main__":
    run("prepare")
