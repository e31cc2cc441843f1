"""Write what results/bench.json says into docs/results.md and the README: `python benchmarks/report.py`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
BEGIN, END = "<!-- bench: written by `make bench` -->", "<!-- /bench -->"

INTRODUCTION = """# Results

Written by `make bench` from `results/bench.json`; do not edit.

## Speed of the core layers
Each number is a ratio of times, both sides alternated in one process (median of many rounds). "conv2d" is the bare
`F.conv2d` with the weight already expanded over the group: the multiplications that a straightforward implementation
does. "training" is forward and backward with gradients for input and parameters, kernels included. VP is a layer with a
`Variational` level, measured on plain input and on input that brings weights of its own. "total" is all shapes run one
after the other, "mean" the mean of the shapes' ratios, which are listed below; "materialised" builds a kernel for every
image. A goal is met when the ratio is at most that.
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
    readme = ROOT / "README.md"
    before, rest = readme.read_text(encoding="utf-8").split(BEGIN)
    after = rest.split(END)[1]
    write(readme, f"{before}{BEGIN}\n{table(rows)}{END}{after}")


if __name__ == "__main__":
    update_documents(load(ROOT / "results" / "bench.json"))
