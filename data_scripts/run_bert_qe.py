"""BERT-QE: the same as `cobert bert-qe`."""

from modeling_cobert.cli import run

if __name__ == "__main__":
    run("bert-qe")
