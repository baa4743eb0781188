"""The paper's tables with ours beside the published figures; a cell that was not run says so."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ..cost.folders import selected_workload
from ..cost.macs import CoBertShape, convention_costs, own_costs
from ..cost.paper import paper_costs, paper_remarks
from ..cost.tables import COST_COLUMNS, NOT_PUBLISHED, cost_table
from ..evaluation.measures import Evaluation
from ..evaluation.report import Section, comparison_sections, cutoff_means, write_report
from ..evaluation.results import write_json
from ..evaluation.significance import Comparison, compare_runs, legend, marks
from ..evaluation.tables import Cell, Table, to_markdown
from ..steps.files import atomic_open
from .paper_figures import COLLECTIONS, MEASURES, PUBLISHED
from .rows import STUDY
from .work import Reproduction

NOT_RUN = "not run"
# Daggers in this order, as in the paper.
BASELINES = ("bert-base", "dph+kl")
TEST = "paired two-tailed t-test, p < 0.05"
# The randomisation test stands beside the t-test in the report only.
SAMPLES = 10_000


def compare_rows(work: Reproduction, evaluations: Mapping[str, Evaluation]) -> tuple[list[str], list[Comparison]]:
    """The baselines that are there, and every row of the main table against them, under their labels."""
    labels = {row.name: row.label for row in work.effectiveness}
    named = {labels[name]: evaluation for name, evaluation in evaluations.items() if name in labels}
    baselines = [labels[name] for name in BASELINES if labels[name] in named]
    return baselines, compare_runs(named, baselines, samples=SAMPLES) if baselines else []


def effectiveness_table(
    work: Reproduction,
    evaluations: Mapping[str, Evaluation],
    baselines: Sequence[str],
    comparisons: Sequence[Comparison],
) -> Table:
    """The main table with the ablations."""
    paper = work.options.paper
    columns = ["System", *MEASURES]
    columns += [f"paper: {name}" for name in MEASURES] if paper else []
    best = {m: max((evaluations[r.name].means[m] for r in _there(work, evaluations)), default=0) for m in MEASURES}
    rows = []
    for row in work.effectiveness:
        line: list[str | Cell] = [row.label]
        for measure in MEASURES:
            if row.name not in evaluations:
                line.append(NOT_RUN)
                continue
            value = evaluations[row.name].means[measure]
            line.append(
                Cell(f"{value:.4f}", *marks(comparisons, baselines, row.label, measure), value == best[measure])
            )
        if paper:
            line += [f"{value:.4f}" for value in PUBLISHED[paper].get(row.name, ())] or [NOT_PUBLISHED] * 3
        rows.append(line)
    notes = legend(comparisons, baselines, TEST)
    notes += _notes(work, evaluations)
    if paper:
        notes.append(f"paper: the published figures on {COLLECTIONS[paper]}; {NOT_PUBLISHED} none published")
    return Table(columns, rows, f"Effectiveness on {work.view.name}", notes)


def _there(work: Reproduction, evaluations: Mapping[str, Evaluation]) -> list:
    return [row for row in work.effectiveness if row.name in evaluations]


def _notes(work: Reproduction, evaluations: Mapping[str, Evaluation]) -> list[str]:
    notes = [f"{len(work.qrels)} judged test queries; the best {work.selection.k} documents of each are re-ranked"]
    for name, evaluation in evaluations.items():
        if evaluation.missing:
            notes.append(f"{work.rows[name].label}: {len(evaluation.missing)} queries without results count as zero")
    if work.systems.expanded_queries is None:
        notes.append("FilteredGoogleQuestions needs --expanded_queries")
    if work.options.max_queries is not None:
        notes.append(f"a trial with {len(work.view.queries())} queries (--max_queries), not the paper's experiment")
    return notes


def study_table(work: Reproduction, evaluations: Mapping[str, Evaluation]) -> Table:
    """The hyper-parameter study; the paper's own values are the row Co-BERT of the main table."""
    rows = []
    for name, values in work.studied.items():
        for value, grouping in values.items():
            central = grouping == work.paper_groups
            found = evaluations.get("cobert" if central else f"{name}-{value}")
            sizes = [str(grouping.group_size), str(grouping.num_prototypes), str(grouping.group_overlap)]
            cells = [NOT_RUN if found is None else f"{found.means[measure]:.4f}" for measure in MEASURES]
            rows.append([STUDY[name], f"{value}{' *' if central else ''}", *sizes, *cells])
    notes = ["* the setting of the main table", "batch size is m + n; where m varies, n is the rest of the batch"]
    return Table(["Varied", "Value", "n", "m", "o", *MEASURES], rows, "Hyper-parameters of Co-BERT", notes)


