"""ColorMNIST: digits in red, green or blue before a grey background, 30 classes, a few of them large.

A draw is a function of its seed alone: which digits, in which colour, before which grey. Ten draws are
published, with their class sizes and checksums in `colormnist.json`.
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

from vpgcnn.data.base import Dataset, Split, seeded
from vpgcnn.data.config import DataConfig
from vpgcnn.data.mnist import digits
from vpgcnn.errors import UserError

__all__ = ["CLASSES", "class_sizes", "load_balanced", "load_long_tailed", "published"]

COLORS = ("red", "green", "blue")
CLASSES = tuple(f"{digit} {color}" for digit in range(10) for color in COLORS)
LARGEST, POWER = 150, 0.3
"""Class sizes are ⌈150·x⌉ with x of density 0.3·x^(−0.7) on [0, 1]: most classes are small."""
GREY, SPREAD = 0.33, 0.1
"""Each background is one grey, normal with this mean and deviation, kept in [0, 1]."""
HELD_OUT = {"files": (250, 25), "embedded": (10, 5)}
"""Images of each class for the test and for validation; the embedded digits are fewer."""


def class_sizes(seed: int) -> list[int]:
    """How many training images each of the 30 classes has in this draw."""
    seeded(seed)  # complains of a seed that is none
    return [max(1, math.ceil(LARGEST * share)) for share in np.random.default_rng(seed).power(POWER, len(CLASSES))]


def load_long_tailed(config: DataConfig, root: Path) -> Dataset:
    """Class sizes that follow a power law. `seed` is the number of the draw."""
    return _load("colormnist-lt", config, root, class_sizes(config.seed))


def load_balanced(config: DataConfig, root: Path) -> Dataset:
    """As many images of each class, as many in all as the long-tailed draw of the same seed."""
    sizes = class_sizes(config.seed)
    return _load("colormnist", config, root, [round(sum(sizes) / len(sizes))] * len(sizes))


def published() -> dict[str, Any]:
    """The ten published draws: of each its class sizes and the fingerprint of its images."""
    text = resources.files("vpgcnn.data").joinpath("colormnist.json").read_text(encoding="utf-8")
    draws: dict[str, Any] = json.loads(text)
    return draws


def _load(name: str, config: DataConfig, root: Path, sizes: list[int]) -> Dataset:
    train, test, note = digits(root, config.source)
    in_test, in_validation = HELD_OUT["embedded" if test is None else "files"]
    random = seeded(config.seed + 2**32)
    parts: dict[str, list[Tensor]] = {"train": [], "validation": [], "test": []}
    labels: dict[str, list[int]] = {part: [] for part in parts}
    for digit in range(10):
        stock = iter(_shuffled(train, digit, random))
        sources = {"train": stock, "validation": stock, "test": stock}
        if test is not None:
            sources["test"] = iter(_shuffled(test, digit, random))
        for color in range(3):
            label = 3 * digit + color
            for part, count in (("train", sizes[label]), ("validation", in_validation), ("test", in_test)):
                images = list(islice(sources[part], count))
                if len(images) < count:
                    raise UserError(f"{name}: not enough images of the digit {digit} for draw {config.seed}")
                parts[part].append(_colored(torch.stack(images), color, random))
                labels[part] += [label] * count
    splits = {part: Split(torch.cat(images), torch.tensor(labels[part])) for part, images in parts.items()}
    said = f"draw {config.seed}: {len(splits['train'])} images, {min(sizes)} to {max(sizes)} of a class, from {note}"
    return Dataset(name, CLASSES, splits["train"], splits["validation"], splits["test"], (said,))


def _shuffled(split: Split, digit: int, random: torch.Generator) -> Tensor:
    """All images of a digit, in random order. No image is used twice, in whatever colour."""
    images = split.images[split.labels == digit]
    return images[torch.randperm(len(images), generator=random)]


def _colored(images: Tensor, color: int, random: torch.Generator) -> Tensor:
    """Bytes `(N, 1, H, W)` to `(N, 3, H, W)`: w·color + (1 − w)·grey with the digit's ink w in [0, 1]."""
    grey = (GREY + SPREAD * torch.randn(len(images), generator=random, dtype=torch.float64)).clamp(0, 1)
    ink = images.double() / 255
    paint = torch.eye(3, dtype=torch.float64)[color].view(1, 3, 1, 1)
    return ((ink * paint + (1 - ink) * grey[:, None, None, None]) * 255).round().to(torch.uint8)
