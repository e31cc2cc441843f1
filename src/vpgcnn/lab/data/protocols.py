"""Digits with known ranges of rotations, after the protocols of other papers: all ten classes."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from vpgcnn.errors import UserError
from vpgcnn.groups import SO2
from vpgcnn.lab.data.base import Dataset, Split, seeded_generator
from vpgcnn.lab.data.config import DataConfig
from vpgcnn.lab.data.mnist import split_digits

__all__ = ["DEGREES", "load_multiple", "load_symmetry_breaking"]

DEGREES = 18.0
"""In `mnist-multiple`, a digit c is rotated by up to c times this many degrees, either way."""
BROKEN = 0.5
"""In `mnist-symmetry-breaking`, the share of the 6s and 9s that are turned upside down, and become 9s and 6s."""


def load_multiple(config: DataConfig, root: Path) -> Dataset:
    """Load MNISTMultiple (after Urbano & Romero, 2023): the digit c rotated by a random angle within ±18c degrees.

    A 0 is always upright, a 9 is seen at nearly all angles. `Split.reach` `(N,)` holds the range of each image as a
    share of the circle, c/10. Some angles of a 6 and a 9 show the same picture: no network can be right about all.

    Args:
        config: `source`, `validation` and `seed` are used.
        root: The data directory.

    Raises:
        UserError: If a digit is missing from the training or test images.
    """
    parts, note = _all_digits("mnist-multiple", config, root)
    splits = [_rotated(part, config.seed + place) for place, part in enumerate(parts)]
    return Dataset("mnist-multiple", tuple("0123456789"), splits[0], splits[1], splits[2], (note,))


def load_symmetry_breaking(config: DataConfig, root: Path) -> Dataset:
    """Load SymmetryBreakingMNIST (after "Tunable Soft Equivariance", 2026): half of the 6s and 9s change places.

    Half of the 6s and of the 9s are turned by 180° and labelled as the other; the other digits are upright. So the
    direction counts for 6 and 9, whose range is half of the circle, and for no other digit: `Split.reach` `(N,)`.

    Args:
        config: `source`, `validation` and `seed` are used.
        root: The data directory.

    Raises:
        UserError: If a digit is missing from the training or test images.
    """
    parts, note = _all_digits("mnist-symmetry-breaking", config, root)
    splits = [_with_places_changed(part, config.seed + place) for place, part in enumerate(parts)]
    return Dataset("mnist-symmetry-breaking", tuple("0123456789"), splits[0], splits[1], splits[2], (note,))


def _all_digits(name: str, config: DataConfig, root: Path) -> tuple[list[dict[int, Tensor]], str]:
    parts, note = split_digits(config, root, range(10))
    for part in (parts[0], parts[2]):
        missing = [digit for digit, images in part.items() if not len(images)]
        if missing:
            raise UserError(f"{name} needs images of all digits to train and to test, but there is no {missing[0]}")
    return parts, note


def _rotated(images_of: dict[int, Tensor], seed: int) -> Split:
    generator = seeded_generator(seed)
    images, labels, reach = [], [], []
    for digit, upright in images_of.items():
        degrees = DEGREES * digit * (2 * torch.rand(len(upright), generator=generator) - 1)
        turned = SO2().transform(upright.float(), torch.deg2rad(degrees)[:, None], mode="bicubic")
        images.append(turned.round().clamp(0, 255).to(torch.uint8))
        labels.append(torch.full((len(upright),), digit))
        reach.append(torch.full((len(upright),), DEGREES * digit / 180))
    return Split(torch.cat(images), torch.cat(labels), torch.cat(reach))


def _with_places_changed(images_of: dict[int, Tensor], seed: int) -> Split:
    generator = seeded_generator(seed)
    images, labels, reach = [], [], []
    for digit, upright in images_of.items():
        changes = torch.zeros(len(upright), dtype=torch.bool)
        if digit in (6, 9):
            changes = torch.rand(len(upright), generator=generator) < BROKEN
        images.append(torch.where(changes[:, None, None, None], upright.rot90(2, (-2, -1)), upright))
        labels.append(torch.where(changes, 15 - digit, digit))
        reach.append(torch.full((len(upright),), 0.5 if digit in (6, 9) else 1.0))
    return Split(torch.cat(images), torch.cat(labels), torch.cat(reach))
