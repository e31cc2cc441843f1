"""Running what can be reproduced, arm by arm: what has been done is not done again, what fails does not stop the rest.

results/NAME.json   the rows, with what they were made of (result.schema.json says how it looks)
results/NAME.md     the table, the paper's numbers beside ours
results/NAME.png    the figure, where there is one; NAME.html to point at
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from vpgcnn.data import load
from vpgcnn.errors import UserError
from vpgcnn.experiments.base import Experiment, Reproduction, Row, View
from vpgcnn.experiments.registry import EXPERIMENTS
from vpgcnn.report import interactive, png
from vpgcnn.report.chart import Chart
from vpgcnn.training.checkpoint import load_model
from vpgcnn.training.config import TrainConfig, settled
from vpgcnn.training.loop import train
from vpgcnn.training.progress import Quiet
from vpgcnn.training.run import FREE, chosen_weights
from vpgcnn.training.serial import from_json, read_json, to_json, write_bytes, write_json

__all__ = ["Places", "page", "run"]

KEPT = ("test", "validation", "epoch", "parameters", "steps", "seconds", "data", "fingerprint")
CHOSEN = {
    "last": "the last epoch",
    "accuracy": "the epoch of best validation accuracy",
    "nll": "the epoch of lowest validation nll",
}


@dataclass(frozen=True)
class Places:
    """Where things go. settings: fields of the configuration that do not change what is computed (data_dir, …)."""

    runs: Path
    results: Path
    settings: dict[str, Any]
    progress: Quiet


def run(
    entry: Reproduction,
    name: str,
    places: Places,
    *,
    preset: str,
    arms: list[str] | None = None,
    seeds: list[int] | None = None,
    again: bool = False,
    experiments: Mapping[str, Experiment] = EXPERIMENTS,
) -> Path:
    """Do what is not done yet, write the result; returns its path.

    arms: only these. seeds: others than its own. again: measure anew what was trained before. experiments: those
    that a view may look at.
    """
    if isinstance(entry, Experiment):
        return _experiment(entry, name, places, preset, arms, seeds, again)
    if isinstance(entry, View):
        return _view(entry, name, places, preset, arms, seeds, again, experiments)
    if arms or seeds:
        raise UserError(f"{name} has no arms to train: leave --arms and --seeds out")
    with places.progress:
        rows = entry.rows(preset, places.progress)
    target = places.results / f"{name}{'' if preset == 'cpu' else '-paper'}.json"
    said = _result(name, "count", entry.about, preset, rows, [_commit()])
    _write(target, said, entry.table(rows), entry.notes, picture=entry.chart is not None)
    _draw(target, entry.chart(rows) if entry.chart else None, entry.about, places.progress)
    return target


# ---------------------------------------------------------------- experiments


def _experiment(
    experiment: Experiment,
    name: str,
    places: Places,
    preset: str,
    arms: list[str] | None,
    seeds: list[int] | None,
    again: bool,
) -> Path:
    """Train and measure. Each run has a folder and resumes by itself; the result is written anew after each."""
    target = places.results / f"{experiment.result[preset]}.json"
    folder, progress = places.runs / name / preset, places.progress
    chosen = arms or experiment.arms_of(preset)
    wanted = [
        (arm, seed)
        for seed in seeds or sorted({seed for arm in chosen for seed in experiment.seeds_of(arm)})
        for arm in chosen
        if seeds is not None or seed in experiment.seeds_of(arm)
    ]
    failed: dict[tuple[str, int], Exception] = {}
    for number, (arm, seed) in enumerate(wanted, start=1):
        config = replace(experiment.config(arm, seed, preset), **places.settings)
        try:
            if not _one(experiment, arm, seed, config, folder / f"{arm}-{seed}", target, progress, again):
                continue
        except (UserError, RuntimeError, ValueError, OSError) as error:
            if isinstance(error, UserError) and len(wanted) == 1:
                raise
            failed[arm, seed] = error
            progress.say(f"{arm}, seed {seed} failed: {error}; going on with the others")
        _write_experiment(target, name, preset, experiment, folder, failed)
        progress.say(_status(wanted, number, target, failed))
    if len(failed) == len(wanted):
        raise UserError(f"all of {name} failed, at first {wanted[0][0]}: {failed[wanted[0]]}")
    rows = _write_experiment(target, name, preset, experiment, folder, failed)
    _draw(target, experiment.chart(rows) if experiment.chart and rows else None, experiment.about, progress)
    return target


def _one(
    experiment: Experiment,
    arm: str,
    seed: int,
    config: TrainConfig,
    own: Path,
    target: Path,
    progress: Quiet,
    again: bool,
) -> bool:
    """Train and measure one arm with one seed; False if that was done before."""
    dataset = load(config.data, config.data_dir)
    before = _done(target, own, (arm, seed, _settled(config)), dataset.fingerprint())
    if before is not None and not (again and (own / "result.json").exists()):
        progress.say(f"{arm}, seed {seed}: done before" + (", but its weights are not here" if again else ""))
        return False
    progress.say(f"{arm}, seed {seed}: {own}")
    result = train(config, own, resume=True, progress=progress)
    model, card = load_model(chosen_weights(own))
    with progress:
        measured = experiment.measure(model, card, dataset, progress)
    row: Row = {"arm": arm, "seed": seed, "commit": _commit() if before is None else before["commit"]}
    row |= {} if before is None else {"measured": _commit()}
    row |= {key: result[key] for key in KEPT if key in result}
    row |= {"torch": torch.__version__, "config": _settled(config), **measured}
    if experiment.history is not None:
        lines = (own / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        row |= experiment.history([json.loads(line) for line in lines])
    write_json(own / "measured.json", row)
    return True


def _settled(config: TrainConfig) -> dict[str, Any]:
    return {key: value for key, value in to_json(settled(config)).items() if key not in FREE}


def _settings_of(row: Row) -> dict[str, Any] | None:
    """The settings that a row was made with. A field that came later has its default, which changes nothing."""
    try:
        return _settled(from_json(TrainConfig, row["config"]))
    except UserError:  # of a field that is no more
        return None


def _done(target: Path, own: Path, run: tuple[str, int, dict[str, Any]], data: str) -> Row | None:
    """The row of this run (arm, seed, settings) if it was measured on these data, here or in the result there is."""
    rows = [read_json(own / "measured.json")] if (own / "measured.json").exists() else []
    rows += read_json(target)["rows"] if target.exists() else []
    same = [row for row in rows if (row["arm"], row["seed"], _settings_of(row)) == run]
    return next((row for row in same if row.get("fingerprint", data) == data), None)


def _write_experiment(
    target: Path,
    name: str,
    preset: str,
    experiment: Experiment,
    folder: Path,
    failed: Mapping[tuple[str, int], Exception],
) -> list[Row]:
    """The result from all measured runs, and from rows that were there before; returns its rows."""
    found = (read_json(target)["rows"] if target.exists() else []) + [
        read_json(path) for path in sorted(folder.glob("*/measured.json"))
    ]
    # Rows of arms that are no more, or of other settings than these, are of another experiment.
    rows = {
        (row["arm"], row["seed"]): row
        for row in found
        if row["arm"] in experiment.arms
        and _settings_of(row) == _settled(experiment.config(row["arm"], row["seed"], preset))
    }
    order = list(experiment.arms)
    whole = sorted(rows.values(), key=lambda row: (order.index(row["arm"]), row["seed"]))
    if not whole:
        return []
    commits = sorted({row["commit"] for row in whole})
    result = _result(name, "experiment", experiment.about, preset, whole, commits)
    result |= {"data": _data(whole, experiment), "budget": _budget(whole, experiment)}
    result["failed"] = [{"arm": arm, "seed": seed, "error": str(error)} for (arm, seed), error in failed.items()]
    _keep(target, result, page(result, experiment))
    return whole


def _data(rows: list[Row], experiment: Experiment) -> str:
    if experiment.draws:
        return "a seed is also the number of the draw"
    said: str = rows[0]["data"][0].split(" from ")[0].rstrip(",")
    return said


def _budget(rows: list[Row], experiment: Experiment) -> str:
    config = rows[0]["config"]
    budget = f"{config['epochs']} epochs of batches of {config['batch_size']}, "
    if experiment.draws:
        steps = [row["steps"] for row in rows]
        return f"{budget}{min(steps)} to {max(steps)} steps, as a draw is small or large"
    others = {row["arm"]: row["steps"] for row in rows if row["steps"] != rows[0]["steps"]}
    return f"{budget}{rows[0]['steps']} steps" + "".join(f" ({arm}: {steps})" for arm, steps in others.items())


def _status(
    wanted: list[tuple[str, int]], number: int, target: Path, failed: Mapping[tuple[str, int], Exception]
) -> str:
    """A table of all runs: arms down, seeds across."""
    rows = read_json(target)["rows"] if target.exists() else []
    found = {(row["arm"], row["seed"]): f"{row['test']['accuracy']:.2%}" for row in rows}
    arms, seeds = list(dict.fromkeys(arm for arm, _ in wanted)), sorted({seed for _, seed in wanted})
    wide = max(len(arm) for arm in arms)
    lines = [f"{number} of {len(wanted)} runs", " " * wide + "".join(f"{seed:>9}" for seed in seeds)]
    for arm in arms:
        cells = []
        for seed in seeds:
            state = "failed" if (arm, seed) in failed else found.get((arm, seed), "waiting")
            cells.append(f"{state if (arm, seed) in wanted else '':>9}")
        lines.append(f"{arm:<{wide}}{''.join(cells)}")
    return "\n".join(lines)


# ---------------------------------------------------------------- views


def _view(
    view: View,
    name: str,
    places: Places,
    preset: str,
    arms: list[str] | None,
    seeds: list[int] | None,
    again: bool,
    experiments: Mapping[str, Experiment],
) -> Path:
    """Let the experiments run what they lack, then put their rows together."""
    known = [arm for own in view.sources.values() for arm in own]
    unknown = [arm for arm in arms or () if arm not in known]
    if unknown:
        raise UserError(f"unknown arm {unknown[0]!r}: choose from {', '.join(dict.fromkeys(known))}")
    found: dict[str, list[Row]] = {}
    failed: list[Row] = []
    for source, own in view.sources.items():
        experiment = experiments[source]
        there = experiment.arms_of(preset)
        chosen = [arm for arm in own if (arm in arms if arms else arm in there)]
        result: dict[str, Any] = {"rows": []}
        if chosen:
            result = read_json(_experiment(experiment, source, places, preset, chosen, seeds, again))
        elif (places.results / f"{experiment.result[preset]}.json").exists():
            result = read_json(places.results / f"{experiment.result[preset]}.json")
        found[source] = [row for row in result["rows"] if row["arm"] in own]
        failed += result.get("failed", [])
    rows = view.rows(found)
    every = [row for own_rows in found.values() for row in own_rows]
    said = _result(name, "view", view.about, preset, rows, sorted({row["commit"] for row in every}))
    said |= {"seeds": sorted({row["seed"] for row in every}), "failed": failed}
    parts = {source: experiments[source] for source, own_rows in found.items() if own_rows}
    said["data"] = "; ".join(f"{source}: {_data(found[source], one)}" for source, one in parts.items())
    said["budget"] = "; ".join(f"{source}: {_budget(found[source], one)}" for source, one in parts.items())
    target = places.results / f"{name}{'' if preset == 'cpu' else '-paper'}.json"
    _write(target, said, view.table(rows), view.notes, picture=view.chart is not None)
    _draw(target, view.chart(rows) if view.chart else None, view.about, places.progress)
    return target


# ---------------------------------------------------------------- what is written


def _result(name: str, kind: str, about: str, preset: str, rows: list[Row], commits: list[str]) -> dict[str, Any]:
    said: dict[str, Any] = {"name": name, "kind": kind, "about": about, "preset": preset}
    said |= {"command": f"vpgcnn reproduce {name} --preset {preset}", "commits": commits, "data": "", "budget": ""}
    seeds = sorted({row["seed"] for row in rows if "seed" in row})
    return said | {"seeds": seeds, "rows": rows, "failed": []}


def _keep(target: Path, result: dict[str, Any], text: str) -> None:
    write_json(target, result)
    write_bytes(target.with_suffix(".md"), text.encode())


def _write(target: Path, result: dict[str, Any], table: str, notes: str, *, picture: bool) -> None:
    _keep(target, result, _text(result, table, notes, picture=picture))


def page(result: dict[str, Any], experiment: Experiment) -> str:
    """The result of an experiment as a Markdown page."""
    rows = result["rows"]
    table = _beside(experiment.table(rows), experiment.published)
    tested = f"Tested: {CHOSEN[rows[0]['config']['select']]}. "
    return _text(
        result, table, experiment.notes.get(result["preset"], ""), tested, picture=experiment.chart is not None
    )


def _text(result: dict[str, Any], table: str, notes: str, tested: str = "", *, picture: bool) -> str:
    about = f"{result['about'][0].upper()}{result['about'][1:]}"
    facts = f"Data: {result['data']}. Budget of each arm: {result['budget']}. " if result["data"] else ""
    parts = [f"# {result['name']} (preset {result['preset']})", f"{about}."]
    parts.append(
        f"Written by `{result['command']}`; do not edit.\n{facts}{tested}Commits: {', '.join(result['commits'])}."
    )
    parts += [notes] if notes else []
    parts.append(table)
    parts += [f"![{about}]({_stem(result)}.png)"] if picture else []
    parts += [f"Failed: {one['arm']}, seed {one['seed']} ({one['error']})." for one in result["failed"]]
    return "\n\n".join(parts) + "\n"


def _stem(result: dict[str, Any]) -> str:
    """The name of the files of a result."""
    if result["kind"] == "experiment" and result["name"] in EXPERIMENTS:
        return EXPERIMENTS[result["name"]].result[result["preset"]]
    return f"{result['name']}{'' if result['preset'] == 'cpu' else '-paper'}"


def _draw(target: Path, chart: Chart | None, about: str, progress: Quiet) -> None:
    """The figure as a picture and as a page, where what draws them is installed."""
    if chart is None:
        return
    chart = chart if chart.title else replace(chart, title=f"{about[0].upper()}{about[1:]}")
    try:
        write_bytes(target.with_suffix(".png"), png.draw(chart))
        write_bytes(target.with_suffix(".html"), interactive.draw(chart).encode())
    except UserError as error:
        progress.say(f"no figure: {error}")


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


def _commit() -> str:
    try:
        said = subprocess.run(
            ["git", "describe", "--always", "--dirty=+changes", "--exclude=*"],
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parent,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return said.stdout.strip()
