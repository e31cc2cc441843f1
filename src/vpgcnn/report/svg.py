"""Small drawings as SVG text: a plot of curves with bands, a window on the circle."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["COLORS", "HUE", "ROTATION", "STYLE", "Axis", "Curve", "bars", "legend", "plot", "sheet", "window"]

STYLE = """
svg { --ink: #1b1f24; --line: #d8dce2 }
@media (prefers-color-scheme: dark) { svg { --ink: #e8eaee; --line: #444b57 } }
svg text { fill: var(--ink) } svg .title { font-size: 14px; font-weight: 600 } svg .small { font-size: 11px }
svg .grid { stroke: var(--line) } svg .ring { fill: none; stroke: var(--line); stroke-width: 1.5 }
svg .sector { fill: #0072b2; opacity: .55 } svg .pale { fill: #0072b2; opacity: .22 }
svg .edge { stroke: var(--ink); stroke-width: 2 }
"""
"""How drawings look, on light and on dark ground."""

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
"""Told apart by everyone (Okabe and Ito)."""


@dataclass(frozen=True)
class Curve:
    """A line with an optional band around it; all of the same length."""

    name: str
    values: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    dashed: bool = False


@dataclass(frozen=True)
class Axis:
    """What a plot is drawn against: its name, and the values with the texts that stand there."""

    name: str
    ticks: Sequence[tuple[float, str]]


ROTATION = Axis("rotation of the image", [(angle, f"{angle}°") for angle in range(-180, 181, 90)])
HUE = Axis("hue shift, as a share of the circle", [(share / 4, f"{share / 4:g}") for share in range(-2, 3)])


def plot(
    title: str,
    places: Sequence[float],
    curves: Sequence[Curve],
    *,
    axis: Axis = ROTATION,
    faint: Sequence[Sequence[float]] = (),
    width: int = 460,
    height: int = 300,
) -> str:
    """Confidence in [0, 1] against a shift; faint: thin lines in the first curve's colour."""
    left, right, top, bottom = 52, 24, 34, 44
    lowest, highest = min(places), max(places)

    def x(place: float) -> float:
        return left + (place - lowest) / (highest - lowest) * (width - left - right)

    def y(value: float) -> float:
        return top + (1 - value) * (height - top - bottom)

    def points(values: Sequence[float]) -> str:
        return " ".join(f"{x(a):.1f},{y(v):.1f}" for a, v in zip(places, values, strict=True))

    parts = [f'<text x="{left}" y="20" class="title">{escape(title)}</text>']
    parts += _quarters(left, width - right, y)
    for place, text in axis.ticks:
        parts.append(f'<line x1="{x(place):.1f}" x2="{x(place):.1f}" y1="{top}" y2="{height - bottom}" class="grid"/>')
        parts.append(f'<text x="{x(place):.1f}" y="{height - bottom + 16}" text-anchor="middle">{text}</text>')
    parts += [
        f'<polyline points="{points(line)}" fill="none" stroke="{COLORS[0]}" stroke-width="1" opacity="0.35"/>'
        for line in faint
    ]
    for color, curve in zip(COLORS, curves, strict=False):
        if curve.low is not None and curve.high is not None:
            there, back = points(curve.high), " ".join(reversed(points(curve.low).split()))
            parts.append(f'<polygon points="{there} {back}" fill="{color}" opacity="0.15"/>')
    for color, curve in zip(COLORS, curves, strict=False):
        dash = ' stroke-dasharray="6 4"' if curve.dashed else ""
        parts.append(
            f'<polyline points="{points(curve.values)}" fill="none" stroke="{color}" stroke-width="2.5"{dash}>'
            f"<title>{escape(curve.name)}</title></polyline>"
        )
    middle = (left + width - right) / 2
    parts.append(f'<text x="{middle}" y="{height - 8}" text-anchor="middle">{escape(axis.name)}</text>')
    return _svg(width, height, parts)


def legend(names: Sequence[str], dashed: Sequence[bool]) -> str:
    """Which colour is which, for plots that share it."""
    parts, at = [], 0
    for color, name, broken in zip(COLORS, names, dashed, strict=False):
        dash = ' stroke-dasharray="6 4"' if broken else ""
        parts.append(f'<line x1="{at}" x2="{at + 28}" y1="10" y2="10" stroke="{color}" stroke-width="2.5"{dash}/>')
        parts.append(f'<text x="{at + 34}" y="14">{escape(name)}</text>')
        at += 56 + round(6.3 * len(name))
    return _svg(at, 20, parts)


def sheet(
    drawings: Sequence[str], below: str, *, width: int = 460, height: int = 300, columns: int | None = None
) -> str:
    """Drawings of one size side by side, or in columns, over a legend: a file that stands by itself."""
    columns = columns or len(drawings)
    rows = math.ceil(len(drawings) / columns)
    parts = [f"<style>{STYLE}</style>"]
    for place, drawing in enumerate(drawings):
        row, column = divmod(place, columns)
        parts.append(drawing.replace("<svg ", f'<svg x="{column * width}" y="{row * height}" ', 1))
    parts.append(below.replace("<svg ", f'<svg x="52" y="{rows * height + 4}" ', 1))
    return _svg(width * columns, rows * height + 30, parts)


def bars(
    title: str,
    series: Sequence[tuple[str, Sequence[tuple[float, float]]]],
    names: Sequence[str],
    *,
    width: int = 920,
    height: int = 240,
) -> str:
    """For each class a bar from its lowest to its highest value in [0, 1], the series beside each other."""
    left, right, top, bottom = 52, 24, 34, 44
    step = (width - left - right) / len(names)
    thick = 0.8 * step / len(series)

    def y(value: float) -> float:
        return top + (1 - value) * (height - top - bottom)

    parts = [f'<text x="{left}" y="20" class="title">{escape(title)}</text>']
    parts += _quarters(left, width - right, y)
    for place, (color, (arm, ends)) in enumerate(zip(COLORS, series, strict=False)):
        for number, (name, (low, high)) in enumerate(zip(names, ends, strict=True)):
            at, tall = left + number * step + place * thick, max(y(low) - y(high), 0.8)
            parts.append(
                f'<rect x="{at:.1f}" y="{y(high):.1f}" width="{thick:.1f}" height="{tall:.1f}" fill="{color}">'
                f"<title>{escape(f'{name}, {arm}: {low:.2f} to {high:.2f}')}</title></rect>"
            )
    middle = (left + width - right) / 2
    said = f"{len(names)} classes, in the order of the last network's largest error"
    parts.append(f'<text x="{middle}" y="{height - 8}" text-anchor="middle">{said}</text>')
    return _svg(width, height, parts)


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


def _quarters(left: float, right: float, y: Callable[[float], float]) -> list[str]:
    """Lines across a drawing at 0, ¼, ½, ¾ and 1."""
    parts = []
    for value in (0, 0.25, 0.5, 0.75, 1):
        parts.append(f'<line x1="{left}" x2="{right}" y1="{y(value):.1f}" y2="{y(value):.1f}" class="grid"/>')
        parts.append(f'<text x="{left - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:g}</text>')
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
