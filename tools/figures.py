"""Write docs/window.svg: the cells of a grid, a window over them, and the weights that follow."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import torch

from vpgcnn import SO2
from vpgcnn.levels import WindowDistribution

TARGET = Path(__file__).parent.parent / "docs" / "window.svg"
THETA, COUNT = 0.55, 8
LEFT, WIDTH, TOP, HEIGHT = 40, 640, 40, 90
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #222; text-anchor: middle }
  .cell { fill: none; stroke: #999 } .window { fill: #00968833; stroke: #00796b; stroke-width: 2 }
  .bar { fill: #00796b } .dot { fill: #222 } .line { stroke: #222 }
  @media (prefers-color-scheme: dark) { text, .dot { fill: #ddd } }
"""


def x(degrees: float) -> float:
    """Where an angle lies in the picture."""
    return LEFT + WIDTH * (degrees + 180) / 360


def figure() -> str:
    """The picture."""
    group, half = SO2(COUNT), 180 * THETA
    weights = WindowDistribution(group, torch.tensor([[THETA]])).weights(group.grid())[0].tolist()
    angles = [round(math.degrees(angle)) for angle in group.grid()[:, 0].tolist()]
    side, parts = 360 / COUNT, []
    edges = [-180.0, *(-180 + side / 2 + side * number for number in range(COUNT)), 180.0]
    for start, end in pairwise(edges):
        box = f'x="{x(start):.1f}" y="{TOP}" width="{x(end) - x(start):.1f}" height="{HEIGHT}"'
        parts.append(f'<rect class="cell" {box}/>')
    box = f'x="{x(-half):.1f}" y="{TOP - 8}" width="{x(half) - x(-half):.1f}" height="{HEIGHT + 16}"'
    parts.append(f'<rect class="window" {box}/>')
    parts.append(f'<text x="{x(0)}" y="{TOP - 16}">window, ±180°·θ = ±{half:.0f}° (θ = {THETA})</text>')
    base = TOP + HEIGHT + 150
    for angle, weight in zip(angles, weights, strict=True):
        middle = x(angle)
        parts.append(f'<circle class="dot" cx="{middle:.1f}" cy="{TOP + HEIGHT / 2}" r="4"/>')
        parts.append(f'<text x="{middle:.1f}" y="{TOP + HEIGHT / 2 + 22}">{angle}°</text>')
        tall = 320 * weight
        parts.append(f'<rect class="bar" x="{middle - 18:.1f}" y="{base - tall:.1f}" width="36" height="{tall:.1f}"/>')
        parts.append(f'<text x="{middle:.1f}" y="{base - tall - 6:.1f}">{weight:.3f}</text>')
    parts.append(f'<line class="line" x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{base}" y2="{base}"/>')
    parts.append(f'<text x="{x(0)}" y="{base + 24}">weight of each element: the share of the window in its cell</text>')
    size = f'viewBox="0 0 {WIDTH + 2 * LEFT} {base + 40}"'
    body = "\n".join(parts)
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img"><style>{STYLE}</style>\n{body}\n</svg>\n'


if __name__ == "__main__":
    TARGET.write_text(figure(), encoding="utf-8")
