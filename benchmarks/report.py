"""Write what results/*.json say into docs/results.md, the figures in docs/ and the README: `make results`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

from vpgcnn.data.flowers import CLASSES
from vpgcnn.experiments.photographs import spread
from vpgcnn.report.colors import confidence, errors, windows
from vpgcnn.report.digits import figure
from vpgcnn.report.svg import draw

ROOT = Path(__file__).parent.parent
BEGIN, END = "<!-- bench: written by `make bench` -->", "<!-- /bench -->"
RESULTS_BEGIN, RESULTS_END = "<!-- results: written by `make results` -->", "<!-- /results -->"
Arms = list[tuple[str, list[dict[str, Any]]]]
"""The rows of each arm."""

INTRODUCTION = """# Results

Written by `make bench` and `make results` from the files in `results/`; do not edit.

## Experiments
Every row with its seed, settings and commit is in the JSON file beside the page.
{experiments}
## Speed of the core layers
Each number is a ratio of times, both sides alternated in one process (median of many rounds). "conv2d" is the bare
`F.conv2d` with the weight already expanded over the group, in torch's default memory layout: the multiplications that
a straightforward implementation does. "training" is forward and backward with gradients for input and parameters,
kernels included. VP is a layer with a `Variational` level, measured on plain input and on input that brings weights
of its own. "total" is all shapes run one after the other, "mean" the mean of the shapes' ratios, which are listed
below; "materialised" builds a kernel for every image. "training step" is a whole network's: forward, objective,
backward and optimiser, with norms, activations and pools, over nothing but its convolutions. A goal is met when the
ratio is at most that.
"""


PAGES = {
    "mnist67-180": "MNIST67-180: confidence against rotation, levels by digit",
    "colormnist-lt": "Long-tailed ColorMNIST: ordinary, hue-equivariant and variational networks, draw by draw",
    "flowers102-cpu": "Flowers102 at 64 pixels: accuracy, accuracy over hue shifts, calibration, levels",
    "cifar10-cpu": "CIFAR-10, small networks: T(2), full, learned and variational levels",
}
FLOWERS = """
Single flowers of two classes (thin lines) and their mean, as their hue is shifted:

![Confidence against hue shift](flowers-confidence.svg)

The ten classes whose windows are narrowest, and the ten whose windows are widest:

![Confidence of narrow and wide classes](flowers-windows.svg)

How far the probabilities of a class's images move, at least and at most (total variation):

![Invariance error of each class](flowers-errors.svg)
"""


def there(name: str) -> bool:
    """Whether an experiment has a result."""
    return (ROOT / "results" / f"{name}.json").exists()


def load(path: Path) -> list[dict[str, Any]]:
    """The rows of bench.json."""
    rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Rows with a goal, as Markdown."""
    lines = ["| measured | ratio | goal | |", "|---|---|---|---|"]
    for row in (row for row in rows if row["goal"] is not None):
        verdict = "met" if row["met"] else "not met"
        lines += [f"| {row['name']} | {row['ratio']:.3f} | ≤ {row['goal']:g} | {verdict} |"]
    return "\n".join(lines) + "\n"


def experiment(name: str) -> dict[str, Any]:
    """What `vpgcnn reproduce` wrote."""
    result: dict[str, Any] = json.loads((ROOT / "results" / f"{name}.json").read_text(encoding="utf-8"))
    return result


def results_table() -> str:
    """All experiments, the mean over seeds, as Markdown."""
    found = {name: experiment(name) for name in EXPERIMENTS if there(name)}
    tables = ["\n".join(EXPERIMENTS[name](by_arm(result))) for name, result in found.items()]
    commands = ", ".join(f"`{result['command']}`" for result in found.values())
    said = "Mean ± standard deviation over seeds; for ColorMNIST over draws, of which two are 0 and 1. Written by"
    return "\n\n".join(tables) + f"\n\n{said} {commands}.\n"


def digits_table(arms: Arms) -> list[str]:
    """MNIST67-180."""
    lines = [
        "| MNIST67-180 | test accuracy | P(6\\|6) upright → upside down | P(7\\|7), lowest of all angles | θ AUROC |"
    ]
    lines += ["|---|---|---|---|---|"]
    for arm, rows in arms:
        upright, half = (rows[0]["angles"].index(angle) for angle in (0, 180))
        six = [mean(row["curves"]["6"][place] for row in rows) for place in (upright, half)]
        scores = [row["figures"]["theta_auroc"] for row in rows]
        score = "–" if None in scores else f"{mean(scores):.3f}"
        lowest = mean(row["figures"]["seven_lowest"] for row in rows)
        lines.append(f"| {arm} | {accuracy(rows)} | {six[0]:.2f} → {six[1]:.2f} | {lowest:.2f} | {score} |")
    return lines


