"""Figures of the colour experiments.

Every function takes the rows of a results file, one per network (`row["arm"]`) and seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import Any

import numpy as np

from vpgcnn.lab.report.chart import HUE, BarPanel, Bars, Chart, Curve, Panel, up_to

__all__ = ["NAMES", "confidence", "errors", "windows"]

NAMES: dict[str, str] = {
    "vp3": "a level for each image",
    "ce3": "fully equivariant to three hues",
    "resnet": "ordinary network",
    "shared": "one level for all images",
    "partial3": "Partial G-CNN",
    "ce3-hybrid": "equivariant in the first half",
}
Row = dict[str, Any]
DISTANCE = up_to("total variation")


def confidence(rows: Sequence[Row]) -> Chart:
    """Plot the paper's figure: the confidence in the true class as the hue of test images shifts (in HSV).

    There is a panel for each class; thin lines are single images of the first network's first seed.
    """
    arms = _present(rows, ("vp3", "ce3", "resnet"))
    panels = []
    for place, example in enumerate(rows[0]["examples"]):
        curves: list[Curve] = []
        faint: list[list[float]] = []
        for number, arm in enumerate(arms):
            seeds = [row["examples"][place]["confidence"] for row in rows if row["arm"] == arm]
            faint += seeds[0] if number == 0 else []
            curves.append(Curve(NAMES[arm], np.concatenate(seeds).mean(0).tolist(), dashed=number > 0))
        title = f"{example['class']}: confidence in this class"
        panels.append(Panel(title, example["shifts"], curves, HUE, faint=faint))
    return Chart(panels, columns=2)


def windows(rows: Sequence[Row], classes: Sequence[str], count: int = 10) -> Chart:
    """Plot the confidence along the circle for the classes with the narrowest and with the widest windows.

    Args:
        rows: The results.
        classes: Names of all classes.
        count: How many classes each panel averages. They are ranked by θ, averaged over seeds and layers.
    """
    arms = _present(rows, ("vp3", "ce3", "resnet"))
    seeds = [row for row in rows if row["arm"] == "vp3"]
    layers = list(seeds[0]["theta"])
    theta = np.array([[row["theta_by_class"][layer] for layer in layers] for row in seeds], dtype=float).mean((0, 1))
    order = [place for place in np.argsort(theta, kind="stable").tolist() if not np.isnan(theta[place])]
    shifts = [step / 12 for step in range(-6, 7)]
    panels = []
    for kind, chosen in (("Narrowest", order[:count]), ("Widest", order[-count:][::-1])):
        curves = []
        for number, arm in enumerate(arms):
            found = [row["confidence_hsv"][place] for row in rows if row["arm"] == arm for place in chosen]
            average = np.array([curve for curve in found if curve is not None]).mean(0)
            curves.append(Curve(NAMES[arm], [average[step] for step in range(-6, 7)], dashed=number > 0))
        named = ", ".join(classes[place] for place in chosen[:2])
        title = f"{kind} windows (mean θ {theta[chosen].mean():.2f}): {named}, …"
        panels.append(Panel(title, shifts, curves, HUE))
    return Chart(panels)


def errors(rows: Sequence[Row], classes: Sequence[str]) -> Chart:
    """Plot the smallest and the largest invariance error of each class, for shifts in the group and outside it."""
    arms = _present(rows, ("ce3", "vp3"))
    last = _ends(rows, arms[-1], "on")
    known = [place for place, ends in enumerate(last) if ends is not None]
    order = sorted(known, key=lambda place: -(last[place] or (0.0, 0.0))[1])
    below = f"{len(order)} classes, sorted by the largest error of “{NAMES[arms[-1]]}”"
    panels = []
    for kind, title in (
        ("on", "Change in the prediction under hue shifts in the group (thirds of the circle)"),
        ("off", "Change in the prediction under hue shifts outside the group (other twelfths of the circle)"),
    ):
        series = [Bars(NAMES[arm], [_ends(rows, arm, kind)[place] or (0.0, 0.0) for place in order]) for arm in arms]
        panels.append(BarPanel(title, [classes[place] for place in order], series, below, DISTANCE))
    return Chart(panels, columns=1)


def _present(rows: Sequence[Row], arms: Sequence[str]) -> list[str]:
    """Those of `arms` that have results."""
    return [arm for arm in arms if any(row["arm"] == arm for row in rows)]


def _ends(rows: Sequence[Row], arm: str, kind: str) -> list[tuple[float, float] | None]:
    """The lowest and the highest error of each class, averaged over seeds; None for a class without images."""
    seeds = [row["invariance_error"][kind] for row in rows if row["arm"] == arm]
    averages: list[tuple[float, float] | None] = []
    for of_class in zip(*seeds, strict=True):
        known = [ends for ends in of_class if ends is not None]
        averages.append((mean(low for low, _ in known), mean(high for _, high in known)) if known else None)
    return averages
