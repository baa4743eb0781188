"""Mixtures: scores of the first stage, of the selector and of any run, added up with shares that are tuned."""

import json
import logging
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations, pairwise
from pathlib import Path

from ..collections.folds import Fold
from ..collections.trec import read_run, write_run
from ..data.rows import RowsFolder
from ..evaluation.measures import DEFAULT_MEASURES, Qrels, mean_values, measure_run, parse_measures
from ..grouping_cobert import standardize
from ..ranking.ties import strict_scores
from ..steps.files import write_json
from ..steps.folders import SETTINGS, claim_folder, claims_end, read_settings, write_settings
from ..steps.hashing import file_sha256, json_sha256
from ..steps.limits import HIGHEST
from ..steps.progress import progress_bar

logger = logging.getLogger(__name__)

STEP, FORMAT = "mixture", 1
RUN, RESULTS = "run.trec", "results.json"
# The rows' own scores.
COLUMNS = {"first-stage": "first_stage_scores", "selector": "selector_scores"}
PARTS = ("validation", "test")

# The number of a fold; the one turn of rows that have splits, or are tested as a whole, has none.
Turn = int | None


# Of weights: each is a ranking of all validation queries.
MOST_TRIED = 100_000


@dataclass(frozen=True)
class MixtureOptions:
    """What is mixed, and how the weights are chosen: on the validation queries of each fold, for its test queries."""

    sources: list[str] = field(
        metadata={
            "help": "Two or more of: first-stage, selector (the rows' own scores), a TREC run, and the folder of a "
            "training, whose scores for a fold's validation and test queries are those of that fold's model."
        }
    )
    weights: list[float] | None = field(
        default=None,
        metadata={
            "help": "Fixed weights, one a source, of which only the proportions count: nothing is tuned, and all "
            "queries are tested (with a training's folder, those that it tested)."
        },
    )
    step: float | None = field(
        default=None, metadata={"help": "How far apart the weights lie that are tried. Default: 0.1."}
    )
    measure: str = field(
        default="nDCG@20",
        metadata={"help": "What is tuned, by its name in ir_measures; with fixed weights just measured."},
    )

    def __post_init__(self):
        if len(self.sources) < 2:
            raise ValueError(f"a mixture has two sources or more, got {', '.join(self.sources) or 'none'}")
        if len(set(self.sources)) < len(self.sources):
            raise ValueError(f"a source is named twice in {', '.join(self.sources)}")
        if self.weights is not None:
            if len(self.weights) != len(self.sources):
                raise ValueError(f"{len(self.sources)} sources, but {len(self.weights)} weights")
            if not all(0 <= weight <= HIGHEST for weight in self.weights) or not any(self.weights):
                raise ValueError(
                    f"weights are from 0 to {HIGHEST}, and one of them is above 0, got {self.weights}: only their "
                    "proportions count"
                )
            if self.step is not None:
                raise ValueError("--weights are fixed, and nothing is tuned: leave out --step")
        step = self.grid_step
        if not 1e-6 <= step <= 1 or abs(1 / step - round(1 / step)) > 1e-6:
            raise ValueError(f"step must divide 1 into equal parts, as 0.1 and 0.25 do, got {step}")
        tried = math.comb(round(1 / step) + len(self.sources) - 1, len(self.sources) - 1)
        if self.weights is None and tried > MOST_TRIED:
            raise ValueError(
                f"--step {step:g} with {len(self.sources)} sources would try {tried} weights, and at most "
                f"{MOST_TRIED} are tried: give a larger --step or fewer sources"
            )
        parse_measures([self.measure])

    @property
    def grid_step(self) -> float:
        """How far apart the weights lie that are tried."""
        return 0.1 if self.step is None else self.step

    def grid(self) -> list[tuple[float, ...]]:
        """The weights to try, each summing up to 1."""
        if self.weights is not None:
            total = math.fsum(self.weights)
            return [tuple(weight / total for weight in self.weights)]
        return share_grid(len(self.sources), round(1 / self.grid_step))


def share_grid(sources: int, parts: int) -> list[tuple[float, ...]]:
    """
    Every way to deal `parts` equal parts of 1 to some sources: `comb(parts + sources - 1, sources - 1)` of them.

    Args:
        sources (`int`): how many there are.
        parts (`int`): how many parts 1 has.

    Example:

    ```python
    >>> share_grid(2, 4)
    [(0.0, 1.0), (0.25, 0.75), (0.5, 0.5), (0.75, 0.25), (1.0, 0.0)]
    ```
    """
    # Of so many places in a row, those with a bar end one source's parts and begin the next one's.
    places = parts + sources - 1
    bars = ((-1, *chosen, places) for chosen in combinations(range(places), sources - 1))
    return [tuple((after - before - 1) / parts for before, after in pairwise(ends)) for ends in bars]


