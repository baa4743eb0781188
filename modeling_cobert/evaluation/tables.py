"""One table, three looks: terminal, Markdown and LaTeX, all escaped; and the tables of a comparison."""

import re
import textwrap
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..steps.terminal import visible
from .measures import UNJUDGED_DEPTH, Evaluation
from .significance import WORSE, Comparison, format_p, legend, marks

NOTE_WIDTH = 110


@dataclass(frozen=True)
class Cell:
    """
    A cell with more than text.

    Args:
        text (`str`): what it says.
        better, worse (`str`, *optional*): marks of the baselines that it is significantly better and worse than.
        bold (`bool`, *optional*, defaults to `False`): whether it is the best of its column.
    """

    text: str
    better: str = ""
    worse: str = ""
    bold: bool = False

    @property
    def marks(self) -> str:
        return self.better + self.worse


@dataclass(frozen=True)
class Table:
    """
    A table that does not know how it will look.

    Args:
        columns (`Sequence[str]`): the header.
        rows (`Sequence[Sequence[str | Cell]]`): one a row, as long as the header.
        title (`str`, *optional*): above it.
        notes (`Sequence[str]`, *optional*): below it.
        text_columns (`int`, *optional*, defaults to 1): how many columns from the left hold text; the others hold
            numbers and are aligned to the right.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str | Cell]]
    title: str = ""
    notes: Sequence[str] = field(default_factory=list)
    text_columns: int = 1

    def __post_init__(self):
        for number, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise ValueError(f"row {number} has {len(row)} cells, the header has {len(self.columns)}")

    def cells(self) -> list[list[Cell]]:
        """The rows with every cell as a [`Cell`]."""
        return [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in self.rows]


def _width(text: str) -> int:
    """Columns in a terminal: East Asian wide characters take two, combining ones none."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(unicodedata.combining(c) > 0 for c in text)


def _pad(text: str, width: int, left: bool) -> str:
    space = " " * (width - _width(text))
    return text + space if left else space + text


def to_terminal(table: Table) -> str:
    """Renders for a terminal, columns aligned; symbols stand behind the numbers without moving them."""
    header = [visible(column) for column in table.columns]
    body = [[(visible(cell.text), visible(cell.marks)) for cell in row] for row in table.cells()]
    columns = range(len(header))
    marked = [max((_width(row[i][1]) for row in body), default=0) for i in columns]
    texts = [
        max([_width(header[i]) - marked[i], *(_width(row[i][0]) for row in body)]) if body else _width(header[i])
        for i in columns
    ]
    lines = []
    if table.title:
        lines += [visible(table.title), ""]
    lines.append("  ".join(_pad(header[i], texts[i] + marked[i], i < table.text_columns) for i in columns).rstrip())
    lines.append("  ".join("-" * (texts[i] + marked[i]) for i in columns))
    for row in body:
        padded = [
            _pad(text, texts[i], i < table.text_columns) + _pad(mark, marked[i], left=True)
            for i, (text, mark) in enumerate(row)
        ]
        lines.append("  ".join(padded).rstrip())
    if table.notes:
        wrapped = (textwrap.fill(visible(note), NOTE_WIDTH, subsequent_indent="  ") for note in table.notes)
        lines += ["", *wrapped]
    return "\n".join(lines) + "\n"


def escape_markdown(text: str) -> str:
    """Escapes what Markdown and the HTML inside it would act on, pipes of a table included."""
    text = re.sub(r"([\\`*_{}\[\]~$])", r"\\\1", visible(text))
    for character, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("|", "&#124;")):
        text = text.replace(character, entity)
    return text


def to_markdown(table: Table) -> str:
    """Renders a GitHub-flavoured Markdown table."""
    lines = []
    if table.title:
        lines += [f"**{escape_markdown(table.title)}**", ""]
    lines.append("| " + " | ".join(escape_markdown(column) for column in table.columns) + " |")
    lines.append("|" + "|".join(":---" if i < table.text_columns else "---:" for i in range(len(table.columns))) + "|")
    for row in table.cells():
        cells = []
        for cell in row:
            text = escape_markdown(cell.text)
            cells.append((f"**{text}**" if cell.bold and text else text) + escape_markdown(cell.marks))
        lines.append("| " + " | ".join(cells) + " |")
    for note in table.notes:
        lines += ["", escape_markdown(note)]
    return "\n".join(lines) + "\n"


_LATEX = {
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    **{character: "\\" + character for character in "{}$&#%_"},
}
_LATEX_MARKS = {"†": r"\dagger", "‡": r"\ddagger", "§": r"\S", "¶": r"\P", "‖": r"\|", WORSE: r"\downarrow"}


