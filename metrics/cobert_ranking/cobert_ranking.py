"""An `evaluate` metric for rankings: any measure of ir_measures, in trec_eval's order of documents."""

import datasets
import evaluate

from modeling_cobert.collections.trec import HIGHEST_GRADE
from modeling_cobert.evaluation.measures import DEFAULT_MEASURES, evaluate_run

_DESCRIPTION = """\
Effectiveness of rankings, computed by ir_measures (which asks trec_eval for most measures). One row is one query: its
documents with their scores, and its judged documents with their grades. Documents are ranked by falling score, ties
by falling document id, as trec_eval does. A query without results counts as zero.
"""

_KWARGS_DESCRIPTION = """
Args:
    predictions (`list[dict]`): for each query `query_id`, `doc_ids` and `scores`, the last two of one length. A query
        without results has two empty lists.
    references (`list[dict]`): for each query `query_id`, `doc_ids` and `grades` (whole numbers). Rows are matched
        by `query_id`, not by their order; documents that are not judged count as not relevant.
    measures (`list[str]`, *optional*): names of ir_measures, `["P@20", "nDCG@20", "AP@1000"]` by default.
    per_query (`bool`, *optional*, defaults to `False`): whether to return the values of single queries too.

Returns:
    `dict`: measure to mean; with `per_query=True` also `"per_query"`: measure to query id to value.

Examples:

    >>> import evaluate
    >>> ranking = evaluate.load("metrics/cobert_ranking")
    >>> predictions = [
    ...     {"query_id": "q1", "doc_ids": ["d1", "d2", "d3"], "scores": [0.2, 0.9, 0.5]},
    ...     {"query_id": "q2", "doc_ids": ["d4"], "scores": [1.0]},
    ... ]
    >>> references = [
    ...     {"query_id": "q1", "doc_ids": ["d1", "d3"], "grades": [0, 1]},
    ...     {"query_id": "q2", "doc_ids": ["d4"], "grades": [2]},
    ... ]
    >>> ranking.compute(predictions=predictions, references=references, measures=["RR", "P@1"])
    {'RR': 0.75, 'P@1': 0.5}
"""

_CITATION = """\
@inproceedings{macavaney:ecir2022-irm,
  author = {MacAvaney, Sean and Macdonald, Craig and Ounis, Iadh},
  title = {Streamlining Evaluation with ir-measures},
  booktitle = {ECIR},
  year = {2022}
}
"""


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _KWARGS_DESCRIPTION)
class CoBertRanking(evaluate.Metric):
    """Ranking measures over rows of queries."""

    def _info(self) -> evaluate.MetricInfo:
        ids = datasets.List(datasets.Value("string"))
        scores = datasets.List(datasets.Value("float64"))
        # As integers they would be cut off on the way in: 0.5 would be judged not relevant.
        grades = datasets.List(datasets.Value("float64"))
        query_id = datasets.Value("string")
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_KWARGS_DESCRIPTION,
            features=datasets.Features(
                {
                    "predictions": {"query_id": query_id, "doc_ids": ids, "scores": scores},
                    "references": {"query_id": query_id, "doc_ids": ids, "grades": grades},
                }
            ),
            reference_urls=["https://ir-measur.es"],
        )

    def _compute(self, predictions, references, measures=DEFAULT_MEASURES, per_query=False) -> dict:
        run = _by_query(predictions, "scores", "predictions")
        qrels = {q: _whole_grades(q, grades) for q, grades in _by_query(references, "grades", "references").items()}
        # rows without judgments cannot be evaluated, and rows without results count as zero
        result = evaluate_run(qrels, run, measures)
        return result.means | ({"per_query": result.per_query} if per_query else {})


def _whole_grades(query_id: str, grades: dict[str, float]) -> dict[str, int]:
    for doc_id, grade in grades.items():
        if grade is None or not float(grade).is_integer() or abs(grade) > HIGHEST_GRADE:
            raise ValueError(
                f"references: query {query_id!r}, document {doc_id!r} has the grade {grade}: grades are whole numbers "
                f"of at most {HIGHEST_GRADE}"
            )
    return {doc_id: int(grade) for doc_id, grade in grades.items()}


def _by_query(rows: list[dict], values: str, where: str) -> dict[str, dict]:
    by_query: dict[str, dict] = {}
    for row in rows:
        query_id, doc_ids = row["query_id"], row["doc_ids"]
        if query_id in by_query:
            raise ValueError(f"{where}: query {query_id!r} has two rows; put all its documents in one")
        if len(doc_ids) != len(row[values]):
            raise ValueError(f"{where}: query {query_id!r} has {len(doc_ids)} doc_ids but {len(row[values])} {values}")
        if len(set(doc_ids)) != len(doc_ids):
            raise ValueError(f"{where}: query {query_id!r} has the same document twice")
        by_query[query_id] = dict(zip(doc_ids, row[values], strict=True))
    return by_query
