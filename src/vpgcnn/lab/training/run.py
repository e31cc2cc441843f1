"""The folder of a run. Files are replaced as a whole, so that none is ever half written.

All but the metrics carry a checksum, which is verified when they are read.

config.json         all settings
metrics.jsonl       one line per epoch, and one every `log_steps` steps
best.safetensors    the network after its best validation epoch
last.safetensors    the network after its last epoch
state.safetensors   the state to resume from
policy.safetensors  the augmentation policy, if one was searched for (search.safetensors during the search)
result.json         the result of the test, once training is over
tensorboard/        the metrics for TensorBoard, with --track tensorboard
"""

from __future__ import annotations

try:
    import fcntl
except ImportError:  # Windows has no fcntl: two processes in one folder are not detected there
    fcntl = None  # type: ignore[assignment]
import json
import shlex
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import Tensor

from vpgcnn.errors import UserError
from vpgcnn.lab.config_io import from_json, read_json, to_json, write_bytes, write_json
from vpgcnn.lab.specs import KINDS, text
from vpgcnn.lab.training.checkpoint import read_tensors, save_tensors
from vpgcnn.lab.training.config import TrainConfig, settled

__all__ = ["PUBLISHED", "OtherSettingsError", "Run", "chosen_weights"]

FREE = ("data_dir", "device", "threads", "save_seconds", "log_steps", "watch", "track")
"""Settings that may change when a run is resumed, because they do not change the result."""
PUBLISHED = "model.safetensors"
"""Name of the weights in a folder that `vpgcnn hub save` wrote."""


class OtherSettingsError(UserError):
    """The run to resume was started with other settings."""


class Run:
    """A run's folder. Only the main process writes."""

    def __init__(self, folder: Path, config: TrainConfig) -> None:
        self.folder, self.config = folder, config
        self._lock: TextIO | None = None
        self.metrics, self.state = folder / "metrics.jsonl", folder / "state.safetensors"
        self.best, self.last, self.result = (
            folder / name for name in ("best.safetensors", "last.safetensors", "result.json")
        )

    def check(self, resume: bool) -> None:
        """Check that a new run may start here, or that this is the run to resume. Writes nothing.

        Raises:
            UserError: If the folder holds another run, other files, or is no folder.
        """
        path = self.folder / "config.json"
        try:
            self.folder.exists()
        except OSError as error:  # a name that is too long
            raise UserError(f"cannot write to {str(self.folder)[:80]}…: {error.strerror}") from error
        if self.folder.exists() and not self.folder.is_dir():
            raise UserError(f"{self.folder} is a file, not a folder for a run")
        if path.exists():
            if not resume:
                raise UserError(
                    f"{self.folder} holds a run already: --resume continues it, --out chooses another folder"
                )
            self._check_same(from_json(TrainConfig, read_json(path), str(path)))
            return
        if self.folder.is_dir() and any(not _ours(path) for path in self.folder.iterdir()):
            raise UserError(f"{self.folder} is not empty and holds no run: choose another folder with --out")

    def begin(self) -> None:
        """Lock the folder for this process and write config.json."""
        path = self.folder / "config.json"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = (self.folder / ".lock").open("w")
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}") from error
        if fcntl is not None:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # released when the process ends, however it ends
            except OSError as error:
                lock.close()
                raise UserError(f"another process is training in {self.folder}") from error
        self._lock = lock
        for left in self.folder.glob(".*.tmp"):  # left by a process that was killed while it wrote
            left.unlink(missing_ok=True)
        if not path.exists():
            write_json(path, to_json(self.config), sealed=True)

    def _check_same(self, old: TrainConfig) -> None:
        then, now = settled(old), settled(self.config)
        for part in fields(TrainConfig):
            one, two = getattr(then, part.name), getattr(now, part.name)
            if part.name not in FREE and one != two:
                detail, advice = _difference(part.name, one, two), f"resume it with those{self._longer(then)}"
                raise OtherSettingsError(f"{self.folder} was started with other settings ({detail}): {advice}")

    def _longer(self, then: TrainConfig) -> str:
        """How to train for more epochs than a run was started with: its learning rate has already come down."""
        if self.config.epochs <= then.epochs:
            return ""
        return (
            f"; to train for longer, start a new run from its weights: --start {shlex.quote(str(self.folder))} "
            "--out OTHER, without --resume"
        )

    def end(self) -> None:
        """Release the folder."""
        if self._lock is not None:
            (self.folder / ".lock").unlink(missing_ok=True)
            self._lock.close()
            self._lock = None

    # ------------------------------------------------------------ metrics

    def log(self, line: dict[str, Any]) -> None:
        """Append a line to metrics.jsonl."""
        try:
            with self.metrics.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(line, allow_nan=False) + "\n")
        except OSError as error:
            raise UserError(f"cannot write {self.metrics}: {error.strerror}") from error

    def logged(self) -> int:
        """The size of metrics.jsonl in bytes."""
        return self.metrics.stat().st_size if self.metrics.exists() else 0

    # ------------------------------------------------------------ state

    def save_state(self, tensors: dict[str, Tensor], description: dict[str, Any]) -> None:
        """Save the state to resume from."""
        save_tensors(self.state, tensors, {**description, "logged": self.logged()})

    def load_state(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The last state that was saved, if any: tensors and description."""
        if not self.state.exists():
            return None
        tensors, metadata = read_tensors(self.state)
        if not {"step", "logged", "epoch_sums", "objective"} <= set(metadata):
            raise UserError(f"{self.state} is not a state to resume from")
        return tensors, metadata

    def rewind(self, description: dict[str, Any] | None) -> None:
        """Remove the lines that were logged after that state: they will be written again."""
        wanted = 0 if description is None else int(description["logged"])
        if self.logged() > wanted:
            write_bytes(self.metrics, self.metrics.read_bytes()[:wanted])

    def finish(self, result: dict[str, Any]) -> None:
        """Write result.json."""
        versions = {"torch": torch.__version__}
        write_json(self.result, {**result, "versions": versions, "config": to_json(self.config)}, sealed=True)


def _difference(name: str, then: Any, now: Any) -> str:
    """The first setting in which two values of a configuration differ, in words."""
    if not is_dataclass(then) or isinstance(then, tuple(KINDS)):
        return f"{name}: {text(then)} then, {text(now)} now"
    if type(then) is not type(now):
        return f"{name}.name: {then.name!r} then, {now.name!r} now"  # type: ignore[union-attr]
    pairs = ((part.name, getattr(then, part.name), getattr(now, part.name)) for part in fields(then))
    inner, one, two = next(pair for pair in pairs if pair[1] != pair[2])
    return _difference(f"{name}.{inner}", one, two)


def _ours(path: Path) -> bool:
    """Whether a killed process may have left this file."""
    return path.name == ".lock" or (path.name.startswith(".") and path.name.endswith(".tmp"))


def chosen_weights(path: Path) -> Path:
    """The weights file of a run or of a saved network.

    Args:
        path: A run's folder, of which the selected epoch is taken; a folder that `vpgcnn hub save` wrote; or a file.
    """
    if not path.is_dir():
        return path
    if (path / PUBLISHED).is_file() and not (path / "last.safetensors").exists():
        return path / PUBLISHED
    config = path / "config.json"
    select = from_json(TrainConfig, read_json(config), str(config)).select if config.is_file() else "accuracy"
    names = ("last.safetensors",) if select == "last" else ("best.safetensors", "last.safetensors")
    for name in names:
        if (path / name).is_file():
            return path / name
    raise UserError(f"{path} holds no weights ({names[0]}): is it the folder of a run that has finished an epoch?")
