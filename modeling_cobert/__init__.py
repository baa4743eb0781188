# Copyright 2026 The Co-BERT authors.
# SPDX-License-Identifier: Apache-2.0
"""Co-BERT: a groupwise, feedback-calibrated BERT re-ranker."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .configuration_cobert import CoBertConfig
    from .modeling_cobert import CoBertForGroupwiseRanking
    from .outputs_cobert import CoBertRankingOutput, CoBertRecorder
    from .pipeline_cobert import CoBertTextRankingPipeline

__version__ = "0.1.0.dev0"

__all__ = [
    "CoBertConfig",
    "CoBertForGroupwiseRanking",
    "CoBertRankingOutput",
    "CoBertRecorder",
    "CoBertTextRankingPipeline",
]

_FILES = {
    "CoBertConfig": "configuration_cobert",
    "CoBertForGroupwiseRanking": "modeling_cobert",
    "CoBertRankingOutput": "outputs_cobert",
    "CoBertRecorder": "outputs_cobert",
    "CoBertTextRankingPipeline": "pipeline_cobert",
}


def __getattr__(name: str):
    """Public names are read when they are first asked for: the list of commands needs neither torch nor the model."""
    if name not in _FILES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import_module(".registration", __name__)
    return getattr(import_module(f".{_FILES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
