"""The report of MNIST67-180: one page that opens from disk, nothing loaded from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from vpgcnn.report.chart import Chart, Curve, Panel
from vpgcnn.report.page import shell, strip, tiles
from vpgcnn.report.svg import legend, plot, window

__all__ = ["Example", "Facts", "curves_svg", "figure", "page"]


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
    circles = "".join(
        window(f"{digit}s", float(t.mean()), float(np.quantile(t, 0.1)), float(np.quantile(t, 0.9)))
        for digit, t in facts.theta.items()
    )
    examples = "".join(
        strip([f"{a}°" for a in e.angles], f"a {e.truth}\nθ {e.theta:.2f}", e.pixels, e.said, e.truth)
        for e in facts.examples
    )
    return shell(
        "vpgcnn: which rotations may be used, digit by digit",
        f"""<h1>Which rotations may be used, digit by digit</h1>
<p>A 6 turned by 180° is a 9, a 7 turned by 180° is still a 7. A network that ignores every rotation cannot tell 6
from 9. This one learned, for each image, how much of the circle it may ignore. It was trained on digits at 0° and
180° only; everything in between is its own conclusion.</p>
{tiles(facts.tiles)}
<h2>Confidence against rotation</h2>
<p class="soft">Lines are means over test digits that were not trained on, bands hold the middle 80 % of them.</p>
{legend([(name, place > 0) for place, name in enumerate(facts.curves)])}
<div class="row">{"".join(curves_svg(facts))}</div>
<h2>The learned windows</h2>
<p class="soft">θ is how much of all rotations the last layer uses, for an image of this class:
the mean (lines), and between which values 80 % of the images lie (dark to pale).</p>
<div class="row">{circles}</div>
<h2>Single images</h2>
<p class="soft">Test digits turned step by step, with what the network says and how sure it is. Green: what it is
when upright; orange: something else (for a 6 upside down, rightly so). On a small screen the rows scroll.</p>
<div class="scroll"><table class="strip">{examples}</table></div>
<p class="soft">{escape(facts.made)}</p>""",
    )
