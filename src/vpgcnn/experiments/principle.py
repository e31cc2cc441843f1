"""The principle of the objective: with a larger λ windows widen, until the classification loss is touched."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import mean

from torch import nn

from vpgcnn.data import Dataset
from vpgcnn.experiments.base import Arm, Row, markdown
from vpgcnn.experiments.digits import theta_of
from vpgcnn.report.chart import Axis, Chart, Curve, Panel, up_to
from vpgcnn.training.checkpoint import Card
from vpgcnn.training.config import ObjectiveConfig, TrainConfig
from vpgcnn.training.progress import Quiet

__all__ = ["LAMBDAS", "arm_of", "chart_principle", "measure_principle", "table_principle"]

DIGITS = ("6", "9", "7")
LAMBDAS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)


def arm_of(weight: float) -> Arm:
    """Training with one λ from the first step to the last."""

    def arm(config: TrainConfig) -> TrainConfig:
        objective = ObjectiveConfig(start=weight, peak=weight)
        return replace(config, model=replace(config.model, level="variational"), objective=objective)

    return arm


def measure_principle(model: nn.Module, card: Card, dataset: Dataset, _: Quiet) -> Row:
    """θ of each digit at the last layer that has a level."""
    theta = theta_of(model, card, dataset)
    last = list(theta.values())[-1]
    return {"theta": {digit: [round(float(v.mean()), 4), round(float(v.std()), 4)] for digit, v in last.items()}}


def _points(rows: list[Row]) -> list[tuple[float, list[Row]]]:
    """The rows of each λ."""
    weights = sorted({row["config"]["objective"]["start"] for row in rows})
    return [(weight, [row for row in rows if row["config"]["objective"]["start"] == weight]) for weight in weights]


def table_principle(rows: list[Row]) -> str:
    """One line for each λ, the mean over seeds."""
    lines = []
    for weight, own in _points(rows):
        theta = [f"{mean(row['theta'][digit][0] for row in own):.2f}" for digit in DIGITS]
        loss, right = (mean(row["test"][key] for row in own) for key in ("nll", "accuracy"))
        seeds = ", ".join(str(row["seed"]) for row in own)
        lines.append([f"{weight:g}", *theta, f"{loss:.3f}", f"{right:.2%}", seeds])
    return markdown(["λ", *(f"θ of {digit}" for digit in DIGITS), "test NLL", "test accuracy", "seeds"], lines)


def chart_principle(rows: list[Row]) -> Chart:
    """θ of each digit against λ, and the loss that pays for it."""
    points = _points(rows)
    places = [math.log10(weight) for weight, _ in points]
    x = Axis("λ, the weight of the KL", [(math.log10(weight), f"{weight:g}") for weight, _ in points])

    def curve(name: str, values: list[list[float]], dashed: bool = False) -> Curve:
        return Curve(name, [mean(v) for v in values], [min(v) for v in values], [max(v) for v in values], dashed)

    theta = [
        # 9s are turned 6s, so that both have the same θ: dashed, for the other line to be seen.
        curve(f"{digit}s", [[row["theta"][digit][0] for row in own] for _, own in points], dashed=digit == "9")
        for digit in DIGITS
    ]
    loss = curve("test NLL", [[row["test"]["nll"] for row in own] for _, own in points])
    widen = Panel("Windows widen with λ …", places, theta, x, up_to("θ, share of the circle"))
    costs = Panel("… until it costs: test NLL", places, [loss], x, up_to("nats per image", max(loss.high or [1.0])))
    return Chart([widen, costs])
