"""What each part gives on a collection: the same as `cobert gains`."""

from modeling_cobert.cli import run

if __name__ == "__main__":
    run("gains")
