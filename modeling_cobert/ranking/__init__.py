"""One ranking room: the ranker, its inputs, merging, ties, and the guard against seen queries."""
