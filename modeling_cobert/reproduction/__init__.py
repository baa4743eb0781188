"""The paper's tables, from a collection and checkpoints: rows, shared work, estimates, published figures."""
