"""A window on the circle as a small inline SVG for an HTML page."""

from __future__ import annotations

import math
from html import escape

__all__ = ["STYLE", "dial"]

STYLE = """
.dial text { fill: var(--ink) } .dial .ring { fill: none; stroke: var(--line); stroke-width: 1.5 }
.dial .sector { fill: #0072b2; opacity: .55 } .dial .pale { fill: #0072b2; opacity: .22 }
.dial .edge { stroke: var(--ink); stroke-width: 2 }
"""
"""CSS for the page. It must define `--ink` and `--line`."""
SIZE, RADIUS = 170, 49
CENTRE = SIZE / 2


def dial(title: str, theta: float, low: float, high: float) -> str:
    """Draw the window [−180°·θ, 180°·θ] on a circle, with 0° at the top.

    Args:
        title: Text under the circle.
        theta: θ in [0, 1], drawn as two lines.
        low: A low quantile of θ over images, drawn as a dark sector.
        high: A high quantile of θ over images, drawn as a pale sector.

    Returns:
        An HTML `<figure>`.
    """
    parts = [f'<circle cx="{CENTRE}" cy="{CENTRE}" r="{RADIUS}" class="ring"/>']
    parts += [_sector(high, "pale"), _sector(low, "sector")]
    for sign in (-1, 1):
        x, y = _point(sign * theta)
        parts.append(f'<line x1="{CENTRE}" y1="{CENTRE}" x2="{x:.1f}" y2="{y:.1f}" class="edge"/>')
    for text, x, y in (("0°", CENTRE, 28), ("180°", CENTRE, SIZE - 20), ("90°", 20, 89), ("−90°", SIZE - 18, 89)):
        parts.append(f'<text x="{x:.0f}" y="{y}" text-anchor="middle">{text}</text>')
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {SIZE} {SIZE}" width="{SIZE}" height="{SIZE}" '
        f'font-family="system-ui, sans-serif" font-size="11" aria-hidden="true">{"".join(parts)}</svg>'
    )
    return f'<figure class="dial">{svg}<figcaption>{escape(title)}<br><b>θ = {theta:.2f}</b></figcaption></figure>'


def _point(share: float) -> tuple[float, float]:
    """The point of the circle at −180° to 180° for a share from −1 to 1; 90° is on the left."""
    angle = math.pi * max(-1.0, min(share, 1.0))
    return CENTRE - RADIUS * math.sin(angle), CENTRE - RADIUS * math.cos(angle)


def _sector(share: float, style: str) -> str:
    if share >= 0.999:
        return f'<circle cx="{CENTRE}" cy="{CENTRE}" r="{RADIUS}" class="{style}"/>'
    (x1, y1), (x2, y2) = _point(share), _point(-share)
    arc = f"A {RADIUS} {RADIUS} 0 {int(share > 0.5)} 1 {x2:.1f} {y2:.1f}"
    return f'<path d="M {CENTRE} {CENTRE} L {x1:.1f} {y1:.1f} {arc} Z" class="{style}"/>'