def color_table(arms: Arms) -> list[str]:
    """Long-tailed ColorMNIST."""
    lines = ["| long-tailed ColorMNIST | parameters | test accuracy | small classes | draws |", "|---|---|---|---|---|"]
    for arm, rows in arms:
        small = spread([row["tail"] for row in rows])
        lines.append(f"| {arm} | {rows[0]['parameters']:,} | {accuracy(rows)} | {small} | {len(rows)} |")
    return lines


def flowers_table(arms: Arms) -> list[str]:
    """Flowers102."""
    lines = ["| Flowers102, 64 pixels, narrow ResNet18 | parameters | test accuracy | over hue shifts | NLL | ECE |"]
    lines += ["|---|---|---|---|---|---|"]
    for arm, rows in arms:
        shifted = spread([mean(row["shifted_hsv"]) for row in rows])
        loss, gap = (mean(row["scores"][key] for row in rows) for key in ("nll", "ece"))
        size = f"{rows[0]['parameters']:,}"
        lines.append(f"| {arm} | {size} | {accuracy(rows)} | {shifted} | {loss:.3f} | {gap:.3f} |")
    return lines


def photographs_table(arms: Arms) -> list[str]:
    """CIFAR-10."""
    lines = ["| CIFAR-10, 20,000 images, small network | test accuracy |", "|---|---|"]
    return lines + [f"| {arm} | {accuracy(rows)} |" for arm, rows in arms]


EXPERIMENTS: dict[str, Callable[[Arms], list[str]]] = {
    "mnist67-180": digits_table,
    "colormnist-lt": color_table,
    "flowers102-cpu": flowers_table,
    "cifar10-cpu": photographs_table,
}


def by_arm(result: dict[str, Any]) -> Arms:
    """The rows of a result, arm by arm."""
    arms = dict.fromkeys(row["arm"] for row in result["rows"])
    return [(arm, [row for row in result["rows"] if row["arm"] == arm]) for arm in arms]


def accuracy(rows: list[dict[str, Any]]) -> str:
    """On the test images, over seeds."""
    return spread([row["test"]["accuracy"] for row in rows])


def page(rows: list[dict[str, Any]]) -> str:
    """The whole of docs/results.md."""
    single = [
        "| shape | ratio |",
        "|---|---|",
        *(f"| {r['name']} | {r['ratio']:.3f} |" for r in rows if r["goal"] is None),
    ]
    where = sorted({f"{row['cpu']}, torch {row['torch']}" for row in rows})
    pages = "\n".join(f"- [{title}](../results/{name}.md)" for name, title in PAGES.items() if there(name))
    pages += "\n" + (FLOWERS if flowers_figures() else "")
    return (
        f"{INTRODUCTION.format(experiments=pages)}\n{table(rows)}\nMeasured on {'; '.join(where)}.\n\n"
        f"### Single shapes\nbatch×channels in→out, map, kernel and padding.\n\n" + "\n".join(single) + "\n"
    )


def flowers_figures() -> dict[str, str]:
    """The figures of Flowers102, once the arms that they compare are there."""
    rows = experiment("flowers102-cpu")["rows"] if there("flowers102-cpu") else []
    if not {"vp3", "ce3"} <= {row["arm"] for row in rows}:
        return {}
    charts = {"confidence": confidence(rows), "windows": windows(rows, CLASSES), "errors": errors(rows, CLASSES)}
    return {name: draw(chart) for name, chart in charts.items()}


def write(path: Path, text: str) -> None:
    """Replace a file as a whole."""
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def update_documents(rows: list[dict[str, Any]]) -> None:
    """docs/results.md, and the table between the marks in the README."""
    write(ROOT / "docs" / "results.md", page(rows))
    write(ROOT / "docs" / "curves.svg", draw(figure(experiment("mnist67-180")["rows"])) + "\n")
    for name, drawing in flowers_figures().items():
        write(ROOT / "docs" / f"flowers-{name}.svg", drawing + "\n")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for begin, end, new in ((BEGIN, END, table(rows)), (RESULTS_BEGIN, RESULTS_END, results_table())):
        before, rest = text.split(begin)
        text = f"{before}{begin}\n{new}{end}{rest.split(end)[1]}"
    write(ROOT / "README.md", text)


if __name__ == "__main__":
    update_documents(load(ROOT / "results" / "bench.json"))
