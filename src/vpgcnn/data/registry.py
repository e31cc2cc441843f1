"""Datasets by name."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vpgcnn.data import cifar, colormnist, flowers, mnist, own, ranges, turn_hue
from vpgcnn.data.base import Dataset
from vpgcnn.data.config import DataConfig
from vpgcnn.data.files import VARIABLE, Archive, PublishedFile, data_directory
from vpgcnn.errors import UserError

__all__ = ["DATASETS", "Entry", "entry", "load"]


@dataclass(frozen=True)
class Entry:
    """A dataset that `vpgcnn datasets` lists."""

    load: Callable[[DataConfig, Path], Dataset]
    files: list[PublishedFile]
    archive: Archive | None
    about: str


DATASETS = {
    "mnist": Entry(mnist.load_mnist, mnist.FILES, None, "70,000 handwritten digits"),
    "mnist67-180": Entry(
        mnist.load_mnist67, mnist.FILES, None, "6s and 7s of MNIST, upright and turned by 180°: 6 becomes 9, 7 stays 7"
    ),
    "mnist-ranges": Entry(
        ranges.load_ranges, mnist.FILES, None, "4s and 7s in three sizes: the size says how far one may be turned"
    ),
    "mnist-turn-hue": Entry(
        turn_hue.load_turn_hue, mnist.FILES, None, "digits in colour: some may be turned, some may change hue, or both"
    ),
    "colormnist-lt": Entry(
        colormnist.load_long_tailed, mnist.FILES, None, "digits in red, green and blue, 30 classes of 1 to 150 images"
    ),
    "colormnist": Entry(
        colormnist.load_balanced, mnist.FILES, None, "digits in red, green and blue, 30 classes of the same size"
    ),
    "flowers102": Entry(
        flowers.load_flowers, flowers.FILES, flowers.ARCHIVE, "8,189 photographs of 102 flowers, of any resolution"
    ),
    "cifar10": Entry(cifar.load_cifar10, cifar.FILES10, cifar.ARCHIVE10, "60,000 small photographs of 10 classes"),
    "cifar100": Entry(cifar.load_cifar100, cifar.FILES100, cifar.ARCHIVE100, "60,000 small photographs of 100 classes"),
}


def entry(name: str) -> Entry:
    """The dataset of this name."""
    if name not in DATASETS:
        raise UserError(f"unknown dataset {name!r}: choose from {', '.join(DATASETS)}")
    return DATASETS[name]


def load(config: DataConfig, directory: Path | None = None) -> Dataset:
    """The dataset that a configuration names, in memory; or a user's folder or .npz file by its path."""
    if config.name in DATASETS:
        chosen = data_directory(directory)
        if (directory is not None or os.environ.get(VARIABLE)) and not chosen.is_dir():
            said = "" if directory is not None else f" (from {VARIABLE})"
            raise UserError(
                f"there is no data directory {directory or chosen}{said}: give another one, or fill it by "
                f"`vpgcnn datasets fetch {config.name} --data-dir {directory or chosen}`"
            )
        dataset = DATASETS[config.name].load(config, chosen)
    else:
        path = _path(config.name)
        if path.is_dir():
            dataset = own.load_folder(config, path)
        elif path.suffix == ".npz" and path.is_file():
            dataset = own.load_arrays(config, path)
        else:
            raise UserError(
                f"unknown dataset {config.name!r}: choose from {', '.join(DATASETS)}, or give an image folder or .npz"
            )
    return dataset.limited(config.limit, config.seed)


def _path(name: str) -> Path:
    try:
        path = Path(name).expanduser()
        path.exists()
    except (OSError, RuntimeError, ValueError) as error:  # too long, an unknown user, a zero byte
        raise UserError(f"{name[:80]!r} is no dataset and no path: {error}") from error
    return path
