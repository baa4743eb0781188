"""The systems that the paper compares Co-BERT with."""
