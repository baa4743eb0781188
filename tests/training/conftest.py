"""Tiny folders of rows and the options of trainings on them."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import tiny  # noqa: E402
from tiny_rows import GROUPS, make_rows  # noqa: E402

from modeling_cobert.training.arguments import (  # noqa: E402
    VARIANTS,
    CoBertTrainingArguments,
    DataOptions,
    ModelOptions,
)


@pytest.fixture(scope="session")
def rows(tmp_path_factory) -> Path:
    """Four training queries, one to validate and one to test, without folds."""
    return make_rows(tmp_path_factory.mktemp("rows"))


@pytest.fixture(scope="session")
def folded(tmp_path_factory) -> Path:
    """Six queries in three folds."""
    return make_rows(tmp_path_factory.mktemp("folded"), folds=3)


@pytest.fixture(scope="session")
def encoder(tmp_path_factory) -> Path:
    """A cross-encoder of four layers."""
    return tiny.bert_checkpoint(tmp_path_factory.mktemp("encoder") / "tiny-cross-encoder", layers=4, labels=2)


@pytest.fixture
def arguments(rows, encoder, tmp_path):
    """A function of what differs from a small training of every part, on the CPU, into `tmp_path / "out"`."""

    def make(model=None, data=None, groups=None, **training):
        variant = VARIANTS[(model or {}).get("variant") or "full"]
        layers = {"calibrator": 1, "scorer": 2}
        layers = {f"{part}_layers": n for part, n in layers.items() if variant.get(f"use_{part}", True)}
        chosen = {"encoder": str(encoder), **layers, "max_length": 32}
        options = {
            "output_dir": str(tmp_path / "out"),
            "use_cpu": True,
            "disable_tqdm": True,
            "num_train_epochs": 2,
            "learning_rate": 1e-3,
        }
        return (
            ModelOptions(**(chosen if model is None else chosen | model)),
            DataOptions(**{"rows": str(rows)} | (data or {})),
            replace(GROUPS, **groups or {}),
            CoBertTrainingArguments(**options | training),
        )

    return make
