"""How the weights of the group's elements move while a network is trained: three families of levels, one network."""

from __future__ import annotations

from statistics import mean
from typing import Any

import torch
from torch import nn

from vpgcnn.data import Dataset
from vpgcnn.experiments.base import Row, markdown
from vpgcnn.report.chart import Axis, Chart, Curve, Panel
from vpgcnn.training.checkpoint import Card
from vpgcnn.training.progress import Quiet

__all__ = ["KINDS", "chart_stability", "fluctuation", "follow", "measure_nothing", "table_stability"]

KINDS = {"evaluated": "as evaluation takes them", "drawn": "as training draws them"}
SHOWN = 2
"""Images whose weights are kept epoch by epoch."""
WEIGHT = Axis("weight of an element", [(0.0, "0"), (1 / 3, "⅓"), (2 / 3, "⅔"), (1.0, "1")])


def measure_nothing(_model: nn.Module, _card: Card, _dataset: Dataset, _progress: Quiet) -> Row:
    """Nothing: what matters was written down in training."""
    return {}


def fluctuation(weights: torch.Tensor) -> float:
    """Mean absolute change from one evaluation to the next in the last third of `(epochs, …)`."""
    last = weights[-max(2, len(weights) // 3) :]
    return float(last.diff(dim=0).abs().mean()) if len(last) > 1 else 0.0


def follow(lines: list[Row]) -> Row:
    """From the lines of metrics.jsonl: the weights of each layer, epoch by epoch, and how much they fluctuate."""
    epochs = [line for line in lines if "levels" in line]
    found: dict[str, Any] = {"epochs": [line["epoch"] for line in epochs], "fluctuation": {}, "weights": {}}
    for kind in KINDS:
        layers = epochs[0]["levels"][kind] if epochs else {}
        every = {
            layer: torch.tensor([line["levels"][kind][layer] for line in epochs], dtype=torch.float64)
            for layer in layers
        }
        found["fluctuation"][kind] = {layer: round(fluctuation(each), 5) for layer, each in every.items()}
        found["weights"][kind] = {
            layer: [[[round(w, 3) for w in image] for image in epoch] for epoch in each[:, :SHOWN].tolist()]
            for layer, each in every.items()
        }
    return {"levels": found}


def overall(row: Row, kind: str) -> float:
    """The mean over layers."""
    return mean(row["levels"]["fluctuation"][kind].values())


def table_stability(rows: list[Row]) -> str:
    """One line for each family and seed."""
    heads = ["family", "seed", "change between epochs, evaluated", "drawn", "largest of a layer", "test accuracy"]
    lines = []
    for row in rows:
        layer, most = max(row["levels"]["fluctuation"]["evaluated"].items(), key=lambda item: item[1])
        both = [f"{overall(row, kind):.4f}" for kind in KINDS]
        lines.append([row["arm"], row["seed"], *both, f"{most:.4f} ({layer})", f"{row['test']['accuracy']:.2%}"])
    return markdown(heads, lines)


def chart_stability(rows: list[Row]) -> Chart:
    """For one image, at the layer whose weights fluctuate most: drawn and evaluated, family by family."""
    panels = []
    for row in rows:
        if row["seed"] != rows[0]["seed"]:
            continue
        said, epochs = row["levels"], row["levels"]["epochs"]
        layer = max(said["fluctuation"]["evaluated"].items(), key=lambda item: item[1])[0]
        ends = Axis("epoch", [(float(place), f"{place}") for place in sorted({epochs[0], epochs[-1]})])
        for kind, words in KINDS.items():
            each = [epoch[0] for epoch in said["weights"][kind][layer]]
            curves = [
                Curve(f"hue shift {number}/{len(each[0])}", [weights[number] for weights in each])
                for number in range(len(each[0]))
            ]
            panels.append(Panel(f"{row['arm']}, {layer}, {words}", epochs, curves, ends, WEIGHT))
    return Chart(panels, columns=2, title="Weights of the group's elements for one image, while training")
