"""What the tables on hue share: accuracy and calibration, accuracy under hue shifts, and the learned levels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn

from vpgcnn.color import shift_hue
from vpgcnn.lab.data import Dataset
from vpgcnn.lab.experiments.base import Row, markdown, spread
from vpgcnn.lab.networks import elements_of, to_unit
from vpgcnn.lab.training.checkpoint import Card
from vpgcnn.lab.training.progress import Quiet
from vpgcnn.measure import (
    Moves,
    awareness,
    brier,
    calibration_error,
    hues,
    linear_hues,
    nll,
    orbit_probabilities,
    read_levels,
    reliability,
    whole_group,
    with_mean_levels,
)

__all__ = ["COLUMNS", "CURVES", "measure_colors", "table_colors"]

SHIFTS = 12
"""Hue shifts by multiples of a twelfth of the circle."""
TAIL = 10
"""A class with at most this many training images is a small class."""
PARTS = ("tail", "head")
ORBIT_IMAGES = 1500
SHOWN = {
    "flowers102": (
        "barberton daisy", "snapdragon", "canterbury bells", "english marigold", "tiger lily", "moon orchid"
    )
}  # fmt: skip
"""Classes whose single images are followed along the circle."""
FOLLOWED, STEPS = 8, 24
"""How many images of each of these classes, and at how many shifts."""
CURVES = ("examples", "confidence_hsv", "invariance_error", "theta_by_class")
"""What figures draw: too large to keep for every arm."""
COLUMNS = (
    "NLL in nats per image; Brier score summed over classes (0 to 2); ECE with 15 bins of equal width.",
    '"At θ = 1": the same network with its levels set to the whole group at test time; "at the mean θ": with the '
    "same levels for all images.",
)
"""Notes on the columns."""


def measure_colors(model: nn.Module, card: Card, dataset: Dataset, progress: Quiet) -> Row:
    """Scores on the test images, accuracy under hue shifts, accuracy of small and large classes, and θ."""
    device = next(model.parameters()).device
    model.eval()

    def predict(pixels: Tensor) -> Tensor:
        logits: Tensor = model(pixels)[0]
        return logits

    images, labels = dataset.test.images.to(device), dataset.test.labels
    some = torch.arange(0, len(labels), max(1, len(labels) // ORBIT_IMAGES))
    progress.begin("hue shifts", 2 * SHIFTS + 2)
    (chances,) = orbit_probabilities(predict, images, [to_unit], on_progress=progress.advance)
    right = (chances.argmax(dim=1) == labels).double()
    counts = torch.bincount(dataset.train.labels, minlength=len(dataset.classes))
    small = counts[labels] <= TAIL
    row: Row = {
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
    reading = read_levels(model, images)
    theta = reading.theta
    if set(theta) - {"ranges"}:
        with whole_group(model):
            (whole,) = orbit_probabilities(predict, images, [to_unit])
        row["accuracy_at_theta_one"] = round(float((whole.argmax(dim=1) == labels).double().mean()), 5)
    if set(reading.per_image().theta) - {"ranges"}:
        with with_mean_levels(model, images):
            (alike,) = orbit_probabilities(predict, images, [to_unit])
        right = (alike.argmax(dim=1) == labels).double()
        row["at_mean_theta"] = {"accuracy": round(float(right.mean()), 5), "nll": round(nll(alike, labels), 5)}
    progress.advance(1)
    for kind, circle in (("linear", linear_hues(SHIFTS)), ("hsv", hues(SHIFTS))):
        moves = [partial(_shifted, circle, place) for place in circle.places]
        moved = orbit_probabilities(predict, images[some], moves, on_progress=progress.advance)
        share = (moved.argmax(dim=2) == labels[some]).double().mean(dim=1)
        row[f"shifted_{kind}"] = [round(value, 5) for value in share.tolist()]
        if kind == "linear":
            row["invariance_error"] = _errors(moved, labels[some], len(dataset.classes), elements_of(card.model)[1])
        else:
            row["confidence_hsv"] = _by_class(moved, labels[some], len(dataset.classes))
    row["examples"] = []
    for name in SHOWN.get(dataset.name, ()):
        label = dataset.classes.index(name)
        followed = to_unit(images[labels == label][:FOLLOWED])
        levels = read_levels(model, followed).per_image().theta
        row["examples"].append({"class": name, **_followed(predict, followed, label, levels)})
    row["theta"] = {layer: _spread(values[:, 0], labels) for layer, values in theta.items()}
    row["theta_by_class"] = {
        layer: [_rounded_mean(values[labels == label, 0]) for label in range(len(dataset.classes))]
        for layer, values in theta.items()
    }
    return row


def _shifted(circle: Moves, place: float, images: Tensor) -> Tensor:
    return circle(to_unit(images), place)


def _rounded_mean(values: Tensor) -> float | None:
    return round(float(values.mean()), 3) if len(values) else None


def _followed(
    predict: Callable[[Tensor], Tensor], images: Tensor, label: int, theta: dict[str, Tensor]
) -> dict[str, Any]:
    """For single images: the confidence in their class at each HSV shift from −½ to ½ of the circle, and their θ."""
    shifts = [step / STEPS - 0.5 for step in range(STEPS + 1)]
    chances = orbit_probabilities(predict, images, [partial(shift_hue, shift=share) for share in shifts])[:, :, label]
    return {
        "shifts": [round(share, 4) for share in shifts],
        "confidence": [[round(value, 4) for value in curve] for curve in chances.t().tolist()],
        "theta": {layer: [round(value, 3) for value in values[:, 0].tolist()] for layer, values in theta.items()},
    }


def _by_class(moved: Tensor, labels: Tensor, classes: int) -> list[list[float] | None]:
    """The mean confidence in the true class at each shift, for each class that has images."""
    true = moved.gather(2, labels.expand(len(moved), -1)[..., None])[..., 0]
    means = [true[:, labels == label].mean(dim=1).tolist() for label in range(classes)]
    return [None if curve[0] != curve[0] else [round(value, 3) for value in curve] for curve in means]


def _errors(moved: Tensor, labels: Tensor, classes: int, elements: int) -> dict[str, list[list[float] | None]]:
    """How far an image's probabilities move under a shift, at most: the smallest and the largest of each class.

    Args:
        moved: Probabilities `(shifts, images, classes)`; the first shift is 0.
        labels: `(images,)`.
        classes: How many.
        elements: Hues of the network's group; an ordinary network is compared on thirds of the circle.

    Returns:
        Distances of total variation, from 0 to 1; "on": under shifts in the group, "off": under the others.
    """
    distance = (moved - moved[0]).abs().sum(dim=2) / 2
    step = SHIFTS // (elements if elements > 1 and SHIFTS % elements == 0 else 3)
    inside = torch.tensor([shift % step == 0 for shift in range(SHIFTS)])
    found: dict[str, list[list[float] | None]] = {}
    for name, chosen in (("on", inside), ("off", ~inside)):
        largest = distance[chosen].amax(dim=0)
        each = [largest[labels == label] for label in range(classes)]
        found[name] = [[round(float(e.min()), 3), round(float(e.max()), 3)] if len(e) else None for e in each]
    return found


def _spread(theta: Tensor, labels: Tensor) -> dict[str, float]:
    """Mean, deviation, ends, and the share of the variance that lies between classes."""
    found = awareness(theta, labels)
    return {key: round(found[key], 4) for key in ("mean", "std", "lowest", "highest", "between_classes")}


def table_colors(rows: list[Row]) -> str:
    """One line for each arm: mean ± standard deviation over draws or seeds."""
    # In ColorMNIST the hue is part of the label: accuracy under shifts means nothing there.
    free = not rows[0]["config"]["data"]["name"].startswith("colormnist")
    heads = ["arm", "test accuracy"]
    heads += ["over hue shifts (linear, HSV)"] if free else ["small classes", "large classes"]
    heads += ["NLL", "Brier", "ECE", "θ mean ± std", "at θ = 1", "at the mean θ", "seeds", "parameters", "minutes"]
    lines = []
    for arm in dict.fromkeys(row["arm"] for row in rows):
        same = [row for row in rows if row["arm"] == arm]
        scores = {key: [row["scores"][key] for row in same] for key in same[0]["scores"]}
        levels = [level for row in same for layer, level in row["theta"].items() if layer != "ranges"]
        ranges = [row["theta"]["ranges"] for row in same if "ranges" in row["theta"]]
        cells = [arm, _percent(scores["accuracy"])]
        if free:
            shifted = [mean(mean(row[f"shifted_{kind}"]) for row in same) for kind in ("linear", "hsv")]
            cells += [f"{shifted[0]:.2%}, {shifted[1]:.2%}"]
        else:
            cells += [_percent([row[part] for row in same]) for part in PARTS]
        cells += [f"{mean(scores[key]):.3f}" for key in ("nll", "brier", "ece")]
        cells += [_theta(levels, "") or _theta(ranges, "range ") or "–"]
        cells += [_percent([row.get("accuracy_at_theta_one") for row in same])]
        cells += [_percent([row.get("at_mean_theta", {}).get("accuracy") for row in same])]
        cells += [", ".join(str(row["seed"]) for row in same), f"{same[0]['parameters']:,}"]
        cells += [f"{mean(row['seconds'] for row in same) / 60:.1f}"]
        lines.append(cells)
    return markdown(heads, lines)


def _theta(levels: list[dict[str, float]], name: str) -> str:
    """Mean and deviation over images, averaged over layers and seeds; that of an augmentation is called a range."""
    return f"{name}{mean(v['mean'] for v in levels):.2f} ± {mean(v['std'] for v in levels):.3f}" if levels else ""


def _percent(values: Sequence[float | None]) -> str:
    """Mean ± deviation; says how many seeds have the number if some lack it, as it then fits no other column."""
    known = [value for value in values if value is not None]
    some = f" ({len(known)} of {len(values)} seeds)" if len(known) < len(values) else ""
    return f"{spread(known)}{some}" if known else "–"
