"""Running an experiment arm by arm: what has been done is not done again."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from vpgcnn.data import load
from vpgcnn.errors import UserError
from vpgcnn.experiments.registry import Experiment
from vpgcnn.training.checkpoint import load_model
from vpgcnn.training.config import TrainConfig, settled
from vpgcnn.training.loop import train
from vpgcnn.training.progress import Quiet
from vpgcnn.training.run import FREE, chosen_weights
from vpgcnn.training.serial import from_json, read_json, to_json, write_bytes, write_json

__all__ = ["page", "run"]

KEPT = ("test", "validation", "epoch", "parameters", "steps", "seconds", "data", "fingerprint")
CHOSEN = {
    "last": "the last epoch",
    "accuracy": "the epoch of best validation accuracy",
    "nll": "the epoch of lowest validation nll",
}


def run(
    experiment: Experiment,
    name: str,
    *,
    preset: str,
    arms: list[str],
    seeds: list[int] | None,
    runs: Path,
    results: Path,
    settings: dict[str, Any],
    progress: Quiet,
) -> Path:
    """Train and measure every arm with every seed (None: those of the experiment); returns the result's path.

    Each run has a folder under `runs` and resumes by itself. The result is written anew after each.
    settings: fields of the configuration that do not change what is computed (data_dir, threads, …).
    """
    target = results / f"{experiment.result[preset]}.json"
    folder = runs / name / preset
    commit = _commit()
    for seed in seeds or sorted({seed for arm in arms for seed in experiment.seeds_of(arm)}):
        for arm in arms:
            if seeds is None and seed not in experiment.seeds_of(arm):
                continue
            config = replace(experiment.config(arm, seed, preset), **settings)
            own = folder / f"{arm}-{seed}"
            dataset = load(config.data, config.data_dir)
            if _done(target, own, (arm, seed, _settled(config)), dataset.fingerprint()):
                progress.say(f"{arm}, seed {seed}: done before")
                continue
            progress.say(f"{arm}, seed {seed}: {own}")
            result = train(config, own, resume=True, progress=progress)
            model, card = load_model(chosen_weights(own))
            with progress:
                measured = experiment.measure(model, card, dataset, progress)
            row = {"arm": arm, "seed": seed, "commit": commit}
            row |= {key: result[key] for key in KEPT if key in result}
            row |= {"torch": torch.__version__, "config": _settled(config), **measured}
            write_json(own / "measured.json", row)
            _write(target, name, preset, experiment, folder)
    _write(target, name, preset, experiment, folder)
    return target


def _settled(config: TrainConfig) -> dict[str, Any]:
    return {key: value for key, value in to_json(settled(config)).items() if key not in FREE}


def _settings_of(row: dict[str, Any]) -> dict[str, Any] | None:
    """The settings that a row was made with. A field that came later has its default, which changes nothing."""
    try:
        return _settled(from_json(TrainConfig, row["config"]))
    except UserError:  # of a field that is no more
        return None


def _done(target: Path, own: Path, run: tuple[str, int, dict[str, Any]], data: str) -> bool:
    """Whether this run (arm, seed, settings) was measured on these data, here or in the result that is there."""
    rows = [read_json(own / "measured.json")] if (own / "measured.json").exists() else []
    rows += read_json(target)["rows"] if target.exists() else []
    same = [row for row in rows if (row["arm"], row["seed"], _settings_of(row)) == run]
    return any(row.get("fingerprint", data) == data for row in same)


def _write(target: Path, name: str, preset: str, experiment: Experiment, folder: Path) -> None:
    """The result from all measured runs, and from rows that were there before."""
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
        return
    result = {
        "name": name,
        "about": experiment.about,
        "preset": preset,
        "seeds": sorted({row["seed"] for row in whole}),
    }
    result |= {"command": f"vpgcnn reproduce {name} --preset {preset}", "rows": whole}
    write_json(target, result)
    write_bytes(target.with_suffix(".md"), page(result, experiment).encode())


def page(result: dict[str, Any], experiment: Experiment) -> str:
    """The result as a Markdown page."""
    rows = result["rows"]
    data = rows[0]["data"][0].split(" from ")[0].rstrip(",")
    config = rows[0]["config"]
    about = f"{experiment.about[0].upper()}{experiment.about[1:]}."
    budget = f"{config['epochs']} epochs of batches of {config['batch_size']}, "
    if experiment.draws:
        steps = [row["steps"] for row in rows]
        budget += f"{min(steps)} to {max(steps)} steps, as a draw is small or large"
        data = "a seed is also the number of the draw"
    else:
        others = {row["arm"]: row["steps"] for row in rows if row["steps"] != rows[0]["steps"]}
        budget += f"{rows[0]['steps']} steps" + "".join(f" ({arm}: {steps})" for arm, steps in others.items())
    notes = experiment.notes.get(result["preset"], "")
    notes = f"\n{notes}\n" if notes else ""
    return (
        f"# {result['name']} (preset {result['preset']})\n\n{about}\n\nWritten by `{result['command']}`; do not edit.\n"
        f"Data: {data}. Budget of each arm: {budget}. Tested: {CHOSEN[config['select']]}. "
        f"Commits: {', '.join(sorted({row['commit'] for row in rows}))}.\n"
        f"{notes}\n{_beside(experiment.table(rows), experiment.published)}\n"
    )


def _beside(table: str, published: dict[str, str]) -> str:
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
