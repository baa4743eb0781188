"""The HTML report: self-contained, nothing of the input is obeyed, and a real browser opens it, where there is one."""

import html.parser
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modeling_cobert.collections.trec import write_qrels, write_run
from modeling_cobert.commands.compare import CompareArguments, main, named_paths
from modeling_cobert.evaluation.measures import evaluate_run
from modeling_cobert.evaluation.plots import cutoff_curves, gain_bars, helped_hurt_scatter, shorten
from modeling_cobert.evaluation.report import (
    Columns,
    Details,
    Figure,
    Heading,
    Section,
    comparison_sections,
    cutoff_means,
    render_report,
    write_report,
)
from modeling_cobert.evaluation.significance import compare_runs
from modeling_cobert.evaluation.tables import Table
from modeling_cobert.steps.terminal import visible

ROOT = Path(__file__).resolve().parents[2]
HOSTILE = "<script>alert(1)</script>"
ALLOWED = set(
    "html head meta title style body header h1 p nav a main section h2 h3 div table caption thead tbody tr th td span "
    "strong sup figure figcaption svg g text path details summary footer".split()
)
VOID = {"meta"}
CURVES = {"run": {1: 0.5, 3: 0.4, 5: 0.4, 10: 0.3, 20: 0.3, 50: 0.2, 100: 0.1, 1000: 0.05}}


