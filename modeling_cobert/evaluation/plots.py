"""Plots as inline SVG without any script: per-query gains, helped against hurt, a measure against its cut-off."""

import functools
import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from xml.etree import ElementTree

from markupsafe import Markup

from ..steps.terminal import visible
from .significance import UNCHANGED

LABELLED_BARS = 30
SEPARATE_BARS = 400
# The lines of a plot: first by colour, then by dashes.
SERIES = tuple(f"s{number}" for number in range(8))
DASHES = ("-", "--", ":")
# Never seen: each stands for the variable of that name in the page's style sheet, which has light and dark ones.
VARIABLES = {
    f"#{number:06x}": name
    for number, name in enumerate(("ink", "soft", "line", "panel", "gain", "loss", "same", *SERIES), start=1)
}
COLOURS = {name: colour for colour, name in VARIABLES.items()}
# A page of 400 pixels shows the widest figure with 350, and text of 13 pixels with more than 9.
WIDTH, TEXT = 440, 13
STYLE = {
    "axes.axisbelow": True,
    "axes.edgecolor": COLOURS["soft"],
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.labelcolor": COLOURS["ink"],
    **{f"axes.spines.{side}": False for side in ("left", "right", "top")},
    "figure.facecolor": "none",
    # for the measures of texts; the page has its own font
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": TEXT,
    **{f"{part}.labelsize": TEXT for part in ("axes", "xtick", "ytick")},
    "grid.color": COLOURS["line"],
    "legend.fontsize": TEXT,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "text.color": COLOURS["ink"],
    "text.parse_math": False,
    **{f"{axis}tick.labelcolor": COLOURS["soft"] for axis in "xy"},
    # marks at the axes would be references to elements by their ids, which must be unique in a page
    **{f"{axis}tick.{size}.size": 0 for axis in "xy" for size in ("major", "minor")},
}
# The collections whose paths get tooltips. A single path would be drawn by reference too, if it had not two urls.
TIPS = "tips"
TIPPED = {"gid": TIPS, "urls": [None, None]}
SVG = "{http://www.w3.org/2000/svg}"


def shorten(text: str, length: int) -> str:
    """
    Cuts a long name in its middle, where it is least missed, and makes it [`visible`].

    Example:

    ```python
    >>> shorten("abcdefghij", 7)
    'abc…hij'

    ```
    """
    text, half = visible(text), (length - 1) // 2
    return text if len(text) <= length else text[:half] + "…" + text[len(text) - half :]


def _styled(plot: Callable[..., Markup]) -> Callable[..., Markup]:
    """Draws in our style, whatever matplotlibrc says, and says what to install where matplotlib is not there."""

    @functools.wraps(plot)
    def styled(*args, **kwargs) -> Markup:
        try:
            from matplotlib import style
        except ImportError as error:
            raise ImportError("plots need matplotlib: pip install 'modeling-cobert[report]'") from error
        with style.context(["default", STYLE]), warnings.catch_warnings():
            # The browser chooses the font: what matplotlib's own lacks does not matter.
            warnings.filterwarnings("ignore", message="Glyph .* missing from font")
            return plot(*args, **kwargs)

    return styled


def _axes(width: int, height: int):
    """The axes of a new figure of so many pixels."""
    from matplotlib.figure import Figure

    # an SVG has 72 dots an inch
    return Figure(figsize=(width / 72, height / 72), layout="constrained").add_subplot()


