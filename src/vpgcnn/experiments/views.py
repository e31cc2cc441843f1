"""Tables and figures of the paper that put together what experiments found."""

from __future__ import annotations

import math
from statistics import mean
from typing import Any

from vpgcnn.data.flowers import CLASSES
from vpgcnn.experiments.base import Row, markdown
from vpgcnn.experiments.photographs import spread
from vpgcnn.report.chart import COLORS, Chart, Curve, Panel, up_to
from vpgcnn.report.colors import NAMES, confidence, errors, windows

__all__ = [
    "ADAAUG",
    "CALIBRATION",
    "COLOR",
    "adaaug_rows",
    "calibration_chart",
    "calibration_rows",
    "color_rows",
    "error_chart",
    "flowers_chart",
    "flowers_rows",
    "table_adaaug",
    "table_calibration",
    "table_color",
    "table_errors",
    "table_examples",
]

COLOR = (
    # group, elements, partial, InstaAug, arm on ColorMNIST, the paper's, arm on Flowers102, the paper's
    ("T(2)", 1, "–", False, "cnn-19k", "71.0 ± 0.2", "resnet", "64.6 ± 0.3"),
    ("T(2)", 1, "–", True, "cnn-instaaug", "70.5 ± 0.6", "resnet-instaaug", "66.1 ± 1.5"),
    ("T(2) × H₃", 3, "–", False, "ce3", "87.1 ± 0.1", "ce3-hybrid", "68.0 ± 0.5"),
    ("T(2) × H₃", 3, "–", True, "ce3-instaaug", "87.3 ± 0.9", "ce3-instaaug", "64.3 ± 1.1"),
    ("T(2) × H₃", 3, "P", False, "partial3", "61.4 ± 0.8", "partial3", "67.2 ± 1.5"),
    ("T(2) × H₃", 3, "VP", False, "vp3", "85.4 ± 1.0", "vp3", "69.4 ± 0.6"),
    ("T(2) × H₆", 6, "–", False, "ce6", "88.7 ± 0.3", "ce6-hybrid", "65.0 ± 0.7"),
    ("T(2) × H₆", 6, "–", True, "ce6-instaaug", "87.9 ± 0.3", "ce6-instaaug", "62.2 ± 0.8"),
    ("T(2) × H₆", 6, "P", False, "partial6", "63.5 ± 0.6", "partial6", "66.8 ± 0.7"),
    ("T(2) × H₆", 6, "VP", False, "vp6", "88.4 ± 1.1", "vp6", "69.3 ± 0.4"),
)
"""The ten rows of the paper's table on colour."""
CALIBRATION = {"ce3-hybrid": (0.0171, 0.0042), "partial3": (0.0346, 0.0086), "vp3": (0.0121, 0.0035)}
"""The paper's NLL and Brier score, which look divided by the 102 classes."""
ADAAUG = {"resnet-adaaug": "64.70", "ce3-adaaug": "63.51", "partial3-adaaug": "68.45", "vp3": "69.40"}
Found = dict[str, list[Row]]


def _summary(rows: list[Row], arm: str) -> dict[str, Any] | None:
    """Accuracy over the seeds of an arm; None where it has not been run."""
    own = [row for row in rows if row["arm"] == arm]
    if not own:
        return None
    said = {"arm": arm, "accuracies": [row["test"]["accuracy"] for row in own], "seeds": [row["seed"] for row in own]}
    return said | {"parameters": own[0]["parameters"]}


def color_rows(found: Found) -> list[Row]:
    """The ten rows, each with what was found on either dataset."""
    rows = []
    for group, elements, partial, insta, digits, paper_digits, flowers, paper_flowers in COLOR:
        name = f"{group}{f' {partial}' if partial != '–' else ''}{' InstaAug' if insta else ''}"
        row: Row = {"arm": name, "group": group, "elements": elements, "partial": partial, "instaaug": insta}
        row["colormnist"] = _summary(found["table-colormnist"], digits)
        row["flowers102"] = _summary(found["table-flowers"], flowers)
        rows.append(row | {"paper": {"colormnist": paper_digits, "flowers102": paper_flowers}})
    return rows


def table_color(rows: list[Row]) -> str:
    """The paper's table, its numbers beside ours."""
    heads = ["group", "elements", "partial", "InstaAug"]
    heads += ["ColorMNIST-LT", "the paper", "draws", "Flowers102", "the paper", "seeds"]
    lines = []
    for row in rows:
        cells = [row["group"], row["elements"], row["partial"], "✓" if row["instaaug"] else "–"]
        for data in ("colormnist", "flowers102"):
            said = row[data]
            cells += [spread(said["accuracies"]) if said else "not run", row["paper"][data]]
            cells += [", ".join(map(str, said["seeds"])) if said else "–"]
        lines.append(cells)
    return markdown(heads, lines)


def calibration_rows(found: Found) -> list[Row]:
    """NLL, Brier score and ECE of each arm on Flowers102, the mean over seeds, and its reliability."""
    rows = []
    for arm in dict.fromkeys(row["arm"] for row in found["table-flowers"]):
        own = [row for row in found["table-flowers"] if row["arm"] == arm]
        row: Row = {
            "arm": arm,
            "seeds": [one["seed"] for one in own],
            "accuracies": [r["test"]["accuracy"] for r in own],
        }
        row |= {key: round(mean(one["scores"][key] for one in own), 5) for key in ("nll", "brier", "ece")}
        row["reliability"] = _pooled([one["reliability"] for one in own])
        rows.append(row | {"paper": dict(zip(("nll", "brier"), CALIBRATION.get(arm, ()), strict=False))})
    return rows


