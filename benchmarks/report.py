"""Write what results/*.json say into docs/results.md and docs/when-not.md, the figures in docs/ and the README.

That is `make results`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

import limits
from vpgcnn.experiments.claims import table_claims
from vpgcnn.experiments.photographs import spread
from vpgcnn.experiments.registry import REPRODUCTIONS
from vpgcnn.report.digits import NAMES, figure
from vpgcnn.report.svg import draw

ROOT = Path(__file__).parent.parent
BEGIN, END = "<!-- bench: written by `make bench` -->", "<!-- /bench -->"
RESULTS_BEGIN, RESULTS_END = "<!-- results: written by `make results` -->", "<!-- /results -->"
Arms = list[tuple[str, list[dict[str, Any]]]]
"""The rows of each arm."""

INTRODUCTION = """# Results

Written by `make bench` and `make results` from the files in `results/`; do not edit.

Each table and figure below is what its command wrote, with the data, the budget, the seeds and the commits it was made
of. Every run with its settings is in the JSON file of the same name; interactive figures are made beside it.

## What the paper says, and what we find
From small networks on two cores (each page says how small). Differences are of runs with the same seed, ± their
standard error. "Yes" and "no": 0, or the number of points that is asked for, is outside their 95 % interval (Student's
t); "rather": outside their 90 % interval; "open": inside, or there is one seed. A line of several
differences has the least favourable of their verdicts. The first two and the last two lines are no differences: they go
by the numbers themselves. In the tables further below ± is a standard deviation over seeds,
if not said otherwise.

{claims}

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
    said = "Mean ± standard deviation over seeds; for ColorMNIST over the draws that are named: they differ by "
    said += "points, so compare arms on the same ones. Written by"
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
        draws = ", ".join(str(row["seed"]) for row in rows)
        lines.append(f"| {arm} | {rows[0]['parameters']:,} | {accuracy(rows)} | {small} | {draws} |")
    return lines


def flowers_table(arms: Arms) -> list[str]:
    """Flowers102."""
    lines = [
        "| Flowers102, 64 pixels, narrow ResNet18 | parameters | test accuracy | over hue shifts (HSV) | NLL | ECE |"
    ]
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
    pages = "\n".join(result_pages())
    return (
        f"{INTRODUCTION.format(experiments=pages, claims=claims())}\n{table(rows)}\nMeasured on {'; '.join(where)}.\n\n"
        f"### Single shapes\nbatch×channels in→out, map, kernel and padding.\n\n" + "\n".join(single) + "\n"
    )


def result_pages() -> list[str]:
    """The page of everything that has been reproduced, in the order of `vpgcnn reproduce --list`."""
    found = {json.loads(path.read_text(encoding="utf-8"))["name"]: path for path in result_files()}
    return [chapter(found[name]) for name in REPRODUCTIONS if name in found]


def claims() -> str:
    """The table of what the paper says."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in result_files()]
    return table_claims({result["name"]: result["rows"] for result in found})


def result_files() -> list[Path]:
    """All results of the cpu preset."""
    return [path for path in sorted((ROOT / "results").glob("*.json")) if path.name != "bench.json"]


def chapter(path: Path) -> str:
    """A result's page as a part of a larger one."""
    text = path.with_suffix(".md").read_text(encoding="utf-8")
    return f"#{text}".replace(f"]({path.stem}.png)", f"](../results/{path.stem}.png)")


def curves() -> str:
    """The picture of the README: networks with levels on MNIST67-180."""
    return draw(figure([row for row in experiment("mnist67-180")["rows"] if row["arm"] in NAMES]))


def write(path: Path, text: str) -> None:
    """Replace a file as a whole."""
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def update_documents(rows: list[dict[str, Any]]) -> None:
    """docs/results.md, and the tables between the marks in docs/when-not.md and in the README."""
    write(ROOT / "docs" / "results.md", page(rows))
    text = (ROOT / "docs" / "when-not.md").read_text(encoding="utf-8")
    write(ROOT / "docs" / "when-not.md", limits.page(text))
    write(ROOT / "docs" / "curves.svg", curves() + "\n")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for begin, end, new in ((BEGIN, END, table(rows)), (RESULTS_BEGIN, RESULTS_END, results_table())):
        before, rest = text.split(begin)
        text = f"{before}{begin}\n{new}{end}{rest.split(end)[1]}"
    write(ROOT / "README.md", text)


if __name__ == "__main__":
    update_documents(load(ROOT / "results" / "bench.json"))
