"""A result as files: JSON, a Markdown page with the paper's numbers beside ours, and a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vpgcnn.errors import UserError
from vpgcnn.experiments.base import Experiment, Row
from vpgcnn.report import interactive, png
from vpgcnn.report.chart import Chart
from vpgcnn.serial import write_bytes, write_json
from vpgcnn.training.progress import Quiet

__all__ = ["budget_of", "data_of", "draw", "keep", "note_of", "page", "text_of"]

CHOSEN = {
    "last": "the last epoch",
    "accuracy": "the epoch of best validation accuracy",
    "nll": "the epoch of lowest validation nll",
}


def keep(target: Path, result: dict[str, Any], text: str) -> None:
    """Write the result and its page."""
    write_json(target, result)
    write_bytes(target.with_suffix(".md"), text.encode())


def page(result: dict[str, Any], experiment: Experiment) -> str:
    """The result of an experiment as a Markdown page."""
    rows, preset = result["rows"], result["preset"]
    table = _beside(experiment.table(rows), experiment.published)
    there = {(row["arm"], row["seed"]) for row in rows}
    missing: dict[str, list[int]] = {}
    for arm in experiment.arms_of(preset):
        absent = [seed for seed in experiment.seeds_of(arm) if (arm, seed) not in there]
        missing |= {arm: absent} if absent else {}
    if missing:
        named = (f"{arm} ({', '.join(map(str, absent))})" for arm, absent in missing.items())
        table += f"\n\nNot run yet (seeds): {', '.join(named)}."
    tested = f"Tested: {CHOSEN[rows[0]['config']['select']]}. "
    return text_of(result, table, experiment.notes.get(preset, ""), tested)


def text_of(result: dict[str, Any], table: str, notes: str, tested: str = "") -> str:
    """The page of any result: what it is, of what it was made, the table, the figure, what failed."""
    about = f"{result['about'][0].upper()}{result['about'][1:]}"
    facts = f"Data: {result['data']}. Budget of each arm: {result['budget']}. " if result["data"] else ""
    parts = [f"# {result['name']} (preset {result['preset']})", f"{about}."]
    parts.append(
        f"Written by `{result['command']}`; do not edit.\n{facts}{tested}Commits: {', '.join(result['commits'])}."
    )
    parts += [notes] if notes else []
    parts.append(table)
    parts += [f"![{about}]({result['figure']})"] if result["figure"] else []
    parts += [f"Failed: {one['arm']}, seed {one['seed']} ({one['error']})." for one in result["failed"]]
    return "\n\n".join(parts) + "\n"


def draw(target: Path, chart: Chart | None, about: str, progress: Quiet) -> str:
    """The figure as a picture and as a page, where what draws them is installed; returns the picture's name."""
    if chart is None or not chart.panels:
        return ""
    chart = chart if chart.title else replace(chart, title=f"{about[0].upper()}{about[1:]}")
    try:
        picture, whole = png.draw(chart), interactive.draw(chart)
    except UserError as error:
        progress.say(f"no figure: {error}")
        for suffix in (".png", ".html"):  # of another time
            target.with_suffix(suffix).unlink(missing_ok=True)
        return ""
    write_bytes(target.with_suffix(".png"), picture)
    write_bytes(target.with_suffix(".html"), whole.encode())
    return target.with_suffix(".png").name


def _beside(table: str, published: Mapping[str, str]) -> str:
    """A Markdown table with the paper's numbers in a column after the second."""
    if not published:
        return table
    lines = []
    for number, line in enumerate(table.splitlines()):
        cells = line.split("|")
        if len(cells) > 3:
            new = {0: " the paper ", 1: "---"}.get(number, f" {published.get(cells[1].strip(), '–')} ")
            line = "|".join([*cells[:3], new, *cells[3:]])
        lines.append(line)
    return "\n".join(lines)


def note_of(notes: Sequence[str]) -> str:
    """What is said of data, without where they are."""
    return notes[0].split(" from ")[0].rstrip(",") if notes else ""


def data_of(rows: list[Row]) -> str:
    """What was trained on, each note once."""
    if len({row["config"]["data"]["seed"] for row in rows}) > 1:
        return f"{rows[0]['config']['data']['name']}, a seed is also the number of the draw"
    return "; ".join(dict.fromkeys(note_of(row["data"]) for row in rows))


def budget_of(rows: list[Row]) -> str:
    """How long arms were trained."""
    config = rows[0]["config"]
    usual = [row for row in rows if row["config"]["epochs"] == config["epochs"]]
    budget = f"{config['epochs']} epochs of batches of {config['batch_size']}, "
    steps = sorted({row["steps"] for row in usual})
    budget += (
        f"{steps[0]} steps"
        if len(steps) == 1
        else f"{steps[0]} to {steps[-1]} steps, as the training set is small or large"
    )
    others = {row["arm"]: row["config"]["epochs"] for row in rows if row["config"]["epochs"] != config["epochs"]}
    budget += "".join(f"; {arm}: {epochs} epochs" for arm, epochs in others.items())
    searched: dict[str, set[int]] = {}
    for row in rows:
        if "search_steps" in row:
            searched.setdefault(row["arm"], set()).add(row["search_steps"])
    for arm, counts in searched.items():
        budget += f"; {arm}: and {' to '.join(map(str, sorted({min(counts), max(counts)})))} steps of search"
    return budget