class Page(html.parser.HTMLParser):
    """Checks that tags are closed in order, and collects what could reach outside."""

    def __init__(self, text: str):
        super().__init__()
        self.open, self.tags, self.references, self.handlers, self.text, self.ids = [], set(), [], [], "", []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "action", "data", "srcset", "poster"):
                self.references.append(value)
            if name.startswith("on"):
                self.handlers.append(name)
            if name == "id":
                self.ids.append(value)
        if tag not in VOID and not self.get_starttag_text().endswith("/>"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def check_self_contained(text: str) -> Page:
    page = Page(text)
    assert page.tags <= ALLOWED
    assert all(reference.startswith("#section-") for reference in page.references)
    assert [reference[1:] for reference in page.references] == page.ids
    assert not page.handlers
    assert not re.search(r"url\(|@import|https?://|javascript:", text)
    assert "default-src 'none'" in text
    return page


def comparison(queries: int, names=("base", "ours"), hostile: str = ""):
    qrels = {f"{hostile}q{i}": {"a": 2, "b": 1, "c": 0} for i in range(queries)}
    base = {q: {"c": 3.0, "a": 2.0, "b": 1.0} for q in qrels}
    ours = {q: {"a": 3.0, "c": 2.0 + i % 2, "b": 2.5} for i, q in enumerate(qrels)}
    runs = dict(zip(names, (base, ours), strict=True))
    results = {name: evaluate_run(qrels, run, ["nDCG@20", "RR"]) for name, run in runs.items()}
    return qrels, runs, results, compare_runs(results, [names[0]], samples=500)


@pytest.mark.parametrize("queries", [1, 2, 30, 31, 401])
def test_report_is_self_contained_at_every_size(queries):
    qrels, runs, results, comparisons = comparison(queries)
    sections = comparison_sections(results, comparisons, ["base"], curves=cutoff_means(qrels, runs))
    page = check_self_contained(render_report("Title", sections, "subtitle", "footer"))
    assert "ours against base" in page.text and "nDCG@20" in page.text
    assert [section.title for section in sections] == ["Results", "Measure against cut-off", "ours against base"]
    assert len(tipped(gain_bars(comparisons[0].gains, "nDCG@20"))) == (queries if queries <= 400 else 0)
    assert ("hover to see which" in page.text) == (queries <= 400)


def test_hostile_names_ids_and_texts_are_shown_and_not_obeyed():
    evil = f'{HOSTILE}"onload="x" \u202e\x1b\ud800{{{{ title }}}}|'
    qrels, runs, results, comparisons = comparison(3, names=(evil, evil + "2"), hostile=evil)
    sections = comparison_sections(
        results,
        comparisons,
        [evil],
        description=evil,
        curves=cutoff_means(qrels, runs),
        queries=dict.fromkeys(qrels, evil),
    )
    sections.append(Section(evil, [evil, Heading(evil), Details(evil, [Table([evil], [[evil]], evil, [evil])])]))
    text = render_report(evil, sections, evil, evil)
    page = check_self_contained(text)
    assert "script" not in page.tags and HOSTILE not in text
    assert HOSTILE in page.text  # as text
    assert not re.search("[\x00-\x08\x0b-\x1f\u202e]", text)


def test_sections_of_others_stand_beside_ours(tmp_path):
    figure = Figure(gain_bars({"q": 0.5}, "P@1"), "caption")
    extra = Section("Context, explained", ["why", Columns([figure, Table(["Prototype", "Weight"], [["d1", "0.4"]])])])
    write_report(tmp_path / "deep" / "report.html", "T", [extra, Section("Empty")])
    page = check_self_contained((tmp_path / "deep" / "report.html").read_text(encoding="utf-8"))
    assert page.ids == ["section-1", "section-2"] and "Prototype" in page.text and "caption" in page.text


class Tipped:
    """A path that has a tooltip: what that says, the colour, and where the path lies, y downwards."""

    def __init__(self, path: ElementTree.Element):
        self.tip, style = path.find("title").text, path.get("style")
        self.fill, self.stroke = (re.search(rf"{name}: var\(--(\w+)\)", style)[1] for name in ("fill", "stroke"))
        numbers = [float(number) for number in re.findall(r"[\d.]+", path.get("d"))]
        self.left, self.right = min(numbers[::2]), max(numbers[::2])
        self.top, self.bottom = min(numbers[1::2]), max(numbers[1::2])
        self.width, self.height = self.right - self.left, self.bottom - self.top


def tipped(svg: str) -> list[Tipped]:
    return [Tipped(path) for path in ElementTree.fromstring(svg).iter("path") if path.find("title") is not None]


def texts(svg: str) -> list[str]:
    return [element.text for element in ElementTree.fromstring(svg).iter("text")]


def test_bars_are_as_long_as_gains_and_in_order():
    bars = tipped(gain_bars({"a": 0.2, "b": -0.1, "c": 0.0, "d": 0.4}, "P@20", {"b": "b (why)"}))
    assert [bar.tip for bar in bars] == ["d: +0.4000", "a: +0.2000", "c: +0.0000", "b (why): -0.1000"]
    assert [bar.fill for bar in bars] == ["gain", "gain", "same", "loss"]
    assert [bar.height / bars[1].height for bar in bars] == pytest.approx([2, 1, 0, 0.5], abs=0.01)
    assert bars[3].top == bars[0].bottom == bars[1].bottom  # the zero line
    assert all(left.right < right.left for left, right in itertools.pairwise(bars))


def test_few_queries_are_labelled_and_many_are_two_outlines():
    few, many = (gain_bars({f"query-{i}": i / n - 0.5 for i in range(n)}, "P") for n in (30, 401))
    assert {f"query-{i}" for i in range(30)} <= set(texts(few))
    assert not any("query-" in text for text in texts(many)) and not tipped(many)
    assert "var(--gain)" in many and "var(--loss)" in many


def test_scatter_puts_helped_queries_above_the_diagonal_and_joins_equal_ones():
    svg = helped_hurt_scatter({"a": 0.1, "b": 0.5, "c": 0.1}, {"a": 0.4, "b": 0.2, "c": 0.4}, "base", "ours", "P@20")
    both, single = tipped(svg)
    assert both.fill == "gain" and single.fill == "loss"
    assert both.tip == "a, c: 0.1000 → 0.4000"
    assert both.width == pytest.approx(single.width * 2**0.5, abs=0.05) and both.width == pytest.approx(both.height)
    assert both.top < single.top and both.left < single.left
    assert {"P@20, base", "P@20, ours"} <= set(texts(svg))
    crowd = dict.fromkeys([f"q{i}" for i in range(11)], 0.0)
    (dot,) = tipped(helped_hurt_scatter(crowd, crowd, "x", "y", "P"))
    assert dot.tip.endswith("q7 and 3 more: 0.0000 → 0.0000") and dot.fill == "same"


def test_curves_and_cutoffs():
    qrels, runs, _, _ = comparison(4)
    means = cutoff_means(qrels, runs, ["P"], [1, 2, 1000])
    # base: c a b, where c is not relevant; rankings have three documents, so 1000 is left out
    assert means["P"]["base"] == {1: 0.0, 2: 0.5}
    svg = cutoff_curves({"x<": {1: 0.5, 10: 0.25, 100: 0.0}, "y": {1: 0.5}}, "P")
    points = tipped(svg)
    assert points[1].left - points[0].left == pytest.approx(points[2].left - points[1].left, abs=0.02)  # logarithmic
    assert points[1].top - points[0].top == pytest.approx(points[2].top - points[1].top, abs=0.02)
    assert points[0].tip == "x<: P@1 = 0.5000" and [point.stroke for point in points] == ["s0"] * 3 + ["s1"]
    assert {"1", "10", "100", "x<", "y", "P@k"} <= set(texts(svg))
    assert len(tipped(cutoff_curves({"only": {10: 0.0}}, "P"))) == 1


@pytest.mark.parametrize("runs", [1, 30])
def test_every_run_has_its_line_in_the_legend(runs):
    names = [f"_run{i}" for i in range(runs)]
    svg = cutoff_curves({name: {1: 0.1 * i, 5: 0.2} for i, name in enumerate(names)}, "P")
    assert [text for text in texts(svg) if "run" in text] == names


HOSTILE_NAMES = [
    "</svg><script>alert(1)</script>",
    "\"' onload='x'",
    "$x^2$ and $\\frac",
    "_hidden",
    "\u202eabc\u2069",
    "a\nb\x1b[0m",
    "\U0001f600 日本語",
    "\ud800 alone",
    "\uffff",
    "#000005",
]


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_plots_show_a_name_as_it_is(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bars = gain_bars({name: 0.5, "other": -0.5}, name)
        dots = helped_hurt_scatter({name: 0.5}, {name: 0.25}, name, name, name)
        curves = cutoff_curves({name: {1: 0.5, 2: 0.25}}, name)
    shown = visible(name)
    assert tipped(bars)[0].tip == f"{shown}: +0.5000" and shorten(name, 12) in texts(bars)
    assert tipped(dots)[0].tip == f"{shown}: 0.5000 → 0.2500"
    assert texts(dots).count(f"{shown}, {shorten(name, 24)}") == 2
    assert tipped(curves)[1].tip == f"{shown}: {shown}@2 = 0.2500" and shorten(name, 27) in texts(curves)
    for svg in (bars, dots, curves):
        assert shown in ElementTree.fromstring(svg).get("aria-label")
        assert {element.tag for element in ElementTree.fromstring(svg).iter()} == {"svg", "g", "path", "text", "title"}
        check_self_contained(render_report("", [Section("", [Figure(svg)])]))


@settings(max_examples=10, deadline=None)
@given(st.text(st.characters(exclude_categories=[]), min_size=1))
def test_plots_take_any_text(name):
    assert tipped(helped_hurt_scatter({name: 0.5}, {name: 0.25}, name, name, name))[0].tip.startswith(visible(name))


def test_text_stays_readable_on_a_narrow_page():
    """A page of 400 pixels has 350 for a figure: text must keep 9 pixels, and stand inside."""
    gains = {f"query-{i}": i / 30 - 0.5 for i in range(30)}
    figures = [
        gain_bars(gains, "nDCG@20"),
        helped_hurt_scatter(gains, gains, "b", "r", "P"),
        cutoff_curves(CURVES, "P"),
    ]
    for svg in figures:
        width, height = (float(size) for size in ElementTree.fromstring(svg).get("viewBox").split()[2:])
        for text in ElementTree.fromstring(svg).iter("text"):
            size = float(re.search(r"([\d.]+)px", text.get("style"))[1])
            assert size * min(1, 350 / width) >= 9
            assert 0 <= float(text.get("x")) <= width and 0 <= float(text.get("y")) <= height


PROGRAM = """
from modeling_cobert.evaluation.plots import cutoff_curves, gain_bars, helped_hurt_scatter
values = {"a": 0.1, "b": 0.7}
plots = [gain_bars(values, "P"), helped_hurt_scatter(values, {"a": 0.5, "b": 0.2}, "x", "y", "P")]
plots.append(cutoff_curves({"x": {1: 0.5, 10: 0.4}}, "P"))
"""


def test_the_same_bytes_in_every_process_and_with_any_matplotlibrc(tmp_path):
    here: dict = {}
    exec(PROGRAM, here)
    (tmp_path / "matplotlibrc").write_text("font.size: 30\naxes.grid: False\ntext.parse_math: True\n")
    variables = {"PYTHONHASHSEED": "1", "PYTHONPATH": str(ROOT), "MATPLOTLIBRC": str(tmp_path / "matplotlibrc")}
    command = [sys.executable, "-c", PROGRAM + "print(ascii([*map(str, plots)]))"]
    there = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=True)
    assert there.stdout.strip() == ascii([*map(str, here["plots"])])


def test_without_matplotlib_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"modeling-cobert\[report\]"):
        gain_bars({"q": 0.5}, "P")
    assert "text" in render_report("T", [Section("S", ["text"])])  # a report without plots needs none


