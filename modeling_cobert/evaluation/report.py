"""One HTML file that explains a comparison: tables and plots in it, nothing outside it, no script, text escaped."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from ..steps.files import atomic_open
from ..steps.terminal import visible
from .measures import Evaluation, Qrels, Run, mean_values, parse_measures
from .plots import SEPARATE_BARS, cutoff_curves, gain_bars, helped_hurt_scatter
from .significance import Comparison, format_p
from .tables import Table, changes_table, results_table

CUTOFFS = (1, 3, 5, 10, 20, 50, 100, 1000)
CURVES = ("nDCG", "P", "R")
LISTED_QUERIES = 500


@dataclass(frozen=True)
class Figure:
    """A plot (SVG that is already escaped, as the functions in `plots` return it) and the text below it."""

    svg: Markup
    caption: str = ""


@dataclass(frozen=True)
class Heading:
    """A heading inside a section."""

    text: str


@dataclass(frozen=True)
class Columns:
    """Blocks side by side, where there is room."""

    blocks: Sequence["Block"]


@dataclass(frozen=True)
class Details:
    """Blocks that a reader unfolds."""

    summary: str
    blocks: Sequence["Block"]


# A plain string is a paragraph.
Block = str | Heading | Table | Figure | Columns | Details


@dataclass(frozen=True)
class Section:
    """
    A part of the report with its entry in the navigation. Pass your own to [`write_report`] to add to a report.

    Args:
        title (`str`): its heading.
        blocks (`Sequence[Block]`, *optional*): paragraphs (`str`), [`Heading`], [`Table`], [`Figure`], [`Columns`],
            [`Details`].
        short (`str`, *optional*): its name in the navigation; the title by default.

    Example:

    ```python
    >>> weights = Table(["Prototype", "Weight"], [["d7", "0.41"], ["d2", "0.59"]])
    >>> section = Section("Context, explained", ["Which prototype weighed how much.", weights])

    ```
    """

    title: str
    blocks: Sequence[Block] = field(default_factory=list)
    short: str = ""


@cache
def _template() -> Template:
    # Markup is our own: macros and figures. All else is made visible, then escaped.
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        finalize=lambda value: value if isinstance(value, Markup) else visible(value),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters["kind"] = lambda block: type(block).__name__
    return environment.get_template("report.html")


def render_report(title: str, sections: Sequence[Section], subtitle: str = "", footer: str = "") -> str:
    """
    Renders sections as one HTML page.

    Args:
        title (`str`): of the page.
        sections (`Sequence[Section]`): in their order.
        subtitle (`str`, *optional*): below the title.
        footer (`str`, *optional*): at the end.
    """
    return _template().render(title=title, sections=sections, subtitle=subtitle, footer=footer)


def write_report(
    path: str | os.PathLike, title: str, sections: Sequence[Section], subtitle: str = "", footer: str = ""
) -> None:
    """Writes what [`render_report`] returns; the file is whole or not there."""
    text = render_report(title, sections, subtitle, footer)
    with atomic_open(path) as file:
        file.write(text)


def comparison_sections(
    evaluations: Mapping[str, Evaluation],
    comparisons: Sequence[Comparison],
    baselines: Sequence[str],
    *,
    description: str = "paired two-tailed t-test, p < 0.05",
    corrected: bool = False,
    curves: Mapping[str, Mapping[str, Mapping[int, float]]] | None = None,
    queries: Mapping[str, str] | None = None,
) -> list[Section]:
    """
    The report of a comparison: results, measures against their cut-offs, and a section for each run and baseline.

    Args:
        evaluations, comparisons, baselines, description: as for [`results_table`].
        corrected (`bool`, *optional*, defaults to `False`): whether p-values were corrected.
        curves (`Mapping`, *optional*): measure to run to cut-off to mean, from [`cutoff_means`].
        queries (`Mapping[str, str]`, *optional*): query id to its text, shown beside the id.
    """
    results: list[Block] = [
        results_table(evaluations, comparisons, baselines, description),
        Heading("Every comparison"),
        changes_table(comparisons, corrected),
    ]
    sections = [Section("Results", results)]
    if curves:
        figures = [Figure(cutoff_curves(curve, measure)) for measure, curve in curves.items()]
        text = (
            "How each measure grows or falls as more of the ranking is looked at. The axis of cut-offs is logarithmic."
        )
        sections.append(Section("Measure against cut-off", [text, Columns(figures)], short="Cut-offs"))
    for run, baseline in dict.fromkeys((c.run, c.baseline) for c in comparisons):
        chosen = [c for c in comparisons if (c.run, c.baseline) == (run, baseline)]
        sections.append(_pair_section(evaluations, chosen, queries or {}))
    return sections


def _pair_section(
    evaluations: Mapping[str, Evaluation], comparisons: Sequence[Comparison], queries: Mapping[str, str]
) -> Section:
    """One run against one baseline: the first measure in sight, the others to unfold, then all queries."""
    run, baseline = comparisons[0].run, comparisons[0].baseline
    blocks: list[Block] = []
    names = {query_id: f"{query_id} ({text})" for query_id, text in queries.items()}
    for position, comparison in enumerate(comparisons):
        values, reference = (evaluations[name].per_query[comparison.measure] for name in (run, baseline))
        bars = gain_bars(comparison.gains, comparison.measure, names)
        dots = helped_hurt_scatter(reference, values, baseline, run, comparison.measure)
        hint = "; hover to see which" if len(values) <= SEPARATE_BARS else ""
        text_below = "Above the line helped, below it hurt. Larger dots are several queries."
        figures = Columns([Figure(bars, f"Each bar is a query{hint}."), Figure(dots, text_below)])
        text = _sentence(comparison)
        blocks += [text, figures] if position == 0 else [Details(comparison.measure, [text, figures])]
    blocks.append(Details("Query by query", [_query_table(evaluations, comparisons, queries)]))
    return Section(f"{run} against {baseline}", blocks)


def _sentence(c: Comparison) -> str:
    change = "from a baseline of 0" if c.relative_change is None else f"{c.relative_change:+.1%}"
    text = (
        f"{c.measure}: {c.baseline_mean:.4f} → {c.mean:.4f} ({change}). {c.helped} queries helped, {c.hurt} hurt, "
        f"{c.unchanged} unchanged."
    )
    for test, p_value in (("t-test", c.p_t_test), ("randomisation test", c.p_randomisation)):
        if p_value is not None:
            shown = format_p(p_value)
            text += f" Paired {test}: p {shown.replace('<', '< ') if shown.startswith('<') else '= ' + shown}."
    return f"{text} {c.note[0].upper()}{c.note[1:]}." if c.note else text


def _query_table(
    evaluations: Mapping[str, Evaluation], comparisons: Sequence[Comparison], queries: Mapping[str, str]
) -> Table:
    """Values by the first measure and gains by all of them, largest changes first."""
    first = comparisons[0]
    run, baseline = (evaluations[name].per_query[first.measure] for name in (first.run, first.baseline))
    query_ids = sorted(first.gains, key=lambda query_id: -abs(first.gains[query_id]))
    rows = []
    for query_id in query_ids[:LISTED_QUERIES]:
        text = [queries.get(query_id, "")] if queries else []
        gains = [f"{comparison.gains[query_id]:+.4f}" for comparison in comparisons]
        rows.append([query_id, *text, f"{baseline[query_id]:.4f}", f"{run[query_id]:.4f}", *gains])
    left_out = len(query_ids) - len(rows)
    return Table(
        columns=["Query", *(["Text"] if queries else []), f"{first.measure}, baseline", f"{first.measure}, run"]
        + [f"Δ {comparison.measure}" for comparison in comparisons],
        rows=rows,
        notes=[f"The {len(rows)} largest changes; {left_out} smaller ones are not listed."] if left_out else [],
        text_columns=2 if queries else 1,
    )


def cutoff_means(
    qrels: Qrels,
    runs: Mapping[str, Run],
    names: Sequence[str] = CURVES,
    cutoffs: Sequence[int] = CUTOFFS,
) -> dict[str, dict[str, dict[int, float]]]:
    """
    Means of measures at several cut-offs, for the plots.

    Args:
        qrels, runs: judgments, and name to run.
        names (`Sequence[str]`, *optional*): measures without their cut-off: nDCG, P and R by default.
        cutoffs (`Sequence[int]`, *optional*): those deeper than the longest ranking are left out.

    Returns:
        `dict[str, dict[str, dict[int, float]]]`: measure to run to cut-off to mean.
    """
    longest = max((len(scores) for run in runs.values() for scores in run.values()), default=0)
    kept = [cutoff for cutoff in cutoffs if cutoff <= max(longest, min(cutoffs))]
    measures = parse_measures([f"{name}@{cutoff}" for name in names for cutoff in kept])
    means = {run_name: mean_values(qrels, run, measures) for run_name, run in runs.items()}
    return {
        name: {run_name: {k: values[f"{name}@{k}"] for k in kept} for run_name, values in means.items()}
        for name in names
    }