@dataclass(frozen=True)
class ScoredList:
    """
    One query's candidates, and what each source thinks of them.

    Args:
        doc_ids (`list[str]`): in first-stage order, each once.
        scores (`list[list[float]]`): one list a source, one score a document.

    Example:

    ```python
    >>> scored = ScoredList(["a", "b", "c"], [[3.0, 2.0, 1.0], [0.0, 0.0, 3.0]])
    >>> list(scored.mix([0.5, 0.5])), list(scored.mix([0.0, 1.0]))
    (['a', 'c', 'b'], ['c', 'a', 'b'])
    ```
    """

    doc_ids: list[str]
    scores: list[list[float]]

    @cached_property
    def standardized(self) -> list[list[float]]:
        """The scores with mean 0 and standard deviation 1 over this list, source by source."""
        return [standardize(scores) for scores in self.scores]

    def mix(self, weights: Sequence[float]) -> dict[str, float]:
        """The weighed sum of the standardised scores, best first; equal ones keep the first stage's order."""
        by_document = zip(*self.standardized, strict=True)
        mixed = [math.fsum(w * s for w, s in zip(weights, scores, strict=True)) for scores in by_document]
        return strict_scores(self.doc_ids, mixed)

    def alone(self, source: int) -> dict[str, float]:
        """One source's own scores, best first; equal ones keep the first stage's order."""
        return strict_scores(self.doc_ids, self.scores[source])


def choose_weights(
    lists: Mapping[str, ScoredList], qrels: Qrels, grid: Sequence[tuple[float, ...]], measure: str, advance=None
) -> tuple[tuple[float, ...], float]:
    """
    The weights with the best mean over some queries. Of equally good ones, and with few queries there are many, those
    nearest to equal shares: what the queries cannot tell apart should not hang on one source. Where two are equally
    near, the one with more for the source named first.

    Args:
        lists (`Mapping[str, ScoredList]`): by query id.
        qrels (`Mapping[str, Mapping[str, int]]`): the judgments of the queries that count.
        grid (`list[tuple[float, ...]]`): the weights to try.
        measure (`str`): by its name in ir_measures.
        advance (`Callable`, *optional*): called after each of them.

    Returns:
        `tuple[tuple[float, ...], float]`: the weights and their mean.
    """
    parsed, means = parse_measures([measure]), {}
    for weights in grid:
        mixed = {query_id: lists[query_id].mix(weights) for query_id in qrels}
        (means[weights],) = mean_values(qrels, mixed, parsed).values()
        if advance is not None:
            advance()
    best = max(means, key=lambda weights: (means[weights], -math.fsum(w * w for w in weights), weights))
    return best, means[best]


@claims_end()
def mix_sources(rows: RowsFolder, output: str | os.PathLike, options: MixtureOptions, progress: bool = True) -> dict:
    """
    Tunes a mixture on the validation queries of each fold (or of the split `validation`) and tests it on the test
    queries: `output/run.trec`, `source-1.trec` and so on for each source alone, and `results.json`.

    The candidates are those of the rows. A document that is there with several passages has its best one's score. One
    that a run lacks has the lowest score that the run gives for the query, and is counted in a warning. A query that a
    run lacks is an error.

    Args:
        rows ([`RowsFolder`]): candidates, judgments, folds and scores of first stage and selector.
        output (`str` or `os.PathLike`): a new folder, or one begun with the same settings.
        options ([`MixtureOptions`]): what to mix.
        progress (`bool`, *optional*, defaults to `True`): whether to show a bar.

    Returns:
        `dict`: `folds` with the `weights` and the mean over the `validation` queries of each, and over the test
        queries the measures of the `mixture` and of each of the `sources` alone, if any of them is judged.
    """
    output = Path(output)
    rows.check_testable()
    trainings = {name: found for name in options.sources if (found := _find_trainings(name, rows))}
    turns = _plan(rows, list(trainings.values()), options)
    sources = [_open(name, turns, trainings.get(name)) for name in options.sources]
    for source in sources:
        source.check(turns, rows.run)
    settings = {
        "step": STEP,
        "format": FORMAT,
        "rows": rows.fingerprint,
        "sources": options.sources,
        "weights": options.weights,
        "grid_step": options.grid_step,
        "measure": options.measure,
        "sha256": {source.name: source.sha256 for source in sources if source.files},
    }
    if claim_folder(output, settings) is None:
        results = _mix(rows, output, sources, turns, options, progress)
        files = [RUN, RESULTS, *(f"source-{number}.trec" for number, _ in enumerate(sources, start=1))]
        write_settings(output, settings, results, [output / name for name in files])
    else:
        logger.warning("%s: done before", output)
    return json.loads((output / RESULTS).read_text(encoding="utf-8"))