def escape_latex(text: str) -> str:
    """Escapes LaTeX's special characters; the symbols of significance become commands."""
    escaped = (_LATEX.get(c, f"${_LATEX_MARKS[c]}$" if c in _LATEX_MARKS else c) for c in visible(text))
    return "".join(escaped)


def to_latex(table: Table) -> str:
    """Renders a LaTeX `table` for the package booktabs."""
    alignment = "".join("l" if i < table.text_columns else "r" for i in range(len(table.columns)))
    lines = ["% needs \\usepackage{booktabs}", "\\begin{table}", "\\centering"]
    if table.title:
        lines.append(f"\\caption{{{escape_latex(table.title)}}}")
    lines += [f"\\begin{{tabular}}{{{alignment}}}", "\\toprule"]
    lines += [" & ".join(escape_latex(column) for column in table.columns) + " \\\\", "\\midrule"]
    for row in table.cells():
        lines.append(" & ".join(_latex_cell(cell) for cell in row) + " \\\\")
    lines += ["\\bottomrule", "\\end{tabular}"]
    lines += [f"\\par\\smallskip\\footnotesize {escape_latex(note)}" for note in table.notes]
    return "\n".join([*lines, "\\end{table}"]) + "\n"


def _latex_cell(cell: Cell) -> str:
    text = escape_latex(cell.text)
    if cell.bold:
        text = f"\\textbf{{{text}}}"
    # a letter such as (a) stands upright
    symbols = re.sub(r"\([a-z]+\)|.", lambda m: _LATEX_MARKS.get(m[0], f"\\mathrm{{{m[0]}}}"), cell.marks)
    # An empty box in front keeps a cell that begins with [ from being read as the option of the line's end.
    return ("{}" + text if text.startswith("[") else text) + (f"$^{{{symbols}}}$" if symbols else "")


RENDERERS = {"terminal": to_terminal, "markdown": to_markdown, "latex": to_latex}


def results_table(
    evaluations: Mapping[str, Evaluation],
    comparisons: Sequence[Comparison],
    baselines: Sequence[str],
    description: str = "paired two-tailed t-test, p < 0.05",
) -> Table:
    """
    The main table: a row for each run, a column for each measure, daggers as in the paper, the best value bold.

    Args:
        evaluations (`Mapping[str, Evaluation]`): name to result.
        comparisons (`Sequence[Comparison]`): from [`compare_runs`].
        baselines (`Sequence[str]`): in the order given to [`compare_runs`].
        description (`str`, *optional*): what the symbols go by, for the note below.
    """
    measures = list(next(iter(evaluations.values())).means)
    best = {measure: max(evaluation.means[measure] for evaluation in evaluations.values()) for measure in measures}
    rows = []
    for name, evaluation in evaluations.items():
        row: list[str | Cell] = [name]
        for measure in measures:
            better, worse = marks(comparisons, baselines, name, measure)
            value = evaluation.means[measure]
            row.append(Cell(f"{value:.4f}", better, worse, bold=len(evaluations) > 1 and value == best[measure]))
        row.append(f"{evaluation.unjudged_share:.1%}")
        rows.append(row)
    notes = legend(comparisons, baselines, description)
    queries = next(iter(evaluations.values())).queries
    missing = {name: len(evaluation.missing) for name, evaluation in evaluations.items() if evaluation.missing}
    notes.append(f"{queries} queries" + ("" if missing else ", all with results in every run"))
    notes += [f"{name}: {count} queries without results count as zero" for name, count in missing.items()]
    return Table(["Run", *measures, f"unjudged@{UNJUDGED_DEPTH}"], rows, notes=notes)


def changes_table(comparisons: Sequence[Comparison], corrected: bool = False) -> Table:
    """
    Every comparison in full: relative change, both p-values (and the corrected one), queries helped, hurt, unchanged.

    Args:
        comparisons (`Sequence[Comparison]`): from [`compare_runs`].
        corrected (`bool`, *optional*, defaults to `False`): whether to show the corrected p-value too.
    """
    columns = ["Run", "Baseline", "Measure", "Change", "p (t-test)", "p (random.)"]
    columns += ["p (Holm)"] if corrected else []
    columns += ["Helped", "Hurt", "Unchanged"]
    rows, notes = [], []
    for c in comparisons:
        change = "-" if c.relative_change is None else f"{c.relative_change:+.1%}"
        p_values = [format_p(c.p_t_test), format_p(c.p_randomisation)] + ([format_p(c.p_value)] if corrected else [])
        rows.append([c.run, c.baseline, c.measure, change, *p_values, str(c.helped), str(c.hurt), str(c.unchanged)])
        if c.note:
            notes.append(f"{c.run} against {c.baseline}, {c.measure}: {c.note}")
    return Table(columns, rows, notes=notes, text_columns=3)
