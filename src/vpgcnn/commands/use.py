"""Loading a trained network for a command."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from vpgcnn.data.config import DataConfig
from vpgcnn.serial import from_json, read_json
from vpgcnn.training.checkpoint import Card, load_model
from vpgcnn.training.config import TrainConfig
from vpgcnn.training.run import chosen_weights

__all__ = ["fingerprint_of", "load_run"]


def load_run(path: Path) -> tuple[nn.Module, Card, DataConfig]:
    """The network of a run folder or weights file, its card, and the data that it was trained on."""
    weights = chosen_weights(path)
    model, card = load_model(weights)
    config = weights.parent / "config.json"
    if config.is_file():
        return model, card, from_json(TrainConfig, read_json(config), str(config)).data
    return model, card, DataConfig(name=card.dataset)


def fingerprint_of(path: Path) -> str | None:
    """The fingerprint of the data of a finished run, None where it is not known."""
    result = chosen_weights(path).parent / "result.json"
    said = read_json(result) if result.is_file() else {}
    found = said.get("fingerprint") if isinstance(said, dict) else None
    return found if isinstance(found, str) else None
