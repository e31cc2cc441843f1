"""ColorMNIST: red, green and blue digits on grey backgrounds, in 30 classes of which most are small.

The seed alone determines a draw: the digits, their colours and the grey of each background. Ten draws are
published; `colormnist.json` lists their class sizes and fingerprints.
"""

from __future__ import annotations

import json
import math
from importlib import resources
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vpgcnn.errors import UserError
from vpgcnn.lab.data.base import Dataset, Split, seeded_generator
from vpgcnn.lab.data.config import DataConfig
from vpgcnn.lab.data.mnist import read_digits

__all__ = ["CLASSES", "COLORS", "class_sizes", "load_balanced", "load_long_tailed", "published_draws"]

COLORS = ("red", "green", "blue")
CLASSES = tuple(f"{digit} {color}" for digit in range(10) for color in COLORS)
LARGEST_CLASS, POWER = 150, 0.3
"""Class sizes are ⌈150·x⌉, where x has the density 0.3·x^(−0.7) on [0, 1]: most classes are small."""
GREY_MEAN, GREY_STD = 0.33, 0.1
"""Each background is uniform; its grey is normally distributed and clamped to [0, 1]."""
HELD_OUT = {"files": (250, 25), "embedded": (10, 5)}
"""The number of test and validation images in each class; there are fewer embedded digits."""


def class_sizes(seed: int) -> list[int]:
    """Return the number of training images in each of the 30 classes of a draw.

    Args:
        seed: The number of the draw, from 0 to 2⁶³ − 1.

    Raises:
        UserError: If the seed is out of range.
    """
    seeded_generator(seed)  # raises if the seed is out of range
    return [
        max(1, math.ceil(LARGEST_CLASS * share)) for share in np.random.default_rng(seed).power(POWER, len(CLASSES))
    ]


def load_long_tailed(config: DataConfig, root: Path) -> Dataset:
    """Load long-tailed ColorMNIST, whose class sizes follow a power law.

    Args:
        config: `seed` is the number of the draw, `source` where the digits come from.
        root: The data directory.

    Raises:
        UserError: If there are not enough digits for this draw.
    """
    return _load("colormnist-lt", config, root, class_sizes(config.seed))


def load_balanced(config: DataConfig, root: Path) -> Dataset:
    """Load ColorMNIST with classes of equal size, and about as many images as the long-tailed draw of the same seed.

    Args:
        config: `seed` is the number of the draw, `source` where the digits come from.
        root: The data directory.

    Raises:
        UserError: If there are not enough digits for this draw.
    """
    sizes = class_sizes(config.seed)
    return _load("colormnist", config, root, [round(sum(sizes) / len(sizes))] * len(sizes))


def published_draws() -> dict[str, Any]:
    """Read the ten published draws.

    Returns:
        `{"draws": [...]}`: for each draw its `seed`, its class `sizes`, and its fingerprints made of the original
        digits (`fingerprint`, and `balanced` for classes of equal size) and of the embedded ones (`embedded`).
    """
    text = resources.files("vpgcnn.lab.data").joinpath("colormnist.json").read_text(encoding="utf-8")
    draws: dict[str, Any] = json.loads(text)
    return draws


def _load(name: str, config: DataConfig, root: Path, sizes: list[int]) -> Dataset:
    train, test, note = read_digits(root, config.source)
    in_test, in_validation = HELD_OUT["embedded" if test is None else "files"]
    generator = seeded_generator(config.seed + 2**32)
    parts: dict[str, list[Tensor]] = {"train": [], "validation": [], "test": []}
    labels: dict[str, list[int]] = {part: [] for part in parts}
    for digit in range(10):
        stock = iter(_shuffle_digit(train, digit, generator))
        sources = {"train": stock, "validation": stock, "test": stock}
        if test is not None:
            sources["test"] = iter(_shuffle_digit(test, digit, generator))
        for color in range(3):
            label = 3 * digit + color
            for part, count in (("train", sizes[label]), ("validation", in_validation), ("test", in_test)):
                images = list(islice(sources[part], count))
                if len(images) < count:
                    raise UserError(
                        f"{name}: draw {config.seed} needs more images of the digit {digit} than there are: "
                        "choose another --data.seed, or --data.source files"
                    )
                parts[part].append(_paint(torch.stack(images), color, generator))
                labels[part] += [label] * count
    splits = {part: Split(torch.cat(images), torch.tensor(labels[part])) for part, images in parts.items()}
    smallest, largest = min(sizes), max(sizes)
    note = f"draw {config.seed}: {len(splits['train'])} images, {smallest} to {largest} per class, from {note}"
    return Dataset(name, CLASSES, splits["train"], splits["validation"], splits["test"], (note,))


def _shuffle_digit(split: Split, digit: int, generator: torch.Generator) -> Tensor:
    """Return all images of a digit in random order, for the caller to use each of them once."""
    images = split.images[split.labels == digit]
    return images[torch.randperm(len(images), generator=generator)]


def _paint(images: Tensor, color: int, generator: torch.Generator) -> Tensor:
    """Turn bytes `(N, 1, H, W)` into `(N, 3, H, W)`: w·color + (1 − w)·grey, where w in [0, 1] is the digit's ink."""
    grey = (GREY_MEAN + GREY_STD * torch.randn(len(images), generator=generator, dtype=torch.float64)).clamp(0, 1)
    ink = images.double() / 255
    paint = torch.eye(3, dtype=torch.float64)[color].view(1, 3, 1, 1)
    return ((ink * paint + (1 - ink) * grey[:, None, None, None]) * 255).round().to(torch.uint8)