def _to_svg(figure, description: str, tips: Sequence[str]) -> Markup:
    """
    The figure for a page with our style sheet, the same bytes each time.

    Args:
        figure (`matplotlib.figure.Figure`): what is drawn.
        description (`str`): what is read aloud in its place.
        tips (`Sequence[str]`): the tooltips, in the order in which the paths of what is `TIPPED` were drawn.
    """
    file = io.BytesIO()
    figure.savefig(file, format="svg")
    drawn = ElementTree.fromstring(file.getvalue())
    width, height = drawn.attrib["viewBox"].split()[2:]
    root = ElementTree.Element("svg", {"aria-label": visible(description)}, role="img", width=width)
    root.set("viewBox", f"0 0 {width} {height}")
    # Beside the drawing there are definitions, for clipping, and metadata, with a date.
    root.extend(drawn.findall(f"{SVG}g"))
    paths: list[ElementTree.Element] = []
    for element in root.iter():
        if element.attrib.pop("id", None) == TIPS:
            paths += element.iter(f"{SVG}path")
        element.attrib.pop("clip-path", None)
        element.tag = element.tag.removeprefix(SVG)
        element.text, element.tail = (element.text or "").strip(), ""
        for name in element.attrib.keys() & {"style", "d"}:
            element.set(name, _for_page(element.attrib[name]))
    for path, tip in zip(paths, tips, strict=True):
        ElementTree.SubElement(path, "title").text = visible(tip)
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _for_page(value: str) -> str:
    """Colours become the page's variables, and a hundredth of a pixel is enough."""
    value = re.sub("#[0-9a-f]{6}", lambda found: f"var(--{VARIABLES[found[0]]})", value)
    return re.sub(r"(\.\d\d)\d+", r"\1", value).replace("  ", " ").strip()


def _colour(gain: float) -> str:
    return COLOURS["gain" if gain > UNCHANGED else "loss" if gain < -UNCHANGED else "same"]


@_styled
def gain_bars(gains: Mapping[str, float], measure: str, names: Mapping[str, str] | None = None) -> Markup:
    """
    A bar for each query, most helped first.

    Args:
        gains (`Mapping[str, float]`): query id to run minus baseline.
        measure (`str`): its name.
        names (`Mapping[str, str]`, *optional*): query id to what a bar's tooltip says instead.
    """
    from matplotlib.collections import PolyCollection

    names = names or {}
    ordered = sorted(gains.items(), key=lambda item: (-item[1], item[0]))
    query_ids, values = zip(*ordered, strict=True)
    axes = _axes(WIDTH, 340)
    axes.grid(visible=False, axis="x")
    axes.spines["bottom"].set_visible(False)
    tips = []
    if len(ordered) <= SEPARATE_BARS:
        tips = [f"{names.get(query_id, query_id)}: {gain:+.4f}" for query_id, gain in ordered]
        colours = [_colour(gain) for gain in values]
        bars = [[(i - 0.4, 0), (i - 0.4, gain), (i + 0.4, gain), (i + 0.4, 0)] for i, gain in enumerate(values)]
        # The thin edge is what is seen of a bar without height.
        drawn = PolyCollection(bars, facecolors=colours, edgecolors=colours, linewidths=0.6, antialiaseds=False)
        axes.add_collection(drawn).set(**TIPPED)
        axes.autoscale_view()
    else:  # thinner than a pixel: one outline for the gains and one for the losses
        axes.stairs([max(gain, 0.0) for gain in values], fill=True, color=COLOURS["gain"])
        axes.stairs([min(gain, 0.0) for gain in values], fill=True, color=COLOURS["loss"])
    if len(ordered) <= LABELLED_BARS:
        labels = [shorten(query_id, 12) for query_id in query_ids]
        # by their ends, so that they touch the axis in any font
        upright = {"rotation": 90, "rotation_mode": "anchor", "ha": "right", "va": "center"}
        axes.set_xticks(range(len(labels)), labels, **upright)
    axes.axhline(0, color=COLOURS["soft"], linewidth=1.2)
    axes.margins(x=0.01)
    if not any(abs(gain) > UNCHANGED for gain in values):
        axes.set_ylim(-1, 1)
    axes.set(xlabel="queries, most helped first", ylabel=f"change in {visible(measure)}")
    return _to_svg(axes.figure, f"Change in {measure} for each of {len(ordered)} queries", tips)


