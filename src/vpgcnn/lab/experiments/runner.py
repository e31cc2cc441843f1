"""Runs what can be reproduced, arm by arm. Finished runs are not repeated, and a failure does not stop the rest.

results/NAME.json   the rows and their provenance, in the format of result.schema.json
results/NAME.md     the table, the paper's numbers beside ours
results/NAME.png    the figure, if there is one; NAME.html is its interactive version
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from vpgcnn.errors import UserError
from vpgcnn.lab.config_io import read_json, write_json
from vpgcnn.lab.data import load
from vpgcnn.lab.experiments.base import Experiment, Reproduction, Row, Trial, View, file_stem
from vpgcnn.lab.experiments.keeper import Keeper, commit, naming, new_result, settings
from vpgcnn.lab.experiments.pages import budget_of, compact, data_of, draw, keep, legend, text_of
from vpgcnn.lab.experiments.registry import EXPERIMENTS
from vpgcnn.lab.training.checkpoint import load_model
from vpgcnn.lab.training.config import TrainConfig
from vpgcnn.lab.training.loop import Interrupted, train
from vpgcnn.lab.training.progress import Quiet
from vpgcnn.lab.training.run import chosen_weights

__all__ = ["Places", "run", "view_page"]

KEPT = ("test", "validation", "epoch", "parameters", "steps", "search_steps", "seconds", "data", "fingerprint")
"""What a row takes over from a run's result.json."""


@dataclass(frozen=True)
class Places:
    """Where files go.

    Args:
        runs: The folder of all runs.
        results: The folder of results.
        settings: Fields of `TrainConfig` that do not change what is computed: data_dir, threads, …
        progress: Shows messages and bars.
    """

    runs: Path
    results: Path
    settings: dict[str, Any]
    progress: Quiet


@dataclass(frozen=True)
class _Request:
    """Which part of an experiment to run; see `run`."""

    preset: str
    arms: list[str] | None
    seeds: list[int] | None
    again: bool
    train: bool


def run(
    entry: Reproduction,
    places: Places,
    *,
    preset: str,
    arms: list[str] | None = None,
    seeds: list[int] | None = None,
    again: bool = False,
    train: bool = True,
    experiments: Mapping[str, Experiment] = EXPERIMENTS,
) -> Path:
    """Run what has not been run yet and write the result.

    Args:
        entry: A table or figure.
        places: Where files go.
        preset: "cpu" or "paper".
        arms: Only these arms.
        seeds: These seeds instead of the experiment's.
        again: Measure finished runs again, without training.
        train: False to write what has been run and leave the rest.
        experiments: Those that a view may look at.

    Returns:
        The path of the JSON file.
    """
    request = _Request(preset, arms, seeds, again, train)
    if isinstance(entry, Experiment):
        return _experiment(entry, places, request)
    if isinstance(entry, View):
        return _view(entry, places, request, experiments)
    if places.settings.get("threads"):
        torch.set_num_threads(places.settings["threads"])
    if isinstance(entry, Trial):
        return _trial(entry, places, request)
    if arms or seeds:
        raise UserError(f"{entry.name} has no arms to train: leave --arms and --seeds out")
    with places.progress:
        rows = [compact(row) for row in entry.rows(preset, places.progress)]
    target, result = _target(entry, places, preset), new_result(entry, "count", preset, rows, [commit()])
    keep(target, result, text_of(result, entry.table(rows), entry.notes))
    return target


def _target(entry: Reproduction, places: Places, preset: str) -> Path:
    return places.results / f"{file_stem(entry.name, preset)}.json"


# ---------------------------------------------------------------- experiments


