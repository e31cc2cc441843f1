"""fig-stability: how the weights of the group's elements change in training, for three families of levels."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import Any

import torch
from torch import nn

from vpgcnn.lab.data import Dataset
from vpgcnn.lab.experiments.arms import with_level
from vpgcnn.lab.experiments.base import Arm, Claim, Experiment, Finding, Row, markdown
from vpgcnn.lab.experiments.by_hand import by_hand
from vpgcnn.lab.experiments.verdicts import NOT_MEASURED
from vpgcnn.lab.report.chart import Axis, Chart, Curve, Panel
from vpgcnn.lab.training.checkpoint import Card
from vpgcnn.lab.training.progress import Quiet
from vpgcnn.levels import GumbelSoftmax, RankedSoftmax, Window

__all__ = ["EXPERIMENT", "KINDS", "fluctuation", "follow", "overall"]

KINDS = {"evaluated": "as evaluation takes them", "drawn": "as training draws them"}
WEIGHT = Axis("weight of an element", [(0.0, "0"), (1 / 3, "⅓"), (2 / 3, "⅔"), (1.0, "1")])


def measure_nothing(_model: nn.Module, _card: Card, _dataset: Dataset, _progress: Quiet) -> Row:
    """Nothing: training has already recorded what matters."""
    return {}


def fluctuation(weights: torch.Tensor) -> float:
    """Mean absolute change from one evaluation to the next in the last third of `(epochs, …)`."""
    last = weights[-max(2, len(weights) // 3) :]
    return float(last.diff(dim=0).abs().mean()) if len(last) > 1 else 0.0


def follow(lines: list[Row]) -> Row:
    """How much the weights of each layer fluctuate, and those of one image in the layer that fluctuates most.

    Args:
        lines: The lines of metrics.jsonl.
    """
    epochs = [line for line in lines if "levels" in line]
    found: dict[str, Any] = {"epochs": [line["epoch"] for line in epochs], "fluctuation": {}, "shown": {}}
    weights: dict[str, dict[str, torch.Tensor]] = {}
    for kind in KINDS:
        layers = epochs[0]["levels"][kind] if epochs else {}
        weights[kind] = {
            layer: torch.tensor([line["levels"][kind][layer] for line in epochs], dtype=torch.float64)
            for layer in layers
        }
        changes = {layer: round(fluctuation(each), 5) for layer, each in weights[kind].items()}
        found["fluctuation"][kind] = changes
    if epochs:
        layer = _liveliest(found)[0]
        found["shown"] = {"layer": layer}
        for kind in KINDS:
            first = weights[kind][layer][:, 0].tolist()
            found["shown"][kind] = [[round(weight, 3) for weight in epoch] for epoch in first]
    return {"levels": found}


def _liveliest(levels: Row) -> tuple[str, float]:
    """The layer whose weights fluctuate most in evaluation, and by how much."""
    changes: dict[str, float] = levels["fluctuation"]["evaluated"]
    return max(changes.items(), key=lambda item: item[1])


def overall(row: Row, kind: str) -> float:
    """The mean over layers."""
    return mean(row["levels"]["fluctuation"][kind].values())


def table_stability(rows: list[Row]) -> str:
    """One line for each family and seed."""
    heads = ["family", "seed", "change between epochs, evaluated", "drawn", "largest of a layer", "test accuracy"]
    lines = []
    for row in rows:
        layer, most = _liveliest(row["levels"])
        both = [f"{overall(row, kind):.4f}" for kind in KINDS]
        lines.append([row["arm"], row["seed"], *both, f"{most:.4f} ({layer})", f"{row['test']['accuracy']:.2%}"])
    return markdown(heads, lines)


def chart_stability(rows: list[Row]) -> Chart:
    """The weights of one image in the layer that fluctuates most, for each family: evaluated and drawn."""
    panels = []
    for row in rows:
        if row["seed"] != rows[0]["seed"]:
            continue
        epochs, shown = row["levels"]["epochs"], row["levels"]["shown"]
        ends = Axis("epoch", [(float(place), f"{place}") for place in sorted({epochs[0], epochs[-1]})])
        for kind, words in KINDS.items():
            elements = list(zip(*shown[kind], strict=True))
            curves = [
                Curve(f"hue shift {number}/{len(elements)}", list(values)) for number, values in enumerate(elements)
            ]
            panels.append(Panel(f"{row['arm']}, {shown['layer']}, {words}", epochs, curves, ends, WEIGHT))
    return Chart(panels, columns=2, title="Weights of the group's elements for one image, while training")


def fluctuates(rows: Sequence[Row]) -> Finding:
    """Whether Gumbel-softmax changes twice as much as the ranked softmax, in its draws and in its means."""
    drawn: dict[str, list[float]] = {}
    for row in rows:
        drawn.setdefault(row["arm"], []).append(overall(row, "drawn"))
    if not {"gumbel", "ranked"} <= set(drawn):
        return NOT_MEASURED
    seeds = min(len(drawn["gumbel"]), len(drawn["ranked"]))
    evaluated = {arm: mean(overall(row, "evaluated") for row in rows if row["arm"] == arm) for arm in drawn}
    parts = (f"{arm} {mean(values):.4f} ({evaluated[arm]:.4f})" for arm, values in drawn.items())
    evidence = f"change of a weight between epochs as drawn (as evaluated): {', '.join(parts)}"
    more = {mean(drawn["gumbel"]) > 2 * mean(drawn["ranked"]), evaluated["gumbel"] > 2 * evaluated["ranked"]}
    number = "one seed" if seeds == 1 else f"{seeds} seeds"
    verdict = "open" if seeds == 1 or len(more) == 2 else "yes" if True in more else "no"
    return Finding(verdict, f"{evidence} ({number})")


ARMS = {
    "window": Arm("windows, weighted by exact cell coverage", with_level("variational", family=Window())),
    "ranked": Arm(
        "the paper's ranked softmax, without random ranks", with_level("variational", family=RankedSoftmax())
    ),
    "gumbel": Arm("Gumbel-softmax, as in Partial G-CNN", with_level("variational", family=GumbelSoftmax(final=0.1))),
}

EXPERIMENT = Experiment(
    name="fig-stability",
    about="weights of the group's elements during training: window, the paper's ranked softmax, Gumbel-softmax",
    recipe="flowers102",
    base=by_hand("flowers102"),
    arms=ARMS,
    seeds=(0,),
    measure=measure_nothing,
    table=table_stability,
    chart=chart_stability,
    watch=16,
    history=follow,
    notes=(
        "The network and the recipe are the same (levels for each image on the lift and stage 4); only the family of "
        "levels differs.",
        "Change between epochs: the mean absolute change of an element's weight, between 0 and 1, from one epoch to "
        "the next in the last third of training, over 16 validation images, all layers with levels and all elements.",
        "Draws of Gumbel-softmax differ between epochs even where its probabilities stay the same.",
        "The ranked softmax has no random ranks: with them it would be fully equivariant on average.",
    ),
    claims=(Claim("Gumbel-softmax fluctuates to the end, the ranked softmax settles", fluctuates),),
)
