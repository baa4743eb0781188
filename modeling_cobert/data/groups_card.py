"""The dataset card of a folder of groups: where the splits are, what is in a row, counts and exact settings."""

import json
from collections.abc import Mapping

from ..steps.folders import json_sha256


def split_file(split: str) -> str:
    """The name of a split's file, as `datasets` and the Hub expect it."""
    return f"data/{split}-00000-of-00001.parquet"


def dataset_card(settings: Mapping, counts: Mapping) -> str:
    """The text of README.md; `settings` and `counts` are those of `settings.json`."""
    files = "\n".join(f"  - split: {split}\n    path: {split_file(split)}" for split in settings["splits"])
    rows = [(name, count) for name, count in counts.items() if not isinstance(count, Mapping)]
    rows += [(f"skipped {name}", count) for name, count in counts["skipped"].items()]
    facts = "\n".join(
        f"| {name.replace('_', ' ')} | {'not counted' if count is None else count} |" for name, count in rows
    )
    exact = json.dumps({key: value for key, value in settings.items() if key != "step"}, indent=1)
    # A path may hold anything: nothing in it may end the block of code.
    exact = exact.replace("`", "\\u0060")
    # `datasets` caches a folder by its name and its configs' fields, not by its files: the fingerprint keeps it from
    # taking one folder of groups for another.
    fingerprint = json_sha256({**settings, "counts": counts})[:16]
    return _CARD.format(files=files, fingerprint=fingerprint, facts=facts, exact=exact, m=settings["num_prototypes"])


_CARD = """---
configs:
- config_name: default
  data_files:
{files}
  description: made of {fingerprint}
task_categories:
- text-ranking
tags:
- co-bert
- information-retrieval
- reranking
---

# Groups for Co-BERT

One row is a group: candidates that neighbour each other in a first-stage ranking, each with the passage that stands
for it, and the query's prototypes (feedback documents, {m} at most). `*_ranks` are places in the first-stage run, the
first being 1; `*_scores` are the selector's; `*_grades` come from the judgments, 0 where nobody judged.

```python
import datasets

from modeling_cobert.data.groups import load_groups

groups = datasets.load_dataset("this/folder")  # one row a group, by split
folder = load_groups("this/folder")  # also folds, judgments and the first-stage run
```

Beside the groups: `run.trec` (the first stage that was grouped), `qrels.trec` (all judgments of its queries),
`folds.json` (where there are folds; split `fold_i` holds the queries that fold i tests) and `settings.json` (what
stands below, for programs).

| count | |
|---|---|
{facts}

Exact settings:

```json
{exact}
```
"""
