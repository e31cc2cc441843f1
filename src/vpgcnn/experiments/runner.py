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
from itertools import chain, count
from pathlib import Path
from typing import Any

import torch

from vpgcnn.data import Dataset, load
from vpgcnn.errors import UserError
from vpgcnn.experiments.base import Experiment, Reproduction, Row, View
from vpgcnn.experiments.pages import budget_of, data_of, draw, keep, note_of, page, text_of
from vpgcnn.experiments.registry import EXPERIMENTS
from vpgcnn.serial import from_json, read_json, to_json, write_bytes, write_json
from vpgcnn.training.checkpoint import load_model
from vpgcnn.training.config import TrainConfig, settled
from vpgcnn.training.loop import Interrupted, train
from vpgcnn.training.progress import Quiet
from vpgcnn.training.run import FREE, chosen_weights

__all__ = ["Places", "run"]

KEPT = ("test", "validation", "epoch", "parameters", "steps", "search_steps", "seconds", "data", "fingerprint")


@dataclass(frozen=True)
class Places:
    """Where things go. settings: fields of the configuration that do not change what is computed (data_dir, …)."""

    runs: Path
    results: Path
    settings: dict[str, Any]
    progress: Quiet


@dataclass(frozen=True)
class _Asked:
    """What of it is to be run.

    arms, seeds: None for its own. again: measure anew what was trained before. train: whether to run what is lacking.
    """

    preset: str
    arms: list[str] | None
    seeds: list[int] | None
    again: bool
    train: bool


def run(
    entry: Reproduction,
    name: str,
    places: Places,
    *,
    preset: str,
    arms: list[str] | None = None,
    seeds: list[int] | None = None,
    again: bool = False,
    train: bool = True,
    experiments: Mapping[str, Experiment] = EXPERIMENTS,
) -> Path:
    """Do what is not done yet, write the result; returns its path.

    arms: only these. seeds: others than its own. again: measure anew what was trained before. train: False to write
    what has been run and leave the rest. experiments: those that a view may look at.
    """
    asked = _Asked(preset, arms, seeds, again, train)
    if isinstance(entry, Experiment):
        return _experiment(entry, name, places, asked)
    if isinstance(entry, View):
        return _view(entry, name, places, asked, experiments)
    if arms or seeds:
        raise UserError(f"{name} has no arms to train: leave --arms and --seeds out")
    if places.settings.get("threads"):
        torch.set_num_threads(places.settings["threads"])
    with places.progress:
        rows = entry.rows(preset, places.progress)
    target = _file(places, name, preset)
    said = _result(name, "count", entry.about, preset, rows, [_commit()])
    said["figure"] = draw(target, entry.chart(rows) if entry.chart else None, entry.about, places.progress)
    keep(target, said, text_of(said, entry.table(rows), entry.notes))
    return target


def _file(places: Places, name: str, preset: str) -> Path:
    """The result of what is no experiment."""
    return places.results / f"{name}{'' if preset == 'cpu' else '-paper'}.json"


# ---------------------------------------------------------------- experiments


def _experiment(experiment: Experiment, name: str, places: Places, asked: _Asked) -> Path:
    """Train and measure. Each run has a folder and resumes by itself; the result is written anew after each."""
    preset, seeds = asked.preset, asked.seeds
    target = places.results / f"{experiment.result[preset]}.json"
    folder, progress = places.runs / name / preset, places.progress
    chosen = asked.arms or experiment.arms_of(preset)
    wanted = [
        (arm, seed)
        for seed in seeds or sorted({seed for arm in chosen for seed in experiment.seeds_of(arm)})
        for arm in chosen
        if seeds is not None or seed in experiment.seeds_of(arm)
    ]
    keeper = _Keeper(experiment, name, preset, target, folder, wanted)
    if not asked.train and not keeper.rows():
        raise UserError(f"nothing of {name} has been run yet")
    for number, (arm, seed) in enumerate(wanted if asked.train else (), start=1):
        config = replace(experiment.config(arm, seed, preset), **places.settings)
        try:
            if not _one(experiment, arm, seed, config, folder / f"{arm}-{seed}", keeper, progress, asked.again):
                continue
        except Interrupted:
            raise
        except Exception as error:  # whatever it is, the others go on
            if isinstance(error, UserError) and len(wanted) == 1:
                raise
            said = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            keeper.failed[arm, seed] = said
            progress.say(f"{arm}, seed {seed} failed: {said}; going on with the others")
        keeper.write()
        progress.say(keeper.status(number))
    if all(run in keeper.failed for run in wanted):
        raise UserError(f"all of {name} failed, at first {wanted[0][0]}: {keeper.failed[wanted[0]]}")
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
    own: Path,
    keeper: _Keeper,
    progress: Quiet,
    again: bool,
) -> bool:
    """Train and measure one arm with one seed; False if that was done before."""
    before = keeper.row(arm, seed, own)
    lacking = before is not None and any(key not in before for key in experiment.keys)
    try:
        dataset = load(config.data, config.data_dir)
    except UserError as error:
        if before is None or lacking:
            raise
        progress.say(f"{arm}, seed {seed}: done before; its data cannot be compared ({error})")
        return False
    keeper.compare(seed, dataset, progress)
    if before is not None and not keeper.of_these_data(before):
        before, lacking = None, False
    finished = (own / "result.json").exists()
    if lacking and not finished:
        raise UserError(f"the row of {arm}, seed {seed} lacks {experiment.keys[0]!r}, and its weights are not in {own}")
    if before is not None and not lacking and not (again and finished):
        progress.say(f"{arm}, seed {seed}: done before" + (", but its weights are not here" if again else ""))
        return False
    progress.say(f"{arm}, seed {seed}: {own}")
    started = config if config.start is None else replace(config, start=own.parent / config.start)
    result = train(started, own, resume=True, progress=progress)
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


