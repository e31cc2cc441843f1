"""CIFAR: accuracy of each arm, and the levels that it learned."""

from __future__ import annotations

from statistics import mean, stdev
from typing import Any

from torch import nn

from vpgcnn.analysis import read_theta
from vpgcnn.data import Dataset
from vpgcnn.training.checkpoint import Card
from vpgcnn.training.progress import Quiet

__all__ = ["measure_photographs", "table_photographs"]


def measure_photographs(model: nn.Module, card: Card, dataset: Dataset, _: Quiet) -> dict[str, Any]:
    """θ of each layer: its mean over 2,000 test images, and how far it spreads between them."""
    device = next(model.parameters()).device
    images = card.standardised(dataset.test.images[:2000].to(device))
    theta = read_theta(model, images, all_levels=True)
    return {
        "theta": {
            layer: [round(float(values.mean()), 4), round(float(values.std()), 4)] for layer, values in theta.items()
        }
    }


def table_photographs(rows: list[dict[str, Any]]) -> str:
    """One line for each arm: mean ± standard deviation over seeds."""
    lines = [
        "| arm | test accuracy | seeds | validation accuracy | parameters | minutes a run |",
        "|---|---|---|---|---|---|",
    ]
    for arm in dict.fromkeys(row["arm"] for row in rows):
        own = [row for row in rows if row["arm"] == arm]
        minutes = mean(row["seconds"] for row in own) / 60
        lines.append(
            f"| {arm} | {spread([row['test']['accuracy'] for row in own])} | {', '.join(str(r['seed']) for r in own)} "
            f"| {spread([row['validation']['accuracy'] for row in own])} | {own[0]['parameters']:,} | {minutes:.1f} |"
        )
    return "\n".join(lines)


def spread(values: list[float]) -> str:
    """Mean ± standard deviation, in per cent."""
    return f"{100 * mean(values):.2f}" + (f" ± {100 * stdev(values):.2f}" if len(values) > 1 else "")
