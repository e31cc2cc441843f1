"""fig-flowers-confidence and fig-equivariance-error: single flowers and classes of Flowers102 under hue shifts."""

from __future__ import annotations

from statistics import mean

from vpgcnn.lab.data.flowers import CLASSES
from vpgcnn.lab.experiments.base import Found, Row, View, markdown
from vpgcnn.lab.report.chart import Chart
from vpgcnn.lab.report.colors import NAMES, confidence, errors, windows

__all__ = ["CONFIDENCE", "ERRORS"]


def confidence_rows(found: Found) -> list[Row]:
    """For each class that is shown and each network: the confidence without shift, the lowest, and the mean θ."""
    rows = []
    examples = found["table-flowers"][0]["examples"]
    for place, example in enumerate(examples):
        for row in found["table-flowers"]:
            same = row["examples"][place]
            curve = [mean(values) for values in zip(*same["confidence"], strict=True)]
            theta = [mean(values) for values in same["theta"].values()]
            line: Row = {"class": example["class"], "arm": row["arm"], "seed": row["seed"]}
            line |= {"confidence": round(curve[same["shifts"].index(0.0)], 4), "lowest": round(min(curve), 4)}
            rows.append(line | {"theta": round(mean(theta), 4) if theta else None})
    return rows


def table_confidence(rows: list[Row]) -> str:
    """One line for each class, network and seed."""
    lines = []
    for row in rows:
        level = "–" if row["theta"] is None else f"{row['theta']:.2f}"
        sure = f"{row['confidence']:.2f}", f"{row['lowest']:.2f}"
        lines.append([row["class"], NAMES.get(row["arm"], row["arm"]), row["seed"], *sure, level])
    return markdown(["class", "network", "seed", "confidence, no shift", "lowest along the circle", "θ"], lines)


def confidence_chart(found: Found) -> Chart:
    """Single flowers, class by class, then the classes with the narrowest and with the widest windows."""
    rows = found["table-flowers"]
    parts = [confidence(rows)] + ([windows(rows, CLASSES)] if any(row["arm"] == "vp3" for row in rows) else [])
    return Chart([panel for part in parts for panel in part.panels], columns=2)


def error_rows(found: Found) -> list[Row]:
    """For each network and kind of shift: the smallest and largest error in a class, averaged, and the extremes."""
    rows = []
    for row in found["table-flowers"]:
        for kind in ("on", "off"):
            ends = {CLASSES[place]: pair for place, pair in enumerate(row["invariance_error"][kind]) if pair}
            line: Row = {"arm": row["arm"], "seed": row["seed"], "shifts": kind}
            line |= {
                word: round(mean(pair[end] for pair in ends.values()), 4)
                for end, word in enumerate(("smallest", "largest"))
            }
            calm, wild = min(ends, key=lambda name: ends[name][1]), max(ends, key=lambda name: ends[name][0])
            alike = max(pair[1] for pair in ends.values()) < 0.001
            rows.append(line | {"stable": None if alike else calm, "unstable": None if alike else wild})
    return rows


def table_errors(rows: list[Row]) -> str:
    """One line for each network, seed and kind of shift."""
    words = {"on": "in the group", "off": "outside the group"}
    heads = ["network", "seed", "shifts", "smallest, mean over classes", "largest, mean over classes"]
    lines = []
    for row in rows:
        cells = [NAMES.get(row["arm"], row["arm"]), row["seed"], words[row["shifts"]]]
        cells += [f"{row[word]:.3f}" for word in ("smallest", "largest")]
        lines.append([*cells, *(row[word] or "none: all alike" for word in ("stable", "unstable"))])
    return markdown([*heads, "most stable class", "least stable class"], lines)


def error_chart(found: Found) -> Chart:
    """The smallest and the largest invariance error of each class."""
    return errors(found["table-flowers"], CLASSES)


CONFIDENCE = View(
    name="fig-flowers-confidence",
    about="confidence in single flowers against a shift of their hue, class by class",
    sources={"table-flowers": ("resnet", "ce3", "vp3")},
    rows=confidence_rows,
    table=table_confidence,
    chart=confidence_chart,
    notes=(
        "Hues are shifted as photo editors do (HSV), by up to half of the circle to each side.",
        "Thin lines: single flowers of the network with a level for each image (its first seed). Thick lines: means "
        "over flowers and seeds.",
        "The last two panels show the ten classes with the narrowest and the ten with the widest windows, in steps of "
        "a twelfth of the circle. θ is the mean over all layers that have a level.",
    ),
)
ERRORS = View(
    name="fig-equivariance-error",
    about="the smallest and the largest invariance error of each class of Flowers102, in the group and outside it",
    sources={"table-flowers": ("ce3", "vp3")},
    rows=error_rows,
    table=table_errors,
    chart=error_chart,
    notes=(
        "The error of an image is the largest change of its class probabilities under (linear) hue shifts: the "
        "distance of total variation, from 0 to 1.",
        "A bar spans the smallest to the largest error in a class, among every fourth test image, averaged over seeds. "
        "Classes have the same order in both panels.",
        "A network that is fully equivariant to three hues has no error under these, and so no bar.",
    ),
)
