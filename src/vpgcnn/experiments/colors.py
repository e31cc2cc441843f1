"""Hue: how good each arm is, on the images as they are and with their hue shifted, and the levels that it learned."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from statistics import mean, stdev
from typing import Any

import torch
from torch import Tensor, nn

from vpgcnn.analysis import (
    Moves,
    all_of_the_group,
    awareness,
    brier,
    calibration_error,
    hues,
    linear_hues,
    nll,
    orbit_probabilities,
    read_theta,
    reliability,
    same_for_all,
)
from vpgcnn.data import Dataset
from vpgcnn.experiments.base import gap
from vpgcnn.experiments.photographs import spread
from vpgcnn.hsv import shift_hue
from vpgcnn.levels import Variational
from vpgcnn.models import elements_of
from vpgcnn.training.checkpoint import Card
from vpgcnn.training.progress import Quiet

__all__ = ["measure_colors", "table_colors"]

SHIFTS = 12
"""Hue shifts by multiples of a twelfth of the circle."""
TAIL = 10
"""A class with at most so many training images is one of the tail."""
PARTS = ("tail", "head")
ORBIT_IMAGES = 1500
SHOWN = {
    "flowers102": (
        "barberton daisy", "snapdragon", "canterbury bells", "english marigold", "tiger lily", "moon orchid"
    )
}  # fmt: skip
"""Classes of which single images are followed along the circle."""
FOLLOWED, STEPS = 8, 24
"""How many images of each of them, by how many shifts."""


def measure_colors(model: nn.Module, card: Card, dataset: Dataset, progress: Quiet) -> dict[str, Any]:
    """Scores on the test images, accuracy over hue shifts, accuracy of small and large classes, θ."""
    device = next(model.parameters()).device
    model.eval()

    def predict(pixels: Tensor) -> Tensor:
        logits: Tensor = model(card.standardised(pixels * 255))[0]
        return logits

    images, labels = dataset.test.images.to(device), dataset.test.labels
    some = torch.arange(0, len(labels), max(1, len(labels) // ORBIT_IMAGES))
    progress.begin("hue shifts", 2 * SHIFTS + 2)
    (chances,) = orbit_probabilities(predict, images, [_pixels], told=progress.advance)
    right = (chances.argmax(dim=1) == labels).double()
    counts = torch.bincount(dataset.train.labels, minlength=len(dataset.classes))
    small = counts[labels] <= TAIL
    row: dict[str, Any] = {
        "scores": {
            "accuracy": round(float(right.mean()), 5),
            "nll": round(nll(chances, labels), 5),
            "brier": round(brier(chances, labels), 5),
            "ece": round(calibration_error(chances, labels), 5),
        },
        "reliability": [[round(value, 4) for value in one] for one in reliability(chances, labels).tolist()],
        "tail": round(float(right[small].mean()), 5) if bool(small.any()) else None,
        "head": round(float(right[~small].mean()), 5) if bool((~small).any()) else None,
    }
    theta = read_theta(model, images, all_levels=True, prepare=card.standardised)
    if set(theta) - {"ranges"}:
        with all_of_the_group(model):
            (whole,) = orbit_probabilities(predict, images, [_pixels])
        row["accuracy_at_theta_one"] = round(float((whole.argmax(dim=1) == labels).double().mean()), 5)
    if any(isinstance(module, Variational) for module in model.modules()):
        with same_for_all(model, images, prepare=card.standardised):
            (alike,) = orbit_probabilities(predict, images, [_pixels])
        right = (alike.argmax(dim=1) == labels).double()
        row["same_for_all"] = {"accuracy": round(float(right.mean()), 5), "nll": round(nll(alike, labels), 5)}
    progress.advance(1)
    for kind, circle in (("linear", linear_hues(SHIFTS)), ("hsv", hues(SHIFTS))):
        moves = [partial(_shown, circle, place) for place in circle.places]
        moved = orbit_probabilities(predict, images[some], moves, told=progress.advance)
        share = (moved.argmax(dim=2) == labels[some]).double().mean(dim=1)
        row[f"shifted_{kind}"] = [round(value, 5) for value in share.tolist()]
        row[f"confidence_{kind}"] = _by_class(moved, labels[some], len(dataset.classes))
        if kind == "linear":
            row["invariance_error"] = _errors(moved, labels[some], len(dataset.classes), elements_of(card.model)[1])
    row["examples"] = []
    for name in SHOWN.get(dataset.name, ()):
        label = dataset.classes.index(name)
        own = _pixels(images[labels == label][:FOLLOWED])
        row["examples"].append({"class": name, **_followed(predict, model, card, own, label)})
    row["theta"] = {layer: _spread(values[:, 0], labels) for layer, values in theta.items()}
    row["theta_by_class"] = {
        layer: [_rounded_mean(values[labels == label, 0]) for label in range(len(dataset.classes))]
        for layer, values in theta.items()
    }
    return row


def _pixels(images: Tensor) -> Tensor:
    """Bytes as numbers in [0, 1]."""
    return images.float() / 255


def _shown(circle: Moves, place: float, images: Tensor) -> Tensor:
    return circle(_pixels(images), place)


def _rounded_mean(values: Tensor) -> float | None:
    return round(float(values.mean()), 4) if len(values) else None


def _followed(
    predict: Callable[[Tensor], Tensor], model: nn.Module, card: Card, images: Tensor, label: int
) -> dict[str, Any]:
    """Of single images: the confidence in their class at each HSV shift from −½ to ½ of the circle, and their θ."""
    shifts = [step / STEPS - 0.5 for step in range(STEPS + 1)]
    chances = orbit_probabilities(predict, images, [partial(shift_hue, shift=share) for share in shifts])[:, :, label]
    theta = read_theta(model, card.standardised(images * 255))
    return {
        "shifts": [round(share, 4) for share in shifts],
        "confidence": [[round(value, 4) for value in curve] for curve in chances.t().tolist()],
        "theta": {layer: [round(value, 4) for value in values[:, 0].tolist()] for layer, values in theta.items()},
    }


def _by_class(moved: Tensor, labels: Tensor, classes: int) -> list[list[float] | None]:
    """The mean confidence in the right class at each shift, for each class that has images."""
    own = moved.gather(2, labels.expand(len(moved), -1)[..., None])[..., 0]
    means = [own[:, labels == label].mean(dim=1).tolist() for label in range(classes)]
    return [None if curve[0] != curve[0] else [round(value, 4) for value in curve] for curve in means]


def _errors(moved: Tensor, labels: Tensor, classes: int, elements: int) -> dict[str, list[list[float] | None]]:
    """How far an image's probabilities move under a shift, at most: the smallest and the largest of each class.

    The distance is that of total variation, from 0 to 1. "on": under shifts that are in the group (thirds of the
    circle for an ordinary network), "off": under those that are not.
    """
    distance = (moved - moved[0]).abs().sum(dim=2) / 2  # shifts, images
    step = SHIFTS // (elements if elements > 1 and SHIFTS % elements == 0 else 3)
    inside = torch.tensor([shift % step == 0 for shift in range(SHIFTS)])
    found: dict[str, list[list[float] | None]] = {}
    for name, chosen in (("on", inside), ("off", ~inside)):
        largest = distance[chosen].amax(dim=0)
        each = [largest[labels == label] for label in range(classes)]
        found[name] = [[round(float(e.min()), 4), round(float(e.max()), 4)] if len(e) else None for e in each]
    return found


def _spread(theta: Tensor, labels: Tensor) -> dict[str, float]:
    """Mean, deviation, ends, and how much of the variance is between classes."""
    found = awareness(theta, labels)
    return {key: round(found[key], 4) for key in ("mean", "std", "lowest", "highest", "between_classes")}


def table_colors(rows: list[dict[str, Any]]) -> str:
    """One line for each arm: mean ± standard deviation over draws or seeds."""
    # The hue of a ColorMNIST image is part of its label: accuracy under shifts means nothing there.
    free = not rows[0]["config"]["data"]["name"].startswith("colormnist")
    heads = ["arm", "test accuracy", *([] if free else ["small classes", "large classes"])]
    heads += [
        *(["over hue shifts (linear, HSV)"] if free else []),
        "NLL",
        "Brier",
        "ECE",
        "θ mean ± std",
        "at θ = 1",
        "at the mean θ",
    ]
    heads += ["seeds", "parameters", "minutes"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for arm in dict.fromkeys(row["arm"] for row in rows):
        own = [row for row in rows if row["arm"] == arm]
        scores = {key: [row["scores"][key] for row in own] for key in own[0]["scores"]}
        shifted = [mean(mean(row[f"shifted_{kind}"]) for row in own) for kind in ("linear", "hsv")]
        levels = [level for row in own for layer, level in row["theta"].items() if layer != "ranges"]
        ranges = [row["theta"]["ranges"] for row in own if "ranges" in row["theta"]]
        cells = [arm, _percent(scores["accuracy"])]
        cells += (
            [f"{shifted[0]:.2%}, {shifted[1]:.2%}"] if free else [_percent([r[part] for r in own]) for part in PARTS]
        )
        cells += [f"{mean(scores[key]):.3f}" for key in ("nll", "brier", "ece")]
        cells += [_theta(levels, "") or _theta(ranges, "range ") or "–"]
        cells += [_percent([row.get("accuracy_at_theta_one") for row in own])]
        cells += [_percent([row.get("same_for_all", {}).get("accuracy") for row in own])]
        cells += [", ".join(str(row["seed"]) for row in own), f"{own[0]['parameters']:,}"]
        cells += [f"{mean(row['seconds'] for row in own) / 60:.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, *_paired(rows)])


def _theta(levels: list[dict[str, float]], name: str) -> str:
    """Mean and deviation over images, the mean over layers and seeds; of an augmentation it is called a range."""
    return f"{name}{mean(v['mean'] for v in levels):.2f} ± {mean(v['std'] for v in levels):.3f}" if levels else ""


def _percent(values: list[float | None]) -> str:
    """Mean ± deviation; where some seeds lack the number, of how many it is: it then does not go with other columns."""
    known = [value for value in values if value is not None]
    some = f" ({len(known)} of {len(values)} seeds)" if len(known) < len(values) else ""
    return f"{spread(known)}{some}" if known else "–"


PAIRS = (
    ("vp3", "ce3"),
    ("vp3", "ce3-wide"),
    ("vp3", "learned"),
    ("vp3-wide", "ce3-wide"),
    ("vp3-wide", "learned-wide"),
    ("vp3-wide", "partial3-wide"),
    ("vp3-detached-wide", "vp3-wide"),
    ("vp3-detached-wide", "ce3-wide"),
    ("vp3-detached-wide", "learned-wide"),
    ("vp3-detached-wide", "partial3-wide"),
    ("vp3-drawn-wide", "partial3-wide"),
    ("vp6", "ce6"),
    ("ce3", "cnn-26k"),
    ("vp3-plain", "ce3-plain"),
    ("hue3-vp", "plain-tuned"),
    ("hue3-vp", "hue3-learned"),
)


def _paired(rows: list[dict[str, Any]]) -> list[str]:
    """Differences of arms on the same draws."""
    lines = []
    for first, second in PAIRS:
        gaps = gap(rows, first, second)
        if gaps:
            error = f" ± {stdev(gaps) / math.sqrt(len(gaps)):.2f} (standard error)" if len(gaps) > 1 else ""
            lines.append(f"\n{first} − {second}, paired: {mean(gaps):.2f}{error} points over {len(gaps)} seeds.")
    return lines
