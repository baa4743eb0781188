"""First stage: `python data_scripts/retrieve.py --collection demo --output runs/demo.trec`, or `cobert retrieve`."""

from modeling_cobert.cli import run

if __name__ == "__main__":
    run("retrieve")
