"""The dataset card of a folder of rows: where the splits are, what is in a row, counts and exact settings."""

import json
import re
from collections.abc import Mapping

from ..steps.hashing import json_sha256

_SPLIT = re.compile(r"[^/\\\x00-\x1f\x7f]+")


def split_file(split: str) -> str:
    """The name of a split's file, as `datasets` and the Hub expect it; it lies in the folder whatever the split's."""
    if not _SPLIT.fullmatch(split):
        raise ValueError(f"no split can be called {split!r}: it is a part of a file's name")
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
    # taking one folder of rows for another.
    fingerprint = json_sha256({**settings, "counts": counts})[:16]
    texts = _TEXTS if settings.get("keep_texts") else ""
    return _CARD.format(files=files, fingerprint=fingerprint, texts=texts, facts=facts, exact=exact)


_TEXTS = """
Column `texts` has the whole documents, each its title and its text, in the order of `doc_ids`.
"""


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

# Rankings for Co-BERT

One row is a query with its candidates in first-stage order: `doc_ids`, the `passages` that stand for them, their
`ranks` in the first-stage run, the first being 1, its scores and the selector's, and `grades` from the judgments, 0
where nobody judged, or null where the collection has no judgments at all. Groups and prototypes are made of it when it
is read.
{texts}
```python
import datasets

from modeling_cobert.data.rows import load_rows

rows = datasets.load_dataset("this/folder")  # one row a query, by split
folder = load_rows("this/folder")  # also folds, judgments and the first-stage run
```

Beside the rows: `qrels.trec` (all judgments of their queries, where there are some), `folds.json` (where there are
folds; split `fold_i` holds the queries that fold i tests) and `settings.json` (what stands below, for programs).

| count | |
|---|---|
{facts}

Exact settings:

```json
{exact}
```
"""
