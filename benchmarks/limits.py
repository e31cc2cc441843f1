"""The tables of docs/when-not.md, from results/*.json: when simpler networks are as good, and what a level costs."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

from vpgcnn.lab.experiments.base import Arm, Row, gap, markdown, spread
from vpgcnn.lab.experiments.registry import EXPERIMENTS
from vpgcnn.lab.experiments.verdicts import judged

ROOT = Path(__file__).parent.parent
BEGIN, END = "<!-- {}: written by `make results` -->", "<!-- /{} -->"
NOTHING = "–"

RIVALS = (
    ("full equivariance", "ColorMNIST, 3 hues", "table-colormnist", "ce3", "vp3"),
    ("full equivariance", "Flowers102", "table-flowers", "ce3-wide", "vp3-wide"),
    ("one level for all images", "Flowers102", "table-flowers", "shared-wide", "vp3-wide"),
    ("Partial G-CNN", "Flowers102", "table-flowers", "partial3-wide", "vp3-wide"),
    ("one level for all images", "CIFAR-10", "table-cifar10", "shared", "variational"),
    ("no rotations at all", "CIFAR-10", "table-cifar10", "t2", "variational"),
    ("one level for all images", "MNIST67-180", "fig-mnist67-180", "shared", "variational"),
    ("full equivariance", "MNIST67-180", "fig-mnist67-180", "full", "variational"),
    ("no rotations at all", "MNIST67-180", "fig-mnist67-180", "t2", "variational"),
)
"""The alternative, the data, the experiment, the arm of the alternative, and the arm with a level for each image."""
SHIFTED = ("resnet", "resnet-jitter", "resnet-instaaug", "ce3", "ce3-instaaug", "ce3-wide", "shared-wide", "vp3-wide")
NETWORKS = ("ResNet", "CEResNet", "Partial CEResNet", "VP CEResNet")


@cache
def results() -> dict[str, list[Row]]:
    """The rows of every experiment, by its name."""
    found: dict[str, list[Row]] = {}
    for path in sorted((ROOT / "results").glob("*.json")):
        result: Any = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(result, dict):
            found[result["name"]] = result["rows"]
    return found


def of(name: str, arm: str) -> list[Row]:
    """The rows of an arm."""
    return [row for row in results().get(name, []) if row["arm"] == arm]


def accuracy(rows: list[Row]) -> str:
    """Mean ± deviation over seeds, and the parameters."""
    if not rows:
        return NOTHING
    return f"{spread([row['test']['accuracy'] for row in rows])} ({rows[0]['parameters']:,})"


def legend(arms: dict[str, Arm]) -> str:
    """What the arms of a table are, in a line."""
    return "; ".join(f"`{name}`: {arm.about}" for name, arm in arms.items()) + "."


def alternatives() -> str:
    """Levels for each image against simpler networks."""
    lines = []
    for words, data, name, rival, arm in RIVALS:
        evidence = judged(gap(results().get(name, ()), arm, rival), f"{arm} − {rival}").evidence
        both = [f"{each}: {accuracy(of(name, each))}" for each in (rival, arm)]
        lines.append((words, data, *both, evidence))
    heads = ("instead", "data", "accuracy (parameters)", "a level for each image", "difference on equal seeds")
    named = {each: EXPERIMENTS[name].arm(each) for _, _, name, *both in RIVALS for each in both}
    return f"{markdown(heads, lines)}\n\n{legend(named)}"


def shifts() -> str:
    """Flowers102 without and with shifted hues."""
    lines = []
    for arm in SHIFTED:
        rows = of("table-flowers", arm)
        moved = spread([mean(row["shifted_hsv"]) for row in rows]) if rows else NOTHING
        minutes = f"{mean(row['seconds'] for row in rows) / 60:.1f}" if rows else NOTHING
        seeds = ", ".join(str(row["seed"]) for row in rows)
        lines.append((arm, accuracy(rows), moved, minutes, seeds))
    table = markdown(("Flowers102", "test accuracy (parameters)", "over hue shifts (HSV)", "minutes", "seeds"), lines)
    return f"{table}\n\n{legend({arm: EXPERIMENTS['table-flowers'].arm(arm) for arm in SHIFTED})}"


def cost() -> str:
    """The cost of the networks for Flowers102, relative to the ordinary one."""
    rows = {row["arm"]: row["ratios"] for row in results().get("table-cost", [])}
    lines = []
    for arm in NETWORKS:
        ratios = [f"{rows[arm][key] / rows['ResNet'][key]:.2f}" for key in ("parameters", "flops", "time", "bytes")]
        lines.append((arm, *ratios))
    batch = {row["measured_with"]["batch"] for row in results().get("table-cost", [])}
    step = f"time per step, batch {', '.join(map(str, sorted(batch)))}"
    return markdown(("relative to the ordinary ResNet18", "parameters", "operations", step, "memory"), lines)


def awareness() -> str:
    """How much θ differs between images, and whether it matters."""
    digits, ranges = of("fig-mnist67-180", "variational"), of("fig-ranges", "variational")
    flowers, colors = of("table-flowers", "vp3"), of("table-colormnist", "vp3")
    lines = [
        (
            "MNIST67-180",
            "θ of a 7 above that of a 6 or a 9, AUROC",
            over(digits, lambda r: r["figures"]["theta_auroc"]),
        ),
        ("digits of known range", "rank correlation of θ and the range", over(ranges, _ranked)),
        ("digits of known range", "mean distance of θ from the range", over(ranges, lambda r: r["against"]["error"])),
        ("Flowers102", "deviation of θ between images, mean of layers", over(flowers, _deviation)),
        ("Flowers102", "accuracy, points lost if all images get the mean θ", over(flowers, _lost)),
        ("ColorMNIST", "mean θ", over(colors, lambda r: mean(one["mean"] for one in r["theta"].values()))),
        ("ColorMNIST", "deviation of θ between images, mean of layers", over(colors, _deviation)),
    ]
    return markdown(("data", "measured", "each seed"), lines)


def over(rows: list[Row], measure: Callable[[Row], float]) -> str:
    """A number for each seed."""
    return ", ".join(f"{measure(row):.3f}" for row in rows) or NOTHING


def _ranked(row: Row) -> float:
    return float(row["against"]["rank_correlation"])


def _deviation(row: Row) -> float:
    return mean(one["std"] for one in row["theta"].values())


def _lost(row: Row) -> float:
    return 100 * float(row["test"]["accuracy"] - row["at_mean_theta"]["accuracy"])


TABLES: dict[str, Callable[[], str]] = {
    "alternatives": alternatives,
    "shifts": shifts,
    "cost": cost,
    "awareness": awareness,
}


def page(text: str) -> str:
    """A page with its tables written between their marks."""
    for name, made in TABLES.items():
        begin, end = BEGIN.format(name), END.format(name)
        before, rest = text.split(begin)
        text = f"{before}{begin}\n{made().strip()}\n{end}{rest.split(end)[1]}"
    return text
