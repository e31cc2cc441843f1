"""docs/architectures.md, from results/scripts/architectures.json: networks that others wrote, converted."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from vpgcnn.lab.experiments.base import markdown

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "tools"))
from architectures import EXACT, GOAL, faults  # noqa: E402

PAGE = """# Networks that were converted

Written by `make results` from the files that `python tools/architectures.py` and `python tools/architectures.py
mistakes` write; do not edit. [Add it to your model](convert.md) explains `convert`.

{summary}

Networks of torchvision and timm, one of every kind before the second of any, are converted to `Hue(3)` and to
`Rotations(4)`. Weights are random, and fitted to the images in one pass (batch statistics, scales and biases), so that
logits depend on the image; branches that start at 0 are given values. Images are coloured shapes, as small as the
network takes. All differences are the largest of any logit, over the root mean square of the differences between
images.

- **Mixed**: how many convolutions look at other views, with the default budget, for hues and for quarter turns; **×**:
  multiplications over the original's.
- **Same**: how far the logits are from the original's at the start, all views run; the worse of both groups.
- **Moved**: how far those of a moved image are from those of the image, with the whole group and large mixing kernels.
- **Mixing**: how far mixing kernels move the logits; the lesser of both groups.

In float32, "same" must be at most {goal:g} of the largest logit, and "moved" of the differences between images. Where
random networks amplify rounding beyond that, the number in parentheses is that of float64, which must be at most
{exact:g}. Every new parameter must get a gradient with open windows, and the KL at the start must be above 0.

## Would a mistake be noticed?
A mistake was put into mixing on purpose: each view sees the wrong others. "Moved", as above:

{mistakes}

## The networks
{table}
"""


def read(name: str) -> list[dict[str, Any]]:
    """The rows of a result of tools/architectures.py."""
    rows: list[dict[str, Any]] = json.loads((ROOT / "results" / "scripts" / f"{name}.json").read_text(encoding="utf-8"))
    return rows


def number(parts: list[dict[str, Any]], what: str) -> str:
    """The worst difference of both groups; in parentheses that of float64."""
    double = [part["float64"][what][1] for part in parts if "float64" in part]
    single = [part[what][1] for part in parts if "float64" not in part]
    shown = [f"{max(single):.0e}"] if single else []
    return " ".join(shown + ([f"({max(double):.0e})"] if double else []))


def line(row: dict[str, Any]) -> list[str]:
    """A line of the table."""
    name = row["name"].replace("tv:", "torchvision ").replace("timm:", "timm ")
    groups = {"hues": row.get("hue"), "turns": row.get("turns")}
    parts = [part for part in groups.values() if part and "refused" not in part]
    if "error" in row:
        return [name, "fails", "", "", "", row["error"]]
    if not parts:
        return [name, "refused", "", "", "", groups["hues"]["refused"]]  # type: ignore[index]
    mixed = ", ".join(part["mixed"] if part in parts else "refused" for part in groups.values() if part)
    cost = ", ".join(f"{part['cost']:.2f}" for part in parts)
    mixing = min(part["mixing"][1] for part in parts)
    cells = [name, mixed, cost, number(parts, "same"), number(parts, "moved"), f"{mixing:.1g}"]
    refusals = [f"{key}: {part['refused']}" for key, part in groups.items() if part and "refused" in part]
    return [*cells[:-1], f"{cells[-1]} ({'; '.join(refusals)})" if refusals else cells[-1]]


def summary(rows: list[dict[str, Any]]) -> str:
    """How many are right."""
    parts = [row[key] for row in rows for key in ("hue", "turns") if "error" not in row]
    refused = sum("refused" in part for part in parts)
    single = sum("refused" not in part and "float64" not in part for part in parts)
    double = len(parts) - refused - single
    wrong = [f"{row['name']}: {', '.join(faults(row))}" for row in rows if faults(row)]
    found = "nothing wrong was found" if not wrong else f"wrong: {'; '.join(wrong)}"
    return (
        f"{len(rows)} networks, {len(parts)} conversions: {refused} refused, {single} measured in float32, {double} in "
        f"float64, because float32 hides them behind rounding; {found}."
    )


def page() -> str:
    """The whole of docs/architectures.md."""
    rows = read("architectures")
    mistakes = [
        [row["name"].replace("tv:", "torchvision "), f"`{row['group']}`", row["mistake"], f"{row['moved'][1]:.0e}"]
        for row in read("architectures-mistakes")
    ]
    heads = ["network", "mixed (hues, turns)", "×", "same", "moved", "mixing"]
    return PAGE.format(
        summary=summary(rows),
        goal=GOAL,
        exact=EXACT,
        mistakes=markdown(["network", "group", "the mixing with a mistake", "moved"], mistakes),
        table=markdown(heads, [line(row) for row in rows]),
    )
