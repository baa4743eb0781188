"""The authors' weights: `python data_scripts/convert_original_checkpoint.py --help`, or `cobert convert`."""

from modeling_cobert.cli import run

if __name__ == "__main__":
    run("convert")
