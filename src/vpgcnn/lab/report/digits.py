"""The HTML report of `vpgcnn demo` and the figure of the MNIST67-180 experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from vpgcnn.lab.report.chart import Chart, Curve, Panel
from vpgcnn.lab.report.dial import dial
from vpgcnn.lab.report.page import shell, strip, tiles
from vpgcnn.lab.report.static import to_svg

__all__ = ["INSTEAD", "NAMES", "Example", "Facts", "curves_svg", "figure", "page"]

NAMES = {
    "variational": "a level for each image",
    "full": "fully equivariant",
    "shared": "one level for all images",
}
"""Networks with levels."""
INSTEAD = {
    "t2": "ordinary network",
    "t2-instaaug": "ordinary network, InstaAug",
    "t2-adaaug": "ordinary network, AdaAug",
}
"""Networks that are only equivariant to translations."""


@dataclass(frozen=True)
class Example:
    """One test image at several angles.

    Args:
        truth: Class of the upright image.
        theta: θ of the upright image.
        angles: Angles in degrees, P of them.
        pixels: The rotated images, `(P, H, W)` in [0, 1].
        answers: Predicted class and its confidence at each angle.
    """

    truth: str
    theta: float
    angles: Sequence[int]
    pixels: np.ndarray
    answers: Sequence[tuple[str, float]]


@dataclass(frozen=True)
class Facts:
    """What the page shows.

    Args:
        angles: Angles of the curves in degrees, P of them.
        curves: Network → digit → confidence in that digit `(P, N)`.
        theta: Digit → θ of the last layer `(N,)`.
        examples: Single images.
        tiles: Pairs of a number and what it means.
        footer: How the report was made.
        notes: What to say about the windows: that they do nothing, for example.
    """

    angles: Sequence[int]
    curves: Mapping[str, Mapping[str, np.ndarray]]
    theta: Mapping[str, np.ndarray]
    examples: Sequence[Example]
    tiles: Sequence[tuple[str, str]]
    footer: str
    notes: Sequence[str] = ()


def curves_svg(facts: Facts) -> list[str]:
    """Draw the paper's figure: each network's confidence as 6s (first SVG) and 7s (second SVG) rotate."""
    drawings = []
    for digit in ("6", "7"):
        curves = []
        for number, (network, confidence) in enumerate(facts.curves.items()):
            values = confidence[digit]
            low, high = np.quantile(values, [0.1, 0.9], axis=1).tolist()
            curves.append(Curve(network, values.mean(1).tolist(), low, high, dashed=number > 0))
        drawings.append(to_svg(Chart([Panel(_title(digit), facts.angles, curves)])))
    return drawings


def figure(rows: Sequence[dict[str, Any]]) -> Chart:
    """Plot the curves of results/fig-mnist67-180.json.

    Args:
        rows: Results, one per network and seed.

    Returns:
        Networks with levels in the first row of panels, augmented ordinary networks in the second if there are any.
        Lines are means over seeds; bands reach from the lowest to the highest seed.
    """
    panels = []
    for names in (NAMES, INSTEAD):
        arms = [arm for arm in names if any(row["arm"] == arm for row in rows)]
        for digit in ("6", "7") if arms else ():
            curves = []
            for number, arm in enumerate(arms):
                seeds = np.array([row["curves"][digit] for row in rows if row["arm"] == arm])
                band = seeds.min(0).tolist(), seeds.max(0).tolist()
                curves.append(Curve(names[arm], seeds.mean(0).tolist(), *band, dashed=number > 0))
            panels.append(Panel(_title(digit), rows[0]["angles"], curves))
    return Chart(panels, columns=2)


def page(facts: Facts) -> str:
    """Write the report as one HTML page."""
    dials = "".join(
        dial(f"{digit}s", float(theta.mean()), float(np.quantile(theta, 0.1)), float(np.quantile(theta, 0.9)))
        for digit, theta in facts.theta.items()
    )
    examples = "".join(
        strip([f"{a}°" for a in e.angles], f"a {e.truth}\nθ {e.theta:.2f}", e.pixels, e.answers, e.truth)
        for e in facts.examples
    )
    return shell(
        "vpgcnn: how much rotation each digit allows",
        f"""<h1>How much rotation each digit allows</h1>
<p>A 6 rotated by 180° is a 9, but a 7 rotated by 180° is still a 7. A network that ignores all rotations cannot
distinguish a 6 from a 9. This network learned, for each image, how much of the circle it may ignore. The training
digits were rotated by 0° or 180° only; the network has seen no angle in between.</p>
{tiles(facts.tiles)}
<h2>Confidence against rotation</h2>
<p class="soft">Lines show the mean over test digits; bands contain the middle 80% of them.</p>
<div class="row">{"".join(curves_svg(facts))}</div>
<h2>Learned windows</h2>
<p class="soft">θ is the share of all rotations that the last layer uses for an image. The lines mark the mean window of
each class. For 80% of the images, the window ends between the edge of
the dark sector and the edge of the pale one.</p>
<div class="row">{dials}</div>
{"".join(f'<p class="say">{escape(note)}</p>' for note in facts.notes)}
<h2>Single images</h2>
<p class="soft">The network's prediction and confidence for test digits at nine angles. Green: the class of the upright
digit. Orange: another class, which is correct for a 6 that is upside down. On a small screen the rows scroll.</p>
<div class="scroll"><table class="strip">{examples}</table></div>
<p class="soft">{escape(facts.footer)}</p>""",
    )


def _title(digit: str) -> str:
    return f"Confidence that a rotated {digit} is a {digit}"
