"""Coloured digits with two symmetries, rotation and hue, each of which holds for some digits only."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from vpgcnn.errors import UserError
from vpgcnn.lab.data.base import Dataset, Split, seeded_generator
from vpgcnn.lab.data.colormnist import COLORS
from vpgcnn.lab.data.config import DataConfig
from vpgcnn.lab.data.mnist import split_digits

__all__ = ["CLASSES", "KINDS", "load_turn_hue"]

KINDS = {3: (True, True), 7: (True, False), 6: (False, True), 4: (False, False)}
"""For each digit: whether its class stays the same when it is rotated by 180°, and when its colour changes."""


def _class_names(digit: int, free_rotation: bool, free_hue: bool) -> list[str]:
    names = [str(digit)] if free_rotation else [str(digit), f"{digit} turned"]
    return names if free_hue else [f"{name} {color}" for name in names for color in COLORS]


CLASSES = tuple(
    name for digit, (free_rotation, free_hue) in KINDS.items() for name in _class_names(digit, free_rotation, free_hue)
)
"""One class of 3s; three of 7s, by colour; two of 6s, by orientation; six of 4s, by both."""


def load_turn_hue(config: DataConfig, root: Path) -> Dataset:
    """Load 3s, 4s, 6s and 7s in red, green or blue, upright and rotated by 180°.

    The class of a 3 depends on neither rotation nor colour, that of a 7 on its colour, that of a 6 on its
    orientation, and that of a 4 on both. So every combination of the two symmetries occurs, and neither of them
    predicts the other. Every digit appears twice, upright and rotated, each time in a random colour.
    `Split.reach` `(N, 2)` holds the true shares of rotations and hues.

    Args:
        config: `source`, `validation` and `seed` are used.
        root: The data directory.

    Raises:
        UserError: If a digit is missing from the training or test images.
    """
    parts, note = split_digits(config, root, KINDS)
    if min(len(images) for part in (parts[0], parts[2]) for images in part.values()) < 1:
        digits = ", ".join(map(str, KINDS))
        raise UserError(f"mnist-turn-hue needs at least one image of each of the digits {digits} to train and to test")
    splits = [_build_split(part, config.seed + index) for index, part in enumerate(parts)]
    return Dataset("mnist-turn-hue", CLASSES, splits[0], splits[1], splits[2], (note,))


def _build_split(images_of: dict[int, Tensor], seed: int) -> Split:
    """Paint every digit in a random colour, upright and rotated, and record its true share of each circle."""
    generator = seeded_generator(seed)
    images, labels, reach = [], [], []
    first_label = 0
    for digit, (free_rotation, free_hue) in KINDS.items():
        for rotated in (False, True):
            grey = images_of[digit].rot90(2, (-2, -1)) if rotated else images_of[digit]
            color = torch.randint(len(COLORS), (len(grey),), generator=generator)
            images.append(grey * torch.eye(len(COLORS), dtype=torch.uint8)[color][..., None, None])
            orientation = 0 if free_rotation else int(rotated)
            offset = torch.full_like(color, orientation) if free_hue else len(COLORS) * orientation + color
            labels.append(first_label + offset)
            shares = torch.tensor([[1.0 if free_rotation else 0.5, 1.0 if free_hue else 1 / len(COLORS)]])
            reach.append(shares.expand(len(grey), 2))
        first_label += len(_class_names(digit, free_rotation, free_hue))
    return Split(torch.cat(images), torch.cat(labels), torch.cat(reach))
