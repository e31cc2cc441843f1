"""What is known of how a network came to be: read from its run, or carried along in the file of its weights."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from vpgcnn.errors import UserError
from vpgcnn.serial import from_json, read_json
from vpgcnn.training.checkpoint import read_tensors
from vpgcnn.training.config import TrainConfig

__all__ = ["LayerLevel", "Record", "Scores", "read_record", "read_settings"]


@dataclass(frozen=True)
class Scores:
    """Means over images; nll and kl in nats."""

    images: int
    accuracy: float
    nll: float
    kl: float = 0.0


@dataclass(frozen=True)
class LayerLevel:
    """How much of its group a layer uses, over some images: 1 is all of it.

    std, low, high: the spread over images. narrow, wide: the classes with the smallest and the largest mean, where
    labels are known and images differ.
    """

    layer: str
    mean: float
    std: float
    low: float
    high: float
    narrow: str = ""
    narrow_mean: float = 0.0
    wide: str = ""
    wide_mean: float = 0.0


@dataclass(frozen=True)
class Record:
    """How a network was trained and tested, as far as that is known.

    epoch: after which the weights were taken. train_images: how many it was trained on. measured: the images that
    `levels` are over. A field that is not known is None or empty.
    """

    config: TrainConfig | None = None
    epoch: int | None = None
    train_images: int | None = None
    validation: Scores | None = None
    test: Scores | None = None
    notes: tuple[str, ...] = ()
    fingerprint: str = ""
    torch: str = ""
    commit: str = ""
    levels: tuple[LayerLevel, ...] = ()
    measured: str = ""
    license: str = ""


def read_record(weights: Path) -> Record:
    """What is known of a weights file: by the record in it, else by the run's folder that it is in.

    A test is of one epoch: its scores are left out for the weights of another.
    """
    _, description = read_tensors(weights)
    if "record" in description:
        return from_json(Record, description["record"], f"the record in {weights}")
    result = _fields_of(weights.parent / "result.json")
    epoch = description.get("epoch")
    notes, versions = result.get("data"), result.get("versions")
    return Record(
        config=_config_beside(weights),
        epoch=epoch if isinstance(epoch, int) else None,
        validation=_scores(description.get("validation"), weights),
        test=_scores(result.get("test"), weights) if epoch is not None and epoch == result.get("epoch") else None,
        notes=tuple(map(str, notes)) if isinstance(notes, list) else (),
        fingerprint=_text(result.get("fingerprint")),
        torch=_text(versions.get("torch")) if isinstance(versions, dict) else "",
        commit=_text(result.get("commit")) or _text(_fields_of(weights.parent / "measured.json").get("commit")),
    )


def read_settings(weights: Path) -> TrainConfig | None:
    """The settings that a weights file was trained with, where they are known. Of its run, nothing else is read."""
    _, description = read_tensors(weights)
    return read_record(weights).config if "record" in description else _config_beside(weights)


def _config_beside(weights: Path) -> TrainConfig | None:
    path = weights.parent / "config.json"
    return from_json(TrainConfig, read_json(path), str(path)) if path.is_file() else None


def _fields_of(path: Path) -> dict[str, Any]:
    """What a JSON file says; nothing where it is not there, or says something else."""
    said = read_json(path) if path.is_file() else {}
    return said if isinstance(said, dict) else {}


def _scores(said: Any, path: Path) -> Scores | None:
    if not isinstance(said, dict) or not said.get("images"):
        return None
    known = {part.name: said[part.name] for part in fields(Scores) if part.name in said}
    try:
        return from_json(Scores, known, "scores")
    except UserError as error:
        raise UserError(f"the scores beside {path} make no sense: {error}") from error


def _text(said: Any) -> str:
    return said if isinstance(said, str) else ""