def _pooled(seeds: list[list[list[float]]]) -> list[list[float]]:
    """Bins (confidence, accuracy, share of the images) of several seeds as one."""
    pooled = []
    for each in zip(*seeds, strict=True):
        total = sum(share for _, _, share in each)
        means = [sum(one[place] * one[2] for one in each) / total if total else 0.0 for place in (0, 1)]
        pooled.append([round(value, 4) for value in (*means, total / len(seeds))])
    return pooled


def table_calibration(rows: list[Row]) -> str:
    """One line for each arm."""
    heads = [
        "arm",
        "NLL, nats per image",
        "the paper × 102",
        "Brier, 0 to 2",
        "the paper × 102",
        "ECE",
        "test accuracy",
    ]
    lines = []
    for row in rows:
        theirs = [f"{102 * row['paper'][key]:.2f}" if row["paper"] else "–" for key in ("nll", "brier")]
        ours = [f"{row[key]:.3f}" for key in ("nll", "brier", "ece")]
        cells = [row["arm"], ours[0], theirs[0], ours[1], theirs[1], ours[2], spread(row["accuracies"])]
        lines.append([*cells, ", ".join(map(str, row["seeds"]))])
    return markdown([*heads, "seeds"], lines)


def calibration_chart(rows: list[Row]) -> Chart:
    """The reliability diagram: accuracy against confidence, and how many images there are of each."""
    count = len(rows[0]["reliability"])
    places = [(number + 0.5) / count for number in range(count)]
    right, share = [], []  # type: list[Curve], list[Curve]
    for row in rows[: len(COLORS) - 1]:
        name = str(NAMES.get(row["arm"], row["arm"]))
        right.append(Curve(name, [one[1] if one[2] else math.nan for one in row["reliability"]]))
        share.append(Curve(name, [one[2] for one in row["reliability"]]))
    right.append(Curve("calibrated", places, dashed=True))
    x, top = up_to("confidence"), max(max(curve.values) for curve in share)
    reliable = Panel("Accuracy at each confidence", places, right, x, up_to("accuracy"))
    return Chart([reliable, Panel("How many images there are", places, share, x, up_to("share of the images", top))])


def adaaug_rows(found: Found) -> list[Row]:
    """The paper's comparison with AdaAug, and what our networks do without it."""
    rows = []
    for arm in dict.fromkeys(row["arm"] for row in found["table-flowers"]):
        said = _summary(found["table-flowers"], arm)
        rows.append({**(said or {}), "arm": arm, "paper": ADAAUG.get(arm)})
    return rows


def table_adaaug(rows: list[Row]) -> str:
    """One line for each arm."""
    lines = [
        [
            row["arm"],
            spread(row["accuracies"]),
            row["paper"] or "–",
            ", ".join(map(str, row["seeds"])),
            row["parameters"],
        ]
        for row in rows
    ]
    return markdown(["arm", "test accuracy", "the paper", "seeds", "parameters"], lines)


FLOWERS_KEPT = ("arm", "seed", "examples", "invariance_error", "confidence_hsv", "theta", "theta_by_class")


def flowers_rows(found: Found) -> list[Row]:
    """What figures need of the rows of Flowers102."""
    return [{key: row[key] for key in FLOWERS_KEPT if key in row} for row in found["table-flowers"]]


def table_examples(rows: list[Row]) -> str:
    """For each class that is shown: how sure each network is upright, and at its least along the circle."""
    lines = []
    for place, example in enumerate(rows[0]["examples"]):
        for row in rows:
            own = row["examples"][place]
            curve = [mean(values) for values in zip(*own["confidence"], strict=True)]
            theta = [mean(values) for values in own["theta"].values()]
            sure = f"{curve[own['shifts'].index(0.0)]:.2f}", f"{min(curve):.2f}"
            level = f"{mean(theta):.2f}" if theta else "–"
            lines.append([example["class"], NAMES.get(row["arm"], row["arm"]), row["seed"], *sure, level])
    return markdown(["class", "network", "seed", "confidence as it is", "lowest along the circle", "θ"], lines)


def table_errors(rows: list[Row]) -> str:
    """For each network: the smallest and the largest error of a class's images, the mean over classes, and the ends."""
    lines = []
    for row in rows:
        for kind, words in (("on", "of the group"), ("off", "off the group")):
            ends = {CLASSES[place]: pair for place, pair in enumerate(row["invariance_error"][kind]) if pair}
            both = [f"{mean(pair[end] for pair in ends.values()):.3f}" for end in (0, 1)]
            calm, wild = min(ends, key=lambda name: ends[name][1]), max(ends, key=lambda name: ends[name][0])
            if max(pair[1] for pair in ends.values()) < 0.001:
                calm = wild = "none: all alike"
            lines.append([NAMES.get(row["arm"], row["arm"]), row["seed"], words, *both, calm, wild])
    heads = ["network", "seed", "shifts", "smallest, mean over classes", "largest, mean over classes"]
    return markdown([*heads, "most stable class", "least stable class"], lines)


def flowers_chart(rows: list[Row]) -> Chart:
    """Single flowers class by class, then the classes with the narrowest and with the widest windows."""
    parts = [confidence(rows)] + ([windows(rows, CLASSES)] if any(row["arm"] == "vp3" for row in rows) else [])
    return Chart([panel for part in parts for panel in part.panels], columns=2)


def error_chart(rows: list[Row]) -> Chart:
    """The smallest and the largest invariance error of each class."""
    return errors(rows, CLASSES)
