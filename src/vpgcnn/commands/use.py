"""Loading a trained network for a command."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from vpgcnn.data.config import DataConfig
from vpgcnn.training.checkpoint import Card, load_model
from vpgcnn.training.config import TrainConfig
from vpgcnn.training.run import chosen_weights
from vpgcnn.training.serial import from_json, read_json

__all__ = ["load_run"]


def load_run(path: Path) -> tuple[nn.Module, Card, DataConfig]:
    """The network of a run folder or weights file, its card, and the data that it was trained on."""
    weights = chosen_weights(path)
    model, card = load_model(weights)
    config = weights.parent / "config.json"
    if config.is_file():
        return model, card, from_json(TrainConfig, read_json(config), str(config)).data
    return model, card, DataConfig(name=card.dataset)
