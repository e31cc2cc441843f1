"""fig-principle: with a larger λ windows widen, until the classification loss rises."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import mean

from torch import nn

from vpgcnn.lab.data import Dataset
from vpgcnn.lab.experiments.base import Arm, Change, Claim, Experiment, Finding, Row, markdown
from vpgcnn.lab.experiments.by_hand import by_hand
from vpgcnn.lab.experiments.digits import theta_of
from vpgcnn.lab.experiments.verdicts import NOT_MEASURED
from vpgcnn.lab.report.chart import Axis, Chart, Curve, Panel, up_to
from vpgcnn.lab.training.checkpoint import Card
from vpgcnn.lab.training.config import TrainConfig
from vpgcnn.lab.training.progress import Quiet
from vpgcnn.objective import KlSchedule

__all__ = ["EXPERIMENT"]

DIGITS = ("6", "9", "7")
LAMBDAS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
RISE = 0.05
"""The loss has risen when it is this much above its lowest, in nats."""


def constant(weight: float) -> Change:
    """The same λ from the first step to the last."""

    def change(config: TrainConfig) -> TrainConfig:
        return replace(config, objective=KlSchedule(start=weight, peak=weight))

    return change


ARMS = {f"lambda-{weight:g}": Arm(f"λ = {weight:g} throughout training", constant(weight)) for weight in LAMBDAS}


def measure_principle(model: nn.Module, _: Card, dataset: Dataset, __: Quiet) -> Row:
    """θ of each digit at the last layer that has a level."""
    theta = theta_of(model, dataset)
    last = list(theta.values())[-1]
    return {"theta": {digit: [round(float(v.mean()), 4), round(float(v.std()), 4)] for digit, v in last.items()}}


def _points(rows: list[Row]) -> list[tuple[float, list[Row]]]:
    """The rows of each λ."""
    weights = sorted({row["config"]["objective"]["start"] for row in rows})
    return [(weight, [row for row in rows if row["config"]["objective"]["start"] == weight]) for weight in weights]


def table_principle(rows: list[Row]) -> str:
    """One line for each λ, the mean over seeds."""
    lines = []
    for weight, same in _points(rows):
        theta = [f"{mean(row['theta'][digit][0] for row in same):.2f}" for digit in DIGITS]
        loss, right = (mean(row["test"][key] for row in same) for key in ("nll", "accuracy"))
        seeds = ", ".join(str(row["seed"]) for row in same)
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
        # 9s are rotated 6s, so both have the same θ: dashed, so that the other line shows.
        curve(f"{digit}s", [[row["theta"][digit][0] for row in same] for _, same in points], dashed=digit == "9")
        for digit in DIGITS
    ]
    loss = curve("test NLL", [[row["test"]["nll"] for row in same] for _, same in points])
    widen = Panel("Windows widen with λ …", places, theta, x, up_to("θ, share of the circle"))
    costs = Panel("… until it costs: test NLL", places, [loss], x, up_to("nats per image", max(loss.high or [1.0])))
    return Chart([widen, costs])


def widens(rows: Sequence[Row]) -> Finding:
    """Whether θ of 6s, which may not turn all the way, grows with λ until the loss rises."""
    rows = sorted(rows, key=lambda row: row["config"]["objective"]["start"])
    if len(rows) < 3:
        return NOT_MEASURED
    weights = [row["config"]["objective"]["start"] for row in rows]
    six, seven = ([row["theta"][digit][0] for row in rows] for digit in ("6", "7"))
    losses = [row["test"]["nll"] for row in rows]
    low = [loss < min(losses) + RISE for loss in losses]
    last = max((place for place, calm in enumerate(low) if calm), default=0)
    evidence = (
        f"λ from {weights[0]:g} to {weights[last]:g}: θ of 6s {six[0]:.2f} → {six[last]:.2f}, of 7s {seven[0]:.2f} → "
        f"{seven[last]:.2f}, NLL ≤ {max(losses[: last + 1]):.3f}"
    )
    if last + 1 < len(rows):
        after = last + 1
        evidence += f"; at λ = {weights[after]:g}: θ {six[after]:.2f}, {seven[after]:.2f}, NLL {losses[after]:.3f}"
    grows = all(wider >= narrow - 0.01 for narrow, wider in itertools.pairwise(six))
    rises = 0 < last < len(rows) - 1 and all(low[: last + 1])
    return Finding("yes" if grows and rises else "no", f"{evidence} (one seed each)")


EXPERIMENT = Experiment(
    name="fig-principle",
    about="the weight of the KL is swept: windows widen until the classification loss rises",
    recipe="mnist67-180",
    base=by_hand("mnist67-180"),
    arms=ARMS,
    seeds=(0,),
    measure=measure_principle,
    table=table_principle,
    chart=chart_principle,
    notes=(
        "The network and the recipe of MNIST67-180 with a level for each image, but the same λ in every step. θ is "
        "that of the last layer, averaged over test digits.",
        "9s are 6s rotated by 180°, so an invariant θ is the same for both.",
        "A window can widen where that changes no prediction: first those of 7s open, then those of 6s and 9s up to "
        "where a rotated 6 would be a 9. Where λ forces all of them open, the classes can no longer be separated.",
    ),
    claims=(Claim("with a larger λ windows widen, until the classification loss rises", widens),),
)
