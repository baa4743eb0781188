"""A teacher: a TREC run whose scores of the training queries' candidates are learnt from."""

import logging
from collections.abc import Mapping
from pathlib import Path

from ..collections.judgments import such_as
from ..collections.trec import read_run, read_tag
from ..steps.hashing import file_sha256
from .arguments import TeacherOptions
from .initial import in_fold

logger = logging.getLogger(__name__)

# Far beyond any ranker's, and their squares are numbers still.
MOST_SCORE = 1e9


def teacher_path(options: TeacherOptions, fold: int | None = None) -> str:
    """The run's file, which is there."""
    path = in_fold(options.teacher or "", fold)
    if not Path(path).is_file():
        raise FileNotFoundError(f"--teacher {path}: no such file: name a TREC run of the training queries")
    return path


def teacher_settings(options: TeacherOptions, fold: int | None = None) -> dict:
    """What of a teacher the trained weights depend on, without where its run lies."""
    path = teacher_path(options, fold)
    return {
        "tag": read_tag(path),
        "loss": options.loss,
        "weight": options.weight,
        "temperature": options.temperature,
        "sha256": file_sha256(path),
    }


def read_teacher(
    options: TeacherOptions, candidates: Mapping[str, set[str]], fold: int | None = None
) -> dict[str, dict[str, float]]:
    """
    The teacher's scores of the candidates; nothing else of the run is kept.

    A run without any of the queries, or without any candidate of a query that it has, is another's and an error.
    Single queries and candidates without a score are counted in one warning: nothing is learnt from them here.

    Args:
        options ([`TeacherOptions`]): the run.
        candidates (`Mapping[str, set[str]]`): the training queries, each with its documents.
        fold (`int`, *optional*): what `{fold}` stands for in the path.
    """
    path = teacher_path(options, fold)
    run = read_run(path)
    absent = [query_id for query_id in candidates if query_id not in run]
    if len(absent) == len(candidates):
        raise ValueError(
            f"--teacher {path}: it has none of the {len(absent)} training queries{such_as(absent)}: give a run of "
            "these rows' queries"
        )
    scores = {
        query_id: {doc_id: score for doc_id, score in run[query_id].items() if doc_id in documents}
        for query_id, documents in candidates.items()
        if query_id in run
    }
    foreign = [query_id for query_id, found in scores.items() if not found]
    if foreign:
        raise ValueError(
            f"--teacher {path}: it has none of the candidates of {len(foreign)} training queries{such_as(foreign)}: "
            "let the teacher score the documents of these rows, or take these queries out of its run"
        )
    _check_range(path, scores, options.temperature)
    if max(map(len, scores.values())) < 2:
        raise ValueError(
            f"--teacher {path}: it has one candidate of each training query{such_as(list(scores))}, and teaches how "
            "candidates compare: let it score more of them"
        )
    missing = sum(len(candidates[query_id]) - len(found) for query_id, found in scores.items())
    if absent or missing:
        logger.warning(
            "--teacher %s: %d of %d training queries%s and %d candidates of the others have no score: it does not "
            "teach them",
            *(path, len(absent), len(candidates), such_as(absent), missing),
        )
    return scores


def _check_range(path: str, scores: Mapping[str, Mapping[str, float]], temperature: float) -> None:
    for query_id, found in scores.items():
        for doc_id, score in found.items():
            if abs(score / temperature) > MOST_SCORE:
                by = f" divided by --teacher_temperature {temperature:g}" if temperature != 1 else ""
                raise ValueError(
                    f"--teacher {path}: the score {score:g} of document {doc_id!r} for query {query_id!r}{by} is out "
                    f"of range: none may be beyond {MOST_SCORE:g}, scale them down"
                )
