"""Loading a trained network for a command."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from vpgcnn.data.config import DataConfig
from vpgcnn.training.checkpoint import Card, load_model
from vpgcnn.training.record import read_record, read_settings
from vpgcnn.training.run import chosen_weights

__all__ = ["fingerprint_of", "load_run"]


def load_run(path: Path) -> tuple[nn.Module, Card, DataConfig]:
    """The network of a run folder or weights file, its card, and the data that it was trained on."""
    weights = chosen_weights(path)
    model, card = load_model(weights)
    config = read_settings(weights)
    return model, card, DataConfig(name=card.dataset) if config is None else config.data


def fingerprint_of(path: Path) -> str | None:
    """The fingerprint of the data of a finished run, None where it is not known."""
    return read_record(chosen_weights(path)).fingerprint or None
