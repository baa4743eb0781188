"""One table in four looks: alignment, escaping of hostile text, and what the tables of a comparison say."""

import html.parser
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modeling_cobert.evaluation.measures import Evaluation
from modeling_cobert.evaluation.report import Section, render_report
from modeling_cobert.evaluation.significance import compare_runs
from modeling_cobert.evaluation.tables import (
    Cell,
    Table,
    changes_table,
    escape_latex,
    escape_markdown,
    results_table,
    to_latex,
    to_markdown,
    to_terminal,
)
from modeling_cobert.steps.terminal import visible

HOSTILE = ["<script>alert(1)</script>", "a|b", "50% & $x_1^2$ {\\cmd} ~#", "`code` *b* [l](u)", "\x1b[31mred", "\"'"]
TABLE = Table(
    ["Run", "P@20"],
    [["BM25", "0.5"], ["ours", Cell("0.75", "†‡", bold=True)], ["worse", Cell("0.25", "", "↓†")]],
    title="Title",
    notes=["note"],
)


def test_terminal_by_hand():
    assert to_terminal(TABLE) == (
        "Title\n\nRun      P@20\n-----  ------\nBM25    0.5\nours   0.75†‡\nworse  0.25↓†\n\nnote\n"
    )


def test_terminal_columns_stay_aligned_with_wide_and_combining_characters():
    lines = to_terminal(Table(["名前", "n"], [["日本語", "1"], ["e\u0301", "22"]])).splitlines()
    # a wide character takes two columns, a combining accent none
    assert lines[1] == "------  --"
    assert lines[2] == "日本語   1"
    assert lines[3] == "e\u0301       22"


@given(st.text())
def test_nothing_that_a_terminal_obeys_is_left(text):
    shown = visible(text)
    assert not re.search(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]", shown)


def to_html(table: Table) -> str:
    page = render_report("", [Section("", [table])])
    return page[page.index('<div class="table-scroll">') : page.index("</section>")]


class Text(html.parser.HTMLParser):
    """What a reader of the HTML sees, cell by cell, and the tags that it is made of."""

    def __init__(self, page: str):
        super().__init__()
        self.cells, self.tags, self.inside = [], set(), False
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if tag in ("td", "th"):
            self.cells.append("")
            self.inside = True

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self.inside = False

    def handle_data(self, data):
        if self.inside:
            self.cells[-1] += data


@given(st.lists(st.text(), min_size=1, max_size=4))
def test_html_shows_exactly_the_text(texts):
    page = Text(to_html(Table(texts, [texts])))
    assert page.cells == [visible(text) for text in texts] * 2
    assert page.tags == {"div", "table", "thead", "tbody", "tr", "th", "td"}


@pytest.mark.parametrize("text", HOSTILE)
def test_markdown_shows_exactly_the_text(text):
    markdown_it = pytest.importorskip("markdown_it")
    page = Text(markdown_it.MarkdownIt("commonmark").enable("table").render(to_markdown(Table([text], [[text]]))))
    assert [cell.strip() for cell in page.cells] == [visible(text)] * 2
    assert page.tags == {"table", "thead", "tbody", "tr", "th", "td"}


def test_markdown_by_hand():
    assert to_markdown(TABLE) == (
        "**Title**\n\n| Run | P@20 |\n|:---|---:|\n| BM25 | 0.5 |\n| ours | **0.75**†‡ |\n| worse | 0.25↓† |\n\nnote\n"
    )
    assert escape_markdown("a|b\n<i>") == "a&#124;b\\\\u000a&lt;i&gt;"


def test_latex_by_hand():
    assert escape_latex(r"\a{b}$&#%_^~") == (r"\textbackslash{}a\{b\}\$\&\#\%\_\textasciicircum{}\textasciitilde{}")
    body = to_latex(TABLE)
    assert "\\begin{tabular}{lr}" in body and "\\caption{Title}" in body
    assert "ours & \\textbf{0.75}$^{\\dagger\\ddagger}$ \\\\" in body
    assert "worse & 0.25$^{\\downarrow\\dagger}$ \\\\" in body
    assert "{}[x] & 1$^{\\mathrm{(a)}}$" in to_latex(Table(["a", "b"], [["[x]", Cell("1", "(a)")]]))


