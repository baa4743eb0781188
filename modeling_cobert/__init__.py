"""Co-BERT: a groupwise, feedback-calibrated BERT re-ranker."""

__version__ = "0.1.0.dev0"