def _experiment(experiment: Experiment, places: Places, request: _Request) -> Path:
    """Train and measure. Each run has a folder and can be resumed; the result is written after each run."""
    preset, seeds, name = request.preset, request.seeds, experiment.name
    target = _target(experiment, places, preset)
    folder, progress = places.runs / name / preset, places.progress
    chosen = request.arms or experiment.arms_of(preset)
    wanted = [
        (arm, seed)
        for seed in seeds or sorted({seed for arm in chosen for seed in experiment.seeds_of(arm)})
        for arm in chosen
        if seeds is not None or seed in experiment.seeds_of(arm)
    ]
    keeper = Keeper(experiment, preset, target, folder, wanted)
    if not request.train and not keeper.rows():
        raise UserError(f"nothing of {name} has been run yet")
    for arm in keeper.unknown_arms():
        progress.message(
            f"{target} has rows of an unknown arm {arm!r}, which are left out: load its plug-in with --use"
        )
    for number, (arm, seed) in enumerate(wanted if request.train else (), start=1):
        config = replace(experiment.config(arm, seed, preset), **places.settings)
        try:
            if not _one(experiment, arm, seed, config, folder / f"{arm}-{seed}", keeper, progress, request.again):
                continue
        except Interrupted:
            raise
        except Exception as error:  # whatever it is, the other runs continue
            if isinstance(error, UserError) and len(wanted) == 1:
                raise
            reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            keeper.failed[arm, seed] = reason
            progress.message(f"{arm}, seed {seed} failed: {reason}; continuing with the others")
        keeper.write()
        progress.message(keeper.status(number))
    if all(each in keeper.failed for each in wanted):
        raise UserError(f"all runs of {name} failed; the first, {wanted[0][0]}: {keeper.failed[wanted[0]]}")
    rows = keeper.write()
    chart = experiment.chart(rows) if experiment.chart and rows else None
    keeper.figure = draw(target, chart, experiment.about, progress)
    keeper.write()
    return target


def _one(
    experiment: Experiment,
    arm: str,
    seed: int,
    config: TrainConfig,
    folder: Path,
    keeper: Keeper,
    progress: Quiet,
    again: bool,
) -> bool:
    """Train and measure one arm with one seed; False if there was nothing to do."""
    before = keeper.row(arm, seed, folder)
    lacking = before is not None and any(key not in before for key in experiment.keys)
    try:
        dataset = load(config.data, config.data_dir)
    except UserError as error:
        if before is None or lacking:
            raise
        progress.message(f"{arm}, seed {seed}: already done; its data cannot be compared ({error})")
        return False
    keeper.compare(seed, dataset, progress)
    if before is not None and not keeper.of_these_data(before):
        before, lacking = None, False
    finished = (folder / "result.json").exists()
    if lacking and not finished:
        key = experiment.keys[0]
        raise UserError(f"the row of {arm}, seed {seed} lacks {key!r}, and its weights are not in {folder}")
    if before is not None and not lacking and not (again and finished):
        progress.message(f"{arm}, seed {seed}: already done" + (", but its weights are not here" if again else ""))
        return False
    progress.message(f"{arm}, seed {seed}: {folder}")
    started = config if config.start_from is None else replace(config, start_from=folder.parent / config.start_from)
    result = train(started, folder, resume=True, progress=progress)
    model, card = load_model(chosen_weights(folder))
    with progress:
        measured = experiment.measure(model, card, dataset, progress)
    row: Row = {"arm": arm, "seed": seed, "commit": commit() if before is None else before["commit"]}
    row |= {} if before is None else {"measured": commit()}
    row |= {key: result[key] for key in KEPT if key in result}
    row |= {"torch": torch.__version__, "config": settings(config), **measured}
    if experiment.history is not None:
        lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        row |= experiment.history([json.loads(line) for line in lines])
    write_json(folder / "measured.json", row, sealed=True)
    return True


# ---------------------------------------------------------------- trials


def _trial(trial: Trial, places: Places, request: _Request) -> Path:
    """Train and measure what is not in the results file yet; it is written after each run."""
    unknown = [arm for arm in request.arms or () if arm not in trial.arms]
    if unknown:
        raise UserError(f"unknown arm {unknown[0]!r}: choose from {', '.join(trial.arms)}")
    if request.again:
        raise UserError(f"{trial.name} keeps no weights to measure again: remove its rows to train them anew")
    target, progress = _target(trial, places, request.preset), places.progress
    rows: list[Row] = read_json(target)["rows"] if target.exists() else []
    failed: list[Row] = []
    wanted = [(arm, seed) for seed in request.seeds or trial.seeds for arm in request.arms or trial.arms]
    for arm, seed in wanted if request.train else ():
        if any((row["arm"], row["seed"]) == (arm, seed) for row in rows):
            progress.message(f"{arm}, seed {seed}: already done")
            continue
        progress.message(f"{arm}, seed {seed}")
        start = time.perf_counter()
        try:
            with progress:
                found = trial.train(arm, seed, places.settings.get("data_dir"), progress)
        except UserError as error:
            if not rows:
                raise
            progress.message(f"{arm}, seed {seed} failed: {error}; continuing with the others")
            failed.append({"arm": arm, "seed": seed, "error": str(error)})
        else:
            seconds = round(time.perf_counter() - start, 1)
            rows.append(compact({"arm": arm, "seed": seed, "commit": commit(), "seconds": seconds, **found}))
            order = list(trial.arms)
            rows.sort(key=lambda row: (order.index(row["arm"]), row["seed"]))
        _keep_trial(trial, target, request.preset, rows, failed)
    if not rows:
        raise UserError(f"nothing of {trial.name} has been run yet")
    _keep_trial(trial, target, request.preset, rows, failed)
    return target