@given(st.text())
def test_latex_leaves_no_special_character_bare(text):
    escaped = escape_latex(text)
    # take away every command that the escaping writes: nothing special may be left
    rest = re.sub(r"\\text[a-z]+\{\}|\\[{}$&#%_]|\$\\[A-Za-z|]+\$", "", escaped)
    assert not re.search(r"[\\{}$&#%_^~]", rest)


def test_html_by_hand():
    body = to_html(TABLE)
    assert "<caption>Title</caption>" in body and '<p class="note">note</p>' in body
    assert '<th scope="col" class="text">Run</th>' in body and '<th scope="col" class="number">P@20</th>' in body
    marked = '<td class="number"><strong>0.75</strong><span class="marks"><sup>†‡</sup></span></td>'
    assert marked in body.replace("\n", "")
    assert '<td class="number">0.25<span class="marks"><sup class="worse">↓†</sup></span></td>' in body
    assert "&#34;&#39;&lt;&amp;&gt;" in to_html(Table(["\"'<&>"], []))


def test_a_crooked_table_is_an_error():
    with pytest.raises(ValueError, match="row 1 has 1 cells"):
        Table(["a", "b"], [["1", "2"], ["1"]])


def evaluation(values, missing=()):
    mean = sum(values.values()) / len(values)
    return Evaluation({"P@20": mean}, {"P@20": values}, len(values), list(missing), [], 0.125)


def test_tables_of_a_comparison():
    base = evaluation({f"q{i}": 0.1 * (i % 3) for i in range(12)})
    ours = evaluation({f"q{i}": 0.5 + 0.1 * (i % 2) for i in range(12)}, missing=["q3"])
    bad = evaluation({f"q{i}": 0.0 for i in range(12)})
    results = {"base": base, "ours": ours, "bad": bad}
    comparisons = compare_runs(results, ["base"], correction="holm")
    table = results_table(results, comparisons, ["base"], "t-test")
    assert table.rows[1] == ["ours", Cell("0.5500", "†", "", True), "12.5%"]
    assert table.rows[2][1] == Cell("0.0000", "", "↓†", False)
    assert table.notes == [
        "† significantly better than base (t-test)",
        "↓† significantly worse than base (t-test)",
        "12 queries",
        "ours: 1 queries without results count as zero",
    ]
    changes = changes_table(comparisons, corrected=True)
    assert changes.columns[6] == "p (Holm)" and changes.rows[0][:4] == ["ours", "base", "P@20", "+450.0%"]
    assert changes.rows[1][-3:] == ["0", "8", "4"]


@pytest.mark.parametrize(
    ("look", "worse", "mixed"),
    [
        (to_terminal, "0.2000↓†↓‡", "0.4000‡↓†"),
        (to_markdown, "0.2000↓†↓‡", "0.4000‡↓†"),
        (to_latex, r"0.2000$^{\downarrow\dagger\downarrow\ddagger}$", r"0.4000$^{\ddagger\downarrow\dagger}$"),
        (
            to_html,
            '0.2000<span class="marks"><sup class="worse">↓†↓‡</sup></span>',
            '0.4000<span class="marks"><sup>‡</sup><sup class="worse">↓†</sup></span>',
        ),
    ],
)
def test_each_baseline_has_a_mark_of_its_own_for_each_direction(look, worse, mixed):
    values = {"bad": 0.2, "between": 0.4, "low": 0.3, "high": 0.6}
    results = {
        name: evaluation({f"q{i}": value + 0.001 * (i % (2 + k)) for i in range(12)})
        for k, (name, value) in enumerate(values.items())
    }
    results = {name: replace(found, means={"P@20": values[name]}) for name, found in results.items()}
    baselines = ["high", "low"]
    table = results_table(results, compare_runs(results, baselines), baselines, "t-test")
    assert table.notes[:4] == [
        "† significantly better than high (t-test)",
        "↓† significantly worse than high (t-test)",
        "‡ significantly better than low (t-test)",
        "↓‡ significantly worse than low (t-test)",
    ]
    made = look(table).replace("\n", "")
    assert worse in made and mixed in made


@pytest.mark.parametrize("look", [to_terminal, to_markdown, to_latex, to_html])
def test_an_empty_table_still_has_its_header(look):
    assert "Run" in look(Table(["Run", "P"], []))
