"""Compares TREC runs with one or more baselines: measures, significance, queries helped and hurt.

    cobert compare --qrels qrels.txt --baselines bm25.trec --runs cobert.trec --html report.html

A run may be named: `--runs Co-BERT=runs/cobert.trec`. With `--collection` the judgments, and the queries' texts for
the report, come from a collection's folder, from ir_datasets (`irds:<id>`) or from the small one in the package:

    cobert compare --collection demo --baselines bm25.trec --runs cobert.trec --correction holm
"""

import json
import logging
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..collections.collection import open_collection
from ..collections.judgments import check_found_documents, check_grades, check_judged_queries
from ..collections.options import CollectionOptions
from ..collections.trec import read_run
from ..evaluation.measures import (
    DEFAULT_MEASURES,
    evaluate_run,
    ideal_run,
    mean_values,
    parse_measures,
    recall_ceiling,
)
from ..evaluation.report import comparison_sections, cutoff_means, write_report
from ..evaluation.significance import CORRECTIONS, TESTS, compare_runs
from ..evaluation.tables import RENDERERS, Table, changes_table, results_table
from ..steps.files import atomic_open
from ..steps.folders import check_outputs
from ..steps.limits import check_numbers


@dataclass
class CompareArguments:
    """What is compared, how, and where the result goes."""

    baselines: list[str] = field(metadata={"help": "Baseline runs, PATH or NAME=PATH; the first stage first."})
    runs: list[str] = field(default_factory=list, metadata={"help": "Runs to compare with them, PATH or NAME=PATH."})
    qrels: str | None = field(
        default=None, metadata={"help": "File of judgments: TREC's four columns, or BEIR's three. Or --collection."}
    )
    collection: str | None = field(
        default=None, metadata={"help": "A folder, irds:<id> or demo, whose judgments are used instead of --qrels."}
    )
    split: str | None = field(default=None, metadata={"help": "The collection's split, such as test."})
    measures: list[str] = field(
        default_factory=lambda: list(DEFAULT_MEASURES), metadata={"help": "Any measures of ir_measures."}
    )
    test: str = field(default="t-test", metadata={"help": "The test that decides.", "choices": [*TESTS]})
    correction: str = field(
        default="none",
        metadata={
            "help": "Correction over all comparisons by one measure; the paper uses none.",
            "choices": [*CORRECTIONS],
        },
    )
    alpha: float = field(default=0.05, metadata={"help": "Level of significance."})
    samples: int = field(default=100_000, metadata={"help": "Sign patterns of the randomisation test."})
    seed: int = field(default=0, metadata={"help": "Seed of the randomisation test."})
    k: int = field(default=1000, metadata={"help": "How many documents of the first baseline are re-ranked."})
    heading: str = field(default="Runs compared", metadata={"help": "Heading of the HTML report."})
    markdown: str | None = field(default=None, metadata={"help": "Write the tables as Markdown to this file."})
    latex: str | None = field(default=None, metadata={"help": "Write the tables as LaTeX to this file."})
    html: str | None = field(default=None, metadata={"help": "Write a self-contained HTML report to this file."})
    json: str | None = field(default=None, metadata={"help": "Write all values, per query too, to this file."})

    def __post_init__(self):
        if self.split is not None and self.collection is None:
            raise ValueError(f"--split {self.split}: splits are those of a --collection")
        check_numbers(self, 1, "k", "samples")
        check_numbers(self, 0, "seed", most=2**64)

    def check_outputs(self, runs: Iterable[str]) -> None:
        """What is written must not be what is compared, nor two things in one file."""
        outputs = {f"--{name}": getattr(self, name) for name in ("markdown", "latex", "html", "json")}
        judged = [] if self.collection is None else CollectionOptions(self.collection).files()
        check_outputs(outputs, [*runs, *([] if self.qrels is None else [self.qrels]), *judged])


ARGUMENTS = (CompareArguments,)
LOG_LEVEL = logging.WARNING


