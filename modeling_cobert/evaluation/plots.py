"""Plots as inline SVG without any script: per-query gains, helped against hurt, a measure against its cut-off."""

import math
from collections.abc import Mapping, Sequence

from .significance import UNCHANGED
from .tables import escape_html

# Colours are classes, so that the page's style sheet decides them for light and dark.
SERIES = 8
LABELLED_BARS = 30
SEPARATE_BARS = 400


def ticks(low: float, high: float, most: int = 7) -> list[float]:
    """At most `most + 1` round numbers from `low` to `high`, steps of 1, 2 or 5 times a power of ten."""
    if not high > low:
        high = low + 1.0
    least = (high - low) / most
    power = 10.0 ** math.floor(math.log10(least))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))
    return [round(i * step, 10) for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def number(value: float) -> str:
    """A tick's label, without trailing zeros and with a real minus."""
    return f"{value:.6g}".replace("-", "−")


def shorten(text: str, length: int) -> str:
    """Cuts a long name in its middle, where it is least missed."""
    text = str(text)
    if len(text) <= length:
        return text
    half = (length - 1) // 2
    return text[:half] + "…" + text[len(text) - half :]


class Canvas:
    """A drawing area with margins: collects SVG elements and knows where data coordinates lie."""

    def __init__(self, width: int, height: int, x: tuple[float, float], y: tuple[float, float], bottom: int = 44):
        self.width, self.height = width, height
        self.left, self.right, self.top, self.bottom = 58, width - 14, 14, height - bottom
        self.x_range, self.y_range = x, y
        self.parts: list[str] = []

    def x(self, value: float) -> float:
        low, high = self.x_range
        return round(self.left + (value - low) / (high - low) * (self.right - self.left), 2)

    def y(self, value: float) -> float:
        low, high = self.y_range
        return round(self.bottom - (value - low) / (high - low) * (self.bottom - self.top), 2)

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str) -> None:
        self.parts.append(f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" class="{kind}"/>')

    def text(self, x: float, y: float, text: str, kind: str = "tick", anchor: str = "middle", turn: int = 0) -> None:
        turned = f' transform="rotate({turn} {x} {y})"' if turn else ""
        self.parts.append(
            f'<text x="{x}" y="{y}" class="{kind}" text-anchor="{anchor}"{turned}>{escape_html(text)}</text>'
        )

    def y_axis(self, label: str) -> None:
        for value in ticks(*self.y_range):
            self.line(self.left, self.y(value), self.right, self.y(value), "grid")
            self.text(self.left - 8, self.y(value) + 4, number(value), anchor="end")
        self.text(14, (self.top + self.bottom) / 2, label, "label", turn=-90)

    def x_label(self, label: str) -> None:
        self.text((self.left + self.right) / 2, self.height - 8, label, "label")

    def svg(self, description: str) -> str:
        name = escape_html(description)
        return (
            f'<svg viewBox="0 0 {self.width} {self.height}" width="{self.width}" role="img" aria-label="{name}">'
            + "".join(self.parts)
            + "</svg>"
        )


def gain_bars(gains: Mapping[str, float], measure: str, names: Mapping[str, str] | None = None) -> str:
    """
    A bar for each query, most helped first.

    Args:
        gains (`Mapping[str, float]`): query id to run minus baseline.
        measure (`str`): its name.
        names (`Mapping[str, str]`, *optional*): query id to what a bar's tooltip says instead.
    """
    names = names or {}
    ordered = sorted(gains.items(), key=lambda item: (-item[1], item[0]))
    few = len(ordered) <= LABELLED_BARS
    low, high = min(0.0, *gains.values()), max(0.0, *gains.values())
    if high - low < UNCHANGED:
        low, high = -1.0, 1.0
    pad = (high - low) * 0.05
    canvas = Canvas(590, 340, (0, len(ordered)), (low - pad, high + pad), bottom=86 if few else 44)
    canvas.y_axis(f"change in {measure}")
    slot = (canvas.right - canvas.left) / len(ordered)
    gap = min(slot * 0.2, 3.0) if slot >= 4 else 0.0
    if len(ordered) <= SEPARATE_BARS:
        for i, (query_id, gain) in enumerate(ordered):
            kind = "gain" if gain > UNCHANGED else "loss" if gain < -UNCHANGED else "same"
            top, height = canvas.y(max(gain, 0)), abs(canvas.y(gain) - canvas.y(0))
            canvas.parts.append(
                f'<rect x="{canvas.x(i) + gap / 2:.2f}" y="{top}" width="{slot - gap:.2f}" '
                f'height="{max(height, 0.6):.2f}" class="{kind}">'
                f"<title>{escape_html(names.get(query_id, query_id))}: {gain:+.4f}</title></rect>"
            )
            if few:
                x = round(canvas.x(i) + slot / 2 + 3, 2)
                canvas.text(x, canvas.bottom + 12, shorten(query_id, 12), anchor="end", turn=-45)
    else:
        _gain_areas(canvas, [gain for _, gain in ordered])
    canvas.line(canvas.left, canvas.y(0), canvas.right, canvas.y(0), "axis")
    if not few:
        for value in ticks(0, len(ordered)):
            canvas.text(canvas.x(value), canvas.bottom + 16, number(value))
    canvas.x_label("queries, most helped first")
    return canvas.svg(f"Change in {measure} for each of {len(ordered)} queries")


def _gain_areas(canvas: Canvas, gains: Sequence[float]) -> None:
    """So many bars that they would be thinner than a pixel: one outline for the gains and one for the losses."""
    for kind, keep in (("gain", lambda gain: max(gain, 0.0)), ("loss", lambda gain: min(gain, 0.0))):
        path = [f"M{canvas.x(0)} {canvas.y(0)}"]
        path += [
            f"L{canvas.x(i)} {canvas.y(keep(g))}L{canvas.x(i + 1)} {canvas.y(keep(g))}" for i, g in enumerate(gains)
        ]
        canvas.parts.append(f'<path d="{"".join(path)}L{canvas.x(len(gains))} {canvas.y(0)}Z" class="{kind}"/>')


def helped_hurt_scatter(
    baseline: Mapping[str, float], run: Mapping[str, float], baseline_name: str, run_name: str, measure: str
) -> str:
    """
    A dot for each query, its value in the baseline across and in the run upwards: above the diagonal it was helped.

    Args:
        baseline, run (`Mapping[str, float]`): query id to value, the same queries.
        baseline_name, run_name, measure (`str`): for the labels.
    """
    values = [*baseline.values(), *run.values()]
    low, high = min(0.0, *values), max(values)
    high = high if high > low else low + 1.0
    pad = (high - low) * 0.03
    canvas = Canvas(360, 340, (low - pad, high + pad), (low - pad, high + pad))
    canvas.y_axis(f"{measure}, {shorten(run_name, 28)}")
    for value in ticks(*canvas.x_range):
        canvas.line(canvas.x(value), canvas.top, canvas.x(value), canvas.bottom, "grid")
        canvas.text(canvas.x(value), canvas.bottom + 16, number(value))
    canvas.x_label(f"{measure}, {shorten(baseline_name, 28)}")
    canvas.line(canvas.x(low), canvas.y(low), canvas.x(high), canvas.y(high), "diagonal")
    # Queries at the same place are one dot, larger: with P@20 there are only 21 values.
    places: dict[tuple[float, float], list[str]] = {}
    for query_id, value in run.items():
        places.setdefault((round(baseline[query_id], 6), round(value, 6)), []).append(query_id)
    # the largest first, so that they hide none
    for (x, y), query_ids in sorted(places.items(), key=lambda place: -len(place[1])):
        kind = "gain" if y - x > UNCHANGED else "loss" if y - x < -UNCHANGED else "same"
        radius = min(3.2 * math.sqrt(len(query_ids)), 14)
        names = ", ".join(query_ids[:8]) + (f" and {len(query_ids) - 8} more" if len(query_ids) > 8 else "")
        canvas.parts.append(
            f'<circle cx="{canvas.x(x)}" cy="{canvas.y(y)}" r="{radius:.2f}" class="{kind} dot">'
            f"<title>{escape_html(names)}: {x:.4f} → {y:.4f}</title></circle>"
        )
    return canvas.svg(f"{measure} of {run_name} against {baseline_name}, one dot for each query")


def cutoff_curves(curves: Mapping[str, Mapping[int, float]], measure: str) -> str:
    """
    A line for each run: a measure at rising cut-offs, on a logarithmic axis.

    Args:
        curves (`Mapping[str, Mapping[int, float]]`): run to cut-off to mean.
        measure (`str`): its name without the cut-off.
    """
    cutoffs = sorted({cutoff for curve in curves.values() for cutoff in curve})
    high = max((value for curve in curves.values() for value in curve.values()), default=1.0) or 1.0
    ends = (math.log(cutoffs[0]), math.log(cutoffs[-1]) if len(cutoffs) > 1 else math.log(cutoffs[0]) + 1)
    legend = 18 * len(curves)
    canvas = Canvas(300, 270 + legend, ends, (0.0, high * 1.05), bottom=50 + legend)
    canvas.y_axis(f"{measure}@k")
    for cutoff in cutoffs:
        x = canvas.x(math.log(cutoff))
        canvas.line(x, canvas.top, x, canvas.bottom, "grid")
        canvas.text(x, canvas.bottom + 16, str(cutoff))
    canvas.text((canvas.left + canvas.right) / 2, canvas.bottom + 34, "cut-off k", "label")
    canvas.line(canvas.left, canvas.y(0), canvas.right, canvas.y(0), "axis")
    for i, (name, curve) in enumerate(curves.items()):
        kind = f"series s{i % SERIES} d{i // SERIES % 3}"
        points = [(canvas.x(math.log(k)), canvas.y(value), k, value) for k, value in sorted(curve.items())]
        canvas.parts.append(f'<polyline points="{" ".join(f"{x},{y}" for x, y, _, _ in points)}" class="{kind}"/>')
        for x, y, k, value in points:
            label = escape_html(f"{name}: {measure}@{k} = {value:.4f}")
            canvas.parts.append(
                f'<circle cx="{x}" cy="{y}" r="3" class="point s{i % SERIES}"><title>{label}</title></circle>'
            )
        left, top = canvas.left, canvas.bottom + 56 + 18 * i  # the legend, below the axis
        canvas.parts.append(f'<polyline points="{left},{top - 4} {left + 22},{top - 4}" class="{kind}"/>')
        canvas.text(left + 28, top, shorten(name, 27), "key", anchor="start")
    return canvas.svg(f"{measure} at cut-offs {cutoffs[0]} to {cutoffs[-1]}")
