"""A result as files: JSON with one row per line, a Markdown page with the paper's numbers beside ours, and a figure."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from vpgcnn.errors import UserError
from vpgcnn.lab.config_io import write_bytes
from vpgcnn.lab.experiments.base import Experiment, Row, gap
from vpgcnn.lab.report.chart import Chart
from vpgcnn.lab.report.interactive import to_html
from vpgcnn.lab.report.static import to_png
from vpgcnn.lab.training.progress import Quiet

__all__ = ["budget_of", "compact", "data_of", "draw", "keep", "legend", "note_of", "page", "text_of"]

SELECTED = {
    "last": "the last epoch",
    "accuracy": "the epoch of best validation accuracy",
    "nll": "the epoch of lowest validation nll",
}
EXACT = ("config",)
"""What a row must keep to the last digit."""
DIGITS = 6
"""Significant digits of every other number: enough that no table changes."""
PALETTE = 24
"""Colours of a picture: a chart needs no more, and files are a third as large."""


def compact(row: Row, left_out: Iterable[str] = ()) -> Row:
    """A row as files keep it: numbers rounded to 6 significant digits, without the measurements that are left out."""

    def rounded(value: Any) -> Any:
        if isinstance(value, float):
            return float(f"{value:.{DIGITS}g}")
        if isinstance(value, list | tuple):
            return [rounded(item) for item in value]
        return {key: rounded(item) for key, item in value.items()} if isinstance(value, dict) else value

    kept = {key: value for key, value in row.items() if key not in set(left_out)}
    return {key: value if key in EXACT else rounded(value) for key, value in kept.items()}


def keep(target: Path, result: dict[str, Any], text: str) -> None:
    """Write a result and its page; every field and every row of the JSON file is one line."""

    def line(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))

    rows = ",\n".join(line(row) for row in result["rows"])
    parts = [f'"{key}":[\n{rows}\n]' if key == "rows" else f'"{key}":{line(value)}' for key, value in result.items()]
    write_bytes(target, ("{\n" + ",\n".join(parts) + "\n}\n").encode())
    write_bytes(target.with_suffix(".md"), text.encode())


def page(result: dict[str, Any], experiment: Experiment) -> str:
    """The result of an experiment as a Markdown page."""
    rows, preset = result["rows"], result["preset"]
    arms = {name: experiment.arm(name) for name in experiment.arms}
    table = _beside(experiment.table(rows), {name: arm.published for name, arm in arms.items() if arm.published})
    there = {(row["arm"], row["seed"]) for row in rows}
    missing: dict[str, list[int]] = {}
    for arm in experiment.arms_of(preset):
        absent = [seed for seed in experiment.seeds_of(arm) if (arm, seed) not in there]
        missing |= {arm: absent} if absent else {}
    about = {name: arm.about for name, arm in arms.items()}
    parts = [table, _paired(rows, experiment.pairs), legend(table, about)]
    if missing:
        named = (f"{arm} ({', '.join(map(str, absent))})" for arm, absent in missing.items())
        parts.append(f"Not run yet (seeds): {', '.join(named)}.")
    tested = f"Tested: {SELECTED[rows[0]['config']['select']]}. "
    tried = _bullets("How the settings were found:", experiment.tried) if preset == "cpu" else ""
    return text_of(result, _joined(parts), experiment.notes, tested, tried)


def text_of(result: dict[str, Any], table: str, notes: Sequence[str], tested: str = "", more: str = "") -> str:
    """The page of any result.

    Args:
        result: Its JSON.
        table: The table, and what belongs right under it.
        notes: What a reader needs to know to read it.
        tested: Which epoch was tested.
        more: A last paragraph.
    """
    about = f"{result['about'][0].upper()}{result['about'][1:]}"
    facts = f"Data: {result['data']}. Budget of each arm: {result['budget']}. " if result["data"] else ""
    parts = [f"# {result['name']} (preset {result['preset']})", f"{about}."]
    parts.append(
        f"Written by `{result['command']}`; do not edit.\n{facts}{tested}Commits: {', '.join(result['commits'])}."
    )
    parts += [table, f"![{about}]({result['figure']})" if result["figure"] else ""]
    parts += [_bullets("Notes:", notes), more]
    parts += [f"Failed: {one['arm']}, seed {one['seed']} ({one['error']})." for one in result["failed"]]
    return _joined(parts) + "\n"


def legend(table: str, arms: Mapping[str, str]) -> str:
    """The arms whose names are in a table, each with its description, as a list."""
    cells = {cell.strip() for line in table.splitlines() for cell in line.split("|")}
    return _bullets("Arms:", [f"`{name}`: {about}" for name, about in arms.items() if name in cells and about])


def draw(target: Path, chart: Chart | None, about: str, progress: Quiet) -> str:
    """Draw a figure as a picture and as an interactive page.

    Args:
        target: The result's JSON file; the figure's files have the same name.
        chart: The figure; None for none.
        about: Its title, if it has none.
        progress: Receives a message if the drawing libraries are not installed.

    Returns:
        The name of the picture, "" if there is none.
    """
    if chart is None or not chart.panels:
        return ""
    chart = chart if chart.title else replace(chart, title=f"{about[0].upper()}{about[1:]}")
    try:
        picture, whole = _smaller(to_png(chart)), to_html(chart)
    except UserError as error:
        progress.message(f"no figure: {error}")
        for suffix in (".png", ".html"):  # those of an earlier result
            target.with_suffix(suffix).unlink(missing_ok=True)
        return ""
    write_bytes(target.with_suffix(".png"), picture)
    write_bytes(target.with_suffix(".html"), whole.encode())
    return target.with_suffix(".png").name


def _smaller(picture: bytes) -> bytes:
    """A PNG with a palette."""
    from PIL import Image

    with Image.open(io.BytesIO(picture)) as image:
        flat = Image.new("RGB", image.size, "white")
        flat.paste(image, mask=image.getchannel("A") if image.mode == "RGBA" else None)
        few = flat.quantize(
            PALETTE, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE
        )  # keeps the colour of a point
    out = io.BytesIO()
    few.save(out, "PNG", optimize=True)
    return out.getvalue()


def _joined(parts: Iterable[str]) -> str:
    return "\n\n".join(part for part in parts if part)


def _bullets(head: str, items: Sequence[str]) -> str:
    return "\n".join([head, "", *(f"- {item}" for item in items)]) if items else ""


def _paired(rows: list[Row], pairs: Iterable[tuple[str, str]]) -> str:
    """Differences of arms on the same seeds, as a list."""
    items = []
    for first, second in pairs:
        gaps = gap(rows, first, second)
        if gaps:
            error = f" ± {stdev(gaps) / math.sqrt(len(gaps)):.2f} (standard error)" if len(gaps) > 1 else ""
            count = f"{len(gaps)} seeds" if len(gaps) > 1 else "one seed"
            items.append(f"{first} − {second}: {mean(gaps):.2f}{error} points ({count})")
    return _bullets("Differences on equal seeds:", items)


def _beside(table: str, published: Mapping[str, str]) -> str:
    """A Markdown table with the paper's numbers in a column after the second."""
    if not published:
        return table
    lines = []
    for number, line in enumerate(table.splitlines()):
        cells = line.split("|")
        new = {0: " the paper ", 1: "---"}.get(number, f" {published.get(cells[1].strip(), '–')} ")
        lines.append("|".join([*cells[:3], new, *cells[3:]]))
    return "\n".join(lines)


