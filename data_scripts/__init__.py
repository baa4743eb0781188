"""Command-line scripts from a collection to groups, and tools around checkpoints."""