def _turns(rows: RowsFolder) -> dict[Turn, Fold]:
    if rows.folds:
        return dict(enumerate(rows.folds, start=1))
    return {None: Fold(*(rows.splits.get(name, ()) for name in ("train", *PARTS)))}


def _name(turn: Turn) -> str:
    return "the splits" if turn is None else f"fold {turn}"


def _find_trainings(source: str, rows: RowsFolder) -> dict[Turn, Path] | None:
    """The folders of a training by turn: its own (of the splits or of one fold), or those of all folds inside."""
    folder = Path(source)
    if source in COLUMNS or not folder.is_dir():
        return None
    if (folder / SETTINGS).exists():
        turn = _read_training(folder).get("fold")
        if turn is not None and type(turn) is not int:
            raise ValueError(f"{folder / SETTINGS}: 'fold' must be the number of a fold or null, not {turn!r}")
        if turn not in _turns(rows):
            raise ValueError(f"{folder}: trained on {_name(turn)}, which {rows.folder} does not have")
        return {turn: folder}
    if not rows.folds or not (folder / "fold-1").is_dir():
        raise ValueError(
            f"{folder}: neither a training's {SETTINGS} nor a folder for each fold is in it: give a training's own "
            "folder, or a run"
        )
    found = {turn: folder / f"fold-{turn}" for turn in _turns(rows)}
    for path in found.values():
        _read_training(path)
    return found


def _read_training(folder: Path) -> dict:
    """The settings of a training; one that is not finished is an error."""
    return read_settings(folder, "training", "cobert train", format=None)


def _plan(rows: RowsFolder, trainings: Sequence[Mapping[Turn, Path]], options: MixtureOptions) -> dict[Turn, Fold]:
    """What is tuned and tested in turn: what all trainings among the sources have tested or, without any, all."""
    fixed = options.weights is not None
    if fixed and not trainings:
        return {None: Fold((), (), tuple(query_id for split in rows.splits.values() for query_id in split))}
    turns = {turn: fold for turn, fold in _turns(rows).items() if all(turn in found for found in trainings)}
    if not turns:
        raise ValueError("the trainings among the sources are of different folds: no query was tested by all of them")
    for turn, fold in turns.items():
        for part in ("test",) if fixed else PARTS:
            queries = getattr(fold, part)
            if not any(rows.qrels.get(query_id) for query_id in queries):
                cure = "; give --weights, and nothing is tuned" if part == "validation" else ""
                raise ValueError(
                    f"{rows.folder}: {_name(turn)}: none of {len(queries)} {part} queries is judged{cure}"
                )
    return {turn: Fold((), (), fold.test) for turn, fold in turns.items()} if fixed else turns


def _open(name: str, turns: Mapping[Turn, Fold], trainings: Mapping[Turn, Path] | None) -> "_Source":
    """A source, with the files that its scores are read from, turn by turn."""
    if name in COLUMNS:
        return _Source(name, {})
    if trainings is None and not Path(name).exists():
        raise FileNotFoundError(f"{name}: no such run, nor folder of a training, nor {' or '.join(COLUMNS)}")
    needed = [(turn, part) for turn, fold in turns.items() for part in PARTS if getattr(fold, part)]
    if trainings is None:
        return _Source(name, dict.fromkeys(needed, Path(name)))
    files = {(turn, part): trainings[turn] / f"{part}.trec" for turn, part in needed}
    for path in files.values():
        if not path.exists():
            raise FileNotFoundError(
                f"{path}: not there, trainings of earlier versions did not write it: train anew, or make it with "
                "cobert eval --query_ids (and --allow_seen)"
            )
    return _Source(name, files)


