"""Rows of many passages a document, for BERT-Base MaxP: the same as `cobert maxp`."""

from modeling_cobert.cli import run

if __name__ == "__main__":
    run("maxp")
