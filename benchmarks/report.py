"""Write the results in results/*.json into the documentation; this is `make results`.

docs/results.md, docs/speed.md and docs/architectures.md are written as a whole; in docs/when-not.md, convert.md and
dense.md and in README.md the tables between marks are; docs/curves.svg is drawn.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from statistics import mean
from typing import Any

import convert
import dense
import limits
import tried
import tuned_signs
from vpgcnn.lab.experiments.base import Row, markdown, spread
from vpgcnn.lab.experiments.registry import EXPERIMENTS, REPRODUCTIONS, claims
from vpgcnn.lab.experiments.verdicts import table_claims
from vpgcnn.lab.report.digits import NAMES, figure
from vpgcnn.lab.report.static import to_svg

ROOT = Path(__file__).parent.parent
BEGIN, END = "<!-- results: written by `make results` -->", "<!-- /results -->"
DIGITS = EXPERIMENTS["fig-mnist67-180"]
SCRIPTS = ("own-loop", "small-tasks", "tuned-signs", "dense")
"""Results of scripts in benchmarks/, which are in results/scripts/."""
SHOWN = ("variational", "shared", "full", "t2")
"""The arms in the README."""

RESULTS = """# Results

Written by `make results` from the files in `results/`; do not edit.

Each table and figure below was written by its command, with the data, budget, seeds and commits behind it. The JSON
file of the same name holds every run with its settings. [Speed](speed.md) has the benchmarks.

## What the paper claims, and what we find
The networks are small enough for two cores; each section gives their size. Differences are between runs with the same
seed, ± their standard error.

- **yes**, **no**: 0, or the wanted number of points, is outside the 95 % interval of the difference (Student's t).
- **rather yes**, **rather no**: it is outside the 90 % interval.
- **open**: it is inside, or there is only one seed.

A line with several differences has the least favourable of their verdicts. Lines without differences compare the
numbers themselves. In all other tables ± is a standard deviation over seeds.

{claims}

{pages}"""
SPEED = """# Speed

Written by `make bench` and `make results` from `results/bench.json`; do not edit.

Each number is a ratio of times, the median of many rounds in which both sides alternate in one process. A goal is met
if the ratio is at most that.

- **conv2d**: `F.conv2d` alone, with the weight already expanded over the group, in torch's default memory layout; it
  does the multiplications of a straightforward implementation.
- **training**: forward and backward, with gradients for input and parameters, kernels included.
- **VP**: a layer with a `Variational` level, on plain input and on input that carries weights.
- **total**: all shapes, one after the other; **mean**: the mean of the shapes' ratios, which are listed below.
- **materialised**: builds a kernel for every image.
- **training step**: that of a whole network (forward, objective, backward, optimiser, with norms, activations and
  pools) over its convolutions alone.

{goals}

Measured on {machine}.

## Single shapes
batch×channels in→out, map, kernel and padding.

{shapes}
"""


def load(path: Path) -> Any:
    """A JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def results() -> dict[str, Path]:
    """The file of everything that has been reproduced, in the order of `vpgcnn reproduce --list`."""
    paths = {name: ROOT / "results" / f"{name}.json" for name in REPRODUCTIONS}
    return {name: path for name, path in paths.items() if path.exists()}


def results_page() -> str:
    """The whole of docs/results.md."""
    rows = {name: load(path)["rows"] for name, path in results().items()}
    others = [ROOT / "results" / "scripts" / f"{name}.json" for name in SCRIPTS]
    pages = "\n".join(chapter(path) for path in (*results().values(), *others) if path.exists())
    return RESULTS.format(claims=table_claims(claims(), rows), pages=pages)


def chapter(path: Path) -> str:
    """A result's page as a part of a larger one."""
    text = path.with_suffix(".md").read_text(encoding="utf-8")
    return f"#{text}".replace(f"]({path.stem}.png)", f"](../results/{path.stem}.png)")


def speed_page() -> str:
    """The whole of docs/speed.md."""
    rows = load(ROOT / "results" / "bench.json")
    goals = [
        (row["name"], f"{row['ratio']:.3f}", f"≤ {row['goal']:g}", "met" if row["met"] else "not met")
        for row in rows
        if row["goal"] is not None
    ]
    shapes = [(row["name"], f"{row['ratio']:.3f}") for row in rows if row["goal"] is None]
    return SPEED.format(
        goals=markdown(["measured", "ratio", "goal", ""], goals),
        machine="; ".join(sorted({f"{row['cpu']}, torch {row['torch']}" for row in rows})),
        shapes=markdown(["shape", "ratio"], shapes),
    )


def readme_table() -> str:
    """MNIST67-180 in four lines, averaged over seeds; the README explains the three levels above it."""
    rows: list[Row] = load(results()[DIGITS.name])["rows"]
    lines = []
    for arm in SHOWN:
        same = [row for row in rows if row["arm"] == arm]
        six = [mean(row["curves"]["6"][row["angles"].index(angle)] for row in same) for angle in (0, 180)]
        scores = [row["figures"]["theta_auroc"] for row in same]
        score = "–" if None in scores else f"{mean(scores):.3f}"
        lowest = mean(row["figures"]["seven_lowest"] for row in same)
        accuracy = spread([row["test"]["accuracy"] for row in same])
        lines.append([arm, accuracy, f"{six[0]:.2f} → {six[1]:.2f}", f"{lowest:.2f}", score])
    heads = [
        "MNIST67-180",
        "test accuracy",
        "P(6\\|6) upright → upside down",
        "P(7\\|7), lowest of all angles",
        "θ AUROC",
    ]
    return f"{markdown(heads, lines)}\n\n`t2`: {DIGITS.arm('t2').about}."


def readme(text: str) -> str:
    """The README with its table written between the marks."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{readme_table()}\n{END}{rest.split(END)[1]}"


def between(text: str, name: str, table: str) -> str:
    """A page with a table written between the marks of that name."""
    begin, end = f"<!-- {name}: written by `make results` -->", f"<!-- /{name} -->"
    before, rest = text.split(begin)
    return f"{before}{begin}\n{table}\n{end}{rest.split(end)[1]}"


def script(name: str) -> list[Any]:
    """The rows of a script."""
    rows: list[Any] = load(ROOT / "results" / "scripts" / f"{name}.json")["rows"]
    return rows


def curves() -> str:
    """The picture of the README: networks with levels on MNIST67-180."""
    return to_svg(figure([row for row in load(results()[DIGITS.name])["rows"] if row["arm"] in NAMES]))


def documents() -> dict[Path, str]:
    """Every file that is written, with its text."""
    docs = ROOT / "docs"
    return {
        docs / "results.md": results_page(),
        docs / "speed.md": speed_page(),
        docs / "architectures.md": tried.page(),
        docs / "when-not.md": limits.page((docs / "when-not.md").read_text(encoding="utf-8")),
        docs / "convert.md": between(
            between(
                (docs / "convert.md").read_text(encoding="utf-8"),
                "tuned-signs",
                tuned_signs.short(script("tuned-signs")),
            ),
            "convert-cost",
            convert.short(script("convert-cost")),
        ),
        docs / "dense.md": between(
            (docs / "dense.md").read_text(encoding="utf-8"), "dense", dense.short(script("dense"))
        ),
        docs / "curves.svg": f"{curves()}\n",
        ROOT / "README.md": readme((ROOT / "README.md").read_text(encoding="utf-8")),
    }


def write(path: Path, text: str) -> None:
    """Replace a file as a whole."""
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def update_documents() -> None:
    """Write all of them."""
    for path, text in documents().items():
        write(path, text)


if __name__ == "__main__":
    update_documents()
