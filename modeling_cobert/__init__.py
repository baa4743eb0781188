# Copyright 2026 The Co-BERT authors.
# SPDX-License-Identifier: Apache-2.0
"""Co-BERT: a groupwise, feedback-calibrated BERT re-ranker."""

from transformers import AutoConfig, AutoModel

from .configuration_cobert import CoBertConfig
from .modeling_cobert import CoBertForGroupwiseRanking
from .outputs_cobert import CoBertRankingOutput, CoBertRecorder
from .pipeline_cobert import CoBertTextRankingPipeline

__version__ = "0.1.0.dev0"

# Checkpoints carry the code, so AutoModel.from_pretrained(..., trust_remote_code=True) works without this package;
# where the package is installed, AutoModel needs no remote code.
CoBertConfig.register_for_auto_class()
CoBertForGroupwiseRanking.register_for_auto_class("AutoModel")
AutoConfig.register("cobert", CoBertConfig)
AutoModel.register(CoBertConfig, CoBertForGroupwiseRanking)

__all__ = [
    "CoBertConfig",
    "CoBertForGroupwiseRanking",
    "CoBertRankingOutput",
    "CoBertRecorder",
    "CoBertTextRankingPipeline",
]
