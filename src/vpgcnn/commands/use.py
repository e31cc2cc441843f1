"""Loading a trained network for a command."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from vpgcnn.data import load
from vpgcnn.data.config import DataConfig
from vpgcnn.errors import UserError
from vpgcnn.training.checkpoint import Card, load_model
from vpgcnn.training.record import read_record, read_settings
from vpgcnn.training.run import chosen_weights

__all__ = ["data_of", "fingerprint_of", "load_run", "same_place", "test_images"]


def load_run(path: Path) -> tuple[nn.Module, Card, DataConfig]:
    """The network of a run folder or weights file, its card, and the data that it was trained on."""
    weights = chosen_weights(path)
    model, card = load_model(weights)
    return model, card, data_of(weights, card)


def data_of(weights: Path, card: Card) -> DataConfig:
    """The data that the network of a weights file was trained on, as far as that is known."""
    config = read_settings(weights)
    return DataConfig(name=card.dataset, size=card.size) if config is None else config.data


def test_images(card: Card, data: DataConfig, directory: Path | None, count: int) -> tuple[Tensor, str]:
    """Test images in [0, 1] where they are, else noise; and which they are."""
    try:
        split = load(data, directory).test
        if len(split) and split.images.shape[1:] == (card.channels, card.size, card.size):
            images = split.images[:count].float() / 255
            return images, f"{len(images)} test images"
    except UserError:
        pass
    noise = torch.rand(count, card.channels, card.size, card.size, generator=torch.Generator().manual_seed(0))
    return noise, f"{count} images of noise (the data of the run are not here)"


def same_place(one: str | Path, other: str | Path) -> bool:
    """Whether two paths are those of the same folder or file."""
    try:
        return Path(one).expanduser().resolve() == Path(other).expanduser().resolve()
    except (OSError, RuntimeError, ValueError):
        return False


def fingerprint_of(path: Path) -> str | None:
    """The fingerprint of the data of a finished run, None where it is not known."""
    return read_record(chosen_weights(path)).fingerprint or None
