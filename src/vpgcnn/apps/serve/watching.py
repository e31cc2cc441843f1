"""A run as it trains, read from its folder: it may be another process's, another machine's, or over."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from vpgcnn.apps.serve.schema import Strict
from vpgcnn.errors import UserError
from vpgcnn.lab.config_io import from_json, read_json
from vpgcnn.lab.training.checkpoint import read_card
from vpgcnn.lab.training.config import TrainConfig
from vpgcnn.lab.training.progress import in_bytes, in_time

__all__ = ["Curve", "Watched", "Watcher"]

POINTS = 400
"""Points of a curve, at most."""
SHOWN = 6
"""Classes whose θ is shown, at most: half of them the narrowest, half the widest."""
SILENT = 300.0
"""Seconds without a new file after which a run is taken for dead."""


class Curve(Strict):
    """A line of a chart over the steps of the run."""

    name: str
    steps: list[int]
    values: list[float | None]


class Watched(Strict):
    """A run at this moment."""

    api: Literal["1"] = "1"
    name: str
    folder: str
    state: Literal["starting", "training", "silent", "stopped", "finished"]
    sentence: str = Field(description="what is going on, in words")
    step: int
    steps: int | None = Field(description="steps in all; null: not known yet")
    numbers: list[tuple[str, str]] = Field(description="pairs of a number and what it means")
    loss: list[Curve]
    accuracy: list[Curve]
    theta: list[Curve] = Field(description="mean of θ over layers: of some classes, or of layers if there are no names")
    note: str = Field(description="which classes are shown")


class Watcher:
    """Reads the folder of a run again and again; it writes nothing and takes no lock.

    Args:
        folder: The run's folder.

    Raises:
        UserError: If the folder holds no run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = folder / "config.json"
        if not path.is_file():
            raise UserError(f"{folder} is not the folder of a run: it has no config.json")
        self.config = from_json(TrainConfig, read_json(path), str(path))
        self._classes: tuple[str, ...] | None = None

    def look(self, now: float | None = None) -> Watched:
        """The run at this moment.

        Args:
            now: The time, in seconds since 1970; by default that of the clock.

        Raises:
            UserError: If its files are damaged.
        """
        try:
            return self._look(time.time() if now is None else now)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            if isinstance(error, UserError):
                raise
            raise UserError(f"{self.folder / 'metrics.jsonl'} is damaged: {str(error).splitlines()[0]}") from error

    def _look(self, now: float) -> Watched:
        lines = self._lines()
        last: dict[str, Any] = lines[-1] if lines else {}
        epochs = [line for line in lines if "epoch" in line]
        result = self._result()
        quiet = now - self._touched()
        state: Literal["starting", "training", "silent", "stopped", "finished"]
        if result:
            state, sentence = "finished", f"finished after {in_time(result.get('seconds', 0))}"
        elif not (self.folder / ".lock").exists():
            state, sentence = "stopped", "stopped: --resume continues it"
        elif quiet > SILENT:
            state, sentence = "silent", f"no sign of life for {in_time(quiet)}: it may have been killed"
        elif not lines:
            state, sentence = "starting", "starting"
        else:
            state, sentence = "training", f"training, last line {in_time(max(0.0, quiet))} ago"
        theta, note = self._theta(epochs)
        return Watched(
            name=self.folder.resolve().name, folder=str(self.folder.resolve()), state=state, sentence=sentence,
            step=last.get("step", 0), steps=last.get("steps"),
            numbers=self._numbers(last, epochs, result), theta=theta, note=note,
            loss=_curves(
                {
                    "training": (lines, "nll"),
                    "training, each epoch": (epochs, "train_nll"),
                    "validation": (epochs, "validation_nll"),
                }
            ),
            accuracy=_curves(
                {
                    "training": (lines, "accuracy"),
                    "training, each epoch": (epochs, "train_accuracy"),
                    "validation": (epochs, "validation_accuracy"),
                }
            ),
        )  # fmt: skip

    def _lines(self) -> list[dict[str, Any]]:
        """The metrics; a last line that is being written is left out."""
        try:
            text = (self.folder / "metrics.jsonl").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return []
        lines = []
        for row in text.splitlines():
            try:
                line = json.loads(row)
            except ValueError:
                continue
            if isinstance(line, dict) and isinstance(line.get("step"), int):
                lines.append(line)
        return lines

    def _result(self) -> dict[str, Any]:
        path = self.folder / "result.json"
        found = read_json(path) if path.is_file() else {}
        return found if isinstance(found, dict) else {}

    def _touched(self) -> float:
        """When a file of the run was last written."""
        names = ("metrics.jsonl", "state.safetensors", "config.json", "result.json")
        times = [path.stat().st_mtime for path in map(self.folder.joinpath, names) if path.exists()]
        return max(times, default=0.0)

    def _numbers(
        self, last: dict[str, Any], epochs: Sequence[dict[str, Any]], result: dict[str, Any]
    ) -> list[tuple[str, str]]:
        found = [(f"{len(epochs)} of {self.config.epochs}", "epochs")]
        step, steps, seconds = last.get("step"), last.get("steps"), last.get("seconds")
        if seconds is not None:
            found.append((in_time(seconds), "so far"))
        if step and steps and seconds is not None and not result:
            found.append((in_time(seconds / step * (steps - step)), "left"))
        memory = [line["memory"] for line in epochs if "memory" in line]
        if memory:
            found.append((in_bytes(max(memory)), "memory at most"))
        scored = [line["validation_accuracy"] for line in epochs if "validation_accuracy" in line]
        if scored:
            found.append((f"{scored[-1]:.1%}", f"validation accuracy, {max(scored):.1%} at best"))
        test = result.get("test", {})
        if test.get("images"):
            found.append((f"{test['accuracy']:.1%}", f"test accuracy on {test['images']:,} images"))
        return found

    def _names(self) -> tuple[str, ...]:
        """The names of the classes; none before the first weights are there."""
        path = self.folder / "last.safetensors"
        if self._classes is None and path.is_file():
            self._classes = read_card(path).classes
        return self._classes or ()

    def _theta(self, epochs: Sequence[dict[str, Any]]) -> tuple[list[Curve], str]:
        """θ of classes, mean over layers."""
        rows = [line for line in epochs if isinstance(line.get("theta"), dict) and line["theta"]]
        if not rows:
            return [], "" if not epochs else "this network has no levels"
        steps = [row["step"] for row in rows]
        means = [[_mean(values) for values in zip(*row["theta"].values(), strict=True)] for row in rows]
        count = len(means[-1])
        names = self._names() if len(self._names()) == count else tuple(f"class {number}" for number in range(count))
        known = [number for number in range(count) if means[-1][number] is not None]
        order = sorted(known, key=lambda number: means[-1][number] or 0.0)
        few = len(order) <= SHOWN
        chosen = sorted(order) if few else [*order[: SHOWN // 2], *order[-(SHOWN // 2) :]]
        note = "" if few else f"the {SHOWN // 2} classes with the narrowest and the widest windows, of {count}"
        curves = [Curve(name=names[n], steps=steps, values=[row[n] for row in means]) for n in chosen]
        average = Curve(name="all classes", steps=steps, values=[_mean(row) for row in means])
        return [average, *curves], note


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _curves(parts: dict[str, tuple[Sequence[dict[str, Any]], str]]) -> list[Curve]:
    """The curves that have points, thinned out."""
    found = []
    for name, (lines, key) in parts.items():
        points = [(line["step"], line[key]) for line in lines if isinstance(line.get(key), int | float)]
        every = -(-len(points) // POINTS) or 1
        points = [*points[::every], *([points[-1]] if (len(points) - 1) % every else [])]
        if points:
            steps, values = zip(*points, strict=True)
            found.append(Curve(name=name, steps=list(steps), values=list(values)))
    return found