def note_of(notes: Sequence[str]) -> str:
    """The first note on a dataset, without the place of its files."""
    return notes[0].split(" from ")[0].rstrip(",") if notes else ""


def data_of(rows: list[Row]) -> str:
    """What the arms were trained on, each note once."""
    if len({row["config"]["data"]["seed"] for row in rows}) > 1:
        return f"{rows[0]['config']['data']['name']}, a seed is also the number of the draw"
    return "; ".join(dict.fromkeys(note_of(row["data"]) for row in rows))


def budget_of(rows: list[Row]) -> str:
    """How long the arms were trained: the first arm's budget, and those that differ from it."""

    def words(row: Row) -> str:
        return f"{row['config']['epochs']} epochs of batches of {row['config']['batch_size']}"

    usual = [row for row in rows if words(row) == words(rows[0])]
    steps = sorted({row["steps"] for row in usual})
    count = f"{steps[0]}" if len(steps) == 1 else f"{steps[0]} to {steps[-1]}"
    budget = f"{words(rows[0])}, {count} steps" + (", depending on the draw" if len(steps) > 1 else "")
    others: dict[str, list[str]] = {}
    for arm, other in {row["arm"]: words(row) for row in rows if words(row) != words(rows[0])}.items():
        others.setdefault(other, []).append(arm)
    budget += "".join(f"; {', '.join(arms)}: {other}" for other, arms in others.items())
    searched: dict[str, set[int]] = {}
    for row in rows:
        if "search_steps" in row:
            searched.setdefault(row["arm"], set()).add(row["search_steps"])
    for arm, counts in searched.items():
        budget += f"; {arm}: and {' to '.join(map(str, sorted({min(counts), max(counts)})))} steps of search"
    return budget
