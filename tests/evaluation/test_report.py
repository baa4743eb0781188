"""The HTML report: self-contained, nothing of the input is obeyed, and a real browser opens it, where there is one."""

import html.parser
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from modeling_cobert.collections.trec import write_qrels, write_run
from modeling_cobert.commands.compare import CompareArguments, main, named_paths
from modeling_cobert.evaluation.measures import evaluate_run
from modeling_cobert.evaluation.plots import cutoff_curves, gain_bars, helped_hurt_scatter, shorten, ticks
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

ROOT = Path(__file__).resolve().parents[2]
HOSTILE = "<script>alert(1)</script>"
ALLOWED = set(
    "html head meta title style body header h1 p nav a main section h2 h3 div table caption thead tbody tr th td span "
    "strong sup figure figcaption svg line text rect circle polyline path details summary footer".split()
)
VOID = {"meta"}


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
    bars = gain_bars(comparisons[0].gains, "nDCG@20")
    assert bars.count("<rect") == (queries if queries <= 400 else 0)


def test_hostile_names_ids_and_texts_are_shown_and_not_obeyed():
    evil = f'{HOSTILE}"onload="x" \u202e\x1b$title|'
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


def elements(svg: str, tag: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(svg).iter(tag))


def test_bars_are_as_long_as_gains_and_in_order():
    bars = elements(gain_bars({"a": 0.2, "b": -0.1, "c": 0.0, "d": 0.4}, "P@20"), "rect")
    assert [bar.find("title").text for bar in bars] == ["d: +0.4000", "a: +0.2000", "c: +0.0000", "b: -0.1000"]
    assert [bar.get("class") for bar in bars] == ["gain", "gain", "same", "loss"]
    heights = [float(bar.get("height")) for bar in bars]
    assert heights[0] == pytest.approx(2 * heights[1], abs=0.05) and heights[0] == pytest.approx(
        4 * heights[3], abs=0.1
    )
    assert float(bars[3].get("y")) == pytest.approx(float(bars[0].get("y")) + heights[0], abs=0.05)  # below the line


def test_scatter_puts_helped_queries_above_the_diagonal_and_joins_equal_ones():
    svg = helped_hurt_scatter({"a": 0.1, "b": 0.5, "c": 0.1}, {"a": 0.4, "b": 0.2, "c": 0.4}, "base", "ours", "P@20")
    both, single = elements(svg, "circle")
    assert both.get("class") == "gain dot" and single.get("class") == "loss dot"
    assert both.find("title").text == "a, c: 0.1000 → 0.4000"
    assert float(both.get("r")) == pytest.approx(float(single.get("r")) * 2**0.5, abs=0.01)
    assert float(both.get("cy")) < float(single.get("cy")) and float(both.get("cx")) < float(single.get("cx"))


def test_curves_and_cutoffs():
    qrels, runs, _, _ = comparison(4)
    means = cutoff_means(qrels, runs, ["P"], [1, 2, 1000])
    # base: c a b, where c is not relevant; rankings have three documents, so 1000 is left out
    assert means["P"]["base"] == {1: 0.0, 2: 0.5}
    svg = cutoff_curves({"x<": {1: 0.5, 10: 0.25, 100: 0.0}}, "P")
    points = elements(svg, "circle")
    x = [float(point.get("cx")) for point in points]
    assert x[1] - x[0] == pytest.approx(x[2] - x[1], abs=0.02)  # logarithmic
    assert points[0].find("title").text == "x<: P@1 = 0.5000"
    elements(cutoff_curves({"only": {10: 0.0}}, "P"), "circle")


def test_ticks_and_names():
    assert ticks(0, 1) == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert ticks(-0.11, 0.22) == [-0.1, -0.05, 0.0, 0.05, 0.1, 0.15, 0.2]
    assert ticks(3, 3) and ticks(0, 250) == [0, 50, 100, 150, 200, 250]
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
    write_run(tmp_path / "a.trec", {"q": {"b": 1.0}}, "a")
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
    assert named_paths([first, second]) == {"x": first, second: second}
    with pytest.raises(ValueError, match="two runs are named 'a'"):
        named_paths([f"a={first}", f"a={second}"])


def test_script_says_what_is_wrong(files):
    command = [sys.executable, "data_scripts/compare_runs.py", "--baselines", str(files / "none.trec")]
    result = subprocess.run(
        [*command, "--qrels", str(files / "qrels.txt")], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 1 and "error: [Errno 2]" in result.stderr and "none.trec" in result.stderr
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
