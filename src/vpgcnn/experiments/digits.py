"""MNIST67-180: the confidence curves, the angle at which a 6 turns into a 9, and θ by digit."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn

from vpgcnn.analysis import auroc, confidence_curve, crossings, read_theta
from vpgcnn.data import Dataset
from vpgcnn.training.checkpoint import Card
from vpgcnn.training.progress import Quiet

__all__ = ["curves_of", "figures", "measure_digits", "table_digits", "theta_of"]

ANGLES = tuple(range(-180, 181, 5))


@torch.no_grad()
def curves_of(
    model: nn.Module, card: Card, dataset: Dataset, progress: Quiet, angles: Sequence[int]
) -> dict[str, Tensor]:
    """Confidence `(angles, N)` that an upright 6 is a 6, and a 7 a 7, at every angle, on test digits."""
    device = next(model.parameters()).device
    model.eval()

    def predict(pixels: Tensor) -> Tensor:
        logits: Tensor = model(card.standardised(pixels * 255))[0]
        return logits

    progress.begin("curves", 2 * len(angles))
    found = {}
    for label, digit in enumerate("67"):
        chosen = dataset.test.images[dataset.test.labels == label]
        upright = chosen if digit == "6" else chosen[: len(chosen) // 2]  # the second half of the 7s is turned
        pixels = upright.to(device).float() / 255
        found[digit] = confidence_curve(predict, pixels, label, angles, told=progress.advance).cpu()
    return found


def theta_of(model: nn.Module, card: Card, dataset: Dataset) -> dict[str, dict[str, Tensor]]:
    """θ of test digits: layer → digit → `(N,)`."""
    device = next(model.parameters()).device
    values = read_theta(model, card.standardised(dataset.test.images.to(device)))
    labels = dataset.test.labels
    return {
        layer: {name: theta[labels == label, 0] for label, name in enumerate(card.classes)}
        for layer, theta in values.items()
    }


def measure_digits(model: nn.Module, card: Card, dataset: Dataset, progress: Quiet) -> dict[str, Any]:
    """Both curves in 5° steps with their spread over images, the flip angles, θ by class and its AUROC."""
    curves = curves_of(model, card, dataset, progress, ANGLES)
    means = {digit: [round(v, 4) for v in values.mean(dim=1).tolist()] for digit, values in curves.items()}
    row: dict[str, Any] = {"angles": list(ANGLES), "curves": means}
    row["deviations"] = {digit: [round(v, 4) for v in values.std(dim=1).tolist()] for digit, values in curves.items()}
    row["flip_angles"] = [round(angle, 1) for angle in crossings(ANGLES, means["6"])]
    theta = theta_of(model, card, dataset)
    row["theta"] = {
        layer: {digit: [round(float(v.mean()), 4), round(float(v.std()), 4)] for digit, v in digits.items()}
        for layer, digits in theta.items()
    }
    row["theta_auroc"] = {
        layer: round(auroc(digits["7"], torch.cat([digits["6"], digits["9"]])), 4) for layer, digits in theta.items()
    }
    row["figures"] = figures(row)
    return row


def figures(row: dict[str, Any]) -> dict[str, float | None]:
    """The numbers that the curves are judged by."""
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


def table_digits(rows: list[dict[str, Any]]) -> str:
    """One line for each arm and seed."""
    lines = [
        "| arm | seed | test accuracy | P(6\\|6), ≤ 60°: lowest | P(6\\|6), ≥ 120°: highest | flips at "
        "| P(7\\|7) lowest | P(7\\|7) mean | θ of 6, 7, 9 | θ AUROC | parameters | minutes |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        said = row["figures"]
        last = list(row["theta"].values())[-1] if row["theta"] else None
        theta = ", ".join(f"{last[digit][0]:.2f}" for digit in ("6", "7", "9")) if last else "–"
        score = "–" if said["theta_auroc"] is None else f"{said['theta_auroc']:.3f}"
        flips = ", ".join(f"{angle:.0f}°" for angle in row["flip_angles"]) or "never"
        lines.append(
            f"| {row['arm']} | {row['seed']} | {row['test']['accuracy']:.2%} | {said['six_within_60']:.3f} "
            f"| {said['six_beyond_120']:.3f} | {flips} | {said['seven_lowest']:.3f} | {said['seven_mean']:.3f} "
            f"| {theta} | {score} | {row['parameters']:,} | {row['seconds'] / 60:.1f} |"
        )
    return "\n".join(lines)