@dataclass
class _Source:
    """One system's scores: a column of the rows or, where it has files, runs by turn and part."""

    name: str
    files: dict[tuple[Turn, str], Path]
    lacking: dict[str, int] = field(default_factory=dict)  # query id to how many candidates have no score

    @cached_property
    def runs(self) -> dict[Path, dict[str, dict[str, float]]]:
        return {path: read_run(path) for path in dict.fromkeys(self.files.values())}

    @property
    def sha256(self) -> str:
        return json_sha256([file_sha256(path) for path in self.runs])

    def check(self, turns: Mapping[Turn, Fold], candidates: Mapping[str, Mapping[str, float]]) -> None:
        """Raises where there are no scores for a query, or for not one document that is a candidate of its query."""
        wanted: dict[Path, list[str]] = {}
        for (turn, part), path in self.files.items():
            for query_id in getattr(turns[turn], part):
                if query_id not in self.runs[path]:
                    raise ValueError(f"{path}: the {part} query {query_id!r} of {_name(turn)} is not in it")
                wanted.setdefault(path, []).append(query_id)
        for path, query_ids in wanted.items():
            run, query_id = self.runs[path], query_ids[0]
            if all(candidates[query_id].keys().isdisjoint(run[query_id]) for query_id in query_ids):
                raise ValueError(
                    f"{path}: it has none of the candidates of its queries (of query {query_id!r} it has "
                    f"{next(iter(run[query_id]))!r}, the rows have {next(iter(candidates[query_id]))!r}): give a run "
                    "of the documents of these rows"
                )

    def scores(self, turn: Turn, part: str, row: Mapping) -> dict[str, float]:
        """The score of every candidate of a row, in the row's order."""
        if not self.files:
            best: dict[str, float] = {}
            for doc_id, score in zip(row["doc_ids"], row[COLUMNS[self.name]], strict=True):
                best[doc_id] = max(score, best.get(doc_id, score))
            return best
        found = self.runs[self.files[turn, part]][row["query_id"]]
        candidates, lowest = dict.fromkeys(row["doc_ids"]), min(found.values())
        self.lacking[row["query_id"]] = len(candidates.keys() - found.keys())
        return {doc_id: found.get(doc_id, lowest) for doc_id in candidates}


def _lists(rows: RowsFolder, sources: Sequence[_Source], turn: Turn, part: str, query_ids) -> dict[str, ScoredList]:
    lists = {}
    for row in rows.dataset(query_ids).select_columns(["query_id", "doc_ids", *COLUMNS.values()]):
        scores = [source.scores(turn, part, row) for source in sources]
        lists[row["query_id"]] = ScoredList(list(scores[0]), [list(one.values()) for one in scores])
    return lists


def _mix(
    rows: RowsFolder,
    folder: Path,
    sources: Sequence[_Source],
    turns: Mapping[Turn, Fold],
    options: MixtureOptions,
    progress: bool,
) -> dict:
    """Tunes, mixes, tests and writes."""
    grid, folds, mixture = options.grid(), [], {}
    alone: list[dict[str, dict[str, float]]] = [{} for _ in sources]
    with progress_bar(desc="Tuning", unit="weights", total=len(grid) * len(turns), show=progress) as bar:
        for turn, fold in turns.items():
            weights, reached = grid[0], None
            if fold.validation:
                lists = _lists(rows, sources, turn, "validation", fold.validation)
                judged = {query_id: rows.qrels[query_id] for query_id in lists if rows.qrels.get(query_id)}
                weights, reached = choose_weights(lists, judged, grid, options.measure, bar.update)
            shares = dict(zip(options.sources, weights, strict=True))
            folds.append({"fold": turn, "weights": shares, "validation": reached})
            for query_id, scored in _lists(rows, sources, turn, "test", fold.test).items():
                mixture[query_id] = scored.mix(weights)
                for place, run in enumerate(alone):
                    run[query_id] = scored.alone(place)
    for source in sources:
        if count := sum(source.lacking.values()):
            logger.warning(
                "%s: %d candidates are not in it and have its lowest score of the query", source.name, count
            )
    judged = sum(bool(rows.qrels.get(query_id)) for query_id in mixture)
    results = {"queries": judged, "measure": options.measure, "folds": folds}
    if judged:  # fixed weights need no judgments, and there is nothing to measure without them
        measures = parse_measures([*DEFAULT_MEASURES, options.measure])
        results["mixture"] = measure_run(rows.qrels, mixture, measures)
        results["sources"] = {
            source.name: measure_run(rows.qrels, run, measures) for source, run in zip(sources, alone, strict=True)
        }
    for number, run in enumerate(alone, start=1):
        write_run(folder / f"source-{number}.trec", run, f"source-{number}")
    write_run(folder / RUN, mixture, "mixture")
    write_json(folder / RESULTS, results)
    return results