def test_a_figure_that_is_not_ours_is_escaped():
    page = Page(render_report("T", [Section("S", [Figure("<svg><script>x</script></svg>")])]))
    assert not page.tags & {"svg", "script"} and "<script>" in page.text


def test_names_are_cut_in_their_middle():
    assert shorten("abcdefghij", 7) == "abc…hij" and shorten("abc", 7) == "abc"


@pytest.fixture
def files(tmp_path):
    qrels, runs, _, _ = comparison(9)
    write_qrels(tmp_path / "qrels.txt", qrels)
    for name, run in runs.items():
        write_run(tmp_path / f"{name}.trec", run, name)
    return tmp_path


def test_script_writes_every_format(files, capsys):
    paths = {look: str(files / f"out.{look}") for look in ("html", "json", "markdown", "latex")}
    runs = [str(files / "ours.trec"), f"same={files / 'base.trec'}"]
    arguments = CompareArguments(
        qrels=str(files / "qrels.txt"), baselines=[str(files / "base.trec")], runs=runs, correction="holm", **paths
    )
    main(arguments)
    printed = capsys.readouterr().out
    assert (
        re.search(r"ours +0\.1000 ", printed) and "R@1000" in printed and "† significantly better than base" in printed
    )
    result = json.loads(Path(paths["json"]).read_text())
    assert result["baselines"] == ["base"] and set(result["runs"]) == {"base", "ours", "same"}
    same = [c for c in result["comparisons"] if c["run"] == "same"]
    assert all(c["p_value"] == 1.0 and c["unchanged"] == 9 for c in same) and len(same) == 3
    check_self_contained(Path(paths["html"]).read_text(encoding="utf-8"))
    assert "| ours |" in Path(paths["markdown"]).read_text() and "\\toprule" in Path(paths["latex"]).read_text()


