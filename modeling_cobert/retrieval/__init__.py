"""First stages: analysis, index, BM25, DPH, RM3, KL."""