def cost_tables(work: Reproduction, shape: CoBertShape) -> list[Table]:
    """The cost table for this collection, once its passages are counted, and the paper's own with `--paper`."""
    tables = []
    load = selected_workload(work.shared / "selected")
    if load is not None:
        what = f"{load.queries} queries, {load.documents} candidates each, {load.passages:,} passages"
        assumed = f"BERT-QE: {load.chunks:,} chunks a query and half as many passages again are assumed"
        costs = convention_costs(load, shape)
        tables.append(cost_table(f"Cost on {work.view.name}, the paper's way", costs, [what, assumed]))
        own = own_costs(load, replace(shape, pooler=True))
        what = f"every sequence counted with {shape.max_length} tokens, an upper bound: real ones are shorter"
        tables.append(cost_table(f"Cost on {work.view.name}, every pair encoded once", own, [what]))
    else:
        row = ["all", *[NOT_RUN] * 4]
        tables.append(Table([*COST_COLUMNS], [row], f"Cost on {work.view.name}", ["no passages were selected yet"]))
    if work.options.paper:
        name, rows = COLLECTIONS[work.options.paper], paper_costs(work.options.paper)
        tables.append(cost_table(f"The paper's cost table, {name}", rows, paper_remarks(work.options.paper)))
    return tables


def write_tables(work: Reproduction, shape: CoBertShape) -> list[Table]:
    """Writes `tables.md`, `results.json` and `report.html` into the output folder; returns the tables."""
    evaluations = work.evaluations()
    baselines, comparisons = compare_rows(work, evaluations)
    main = effectiveness_table(work, evaluations, baselines, comparisons)
    study, costs = study_table(work, evaluations), cost_tables(work, shape)
    tables = [main, study, *costs]
    output = Path(work.output)
    with atomic_open(output / "tables.md") as file:
        file.write("\n".join(to_markdown(table) for table in tables))
    write_json(output / "results.json", _machine(work, evaluations, comparisons))
    sections = [Section("Effectiveness", [main]), Section("Hyper-parameters", [study]), Section("Cost", costs)]
    labels = {row.name: row.label for row in work.effectiveness}
    named = {labels[name]: evaluation for name, evaluation in evaluations.items() if name in labels}
    if comparisons:
        runs = {labels[name]: run for name, run in work.runs().items() if name in labels}
        curves, texts = cutoff_means(work.qrels, runs), work.view.queries()
        found = comparison_sections(named, comparisons, baselines, description=TEST, curves=curves, queries=texts)
        sections += [replace(found[0], title="Every comparison"), *found[1:]]
    subtitle = f"{work.view.name}: {len(evaluations)} of {len(work.rows)} rows run, {len(work.qrels)} test queries"
    write_report(output / "report.html", "Co-BERT: the paper's tables", sections, subtitle)
    return tables


def _machine(work: Reproduction, evaluations: Mapping[str, Evaluation], comparisons: Sequence[Comparison]) -> dict:
    published = PUBLISHED.get(work.options.paper or "", {})
    return {
        "collection": work.view.name,
        "queries": len(work.qrels),
        "k": work.selection.k,
        "rows": {
            name: {
                "label": row.label,
                "measures": evaluations[name].means if name in evaluations else None,
                "published": dict(zip(MEASURES, published[name], strict=True)) if name in published else None,
                "per_query": evaluations[name].per_query if name in evaluations else None,
            }
            for name, row in work.rows.items()
        },
        "comparisons": [
            {key: value for key, value in comparison.to_dict().items() if key != "gains"} for comparison in comparisons
        ],
    }