class _Keeper:
    """The result of an experiment: its rows from all measured runs, and those that were in the file before.

    data: the fingerprint of the data that are there now and what is said of them, of each draw. figure: the name of
    its picture.
    """

    def __init__(
        self, experiment: Experiment, name: str, preset: str, target: Path, folder: Path, wanted: list[tuple[str, int]]
    ) -> None:
        self.experiment, self.name, self.preset, self.wanted = experiment, name, preset, wanted
        self.target, self.folder = target, folder
        old = read_json(target) if target.exists() else {}
        self.figure: str = old.get("figure", "")
        self.failed = {(one["arm"], one["seed"]): one["error"] for one in old.get("failed", ())}
        self.failed = {run: error for run, error in self.failed.items() if run not in wanted}
        self.data: dict[int, tuple[str, str]] = {}
        self.parted = False

    def row(self, arm: str, seed: int, own: Path) -> Row | None:
        """The row of this run with the settings that it has now, if there is one."""
        rows = [read_json(own / "measured.json")] if (own / "measured.json").exists() else []
        rows += read_json(self.target)["rows"] if self.target.exists() else []
        return next((row for row in rows if (row["arm"], row["seed"]) == (arm, seed) and self._fits(row)), None)

    def _fits(self, row: Row) -> bool:
        """Whether a row is of this experiment: an arm that it has, the settings and the data of now."""
        if row["arm"] not in self.experiment.arms:
            return False
        config = self.experiment.config(row["arm"], row["seed"], self.preset)
        return self.of_these_data(row) and _settings_of(row) == _settled(config)

    def compare(self, seed: int, dataset: Dataset, progress: Quiet) -> None:
        """These are the data of now. Rows of others will not be in the file any more: it is kept under another name."""
        self.data[seed if self.experiment.draws else 0] = dataset.fingerprint(), note_of(dataset.notes)
        rows = read_json(self.target)["rows"] if self.target.exists() else []
        others = [row for row in rows if not self.of_these_data(row)]
        if others and not self.parted:
            self.parted = True
            apart = _unused(self.target.with_name(f"{self.target.stem}.other-data.json"))
            write_bytes(apart, self.target.read_bytes())
            progress.say(
                f"{len(others)} of {len(rows)} rows in {self.target} are of other data than are here now; they are "
                f"left out, and the file as it was is kept as {apart.name}"
            )

    def of_these_data(self, row: Row) -> bool:
        """Whether a row is of the data that are there now, as far as both are known."""
        now = self.data.get(row["seed"] if self.experiment.draws else 0)
        if now is None:
            return True
        if "fingerprint" in row:  # older rows have none
            return bool(row["fingerprint"] == now[0])
        return note_of(row["data"]) == now[1]

    def rows(self) -> list[Row]:
        """In the order of the arms; what was measured here counts more than what the file says."""
        found = read_json(self.target)["rows"] if self.target.exists() else []
        found += [read_json(path) for path in sorted(self.folder.glob("*/measured.json"))]
        rows = {(row["arm"], row["seed"]): row for row in found if self._fits(row)}
        order = list(self.experiment.arms)
        return sorted(rows.values(), key=lambda row: (order.index(row["arm"]), row["seed"]))

    def write(self) -> list[Row]:
        """Write what there is; returns the rows."""
        rows = self.rows()
        if not rows:
            return []
        there = {(row["arm"], row["seed"]) for row in rows}
        commits = sorted({row["commit"] for row in rows})
        result = _result(self.name, "experiment", self.experiment.about, self.preset, rows, commits)
        usual = set(self.experiment.arms_of(self.preset))
        if not all(row["arm"] in usual and row["seed"] in self.experiment.seeds_of(row["arm"]) for row in rows):
            result["command"] = _naming(result["command"], rows)
        result |= {"data": data_of(rows), "budget": budget_of(rows), "figure": self.figure}
        lost = {run: error for run, error in self.failed.items() if run not in there}
        result["failed"] = [{"arm": arm, "seed": seed, "error": error} for (arm, seed), error in lost.items()]
        keep(self.target, result, page(result, self.experiment))
        return rows

    def status(self, number: int) -> str:
        """A table of all runs that were asked for: arms down, seeds across."""
        found = {(row["arm"], row["seed"]): f"{row['test']['accuracy']:.2%}" for row in self.rows()}
        arms = list(dict.fromkeys(arm for arm, _ in self.wanted))
        seeds = sorted({seed for _, seed in self.wanted})
        wide = max(len(arm) for arm in arms)
        lines = [f"{number} of {len(self.wanted)} runs", " " * wide + "".join(f"{seed:>9}" for seed in seeds)]
        for arm in arms:
            cells = []
            for seed in seeds:
                state = found.get((arm, seed), "failed" if (arm, seed) in self.failed else "waiting")
                cells.append(f"{state if (arm, seed) in self.wanted else '':>9}")
            lines.append(f"{arm:<{wide}}{''.join(cells)}")
        return "\n".join(lines)


