"""Write what results/*.json say into docs/results.md, docs/curves.svg and the README: `make results`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from statistics import mean
from typing import Any

from vpgcnn.experiments.photographs import spread
from vpgcnn.report.digits import figure

ROOT = Path(__file__).parent.parent
BEGIN, END = "<!-- bench: written by `make bench` -->", "<!-- /bench -->"
RESULTS_BEGIN, RESULTS_END = "<!-- results: written by `make results` -->", "<!-- /results -->"
EXPERIMENTS = ("mnist67-180", "cifar10-cpu")

INTRODUCTION = """# Results

Written by `make bench` and `make results` from the files in `results/`; do not edit.

## Experiments
Every row with its seed, settings and commit is in the JSON file beside the page.
- [MNIST67-180](../results/mnist67-180.md): confidence against rotation, levels by digit
- [CIFAR-10, small networks](../results/cifar10-cpu.md): T(2), full, learned and variational levels

## Speed of the core layers
Each number is a ratio of times, both sides alternated in one process (median of many rounds). "conv2d" is the bare
`F.conv2d` with the weight already expanded over the group: the multiplications that a straightforward implementation
does. "training" is forward and backward with gradients for input and parameters, kernels included. VP is a layer with a
`Variational` level, measured on plain input and on input that brings weights of its own. "total" is all shapes run one
after the other, "mean" the mean of the shapes' ratios, which are listed below; "materialised" builds a kernel for every
image. "training step" is a whole network's: forward, objective, backward and optimiser, with norms, activations
and pools, over nothing but its convolutions. A goal is met when the ratio is at most that.
"""


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
    """Both experiments, the mean over seeds, as Markdown."""
    digits, photographs = (experiment(name) for name in EXPERIMENTS)
    lines = [
        "| MNIST67-180 | test accuracy | P(6\\|6) upright → upside down | P(7\\|7), lowest of all angles | θ AUROC |"
    ]
    lines += ["|---|---|---|---|---|"]
    for arm in dict.fromkeys(row["arm"] for row in digits["rows"]):
        rows = [row for row in digits["rows"] if row["arm"] == arm]
        upright, half = (rows[0]["angles"].index(angle) for angle in (0, 180))
        six = [mean(row["curves"]["6"][place] for row in rows) for place in (upright, half)]
        scores = [row["figures"]["theta_auroc"] for row in rows]
        score = "–" if None in scores else f"{mean(scores):.3f}"
        accuracy = spread([row["test"]["accuracy"] for row in rows])
        lowest = mean(row["figures"]["seven_lowest"] for row in rows)
        lines.append(f"| {arm} | {accuracy} | {six[0]:.2f} → {six[1]:.2f} | {lowest:.2f} | {score} |")
    lines += ["", "| CIFAR-10, 20,000 images, small network | test accuracy |", "|---|---|"]
    for arm in dict.fromkeys(row["arm"] for row in photographs["rows"]):
        accuracy = spread([row["test"]["accuracy"] for row in photographs["rows"] if row["arm"] == arm])
        lines.append(f"| {arm} | {accuracy} |")
    commands = " and ".join(f"`{result['command']}`" for result in (digits, photographs))
    seeds = " and ".join(str(len(result["seeds"])) for result in (digits, photographs))
    return "\n".join(lines) + f"\n\nMean ± standard deviation over {seeds} seeds, by {commands}.\n"


def page(rows: list[dict[str, Any]]) -> str:
    """The whole of docs/results.md."""
    single = [
        "| shape | ratio |",
        "|---|---|",
        *(f"| {r['name']} | {r['ratio']:.3f} |" for r in rows if r["goal"] is None),
    ]
    where = sorted({f"{row['cpu']}, torch {row['torch']}" for row in rows})
    return (
        f"{INTRODUCTION}\n{table(rows)}\nMeasured on {'; '.join(where)}.\n\n"
        f"### Single shapes\nbatch×channels in→out, map, kernel and padding.\n\n" + "\n".join(single) + "\n"
    )


def write(path: Path, text: str) -> None:
    """Replace a file as a whole."""
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def update_documents(rows: list[dict[str, Any]]) -> None:
    """docs/results.md, and the table between the marks in the README."""
    write(ROOT / "docs" / "results.md", page(rows))
    write(ROOT / "docs" / "curves.svg", figure(experiment("mnist67-180")["rows"]) + "\n")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for begin, end, new in ((BEGIN, END, table(rows)), (RESULTS_BEGIN, RESULTS_END, results_table())):
        before, rest = text.split(begin)
        text = f"{before}{begin}\n{new}{end}{rest.split(end)[1]}"
    write(ROOT / "README.md", text)


if __name__ == "__main__":
    update_documents(load(ROOT / "results" / "bench.json"))
