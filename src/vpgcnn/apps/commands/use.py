"""Loading a trained network for a command."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from vpgcnn.errors import UserError
from vpgcnn.lab.data import load
from vpgcnn.lab.data.config import DataConfig
from vpgcnn.lab.training.checkpoint import Card, load_model
from vpgcnn.lab.training.record import read_record, read_settings
from vpgcnn.lab.training.run import chosen_weights

__all__ = ["data_of", "fingerprint_of", "load_run", "same_place", "test_images"]


def load_run(path: Path) -> tuple[nn.Module, Card, DataConfig]:
    """Load the network of a run folder or weights file.

    Returns:
        The network, its card, and the data it was trained on.
    """
    weights = chosen_weights(path)
    model, card = load_model(weights)
    return model, card, data_of(weights, card)


def data_of(weights: Path, card: Card) -> DataConfig:
    """Return the data that the network of a weights file was trained on, as far as they are known."""
    config = read_settings(weights)
    return DataConfig(name=card.dataset, size=card.size) if config is None else config.data


def test_images(card: Card, data: DataConfig, directory: Path | None, count: int) -> tuple[Tensor, str]:
    """Return images to compare two networks on: test images if they are available, otherwise noise.

    Args:
        card: Of the network.
        data: The data it was trained on.
        directory: Directory of the published files.
        count: How many images at most.

    Returns:
        Images `(N, C, H, W)` in [0, 1], and a few words that describe them.
    """
    try:
        split = load(data, directory).test
        if len(split) and split.images.shape[1:] == (card.channels, card.size, card.size):
            images = split.images[:count].float() / 255
            return images, "1 test image" if len(images) == 1 else f"{len(images)} test images"
    except UserError:
        pass
    noise = torch.rand(count, card.channels, card.size, card.size, generator=torch.Generator().manual_seed(0))
    why = " (the run's data are not on this machine)" if data.name else ""
    return noise, f"{count} images of noise{why}"


def same_place(one: str | Path, other: str | Path) -> bool:
    """Return whether two paths lead to the same folder or file."""
    try:
        return Path(one).expanduser().resolve() == Path(other).expanduser().resolve()
    except (OSError, RuntimeError, ValueError):
        return False


def fingerprint_of(path: Path) -> str | None:
    """Return the fingerprint of the data of a finished run, None if it is not known."""
    return read_record(chosen_weights(path)).fingerprint or None