def _keep_trial(trial: Trial, target: Path, preset: str, rows: list[Row], failed: list[Row]) -> None:
    """Write the rows of a trial and their page."""
    result = new_result(trial, "trial", preset, rows, sorted({row["commit"] for row in rows}))
    if {(row["arm"], row["seed"]) for row in rows} != {(arm, seed) for arm in trial.arms for seed in trial.seeds}:
        result["command"] = naming(result["command"], rows)
    result |= {"data": trial.data_words, "budget": trial.budget, "failed": failed}
    table = trial.table(rows)
    keep(target, result, text_of(result, f"{table}\n\n{legend(table, trial.arms)}", trial.notes))


# ---------------------------------------------------------------- views


def _view(view: View, places: Places, request: _Request, experiments: Mapping[str, Experiment]) -> Path:
    """Let the experiments run what they lack, then combine their rows."""
    preset, arms, name = request.preset, request.arms, view.name
    known = [arm for source in view.sources.values() for arm in source]
    unknown = [arm for arm in arms or () if arm not in known]
    if unknown:
        raise UserError(f"unknown arm {unknown[0]!r}: choose from {', '.join(dict.fromkeys(known))}")
    found: dict[str, list[Row]] = {}
    failed: list[Row] = []
    for source, needed in view.sources.items():
        experiment = experiments[source]
        there = experiment.arms_of(preset)
        chosen = [arm for arm in needed if (arm in arms if arms else arm in there)]
        target = _target(experiment, places, preset)
        if chosen and request.train:
            try:
                _experiment(experiment, places, replace(request, arms=chosen))
            except UserError as error:  # all of it; another source may work
                places.progress.message(str(error))
                failed.append({"arm": source, "seed": 0, "error": str(error)})
        result = read_json(target) if target.exists() else {"rows": [], "failed": []}
        found[source] = [row for row in result["rows"] if row["arm"] in needed]
        failed += [one for one in result["failed"] if one["arm"] in chosen]
    every = [row for each in found.values() for row in each]
    if not every:
        raise UserError(failed[0]["error"] if failed else f"nothing of {name} has been run yet")
    rows = [compact(row) for row in view.rows(found)]
    result = new_result(view, "view", preset, rows, sorted({row["commit"] for row in every}))
    result |= {"seeds": sorted({row["seed"] for row in every}), "failed": failed}
    usual = {
        (source, arm, seed)
        for source, needed in view.sources.items()
        for arm in needed
        if arm in experiments[source].arms_of(preset)
        for seed in experiments[source].seeds_of(arm)
    }
    if {(source, row["arm"], row["seed"]) for source, each in found.items() for row in each} != usual:
        parts = [naming(f"vpgcnn reproduce {source} --preset {preset}", each) for source, each in found.items() if each]
        result["command"] = "; ".join([*parts, f"{result['command']} --no-training"])
    result["data"] = "; ".join(f"{source}: {data_of(each)}" for source, each in found.items() if each)
    result["budget"] = "; ".join(f"{source}: {budget_of(each)}" for source, each in found.items() if each)
    target = _target(view, places, preset)
    result["figure"] = draw(target, view.chart(found) if view.chart else None, view.about, places.progress)
    keep(target, result, view_page(result, view, experiments))
    return target


def view_page(result: dict[str, Any], view: View, experiments: Mapping[str, Experiment] = EXPERIMENTS) -> str:
    """The result of a view as a Markdown page."""
    table = view.table(result["rows"])
    arms = {arm: experiments[source].arm(arm).about for source, needed in view.sources.items() for arm in needed}
    return text_of(result, "\n\n".join(part for part in (table, legend(table, arms)) if part), view.notes)
