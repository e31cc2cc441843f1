"""Digits that may be turned, or change hue, or both, or neither: does each circle's θ find its own truth?"""

from __future__ import annotations

from statistics import mean

import torch
from torch import nn

from vpgcnn.analysis import all_of_the_group, apart, auroc, read_theta, same_for_all
from vpgcnn.data import Dataset
from vpgcnn.data.turn_hue import KINDS
from vpgcnn.experiments.base import Row, markdown
from vpgcnn.report.chart import BarPanel, Bars, Chart, up_to
from vpgcnn.training.checkpoint import Card
from vpgcnn.training.progress import Quiet

__all__ = ["chart_turn_hue", "measure_turn_hue", "table_turn_hue"]

CIRCLES = ("rotation", "hue")


@torch.no_grad()
def _accuracy(model: nn.Module, card: Card, dataset: Dataset) -> float:
    device = next(model.parameters()).device
    right = 0
    for images, labels in zip(dataset.test.images.split(256), dataset.test.labels.split(256), strict=True):
        right += int((model(card.standardised(images.to(device)))[0].argmax(dim=1).cpu() == labels).sum())
    return round(right / len(dataset.test), 4)


def measure_turn_hue(model: nn.Module, card: Card, dataset: Dataset, _: Quiet) -> Row:
    """θ of both circles at the last layer with a level, by digit, and how well it tells free digits from bound ones."""
    truth = dataset.test.reach
    assert truth is not None
    device = next(model.parameters()).device
    images = dataset.test.images.to(device)
    levels = read_theta(model, images, all_levels=True, prepare=card.standardised)
    if not levels:
        return {}
    last = list(levels)[-1]
    theta = dict(zip(CIRCLES, apart(model, {last: levels[last]}).values(), strict=True))
    row: Row = {"theta": {}, "auroc": {}}
    for place, (circle, values) in enumerate(theta.items()):
        free = truth[:, place] == 1
        row["auroc"][circle] = round(auroc(values[free], values[~free]), 4)
        other = truth[:, 1 - place] == 1  # the other symmetry must not decide
        row["auroc"][f"{circle} within"] = [
            round(auroc(values[free & same], values[~free & same]), 4) for same in (other, ~other)
        ]
        row["theta"][circle] = {
            str(digit): _spread(values[_digit(card, dataset, digit)]) for digit in KINDS
        }  # fmt: skip
    with all_of_the_group(model):
        row["at_full"] = _accuracy(model, card, dataset)
    with same_for_all(model, images, prepare=card.standardised):
        row["at_mean"] = _accuracy(model, card, dataset)
    return row


def _digit(card: Card, dataset: Dataset, digit: int) -> torch.Tensor:
    """Which test images show this digit."""
    own = torch.tensor([name.split()[0] == str(digit) for name in card.classes])
    return own[dataset.test.labels]


def _spread(values: torch.Tensor) -> list[float]:
    return [round(float(values.mean()), 4), round(float(values.std()), 4)]


def table_turn_hue(rows: list[Row]) -> str:
    """One line for each arm and seed."""
    heads = ["arm", "seed", "test accuracy"]
    heads += [f"θ of {circle}: {_kinds()}" for circle in CIRCLES]
    heads += [f"AUROC of {circle}" for circle in CIRCLES]
    heads += ["at the mean θ", "at θ = 1", "parameters", "minutes"]
    lines = []
    for row in rows:
        cells = [row["arm"], row["seed"], f"{row['test']['accuracy']:.2%}"]
        if "theta" in row:
            cells += [
                ", ".join(f"{middle:.2f} ± {spread:.2f}" for middle, spread in row["theta"][circle].values())
                for circle in CIRCLES
            ]
            cells += [f"{row['auroc'][circle]:.3f} ({min(row['auroc'][f'{circle} within']):.3f})" for circle in CIRCLES]
            cells += [f"{row[key]:.2%}" for key in ("at_mean", "at_full")]
        else:
            cells += ["–"] * 6
        lines.append([*cells, f"{row['parameters']:,}", f"{row['seconds'] / 60:.1f}"])
    return markdown(heads, lines)


def _kinds() -> str:
    return ", ".join(f"{digit}s" for digit in KINDS)


def chart_turn_hue(rows: list[Row]) -> Chart:
    """The window of each circle for each digit: from 0 to θ, mean over seeds."""
    own = [row for row in rows if row["arm"] == "variational" and "theta" in row]
    panels = []
    for place, circle in enumerate(CIRCLES):
        names = [f"{digit} ({'free' if kind[place] else 'bound'})" for digit, kind in KINDS.items()]
        means = [mean(row["theta"][circle][str(digit)][0] for row in own) for digit in KINDS] if own else []
        bars = Bars(f"θ of {circle}", [(0.0, value) for value in means])
        y = up_to("θ, share of the circle")
        panels.append(BarPanel(f"How much of {circle} is used", names, [bars], "digit", y))
    return Chart(panels, columns=1)