def named_paths(arguments: list[str]) -> dict[str, str]:
    """`NAME=PATH` or `PATH`, which is named after the file; two of one name are told apart by their folders."""
    named: dict[str, str] = {}
    files = Counter(_file_name(path) for path in arguments if os.path.exists(path))
    for argument in arguments:
        # Both a name and a path may hold an equals sign: the path is what exists.
        signs = [i for i, character in enumerate(argument) if character == "="]
        if signs and not os.path.exists(argument):
            sign = next((i for i in signs if os.path.exists(argument[i + 1 :])), signs[0])
            name, path = argument[:sign], argument[sign + 1 :]
        else:
            path = argument
            name = _file_name(path)
            name = path if name in named or files[name] > 1 else name
        if name in named:
            raise ValueError(f"two runs are named {name!r}; name them apart as NAME=PATH")
        named[name] = path
    return named


def _file_name(path: str) -> str:
    return Path(path).name.removesuffix(".gz").rsplit(".", 1)[0] or path


def judgments(args: CompareArguments) -> tuple[dict, dict, str]:
    """The qrels, the texts of the queries where a collection knows them, and where the qrels come from."""
    if args.qrels is not None and args.collection is None:
        return open_collection(Path(args.qrels).parent, qrels=args.qrels).qrels(), {}, args.qrels
    if args.collection is None or args.qrels is not None:
        raise ValueError("give the judgments by either --qrels or --collection")
    collection = open_collection(args.collection, split=args.split)
    return collection.qrels(), collection.queries(), collection.qrels_source()


def ceiling_table(qrels: dict, run: dict, name: str, measures: list, k: int) -> Table:
    """What the best order of the first stage's own documents would reach."""
    ideal = mean_values(qrels, ideal_run(qrels, run, k), measures)
    row = [
        "best order of them",
        f"{recall_ceiling(qrels, run, k):.4f}",
        *(f"{ideal[str(m)]:.4f}" for m in measures),
    ]
    title = f"The ceiling: what can be reached with the top {k} of {name}"
    return Table(["", f"R@{k}", *(str(measure) for measure in measures)], [row], title=title)


def describe(args: CompareArguments) -> str:
    """What significance goes by."""
    test = "paired two-tailed t-test" if args.test == "t-test" else "paired randomisation test"
    return f"{test}, p < {args.alpha:g}" + (", Holm-corrected" if args.correction == "holm" else "")


def main(args: CompareArguments) -> dict:
    """Compares, prints the tables, writes what was asked for; returns the JSON."""
    measures = parse_measures(args.measures)
    paths = named_paths([*args.baselines, *args.runs])
    args.check_outputs(paths.values())
    qrels, queries, source = judgments(args)
    check_grades(qrels, source)
    baselines = list(paths)[: len(args.baselines)]
    runs = {name: read_run(path) for name, path in paths.items()}
    check_judged_queries(qrels, {paths[name]: run for name, run in runs.items()}, source)
    check_found_documents(qrels, runs.values(), source, "any of the runs")
    evaluations = {name: evaluate_run(qrels, run, measures) for name, run in runs.items()}
    comparisons = compare_runs(
        evaluations,
        baselines,
        test=args.test,
        correction=args.correction,
        alpha=args.alpha,
        samples=args.samples,
        seed=args.seed,
    )
    corrected = args.correction != "none"
    tables = [results_table(evaluations, comparisons, baselines, describe(args))]
    if comparisons:
        tables.append(changes_table(comparisons, corrected))
    tables.append(ceiling_table(qrels, runs[baselines[0]], baselines[0], measures, args.k))
    print("\n".join(RENDERERS["terminal"](table) for table in tables))
    for look, path in (("markdown", args.markdown), ("latex", args.latex)):
        if path:
            with atomic_open(path) as file:
                file.write("\n".join(RENDERERS[look](table) for table in tables))
    result = {
        "test": args.test,
        "correction": args.correction,
        "alpha": args.alpha,
        "baselines": baselines,
        "runs": {name: {"path": paths[name], **evaluation.to_dict()} for name, evaluation in evaluations.items()},
        "comparisons": [comparison.to_dict() for comparison in comparisons],
    }
    if args.json:
        with atomic_open(args.json) as file:
            json.dump(result, file, indent=2, allow_nan=False)
    if args.html:
        sections = comparison_sections(
            evaluations,
            comparisons,
            baselines,
            description=describe(args),
            corrected=corrected,
            curves=cutoff_means(qrels, runs),
            queries=queries,
        )
        sections[0] = replace(sections[0], blocks=[*sections[0].blocks, tables[-1]])
        subtitle = f"{len(runs)} runs, {len(qrels)} queries; significance by {describe(args)}"
        write_report(args.html, args.heading, sections, subtitle)
    return result
