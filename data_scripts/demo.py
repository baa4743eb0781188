"""The whole way on a laptop's CPU: the same as `cobert demo`."""

from modeling_cobert.cli import run

if __name__ == "__main__":
    run("demo")
