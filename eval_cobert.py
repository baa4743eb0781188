"""Re-ranks a query set with a Co-BERT and measures it: the same as `cobert eval`."""

from modeling_cobert.cli import run

if __name__ == "__main__":
    run("eval")