def _unused(path: Path) -> Path:
    """The path, or with the first number that makes it a new one: a copy is never written over another."""
    names = chain([path], (path.with_name(f"{path.stem}-{number}.json") for number in count(2)))
    return next(name for name in names if not name.exists())


def _naming(command: str, rows: list[Row]) -> str:
    """The command that makes these rows and no others: one for each set of seeds that arms have."""
    seeds: dict[str, set[int]] = {}
    for row in rows:
        seeds.setdefault(row["arm"], set()).add(row["seed"])
    alike: dict[tuple[int, ...], list[str]] = {}
    for arm, own in seeds.items():
        alike.setdefault(tuple(sorted(own)), []).append(arm)
    return "; ".join(
        f"{command} --arms {' '.join(arms)} --seeds {' '.join(map(str, own))}" for own, arms in alike.items()
    )


# ---------------------------------------------------------------- views


def _view(view: View, name: str, places: Places, asked: _Asked, experiments: Mapping[str, Experiment]) -> Path:
    """Let the experiments run what they lack, then put their rows together."""
    preset, arms = asked.preset, asked.arms
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
        target = places.results / f"{experiment.result[preset]}.json"
        if chosen and asked.train:
            try:
                _experiment(experiment, source, places, replace(asked, arms=chosen))
            except UserError as error:  # all of it; there may be other sources
                places.progress.say(str(error))
                failed.append({"arm": source, "seed": 0, "error": str(error)})
        result = read_json(target) if target.exists() else {"rows": [], "failed": []}
        found[source] = [row for row in result["rows"] if row["arm"] in own]
        failed += [one for one in result["failed"] if one["arm"] in chosen]
    every = [row for own_rows in found.values() for row in own_rows]
    if not every:
        raise UserError(failed[0]["error"] if failed else f"nothing of {name} has been run yet")
    rows = view.rows(found)
    said = _result(name, "view", view.about, preset, rows, sorted({row["commit"] for row in every}))
    said |= {"seeds": sorted({row["seed"] for row in every}), "failed": failed}
    usual = {
        (source, arm, seed)
        for source, own in view.sources.items()
        for arm in own
        if arm in experiments[source].arms_of(preset)
        for seed in experiments[source].seeds_of(arm)
    }
    if {(source, row["arm"], row["seed"]) for source, own_rows in found.items() for row in own_rows} != usual:
        parts = [_naming(f"vpgcnn reproduce {source} --preset {preset}", own) for source, own in found.items() if own]
        said["command"] = "; ".join([*parts, f"{said['command']} --no-training"])
    said["data"] = "; ".join(f"{source}: {data_of(own_rows)}" for source, own_rows in found.items() if own_rows)
    said["budget"] = "; ".join(f"{source}: {budget_of(own_rows)}" for source, own_rows in found.items() if own_rows)
    target = _file(places, name, preset)
    said["figure"] = draw(target, view.chart(rows) if view.chart else None, view.about, places.progress)
    keep(target, said, text_of(said, view.table(rows), view.notes))
    return target


# ---------------------------------------------------------------- what is written


def _result(name: str, kind: str, about: str, preset: str, rows: list[Row], commits: list[str]) -> dict[str, Any]:
    said: dict[str, Any] = {"name": name, "kind": kind, "about": about, "preset": preset}
    said |= {"command": f"vpgcnn reproduce {name} --preset {preset}", "commits": commits, "data": "", "budget": ""}
    seeds = sorted({row["seed"] for row in rows if "seed" in row})
    return said | {"seeds": seeds, "figure": "", "rows": rows, "failed": []}


def _commit() -> str:
    """The commit of the code; with "+changes" where files of the package differ from it (results may)."""
    package = Path(__file__).parents[1]
    try:
        named = _git(package, "describe", "--always", "--exclude=*")
        changed = _git(package, "status", "--porcelain", "--", ".")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{named}+changes" if changed else named


def _git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", *words], capture_output=True, text=True, check=True, cwd=folder).stdout.strip()
