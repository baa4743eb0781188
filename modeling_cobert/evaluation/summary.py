"""What came out of a preparation, in a few numbers: sizes, the first stage's recall, what is unjudged or truncated."""

from dataclasses import dataclass

from ..data.rows import RowsFolder
from .measures import recall_ceiling


@dataclass(frozen=True)
class Summary:
    """
    What a folder of rows holds. A share is `None` where there was nothing to count it with.

    Args:
        queries, documents, passages (`int`): queries, distinct documents among their candidates, and distinct
            passages of these.
        k, recall: how many candidates a query has at most, and the first stage's recall there: the ceiling; `None`
            without judgments.
        unjudged (`float`): share of candidates that nobody judged (and that count as not relevant).
        truncated (`float` or `None`): share of query-passage pairs that are longer than the selector reads.
        skipped (`dict[str, int]`): what was left out, by kind.
    """

    queries: int
    documents: int
    passages: int
    k: int
    recall: float | None
    unjudged: float
    truncated: float | None
    skipped: dict[str, int]

    def __str__(self) -> str:
        truncated = "not counted (no tokenizer)" if self.truncated is None else f"{self.truncated:.4f}"
        recall = "not measured (no judgments)" if self.recall is None else f"{self.recall:.4f}"
        lines = [
            f"queries            {self.queries}",
            f"documents          {self.documents}",
            f"passages           {self.passages}",
            f"recall@{self.k:<11} {recall}",
            f"share unjudged     {self.unjudged:.4f}",
            f"share truncated    {truncated}",
        ]
        return "\n".join(lines + [f"skipped: {name} {count}" for name, count in self.skipped.items() if count])


def summarise(rows: RowsFolder) -> Summary:
    """The summary of a folder of rows, over its judged queries where judgments are needed."""
    counts, k = rows.settings["counts"], rows.settings["k"]
    truncated = counts["selected_truncated"]
    return Summary(
        queries=counts["queries"],
        documents=counts["selected_documents"],
        passages=counts["selected_passages"],
        k=k,
        recall=recall_ceiling(rows.qrels, rows.run, k) if rows.judged else None,
        unjudged=counts["unjudged"] / counts["pairs"],
        truncated=None if truncated is None else truncated / counts["selected_pair_passages"],
        skipped=counts["skipped"],
    )
