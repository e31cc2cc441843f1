"""The report of MNIST67-180: one page that opens from disk, nothing loaded from elsewhere."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from vpgcnn.report.chart import Chart, Curve, Panel
from vpgcnn.report.svg import STYLE as DRAWN
from vpgcnn.report.svg import legend, plot, window

__all__ = ["Example", "Facts", "curves_svg", "figure", "page"]

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #667; --ground: #fff; --line: #d8dce2; --card: #f5f7fa; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8eaee; --soft: #a3abb8; --ground: #14171c; --line: #343a44; --card: #1d222a; }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--ground); max-width: 980px;
  margin: 0 auto; padding: 1rem 1.2rem 3rem; }
h1 { line-height: 1.2; margin-bottom: .3rem } h2 { margin: 2.2rem 0 .4rem } p { max-width: 70ch }
.soft { color: var(--soft) }
.tiles { display: flex; flex-wrap: wrap; gap: .8rem; margin: 1.2rem 0 }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: .6rem 1rem;
  flex: 1 1 180px }
.tile b { display: block; font-size: 1.7rem }
.row { display: flex; flex-wrap: wrap; gap: .6rem; align-items: flex-start }
svg { max-width: 100%; height: auto }
figure { margin: 0; text-align: center }
table { border-collapse: collapse; font-size: .85rem } td, th { padding: .25rem .4rem; text-align: center }
td img { width: 56px; height: 56px; image-rendering: pixelated; border-radius: 4px; display: block }
td.right { color: #009e73 } td.other { color: #d55e00 } .scroll { overflow-x: auto }
"""


@dataclass(frozen=True)
class Example:
    """One test image at several angles.

    angles in degrees; pixels: `(angles, H, W)` in [0, 1]; said: (class, confidence) at each angle; theta: of the
    upright image; truth: what it is when upright.
    """

    truth: str
    theta: float
    angles: Sequence[int]
    pixels: np.ndarray
    said: Sequence[tuple[str, float]]


@dataclass(frozen=True)
class Facts:
    """What the page shows.

    curves: network → digit → confidence `(angles, N)`. theta: digit → `(N,)`. tiles: (number, what it means).
    """

    angles: Sequence[int]
    curves: dict[str, dict[str, np.ndarray]]
    theta: dict[str, np.ndarray]
    examples: Sequence[Example]
    tiles: Sequence[tuple[str, str]]
    made: str


def curves_svg(facts: Facts) -> list[str]:
    """The paper's figure: for 6s and for 7s, the confidence of each network along the circle."""
    drawings = []
    for digit in ("6", "7"):
        curves = []
        for place, (network, values) in enumerate(facts.curves.items()):
            low, mean, high = (
                np.quantile(values[digit], 0.1, 1),
                values[digit].mean(1),
                np.quantile(values[digit], 0.9, 1),
            )
            curves.append(Curve(network, mean.tolist(), low.tolist(), high.tolist(), dashed=place > 0))
        drawings.append(plot(Panel(f"A {digit}, turned: confidence that it is a {digit}", facts.angles, curves)))
    return drawings


NAMES = {
    "variational": "a level for each image",
    "full": "fully equivariant",
    "learned": "one level for all images",
}
INSTEAD = {
    "t2": "ordinary network",
    "t2-instaaug": "InstaAug on it",
    "t2-adaaug": "AdaAug on it",
}
"""Networks without rotations."""


def figure(rows: Sequence[dict[str, Any]]) -> Chart:
    """The curves of results/mnist67-180.json: the mean over seeds, with a band from the lowest to the highest.

    Levels above, augmentation instead of levels below, where such networks were trained.
    """
    panels = []
    for names in (NAMES, INSTEAD):
        arms = [arm for arm in names if any(row["arm"] == arm for row in rows)]
        for digit in ("6", "7") if arms else ():
            curves = []
            for place, arm in enumerate(arms):
                seeds = np.array([row["curves"][digit] for row in rows if row["arm"] == arm])
                ends = seeds.min(0).tolist(), seeds.max(0).tolist()
                curves.append(Curve(names[arm], seeds.mean(0).tolist(), *ends, dashed=place > 0))
            panels.append(Panel(f"A {digit}, turned: confidence that it is a {digit}", rows[0]["angles"], curves))
    return Chart(panels, columns=2)


def page(facts: Facts) -> str:
    """The whole report as HTML."""
    tiles = "".join(f'<div class="tile"><b>{escape(n)}</b>{escape(what)}</div>' for n, what in facts.tiles)
    circles = "".join(
        window(f"{digit}s", float(t.mean()), float(np.quantile(t, 0.1)), float(np.quantile(t, 0.9)))
        for digit, t in facts.theta.items()
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>vpgcnn: which rotations may be used, digit by digit</title><style>{STYLE}{DRAWN}</style></head><body>
<h1>Which rotations may be used, digit by digit</h1>
<p>A 6 turned by 180° is a 9, a 7 turned by 180° is still a 7. A network that ignores every rotation cannot tell 6
from 9. This one learned, for each image, how much of the circle it may ignore. It was trained on digits at 0° and
180° only; everything in between is its own conclusion.</p>
<div class="tiles">{tiles}</div>
<h2>Confidence against rotation</h2>
<p class="soft">Lines are means over test digits that were not trained on, bands hold the middle 80 % of them.</p>
{legend([(name, place > 0) for place, name in enumerate(facts.curves)])}
<div class="row">{"".join(curves_svg(facts))}</div>
<h2>The learned windows</h2>
<p class="soft">θ is the share of all rotations that the last layer treats alike, for an image of this class:
the mean (lines), and between which values 80 % of the images lie (dark to pale).</p>
<div class="row">{circles}</div>
<h2>Single images</h2>
<p class="soft">Test digits turned step by step, with what the network says and how sure it is. Green: what it is
when upright; orange: something else (for a 6 upside down, rightly so). On a small screen the rows scroll.</p>
<div class="scroll"><table>{"".join(_example(example) for example in facts.examples)}</table></div>
<p class="soft">{escape(facts.made)}</p>
</body></html>
"""


def _example(example: Example) -> str:
    head = "".join(f"<th>{angle}°</th>" for angle in example.angles)
    images = "".join(f'<td><img src="{_png(pixels)}" alt=""></td>' for pixels in example.pixels)
    answers = "".join(
        f'<td class="{"right" if name == example.truth else "other"}">{escape(name)}<br>{confidence:.0%}</td>'
        for name, confidence in example.said
    )
    return (
        f"<tr><th></th>{head}</tr><tr><th>a {escape(example.truth)}<br>θ {example.theta:.2f}</th>{images}</tr>"
        f"<tr><th></th>{answers}</tr>"
    )


def _png(pixels: np.ndarray) -> str:
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(np.rint(np.clip(pixels, 0, 1) * 255).astype(np.uint8)).save(stream, "PNG")
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()
