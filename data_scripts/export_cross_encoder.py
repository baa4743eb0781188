"""A plain cross-encoder: `python data_scripts/export_cross_encoder.py --help`, or `cobert export`."""

from modeling_cobert.cli import run

if __name__ == "__main__":
    run("export")
