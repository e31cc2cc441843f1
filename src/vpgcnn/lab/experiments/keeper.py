"""What an experiment has found so far: the rows in its results file and in the folders of its runs."""

from __future__ import annotations

import subprocess
from itertools import chain, count
from pathlib import Path
from typing import Any

from vpgcnn.errors import UserError
from vpgcnn.lab.config_io import from_json, read_json, to_json, write_bytes
from vpgcnn.lab.data import Dataset
from vpgcnn.lab.experiments.base import Experiment, Reproduction, Row
from vpgcnn.lab.experiments.pages import budget_of, compact, data_of, keep, note_of, page
from vpgcnn.lab.training.config import TrainConfig, settled
from vpgcnn.lab.training.progress import Quiet
from vpgcnn.lab.training.run import FREE

__all__ = ["Keeper", "commit", "naming", "new_result", "settings", "settings_of"]


def settings(config: TrainConfig) -> dict[str, Any]:
    """The settings that decide what is computed, as plain data."""
    return {key: value for key, value in to_json(settled(config)).items() if key not in FREE}


def settings_of(row: Row) -> dict[str, Any] | None:
    """The settings of a row; a field that was added later has its default. None if a field no longer exists."""
    try:
        return settings(from_json(TrainConfig, row["config"]))
    except UserError:
        return None


class Keeper:
    """The result of an experiment: the rows of all measured runs, and those that were in the file before."""

    def __init__(
        self, experiment: Experiment, preset: str, target: Path, folder: Path, wanted: list[tuple[str, int]]
    ) -> None:
        self.experiment, self.preset, self.wanted = experiment, preset, wanted
        self.target, self.folder = target, folder
        old = read_json(target) if target.exists() else {}
        self.figure: str = old.get("figure", "")
        self.failed = {(one["arm"], one["seed"]): one["error"] for one in old.get("failed", ())}
        self.failed = {each: error for each, error in self.failed.items() if each not in wanted}
        self.data: dict[int, tuple[str, str]] = {}
        """Fingerprint and note of the data that are available now, for each draw."""
        self.set_aside = False
        self.settings: dict[tuple[str, int], dict[str, Any]] = {}
        """The settings of each run, as plain data."""

    def row(self, arm: str, seed: int, folder: Path) -> Row | None:
        """The row of this run with its current settings, if there is one."""
        rows = [read_json(folder / "measured.json")] if (folder / "measured.json").exists() else []
        rows += self._in_file()
        return next((row for row in rows if (row["arm"], row["seed"]) == (arm, seed) and self._fits(row)), None)

    def _in_file(self) -> list[Row]:
        rows: list[Row] = read_json(self.target)["rows"] if self.target.exists() else []
        return rows

    def unknown_arms(self) -> list[str]:
        """Arms in the file that the experiment does not have."""
        return sorted({row["arm"] for row in self._in_file()} - set(self.experiment.arms))

    def _fits(self, row: Row) -> bool:
        """Whether a row belongs to this experiment as it is now: its arms, their settings, the data."""
        if row["arm"] not in self.experiment.arms:
            return False
        run = row["arm"], row["seed"]
        if run not in self.settings:
            self.settings[run] = settings(self.experiment.config(*run, self.preset))
        wanted = self.settings[run]
        return self.of_these_data(row) and (row["config"] == wanted or settings_of(row) == wanted)

    def compare(self, seed: int, dataset: Dataset, progress: Quiet) -> None:
        """Take note of the data. If the file has rows for other data, a copy of it is kept under another name."""
        self.data[seed if self.experiment.draws else 0] = dataset.fingerprint(), note_of(dataset.notes)
        rows = self._in_file()
        others = [row for row in rows if not self.of_these_data(row)]
        if others and not self.set_aside:
            self.set_aside = True
            copy = _unused(self.target.with_name(f"{self.target.stem}.other-data.json"))
            write_bytes(copy, self.target.read_bytes())
            progress.message(
                f"{len(others)} of {len(rows)} rows in {self.target} are for other data than those available now; they "
                f"are left out, and the old file is kept as {copy.name}"
            )

    def of_these_data(self, row: Row) -> bool:
        """Whether a row is for the data that are available now, as far as both are known."""
        now = self.data.get(row["seed"] if self.experiment.draws else 0)
        if now is None:
            return True
        if "fingerprint" in row:  # older rows have none
            return bool(row["fingerprint"] == now[0])
        return note_of(row["data"]) == now[1]

    def rows(self) -> list[Row]:
        """The rows in the order of the arms; a measured run replaces the row in the file."""
        found = self._in_file() + [read_json(path) for path in sorted(self.folder.glob("*/measured.json"))]
        rows = {(row["arm"], row["seed"]): row for row in found if self._fits(row)}
        order = list(self.experiment.arms)
        sorted_rows = sorted(rows.values(), key=lambda row: (order.index(row["arm"]), row["seed"]))
        curves = self.experiment.curves
        return [compact(row, () if self.experiment.arm(row["arm"]).keep_curves else curves) for row in sorted_rows]

    def write(self) -> list[Row]:
        """Write the result; returns its rows."""
        rows = self.rows()
        if not rows:
            return []
        there = {(row["arm"], row["seed"]) for row in rows}
        result = new_result(self.experiment, "experiment", self.preset, rows, sorted({row["commit"] for row in rows}))
        usual = set(self.experiment.arms_of(self.preset))
        if not all(row["arm"] in usual and row["seed"] in self.experiment.seeds_of(row["arm"]) for row in rows):
            result["command"] = naming(result["command"], rows)
        result |= {"data": data_of(rows), "budget": budget_of(rows), "figure": self.figure}
        lost = {each: error for each, error in self.failed.items() if each not in there}
        result["failed"] = [{"arm": arm, "seed": seed, "error": error} for (arm, seed), error in lost.items()]
        keep(self.target, result, page(result, self.experiment))
        return rows

    def status(self, number: int) -> str:
        """A table of all runs that were requested: arms down, seeds across."""
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
    """The path, or the first with a number that does not exist: a copy never overwrites another."""
    names = chain([path], (path.with_name(f"{path.stem}-{number}.json") for number in count(2)))
    return next(name for name in names if not name.exists())


