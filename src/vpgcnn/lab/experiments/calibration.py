"""table-calibration: NLL, Brier score and calibration error on Flowers102, and a reliability diagram."""

from __future__ import annotations

import math
from statistics import mean

from vpgcnn.lab.experiments.base import Found, Row, View, markdown, spread
from vpgcnn.lab.report.chart import COLORS, Chart, Curve, Panel, up_to
from vpgcnn.lab.report.colors import NAMES

__all__ = ["VIEW"]

ARMS = ("resnet", "ce3-hybrid", "shared", "partial3", "vp3")
PUBLISHED = {"ce3-hybrid": (0.0171, 0.0042), "partial3": (0.0346, 0.0086), "vp3": (0.0121, 0.0035)}
"""The paper's NLL and Brier score."""
CLASSES = 102


def calibration_rows(found: Found) -> list[Row]:
    """NLL, Brier score and ECE of each arm, averaged over seeds."""
    rows = []
    for arm in dict.fromkeys(row["arm"] for row in found["table-flowers"]):
        same = [row for row in found["table-flowers"] if row["arm"] == arm]
        row: Row = {"arm": arm, "seeds": [one["seed"] for one in same]}
        row["accuracies"] = [one["test"]["accuracy"] for one in same]
        row |= {key: round(mean(one["scores"][key] for one in same), 5) for key in ("nll", "brier", "ece")}
        rows.append(row | {"paper": dict(zip(("nll", "brier"), PUBLISHED.get(arm, ()), strict=False))})
    return rows


def table_calibration(rows: list[Row]) -> str:
    """One line for each arm."""
    heads = ["arm", "NLL, nats per image", "the paper × 102", "Brier, 0 to 2", "the paper × 102", "ECE"]
    lines = []
    for row in rows:
        paper = [f"{CLASSES * row['paper'][key]:.2f}" if row["paper"] else "–" for key in ("nll", "brier")]
        here = [f"{row[key]:.3f}" for key in ("nll", "brier", "ece")]
        cells = [row["arm"], here[0], paper[0], here[1], paper[1], here[2], spread(row["accuracies"])]
        lines.append([*cells, ", ".join(map(str, row["seeds"]))])
    return markdown([*heads, "test accuracy", "seeds"], lines)


def calibration_chart(found: Found) -> Chart:
    """The reliability diagram: accuracy against confidence, and the share of the images at each confidence."""
    pooled: dict[str, list[list[float]]] = {}
    for arm in dict.fromkeys(row["arm"] for row in found["table-flowers"]):
        pooled[arm] = _pooled([row["reliability"] for row in found["table-flowers"] if row["arm"] == arm])
    count = len(next(iter(pooled.values())))
    places = [(number + 0.5) / count for number in range(count)]
    right, share = [], []  # type: list[Curve], list[Curve]
    for arm, bins in list(pooled.items())[: len(COLORS) - 1]:
        name = NAMES.get(arm, arm)
        right.append(Curve(name, [one[1] if one[2] else math.nan for one in bins]))
        share.append(Curve(name, [one[2] for one in bins]))
    right.append(Curve("calibrated", places, dashed=True))
    x, top = up_to("confidence"), max(max(curve.values) for curve in share)
    reliable = Panel("Accuracy at each confidence", places, right, x, up_to("accuracy"))
    return Chart([reliable, Panel("Share of the images", places, share, x, up_to("share of the images", top))])


def _pooled(seeds: list[list[list[float]]]) -> list[list[float]]:
    """Bins (confidence, accuracy, share of the images) of several seeds as one."""
    pooled = []
    for each in zip(*seeds, strict=True):
        total = sum(share for _, _, share in each)
        means = [sum(one[place] * one[2] for one in each) / total if total else 0.0 for place in (0, 1)]
        pooled.append([*means, total / len(seeds)])
    return pooled


VIEW = View(
    name="table-calibration",
    about="NLL, Brier score and calibration error on Flowers102, and a reliability diagram",
    sources={"table-flowers": ARMS},
    rows=calibration_rows,
    table=table_calibration,
    chart=calibration_chart,
    notes=(
        "NLL in nats per image, Brier score as the sum over classes (0 to 2), ECE in 15 bins of equal width.",
        "The paper's numbers seem to be divided by the 102 classes; they are multiplied by 102 here.",
    ),
)
