"""Every table of the paper: the same as `cobert reproduce`."""

from modeling_cobert.cli import run

if __name__ == "__main__":
    run("reproduce")