def naming(command: str, rows: list[Row]) -> str:
    """The command that makes these rows and no others: one for each set of seeds."""
    seeds: dict[str, set[int]] = {}
    for row in rows:
        seeds.setdefault(row["arm"], set()).add(row["seed"])
    alike: dict[tuple[int, ...], list[str]] = {}
    for arm, each in seeds.items():
        alike.setdefault(tuple(sorted(each)), []).append(arm)
    return "; ".join(
        f"{command} --arms {' '.join(arms)} --seeds {' '.join(map(str, each))}" for each, arms in alike.items()
    )


def new_result(entry: Reproduction, kind: str, preset: str, rows: list[Row], commits: list[str]) -> dict[str, Any]:
    """A result with its rows; data, budget and figure are still empty."""
    result: dict[str, Any] = {"name": entry.name, "kind": kind, "about": entry.about, "preset": preset}
    result |= {"command": f"vpgcnn reproduce {entry.name} --preset {preset}", "commits": commits}
    seeds = sorted({row["seed"] for row in rows if "seed" in row})
    return result | {"data": "", "budget": "", "seeds": seeds, "figure": "", "failed": [], "rows": rows}


def commit() -> str:
    """The commit of the code, with "+changes" if files of the package differ from it."""
    package = Path(__file__).parents[2]
    try:
        named = _git(package, "describe", "--always", "--exclude=*")
        changed = _git(package, "status", "--porcelain", "--", ".")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{named}+changes" if changed else named


def _git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", *words], capture_output=True, text=True, check=True, cwd=folder).stdout.strip()
