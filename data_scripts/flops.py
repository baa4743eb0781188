"""What re-ranking costs: `python data_scripts/flops.py --paper robust04`, or `cobert flops`."""

from modeling_cobert.cli import run

if __name__ == "__main__":
    run("flops")
