"""The folder of a run: what is in it, and that it is never there by half.

config.json         everything that was chosen
metrics.jsonl       one line for each epoch, and for every so many steps
best.safetensors    the network after its best validation epoch
last.safetensors    the network after its last epoch
state.safetensors   all that is needed to go on exactly here
policy.safetensors  the policy of augmentation, where one was searched for (search.safetensors while it is)
result.json         the test, once training is over
"""

from __future__ import annotations

try:
    import fcntl
except ImportError:  # not on Windows: there two processes in one folder are not noticed
    fcntl = None  # type: ignore[assignment]
import json
from dataclasses import fields
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import Tensor

from vpgcnn.errors import UserError
from vpgcnn.serial import from_json, read_json, to_json, write_bytes, write_json
from vpgcnn.training.checkpoint import read_tensors, save_tensors
from vpgcnn.training.config import TrainConfig, settled

__all__ = ["PUBLISHED", "Run", "chosen_weights"]

FREE = ("data_dir", "device", "threads", "save_seconds", "log_steps", "watch")
"""Fields that may differ when a run is resumed: they do not change what is computed."""
PUBLISHED = "model.safetensors"
"""The weights in a folder that `vpgcnn hub save` wrote."""


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
        """Make sure that a new run may begin here, or that this is the one to be resumed. Writes nothing."""
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
                    f"{self.folder} holds a run already: --resume goes on with it, --out takes another folder"
                )
            self._check_same(from_json(TrainConfig, read_json(path), str(path)))
            return
        if self.folder.is_dir() and any(not _ours(path) for path in self.folder.iterdir()):
            raise UserError(f"{self.folder} is not empty and holds no run: choose another --out")

    def begin(self) -> None:
        """Take the folder for this process and write down what was chosen, once it is known that it can be done."""
        path = self.folder / "config.json"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = (self.folder / ".lock").open("w")
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}") from error
        if fcntl is not None:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # given back when the process ends, however
            except OSError as error:
                lock.close()
                raise UserError(f"another process is training in {self.folder}") from error
        self._lock = lock
        for left in self.folder.glob(".*.tmp"):  # of a process that was killed while it wrote
            left.unlink(missing_ok=True)
        if not path.exists():
            write_json(path, to_json(self.config))

    def _check_same(self, old: TrainConfig) -> None:
        then, now = settled(old), settled(self.config)
        for part in fields(TrainConfig):
            one, two = getattr(then, part.name), getattr(now, part.name)
            if part.name not in FREE and one != two:
                detail = next(
                    (f"{part.name}.{inner.name}: {getattr(one, inner.name)!r} then, {getattr(two, inner.name)!r} now"
                     for inner in (fields(one) if hasattr(one, "__dataclass_fields__") else ())
                     if getattr(one, inner.name) != getattr(two, inner.name)),
                    f"{part.name}: {one!r} then, {two!r} now",
                )  # fmt: skip
                raise UserError(f"{self.folder} was begun with other settings ({detail}): resume it with those")

    def end(self) -> None:
        """Give the folder back."""
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
        """How many bytes metrics.jsonl has."""
        return self.metrics.stat().st_size if self.metrics.exists() else 0

    # ------------------------------------------------------------ state

    def save_state(self, tensors: dict[str, Tensor], description: dict[str, Any]) -> None:
        """Keep all that is needed to go on."""
        save_tensors(self.state, tensors, {**description, "logged": self.logged()})

    def load_state(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The last state that was kept, if any."""
        if not self.state.exists():
            return None
        tensors, said = read_tensors(self.state)
        if not {"step", "logged", "epoch_sums", "dual"} <= set(said):
            raise UserError(f"{self.state} is no state to resume from")
        return tensors, said

    def rewind(self, description: dict[str, Any] | None) -> None:
        """Forget the lines that were logged after that state: they will be written again."""
        wanted = 0 if description is None else int(description["logged"])
        if self.logged() > wanted:
            write_bytes(self.metrics, self.metrics.read_bytes()[:wanted])

    def finish(self, result: dict[str, Any]) -> None:
        """Write the test's result."""
        versions = {"torch": torch.__version__}
        write_json(self.result, {**result, "versions": versions, "config": to_json(self.config)})


def _ours(path: Path) -> bool:
    """Whether a file is one that a killed process may leave behind."""
    return path.name == ".lock" or (path.name.startswith(".") and path.name.endswith(".tmp"))


def chosen_weights(path: Path) -> Path:
    """The weights file that a folder stands for: the epoch that a run's configuration selects, or a saved network."""
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
    raise UserError(f"{path} holds no weights ({names[0]}): is it a folder that `vpgcnn train` made, and far enough?")
