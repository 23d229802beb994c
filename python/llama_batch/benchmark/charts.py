"""Pictures of results: SVG in text, whose colours the page's style sheet knows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from llama_batch.benchmark.figures import percentile
from llama_batch.benchmark.text import number

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["MAX_SERIES", "Series", "cdf", "lines"]

MAX_SERIES = 8
"""As many as there are colours that can be told apart."""

WIDTH, HEIGHT = 560, 260
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 12, 38
MAX_POINTS = 400
NOTHING = 1e-9
"""What is no more than this is drawn as nought: no axis can be made of it."""
LOG_FROM = 30.0
"""How far apart the ends must lie for a logarithmic axis."""


@dataclass(frozen=True, slots=True)
class Series:
    """A line of a picture.

    Attributes:
        name: what it is.
        values: for `cdf`, the values; for `lines`, the heights.
        at: for `lines`, where each height begins; it holds until the next one.
        colour: its place in the palette, from 0.
        is_area: for `lines`, whether what is below it is filled, as against a line.
    """

    name: str
    values: Sequence[float]
    at: Sequence[float] = ()
    colour: int = 0
    is_area: bool = False


@dataclass(frozen=True, slots=True)
class _Axis:
    """Values to places."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def place(self, value: float) -> float:
        if self.is_log:
            share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self) -> list[float]:
        if not self.is_log:
            return _nice(self.low, self.high)
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        steps = (1, 2, 5) if last - first <= 2 else (1,)
        marks = [step * 10.0**power for power in range(first, last + 1) for step in steps]
        return [mark for mark in marks if self.low <= mark <= self.high]


def _nice(low: float, high: float, n: int = 5) -> list[float]:
    """Round numbers between two."""
    rough = (high - low) / n
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    first = math.ceil(low / step)
    return [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)]


def cdf(title: str, series: Sequence[Series]) -> str:
    """The cumulative distributions of durations: which share took no longer.

    Args:
        title: what they are the durations of.
        series: a line each; values in milliseconds.

    Returns:
        The SVG; empty where there is no value.
    """
    sorted_ = [(each, sorted(each.values)) for each in series if each.values]
    if not sorted_:
        return ""
    low, high = min(values[0] for _, values in sorted_), max(values[-1] for _, values in sorted_)
    unit, scale = ("s", 1e3) if high >= 10_000 else ("ms", 1.0)
    low, high = low / scale, high / scale
    if low > NOTHING and high / low >= LOG_FROM:
        x = _Axis(low, high, LEFT, WIDTH - RIGHT, is_log=True)
    else:
        high = high if high > NOTHING else 1.0
        x = _Axis(0.0, high * 1.02, LEFT, WIDTH - RIGHT)
    y = _Axis(0.0, 1.0, HEIGHT - BOTTOM, TOP)
    body = [_grid(x, y, [0, 0.25, 0.5, 0.75, 0.9, 1], "percent"), _unit(f"{unit}{', log scale' if x.is_log else ''}")]
    for each, values in sorted_:
        body.append(_steps(each.colour, _quantiles([value / scale for value in values]), x, y))
        for share in (0.5, 0.95, 0.99):
            value = percentile(values, share) / scale
            told = escape(f"{each.name}: p{100 * share:.0f} {number(value)} {unit}")
            body.append(
                f'<circle class="dot c{each.colour}" cx="{x.place(value)}" cy="{y.place(share)}" r="4">'
                f"<title>{told}</title></circle>"
            )
    return _picture(f"{title}: share of durations up to a length", body)


def lines(title: str, series: Sequence[Series], unit: str, end: float) -> str:
    """Heights over time, in steps.

    Args:
        title: what the heights are.
        series: a line each.
        unit: of the heights.
        end: where time ends, in seconds.

    Returns:
        The SVG; empty where there is no height.
    """
    series = [each for each in series if each.values]
    if not series or end <= NOTHING:
        return ""
    top = max(max(each.values) for each in series)
    top = top if top > NOTHING else 1.0
    x, y = _Axis(0.0, end, LEFT, WIDTH - RIGHT), _Axis(0.0, top * 1.05, HEIGHT - BOTTOM, TOP)
    body = [_grid(x, y, _nice(0.0, top * 1.05, 4), "plain"), _unit(f"s · {unit}")]
    for each in series:
        points = [(at, value) for at, value in zip(each.at, each.values, strict=True)]
        points = [*_thinned(points), (end, points[-1][1])]
        if each.is_area:
            points = [(points[0][0], 0.0), *points, (end, 0.0)]
        body.append(_steps(each.colour, points, x, y, name=each.name, kind="area" if each.is_area else "line"))
    return _picture(title, body)


def _quantiles(ascending: Sequence[float]) -> list[tuple[float, float]]:
    """Points of a cumulative distribution, from 0 to 1."""
    n = len(ascending)
    step = max(1, n // MAX_POINTS)
    indices = sorted({*range(0, n, step), n - 1})
    return [(ascending[0], 0.0), *((ascending[index], (index + 1) / n) for index in indices)]


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Fewer points, the highest of each group among them: a peak must not get lost."""
    if len(points) <= 2 * MAX_POINTS:
        return points
    size = math.ceil(len(points) / MAX_POINTS)
    kept = []
    for begin in range(0, len(points), size):
        group = points[begin : begin + size]
        kept += sorted({group[0], max(group, key=lambda point: point[1])})
    return kept


def _steps(
    colour: int, points: Sequence[tuple[float, float]], x: _Axis, y: _Axis, *, name: str = "", kind: str = "line"
) -> str:
    """A line that goes along, then up or down."""
    path = [f"M{x.place(points[0][0])},{y.place(points[0][1])}"]
    path += [f"H{x.place(at)}V{y.place(height)}" for at, height in points[1:]]
    told = f"<title>{escape(name)}</title>" if name else ""
    return f'<path class="{kind} c{colour}" d="{"".join(path)}">{told}</path>'


def _grid(x: _Axis, y: _Axis, heights: Sequence[float], kind: str) -> str:
    parts = []
    for mark in x.ticks():
        at = x.place(mark)
        parts.append(f'<line class="grid" x1="{at}" x2="{at}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
        parts.append(
            f'<text class="tick" x="{at}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{_tick(mark)}</text>'
        )
    for mark in heights:
        at = y.place(mark)
        shown = f"{100 * mark:.0f} %" if kind == "percent" else _tick(mark)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at}" y2="{at}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 8}" y="{at + 4}" text-anchor="end">{shown}</text>')
    return "".join(parts)


def _tick(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) else f"{value:.6g}"


def _unit(text: str) -> str:
    return f'<text class="tick" x="{WIDTH - RIGHT}" y="{HEIGHT - 4}" text-anchor="end">{escape(text)}</text>'


def _picture(title: str, body: Sequence[str]) -> str:
    label = escape(title, quote=True)
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(body)}</svg>'