def test_script_on_one_query_and_with_the_baseline_alone(tmp_path, capsys):
    write_qrels(tmp_path / "q.txt", {"q": {"a": 1}})
    write_run(tmp_path / "a.trec", {"q": {"b": 1.0, "a": 0.5}}, "a")
    write_run(tmp_path / "b.trec", {"q": {"a": 1.0}}, "b")
    common = {"qrels": str(tmp_path / "q.txt"), "baselines": [str(tmp_path / "a.trec")]}
    main(CompareArguments(runs=[str(tmp_path / "b.trec")], html=str(tmp_path / "r.html"), **common))
    assert "one query: no paired test is possible" in capsys.readouterr().out.replace("\n  ", " ")
    check_self_contained((tmp_path / "r.html").read_text(encoding="utf-8"))
    main(CompareArguments(html=str(tmp_path / "r.html"), **common))
    check_self_contained((tmp_path / "r.html").read_text(encoding="utf-8"))


def test_names_of_runs(tmp_path):
    (tmp_path / "lr=3").mkdir()
    for path in (tmp_path / "lr=3" / "x.trec.gz", tmp_path / "x.trec"):
        path.touch()
    first, second = str(tmp_path / "lr=3" / "x.trec.gz"), str(tmp_path / "x.trec")
    assert named_paths([first, f"k = 1={second}"]) == {"x": first, "k = 1": second}
    assert named_paths([first, second]) == {first: first, second: second}
    with pytest.raises(ValueError, match="two runs are named 'a'"):
        named_paths([f"a={first}", f"a={second}"])


def test_script_says_what_is_wrong(files):
    command = [sys.executable, "data_scripts/compare_runs.py", "--baselines", str(files / "none.trec")]
    result = subprocess.run(
        [*command, "--qrels", str(files / "qrels.txt")], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 1 and "none.trec: there is no such file: correct its name" in result.stderr
    with pytest.raises(ValueError, match="either --qrels or --collection"):
        main(CompareArguments(baselines=["x"]))


@pytest.mark.skipif(not shutil.which("chromium"), reason="no chromium here")
def test_a_real_browser_opens_it_without_errors(tmp_path):
    qrels, runs, results, comparisons = comparison(5, hostile=HOSTILE)
    sections = comparison_sections(results, comparisons, ["base"], curves=cutoff_means(qrels, runs))
    write_report(tmp_path / "report.html", HOSTILE, sections)
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    flags += "--disable-component-update --disable-sync --enable-logging=stderr --v=0 --dump-dom"
    command = ["chromium", *flags.split(), f"--user-data-dir={tmp_path / 'profile'}"]
    result = subprocess.run(
        [*command, f"file://{tmp_path / 'report.html'}"], capture_output=True, text=True, timeout=120, check=True
    )
    # the browser's own tree: nothing was added, moved or refused
    assert result.stdout.count("<svg") == 7 and "<script" not in result.stdout
    assert result.stdout.count("<section") == 3
    assert "CONSOLE" not in result.stderr
