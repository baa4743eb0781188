"""Trains, selects and tests a Co-BERT: `accelerate launch train_cobert.py --help`, or `cobert train`."""

from modeling_cobert.cli import run

if __name__ == "__main__":
    run("train")
