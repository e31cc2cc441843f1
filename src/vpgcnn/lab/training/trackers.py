"""Metrics for other programs: TensorBoard and Weights & Biases, through accelerate's trackers."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vpgcnn.errors import UserError
from vpgcnn.lab.config_io import to_json
from vpgcnn.lab.training.config import TrainConfig

__all__ = ["Tracker", "check_tracker", "open_tracker", "scalars"]

INSTALL = {"tensorboard": "pip install 'vpgcnn[track]'", "wandb": "pip install wandb"}
NAMED_CLASSES = 30
"""θ is tracked class by class up to this number of classes; beyond it, its mean alone."""


def check_tracker(kind: str) -> None:
    """Refuse a tracker whose package is not installed."""
    if kind in INSTALL and find_spec(kind) is None:
        raise UserError(f"--track {kind} needs the package {kind}: {INSTALL[kind]}")


class Tracker(AbstractContextManager["Tracker"]):
    """Passes the lines of metrics.jsonl on.

    Args:
        tracker: One of accelerate's, already started; None passes nothing on.
    """

    def __init__(self, tracker: Any = None) -> None:
        self._tracker = tracker

    def log(self, line: dict[str, Any], classes: Sequence[str]) -> None:
        """Pass on a line.

        Args:
            line: Metrics, with "step".
            classes: Names of the classes, for θ.
        """
        if self._tracker is not None:
            self._tracker.log(scalars(line, classes), step=line["step"])

    def __exit__(self, *_: object) -> None:
        if self._tracker is not None:
            self._tracker.finish()


def open_tracker(kind: str, folder: Path, config: TrainConfig, step: int) -> Tracker:
    """Start a tracker.

    Args:
        kind: "none", "tensorboard" or "wandb".
        folder: The run's folder. TensorBoard's files are in its folder "tensorboard".
        config: The settings of the run.
        step: The step from which the run goes on: what was tracked after it is replaced.
    """
    if kind == "none":
        return Tracker()
    check_tracker(kind)
    from accelerate.tracking import TensorBoardTracker, WandBTracker

    settings = _flat(to_json(config))
    if kind == "tensorboard":
        board = TensorBoardTracker("tensorboard", folder, purge_step=step + 1)
        board.start()
        board.writer.add_text("settings", "\n".join(f"    {key}: {value}" for key, value in settings.items()), step + 1)
        return Tracker(board)
    name = hashlib.sha256(json.dumps([str(folder.resolve()), settings["seed"]]).encode()).hexdigest()[:16]
    # The same id after a restart: W&B goes on with the run instead of opening another.
    project = os.environ.get("WANDB_PROJECT", "vpgcnn")
    wandb = WandBTracker(project, id=name, name=folder.name, resume="allow", dir=str(folder), config=settings)
    wandb.start()
    return Tracker(wandb)


def scalars(line: dict[str, Any], classes: Sequence[str]) -> dict[str, float]:
    """The numbers of a line by name, "theta/LAYER" and "theta/LAYER/CLASS" among them."""
    found = {
        key: value
        for key, value in line.items()
        if isinstance(value, int | float) and key not in ("step", "steps", "epoch")
    }
    for layer, values in line.get("theta", {}).items():
        known = [value for value in values if value is not None]
        found[f"theta/{layer}"] = sum(known) / len(known)
        if len(classes) <= NAMED_CLASSES:
            pairs = zip(classes, values, strict=True)
            found |= {f"theta/{layer}/{name}": value for name, value in pairs if value is not None}
    return found


def _flat(data: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """A configuration as one level of names: "model.group"."""
    flat: dict[str, Any] = {}
    for key, value in data.items():
        inner = _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
        flat |= inner
    return flat
