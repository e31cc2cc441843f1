"""Digits whose range of rotations is known: does θ find its order?"""

from __future__ import annotations

from itertools import pairwise
from statistics import mean

from torch import nn

from vpgcnn.analysis import against_truth, auroc, read_theta
from vpgcnn.data import Dataset
from vpgcnn.experiments.base import Row, markdown
from vpgcnn.report.chart import Axis, Chart, Curve, Panel, up_to
from vpgcnn.training.checkpoint import Card
from vpgcnn.training.progress import Quiet

__all__ = ["chart_ranges", "measure_ranges", "table_ranges"]


def measure_ranges(model: nn.Module, card: Card, dataset: Dataset, _: Quiet) -> Row:
    """θ of the last layer with a level against the true range of each test image."""
    truth = dataset.test.reach
    assert truth is not None
    device = next(model.parameters()).device
    theta = read_theta(model, dataset.test.images.to(device), all_levels=True, prepare=card.standardised)
    if not theta:
        return {}
    last = list(theta.values())[-1][:, 0]
    steps = [float(value) for value in truth.unique()]
    groups = [last[truth == value] for value in steps]
    return {
        "truth": steps,
        "theta": [[round(float(group.mean()), 4), round(float(group.std()), 4)] for group in groups],
        "against": {key: round(value, 4) for key, value in against_truth(last, truth).items()},
        "auroc": [round(auroc(wide, narrow), 4) for narrow, wide in pairwise(groups)],
    }


def table_ranges(rows: list[Row]) -> str:
    """One line for each arm and seed."""
    known: list[float] = next((row["truth"] for row in rows if "truth" in row), [])
    heads = ["arm", "seed", "test accuracy", *(f"θ where {value:g} is true" for value in known)]
    heads += ["rank correlation", "mean distance of θ from it", "overlap", "AUROC of neighbouring ranges"]
    lines = []
    for row in rows:
        cells = [row["arm"], row["seed"], f"{row['test']['accuracy']:.2%}"]
        if "truth" in row:
            found = row["against"]
            cells += [f"{middle:.2f} ± {spread:.2f}" for middle, spread in row["theta"]]
            cells += [f"{found[key]:.3f}" for key in ("rank_correlation", "error", "overlap")]
            cells += [", ".join(f"{value:.3f}" for value in row["auroc"])]
        else:
            cells += ["–"] * (len(heads) - 3)
        lines.append(cells)
    return markdown(heads, lines)


def chart_ranges(rows: list[Row]) -> Chart:
    """θ against the truth, with a band of one deviation between images; mean over seeds."""
    names = {"variational": "a level for each image", "learned": "one level for all images"}
    curves, places = [], []
    for arm, name in names.items():
        own = [row for row in rows if row["arm"] == arm and "truth" in row]
        if own:
            places = own[0]["truth"]
            middle = [mean(row["theta"][place][0] for row in own) for place in range(len(places))]
            spread = [mean(row["theta"][place][1] for row in own) for place in range(len(places))]
            low, high = ([m + sign * s for m, s in zip(middle, spread, strict=True)] for sign in (-1, 1))
            curves.append(Curve(name, middle, low, [min(1.0, value) for value in high], dashed=arm == "learned"))
    curves.append(Curve("the truth", places, dashed=True))
    x = Axis("true range, as a share of the circle", [(value, f"{value:g}") for value in places])
    return Chart([Panel("θ where the range is known", places, curves, x, up_to("θ, share of the circle"))])
