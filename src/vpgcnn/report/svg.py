"""Charts, and a window on the circle, as SVG text: nothing but this file is needed to draw them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape

from vpgcnn.report.chart import COLORS, Axis, BarPanel, Chart, Panel

__all__ = ["STYLE", "draw", "legend", "plot", "window"]

STYLE = """
svg { --ink: #1b1f24; --line: #d8dce2 }
@media (prefers-color-scheme: dark) { svg { --ink: #e8eaee; --line: #444b57 } }
svg text { fill: var(--ink) } svg .title { font-size: 14px; font-weight: 600 } svg .small { font-size: 11px }
svg .grid { stroke: var(--line) } svg .ring { fill: none; stroke: var(--line); stroke-width: 1.5 }
svg .sector { fill: #0072b2; opacity: .55 } svg .pale { fill: #0072b2; opacity: .22 }
svg .edge { stroke: var(--ink); stroke-width: 2 }
"""
"""How drawings look, on light and on dark ground."""
GAP = "gap"
"""Where a line is interrupted."""


def draw(chart: Chart) -> str:
    """All panels over their legend: a file that stands by itself."""
    width, height = (920, 240) if chart.wide else (460, 300)
    colors = chart.colors
    drawings = [
        bars(panel, colors, width, height) if isinstance(panel, BarPanel) else plot(panel, colors, width, height)
        for panel in chart.panels
    ]
    columns = chart.columns or len(drawings)
    rows = math.ceil(len(drawings) / columns)
    parts = [f"<style>{STYLE}</style>"]
    for place, drawing in enumerate(drawings):
        row, column = divmod(place, columns)
        parts.append(drawing.replace("<svg ", f'<svg x="{column * width}" y="{row * height}" ', 1))
    below = legend(chart.names)
    parts.append(below.replace("<svg ", f'<svg x="52" y="{rows * height + 4}" ', 1))
    return _svg(width * columns, rows * height + 30, parts)


def plot(panel: Panel, colors: Mapping[str, str] | None = None, width: int = 460, height: int = 300) -> str:
    """Curves with their bands; colors: of each name, unless they are those of `COLORS` in turn."""
    colors = Chart([panel]).colors if colors is None else colors
    left, right, top, bottom = 52, 24, 34, 44
    lowest = min(panel.places)
    highest = max(*panel.places, lowest + 1e-9)

    def x(place: float) -> float:
        return left + (place - lowest) / (highest - lowest) * (width - left - right)

    y = _scale(panel.y, top, height - bottom)

    def points(values: Sequence[float]) -> str:
        pairs = zip(panel.places, values, strict=True)
        return " ".join(GAP if math.isnan(v) else f"{x(a):.1f},{y(v):.1f}" for a, v in pairs)

    parts = [f'<text x="{left}" y="20" class="title">{escape(panel.title)}</text>']
    parts += _lines(panel.y, left, width - right, y)
    for place, text in panel.x.ticks:
        parts.append(f'<line x1="{x(place):.1f}" x2="{x(place):.1f}" y1="{top}" y2="{height - bottom}" class="grid"/>')
        parts.append(f'<text x="{x(place):.1f}" y="{height - bottom + 16}" text-anchor="middle">{escape(text)}</text>')
    parts += [
        f'<polyline points="{points(line)}" fill="none" stroke="{colors[panel.names[0][0]]}" stroke-width="1" '
        'opacity="0.35"/>'
        for line in panel.faint
    ]
    for curve in panel.curves:
        if curve.low is not None and curve.high is not None:
            there, back = points(curve.high), " ".join(reversed(points(curve.low).split()))
            parts.append(f'<polygon points="{there} {back}" fill="{colors[curve.name]}" opacity="0.15"/>')
    for curve in panel.curves:
        dash = ' stroke-dasharray="6 4"' if curve.dashed else ""
        color = colors[curve.name]
        parts += [
            f'<polyline points="{piece.strip()}" fill="none" stroke="{color}" stroke-width="2.5"{dash}>'
            f"<title>{escape(curve.name)}</title></polyline>"
            for piece in points(curve.values).split(GAP)
        ]
    middle = (left + width - right) / 2
    parts.append(f'<text x="{middle}" y="{height - 8}" text-anchor="middle">{escape(panel.x.name)}</text>')
    return _svg(width, height, parts)


def bars(panel: BarPanel, colors: Mapping[str, str], width: int = 920, height: int = 240) -> str:
    """For each class its bars beside each other."""
    left, right, top, bottom = 52, 24, 34, 44
    step = (width - left - right) / len(panel.classes)
    thick = 0.8 * step / len(panel.series)
    y = _scale(panel.y, top, height - bottom)
    parts = [f'<text x="{left}" y="20" class="title">{escape(panel.title)}</text>']
    parts += _lines(panel.y, left, width - right, y)
    for place, series in enumerate(panel.series):
        color = colors[series.name]
        for number, (name, (low, high)) in enumerate(zip(panel.classes, series.ends, strict=True)):
            at, tall = left + number * step + place * thick, max(y(low) - y(high), 0.8)
            parts.append(
                f'<rect x="{at:.1f}" y="{y(high):.1f}" width="{thick:.1f}" height="{tall:.1f}" fill="{color}">'
                f"<title>{escape(f'{name}, {series.name}: {low:.2f} to {high:.2f}')}</title></rect>"
            )
    middle = (left + width - right) / 2
    parts.append(f'<text x="{middle}" y="{height - 8}" text-anchor="middle">{escape(panel.below)}</text>')
    return _svg(width, height, parts)


def legend(names: Sequence[tuple[str, bool]]) -> str:
    """Which colour is which, for plots that share it: the names, and whether they are dashed."""
    parts, at = [], 0
    for color, (name, broken) in zip(COLORS, names, strict=False):  # in the order of `Chart.colors`
        dash = ' stroke-dasharray="6 4"' if broken else ""
        parts.append(f'<line x1="{at}" x2="{at + 28}" y1="10" y2="10" stroke="{color}" stroke-width="2.5"{dash}/>')
        parts.append(f'<text x="{at + 34}" y="14">{escape(name)}</text>')
        at += 56 + round(6.3 * len(name))
    return _svg(at, 20, parts)


def window(title: str, theta: float, low: float, high: float, *, size: int = 170) -> str:
    """The learned window [−180°·θ, 180°·θ] on the circle, 0° upwards; a paler arc for the spread over images."""
    centre, radius = size / 2, size / 2 - 36
    parts = [f'<circle cx="{centre}" cy="{centre}" r="{radius}" class="ring"/>']
    for share, style in ((high, "pale"), (low, "sector")):
        parts.append(_sector(centre, radius, min(share, 1.0), style))
    end = math.pi * min(theta, 1.0)
    for sign in (-1, 1):
        reach = centre + sign * radius * math.sin(end), centre - radius * math.cos(end)
        parts.append(f'<line x1="{centre}" y1="{centre}" x2="{reach[0]:.1f}" y2="{reach[1]:.1f}" class="edge"/>')
    labels = (
        ("0°", centre, 28.0),
        ("180°", centre, size - 20.0),
        ("90°", 20.0, centre + 4),
        ("−90°", size - 18.0, centre + 4),
    )
    parts += [
        f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="middle" class="small">{text}</text>' for text, x, y in labels
    ]
    drawn = _svg(size, size, parts)
    return f'<figure class="window">{drawn}<figcaption>{escape(title)}<br><b>θ = {theta:.2f}</b></figcaption></figure>'


def _scale(axis: Axis, top: float, bottom: float) -> Callable[[float], float]:
    """From a value to a height in the drawing."""
    low, high = axis.ends
    return lambda value: top + (high - value) / (high - low) * (bottom - top)


def _lines(axis: Axis, left: float, right: float, y: Callable[[float], float]) -> list[str]:
    """Lines across a drawing at the ticks of its vertical axis."""
    parts = []
    for value, text in axis.ticks:
        parts.append(f'<line x1="{left}" x2="{right}" y1="{y(value):.1f}" y2="{y(value):.1f}" class="grid"/>')
        parts.append(f'<text x="{left - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{escape(text)}</text>')
    return parts


def _sector(centre: float, radius: float, share: float, style: str) -> str:
    if share >= 0.999:
        return f'<circle cx="{centre}" cy="{centre}" r="{radius}" class="{style}"/>'
    end = math.pi * share
    dx, dy = radius * math.sin(end), radius * math.cos(end)
    path = f"M {centre} {centre} L {centre - dx:.1f} {centre - dy:.1f}"
    path += f" A {radius} {radius} 0 {int(share > 0.5)} 1 {centre + dx:.1f} {centre - dy:.1f} Z"
    return f'<path d="{path}" class="{style}"/>'


def _svg(width: float, height: float, parts: Sequence[str]) -> str:
    inner = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" font-family="system-ui, sans-serif" font-size="12">\n{inner}\n</svg>'
    )
