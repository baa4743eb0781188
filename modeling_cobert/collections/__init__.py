"""Search collections: TREC and BEIR files, ir_datasets, the embedded one; folds and splits of their queries."""
