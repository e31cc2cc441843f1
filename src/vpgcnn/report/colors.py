"""Figures of the colour experiments, from the rows of their results."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import Any

import numpy as np

from vpgcnn.report.chart import HUE, BarPanel, Bars, Chart, Curve, Panel, up_to

__all__ = ["NAMES", "confidence", "errors", "windows"]

NAMES: dict[str, str] = {
    "vp3": "a level for each image",
    "ce3": "fully equivariant to three hues",
    "resnet": "ordinary network",
    "learned": "one level for all images",
    "partial3": "Partial G-CNN",
    "ce3-hybrid": "equivariant in the first half",
}
Row = dict[str, Any]
DISTANCE = up_to("total variation")


def confidence(rows: Sequence[Row]) -> Chart:
    """The paper's figure: single images of two classes, and their mean, as their hue is shifted (HSV)."""
    arms = _there(rows, ("vp3", "ce3", "resnet"))
    panels = []
    for place, example in enumerate(rows[0]["examples"]):
        curves, faint = [], []  # type: list[Curve], list[list[float]]
        for number, arm in enumerate(arms):
            own = [row["examples"][place]["confidence"] for row in rows if row["arm"] == arm]
            faint += own[0] if not number else []
            curves.append(Curve(NAMES[arm], np.concatenate(own).mean(0).tolist(), dashed=number > 0))
        title = f"{example['class']}: confidence that it is one"
        panels.append(Panel(title, example["shifts"], curves, HUE, faint=faint))
    return Chart(panels, columns=2)


def windows(rows: Sequence[Row], classes: Sequence[str], count: int = 10) -> Chart:
    """Confidence along the circle of the classes with the narrowest and of those with the widest windows.

    A class's window is its mean θ, over seeds and layers.
    """
    arms = _there(rows, ("vp3", "ce3", "resnet"))
    own = [row for row in rows if row["arm"] == "vp3"]
    layers = list(own[0]["theta"])
    theta = np.array([[row["theta_by_class"][layer] for layer in layers] for row in own], dtype=float).mean((0, 1))
    order = [place for place in np.argsort(theta, kind="stable").tolist() if not np.isnan(theta[place])]
    shifts = [step / 12 for step in range(-6, 7)]
    panels = []
    for kind, chosen in (("narrowest", order[:count]), ("widest", order[-count:][::-1])):
        curves = []
        for number, arm in enumerate(arms):
            found = [row["confidence_hsv"][place] for row in rows if row["arm"] == arm for place in chosen]
            average = np.array([curve for curve in found if curve is not None]).mean(0)
            curves.append(Curve(NAMES[arm], [average[step] for step in range(-6, 7)], dashed=number > 0))
        named = ", ".join(classes[place] for place in chosen[:2])
        title = f"{kind} θ, {theta[chosen].mean():.2f}: {named}, …"
        panels.append(Panel(title, shifts, curves, HUE))
    return Chart(panels)


def errors(rows: Sequence[Row], classes: Sequence[str]) -> Chart:
    """For each class the smallest and the largest invariance error of its images, on the group and off it."""
    arms = _there(rows, ("ce3", "vp3"))
    last = _ends(rows, arms[-1], "on")
    known = [place for place, ends in enumerate(last) if ends is not None]
    order = sorted(known, key=lambda place: -(last[place] or (0.0, 0.0))[1])
    below = f"{len(order)} classes, in the order of the last network's largest error"
    panels = []
    for kind, title in (
        ("on", "How far probabilities move under hue shifts of the group (thirds of the circle)"),
        ("off", "… under hue shifts that are not in the group (twelfths)"),
    ):
        series = [Bars(NAMES[arm], [_ends(rows, arm, kind)[place] or (0.0, 0.0) for place in order]) for arm in arms]
        panels.append(BarPanel(title, [classes[place] for place in order], series, below, DISTANCE))
    return Chart(panels, columns=1)


def _there(rows: Sequence[Row], arms: Sequence[str]) -> list[str]:
    return [arm for arm in arms if any(row["arm"] == arm for row in rows)]


def _ends(rows: Sequence[Row], arm: str, kind: str) -> list[tuple[float, float] | None]:
    """The lowest and the highest error of each class, each the mean over the seeds of an arm, as many as these are."""
    own = [row["invariance_error"][kind] for row in rows if row["arm"] == arm]
    found: list[tuple[float, float] | None] = []
    for each in zip(*own, strict=True):
        there = [ends for ends in each if ends is not None]
        found.append((mean(low for low, _ in there), mean(high for _, high in there)) if there else None)
    return found
