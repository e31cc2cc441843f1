"""How a network was trained and tested: read from its run, or from the file of its weights."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from vpgcnn.errors import UserError
from vpgcnn.lab.config_io import from_json, read_json
from vpgcnn.lab.training.checkpoint import read_tensors
from vpgcnn.lab.training.config import TrainConfig

__all__ = ["LayerLevel", "Record", "Scores", "read_record", "read_settings"]


@dataclass(frozen=True)
class Scores:
    """Scores of a network: means over images; nll and kl in nats."""

    images: int
    accuracy: float
    nll: float
    kl: float = 0.0


@dataclass(frozen=True)
class LayerLevel:
    """θ of a layer over some images: the share of the group in use.

    Args:
        layer: Name of the layer.
        mean: Mean of θ.
        std: Standard deviation over images.
        low: Smallest θ.
        high: Largest θ.
        narrow: Class with the smallest mean, if labels are known and θ differs between images.
        narrow_mean: That mean.
        wide: Class with the largest mean, likewise.
        wide_mean: That mean.
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
    """How a network was trained and tested. A field that is not known is None or empty.

    Args:
        config: Settings of the run.
        epoch: Epoch of the weights.
        train_images: Number of training images.
        validation: Scores on the validation images.
        test: Scores on the test images.
        notes: Notes on the data.
        fingerprint: Fingerprint of the data.
        torch: Version of torch.
        commit: Commit of the code.
        levels: θ of each layer.
        measured: The images that `levels` were measured on.
        license: Licence of the weights.
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
    """Read the record of a weights file: the one inside it, or that of the run's folder that it is in.

    Scores of a test belong to one epoch: they are left out for the weights of another.
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
    """The settings that a weights file was trained with, if they are known. Nothing else of its run is read."""
    _, description = read_tensors(weights)
    return read_record(weights).config if "record" in description else _config_beside(weights)


def _config_beside(weights: Path) -> TrainConfig | None:
    path = weights.parent / "config.json"
    return from_json(TrainConfig, read_json(path), str(path)) if path.is_file() else None


def _fields_of(path: Path) -> dict[str, Any]:
    """The object in a JSON file; an empty one if the file is missing or holds something else."""
    data = read_json(path) if path.is_file() else {}
    return data if isinstance(data, dict) else {}


def _scores(data: Any, path: Path) -> Scores | None:
    if not isinstance(data, dict) or not data.get("images"):
        return None
    known = {part.name: data[part.name] for part in fields(Scores) if part.name in data}
    try:
        return from_json(Scores, known, "scores")
    except UserError as error:
        raise UserError(f"the scores next to {path} cannot be read: {error}") from error


def _text(data: Any) -> str:
    return data if isinstance(data, str) else ""
