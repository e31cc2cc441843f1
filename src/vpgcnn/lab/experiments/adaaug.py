"""table-adaaug: AdaAug on Flowers102, on networks with and without hues."""

from __future__ import annotations

from vpgcnn.lab.experiments import flowers
from vpgcnn.lab.experiments.base import Found, Row, View, markdown, spread

__all__ = ["VIEW"]

ARMS = ("resnet", "resnet-adaaug", "ce3-hybrid", "ce3-adaaug", "partial3", "partial3-adaaug", "vp3")
IN_PAPER = ("resnet-adaaug", "ce3-adaaug", "partial3-adaaug", "vp3")
"""The four columns of the paper's table; its numbers are those that the arms carry."""


def adaaug_rows(found: Found) -> list[Row]:
    """The paper's comparison with AdaAug, and our networks without it."""
    rows = []
    for arm in dict.fromkeys(row["arm"] for row in found["table-flowers"]):
        same = [row for row in found["table-flowers"] if row["arm"] == arm]
        row: Row = {"arm": arm, "accuracies": [one["test"]["accuracy"] for one in same]}
        row |= {"seeds": [one["seed"] for one in same], "parameters": same[0]["parameters"]}
        rows.append(row | {"paper": flowers.EXPERIMENT.arm(arm).published if arm in IN_PAPER else ""})
    return rows


def table_adaaug(rows: list[Row]) -> str:
    """One line for each arm."""
    lines = [
        [
            row["arm"],
            spread(row["accuracies"]),
            row["paper"] or "–",
            ", ".join(map(str, row["seeds"])),
            row["parameters"],
        ]
        for row in rows
    ]
    return markdown(["arm", "test accuracy", "the paper", "seeds", "parameters"], lines)


VIEW = View(
    name="table-adaaug",
    about="AdaAug on Flowers102: policies of hue shifts for each image, on networks with and without hues",
    sources={"table-flowers": ARMS},
    rows=adaaug_rows,
    table=table_adaaug,
    notes=(
        "Policies are searched on a fifth of the training images, over a third of the epochs, in addition to the "
        "budget. Training then uses all images.",
    ),
)
