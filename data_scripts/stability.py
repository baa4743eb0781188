"""How stable a model's ranking is: the same as `cobert stability`."""

from modeling_cobert.cli import run

if __name__ == "__main__":
    run("stability")
