"""fig-mnist67-180: the confidence in 6s and 7s as they rotate, where a 6 turns into a 9, and θ of each digit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn

from vpgcnn.lab.data import Dataset
from vpgcnn.lab.experiments.arms import (
    ADAAUG,
    AUGERINO,
    AVERAGED,
    FULL,
    FULL_INSTAAUG,
    INSTAAUG,
    SHARED,
    T2,
    VARIATIONAL,
)
from vpgcnn.lab.experiments.base import Arm, Claim, Experiment, Finding, Row, markdown
from vpgcnn.lab.experiments.by_hand import by_hand
from vpgcnn.lab.experiments.verdicts import NOT_MEASURED
from vpgcnn.lab.networks import to_unit
from vpgcnn.lab.report.digits import figure
from vpgcnn.lab.training.checkpoint import Card
from vpgcnn.lab.training.config import TrainConfig
from vpgcnn.lab.training.progress import Quiet
from vpgcnn.measure import auroc, confidence_curve, crossings, read_levels

__all__ = ["EXPERIMENT", "curves_of", "theta_of"]

ANGLES = tuple(range(-180, 181, 5))


def rotated(config: TrainConfig) -> TrainConfig:
    """The ordinary network, trained on digits that are rotated at random."""
    return replace(T2(config), data=replace(config.data, augment="rotate", max_angle=180.0))


ARMS = {
    "variational": Arm("a level for each image", VARIATIONAL),
    "shared": Arm("one learned level for all images (Partial G-CNN)", SHARED),
    "full": Arm("fully equivariant: the whole group for every image", FULL),
    "t2": Arm("the paper's T(2): the same network without rotations, an ordinary CNN", T2),
    "t2-rotate": Arm("t2, trained on digits that are rotated at random", rotated),
    "t2-tta": Arm("t2, averaged over eight rotations at test time", AVERAGED),
    "t2-augerino": Arm("t2 with Augerino: one learned range of rotations", AUGERINO),
    "t2-instaaug": Arm("t2 with InstaAug: a predicted range of rotations for each image", INSTAAUG),
    "t2-adaaug": Arm("t2 with AdaAug: a searched policy of rotations", ADAAUG),
    "full-instaaug": Arm("full with InstaAug", FULL_INSTAAUG),
}


@torch.no_grad()
def curves_of(model: nn.Module, dataset: Dataset, progress: Quiet, angles: Sequence[int]) -> dict[str, Tensor]:
    """The confidence that a 6 is a 6, and a 7 a 7, at every angle.

    Args:
        model: The network.
        dataset: MNIST67-180; its upright test digits are rotated.
        progress: Counts the angles.
        angles: In degrees, P of them.

    Returns:
        "6" and "7" → `(P, N)`, one column for each test digit.
    """
    device = next(model.parameters()).device
    model.eval()

    def predict(pixels: Tensor) -> Tensor:
        logits: Tensor = model(pixels)[0]
        return logits

    progress.begin("curves", 2 * len(angles))
    found = {}
    for label, digit in enumerate("67"):
        chosen = dataset.test.images[dataset.test.labels == label]
        upright = chosen if digit == "6" else chosen[: len(chosen) // 2]  # the second half of the 7s is turned
        pixels = to_unit(upright.to(device))
        found[digit] = confidence_curve(predict, pixels, label, angles, on_progress=progress.advance).cpu()
    return found


def theta_of(model: nn.Module, dataset: Dataset) -> dict[str, dict[str, Tensor]]:
    """θ of each test digit: layer → class → `(N,)`, for the levels that differ between images."""
    values = read_levels(model, dataset.test.images).per_image().theta
    labels = dataset.test.labels
    return {
        layer: {name: theta[labels == label, 0] for label, name in enumerate(dataset.classes)}
        for layer, theta in values.items()
    }


def measure_digits(model: nn.Module, _: Card, dataset: Dataset, progress: Quiet) -> Row:
    """Both curves in steps of 5°, the angles where a 6 becomes a 9, θ by class and its AUROC."""
    curves = curves_of(model, dataset, progress, ANGLES)
    means = {digit: [round(v, 4) for v in values.mean(dim=1).tolist()] for digit, values in curves.items()}
    row: Row = {"angles": list(ANGLES), "curves": means}
    row["flip_angles"] = [round(angle, 1) for angle in crossings(ANGLES, means["6"])]
    theta = theta_of(model, dataset)
    row["theta"] = {
        layer: {digit: [round(float(v.mean()), 4), round(float(v.std()), 4)] for digit, v in digits.items()}
        for layer, digits in theta.items()
    }
    row["theta_auroc"] = {
        layer: round(auroc(digits["7"], torch.cat([digits["6"], digits["9"]])), 4) for layer, digits in theta.items()
    }
    row["figures"] = _figures(row)
    return row


def _figures(row: Row) -> dict[str, float | None]:
    """The numbers that summarise the curves."""
    six, seven = (dict(zip(row["angles"], row["curves"][digit], strict=True)) for digit in "67")
    flips = [abs(angle) for angle in row["flip_angles"]]
    return {
        "six_within_60": min(value for angle, value in six.items() if abs(angle) <= 60),
        "six_beyond_120": max(value for angle, value in six.items() if abs(angle) >= 120),
        "flip_lowest": min(flips) if flips else None,
        "flip_highest": max(flips) if flips else None,
        "seven_lowest": min(seven.values()),
        "seven_mean": round(mean(seven.values()), 4),
        "theta_auroc": row["theta_auroc"].get("last"),
    }


def table_digits(rows: list[Row]) -> str:
    """One line for each arm and seed."""
    heads = ["arm", "seed", "test accuracy", "P(6\\|6), ≤ 60°: lowest", "P(6\\|6), ≥ 120°: highest", "flips at"]
    heads += ["P(7\\|7) lowest", "P(7\\|7) mean", "θ of 6, 7, 9", "θ AUROC", "parameters", "minutes"]
    lines = []
    for row in rows:
        numbers = row["figures"]
        last: dict[str, Any] | None = list(row["theta"].values())[-1] if row["theta"] else None
        theta = ", ".join(f"{last[digit][0]:.2f}" for digit in ("6", "7", "9")) if last else "–"
        score = "–" if numbers["theta_auroc"] is None else f"{numbers['theta_auroc']:.3f}"
        flips = ", ".join(f"{angle:.0f}°" for angle in row["flip_angles"]) or "never"
        cells = [row["arm"], row["seed"], f"{row['test']['accuracy']:.2%}", f"{numbers['six_within_60']:.3f}"]
        cells += [f"{numbers['six_beyond_120']:.3f}", flips, f"{numbers['seven_lowest']:.3f}"]
        cells += [f"{numbers['seven_mean']:.3f}", theta, score, f"{row['parameters']:,}", f"{row['seconds'] / 60:.1f}"]
        lines.append(cells)
    return markdown(heads, lines)


def six_and_seven(rows: Sequence[Row]) -> Finding:
    """Whether 6s keep their class up to 60° and lose it from 120° on, and 7s keep it at every angle."""
    found = [row["figures"] for row in rows if row["arm"] == "variational"]
    if not found:
        return NOT_MEASURED
    near, far = min(one["six_within_60"] for one in found), max(one["six_beyond_120"] for one in found)
    seven = min(one["seven_lowest"] for one in found)
    verdict = "yes" if near > 0.5 > far and seven > 0.5 else "no"
    near, far, seven = math.floor(100 * near) / 100, math.ceil(100 * far) / 100, math.floor(100 * seven) / 100
    evidence = f"P(6|6) ≥ {near:.2f} up to 60°, ≤ {far:.2f} from 120° on; P(7|7) ≥ {seven:.2f} at every angle"
    return Finding(verdict, f"{evidence} ({len(found)} seeds)")


EXPERIMENT = Experiment(
    name="fig-mnist67-180",
    about="confidence against rotation angle for 6s and 7s: levels, and augmentation instead of levels",
    recipe="mnist67-180",
    base=by_hand("mnist67-180"),
    arms=ARMS,
    seeds=(0, 1, 2),
    measure=measure_digits,
    table=table_digits,
    chart=figure,
    notes=(
        "P(6|6): the mean confidence that a rotated 6 is a 6; training shows 0° and 180° only.".replace("|", "\\|"),
        "θ AUROC: how often θ of a 7 is above that of a 6 or 9, in the last layer.",
    ),
    claims=(Claim("on MNIST67-180 a 6 may turn by less than half a circle, a 7 by all of it", six_and_seven),),
)