@_styled
def helped_hurt_scatter(
    baseline: Mapping[str, float], run: Mapping[str, float], baseline_name: str, run_name: str, measure: str
) -> Markup:
    """
    A dot for each query, its value in the baseline across and in the run upwards: above the diagonal it was helped.

    Args:
        baseline, run (`Mapping[str, float]`): query id to value, the same queries.
        baseline_name, run_name, measure (`str`): for the labels.
    """
    # Queries at the same place are one dot, larger: with P@20 there are only 21 values.
    places: dict[tuple[float, float], list[str]] = {}
    for query_id, value in run.items():
        places.setdefault((round(baseline[query_id], 6), round(value, 6)), []).append(query_id)
    # the largest first, so that they hide none
    dots = sorted(places.items(), key=lambda place: -len(place[1]))
    x, y = zip(*(place for place, _ in dots), strict=True)
    low, high = min(0.0, *x, *y), max(*x, *y)
    high = high if high > low else low + 1.0
    axes = _axes(380, 340)
    axes.plot([low, high], [low, high], color=COLOURS["soft"], linewidth=1, linestyle="--")
    axes.scatter(
        x,
        y,
        s=[min(41 * len(query_ids), 784) for _, query_ids in dots],  # squares of diameters of 6.4 to 28 pixels
        c=[_colour(after - before) for (before, after), _ in dots],
        edgecolors=COLOURS["panel"],
        linewidth=0.7,
        alpha=0.6,
        zorder=2,
        **TIPPED,
    )
    axes.set_xlabel(f"{visible(measure)}, {shorten(baseline_name, 24)}")
    axes.set_ylabel(f"{visible(measure)}, {shorten(run_name, 24)}")
    tips = [f"{_listed(query_ids)}: {before:.4f} → {after:.4f}" for (before, after), query_ids in dots]
    return _to_svg(axes.figure, f"{measure} of {run_name} against {baseline_name}, one dot for each query", tips)


def _listed(query_ids: Sequence[str], most: int = 8) -> str:
    more = f" and {len(query_ids) - most} more" if len(query_ids) > most else ""
    return ", ".join(query_ids[:most]) + more


@_styled
def cutoff_curves(curves: Mapping[str, Mapping[int, float]], measure: str) -> Markup:
    """
    A line for each run: a measure at rising cut-offs, on a logarithmic axis.

    Args:
        curves (`Mapping[str, Mapping[int, float]]`): run to cut-off to mean.
        measure (`str`): its name without the cut-off.
    """
    cutoffs = sorted({cutoff for curve in curves.values() for cutoff in curve})
    axes = _axes(300, 270 + 18 * len(curves))
    lines, tips = [], []
    for i, (name, curve) in enumerate(curves.items()):
        look = {"color": COLOURS[SERIES[i % len(SERIES)]], "linestyle": DASHES[i // len(SERIES) % len(DASHES)]}
        k, values = zip(*sorted(curve.items()), strict=True)
        lines += axes.plot(k, values, linewidth=2, **look)
        # a size for each dot: else matplotlib would draw one and refer to it
        axes.scatter(k, values, s=[36] * len(k), c=COLOURS["panel"], edgecolors=look["color"], zorder=3, **TIPPED)
        tips += [f"{name}: {measure}@{cutoff} = {value:.4f}" for cutoff, value in zip(k, values, strict=True)]
    axes.set_xscale("log")
    axes.set_xticks(cutoffs, [str(cutoff) for cutoff in cutoffs])
    axes.minorticks_off()
    axes.set_ylim(bottom=0, top=None if any(any(curve.values()) for curve in curves.values()) else 1)
    axes.set(xlabel="cut-off k", ylabel=f"{visible(measure)}@k")
    axes.figure.legend(lines, [shorten(name, 27) for name in curves], loc="outside lower left")
    return _to_svg(axes.figure, f"{measure} at cut-offs {cutoffs[0]} to {cutoffs[-1]}", tips)
