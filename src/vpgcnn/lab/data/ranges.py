"""Digits whose range of rotations is known for every image: the ground truth for what a level should find."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from vpgcnn.errors import UserError
from vpgcnn.groups import SO2
from vpgcnn.lab.data.base import Dataset, Split, seeded_generator
from vpgcnn.lab.data.config import DataConfig
from vpgcnn.lab.data.mnist import split_digits

__all__ = ["DIGITS", "EIGHTH", "KINDS", "load_eighth", "load_ranges"]

Kinds = tuple[tuple[float, float, tuple[int, ...]], ...]
DIGITS = (4, 7)
KINDS: Kinds = ((1.0, 0.25, (-90, 90)), (0.75, 0.5, (180,)), (0.5, 1.0, ()))
"""For each range: the scale of its digits, the range as a share of the circle, and the angles in degrees at which the
class is another. The boundary is expected half way to these angles."""
EIGHTH = ((1.0, 0.125, (-45, 45)), *KINDS[1:])
"""The same with a narrower range: the largest digits change class at an eighth of a turn."""
FREE_ANGLES = (0, 45, 90, 135, 180, -135, -90, -45)
"""The angles in degrees of digits whose class never changes."""
JITTER = 5.0
"""Every digit is rotated by up to this many additional degrees, so that all images are interpolated alike."""


def load_ranges(config: DataConfig, root: Path) -> Dataset:
    """Load 4s and 7s in three sizes whose ranges are a quarter, a half and all of the circle; see `_load`."""
    return _load("mnist-ranges", KINDS, config, root)


def load_eighth(config: DataConfig, root: Path) -> Dataset:
    """Load 4s and 7s in three sizes whose ranges are an eighth, a half and all of the circle; see `_load`."""
    return _load("mnist-ranges-eighth", EIGHTH, config, root)


def _load(name: str, kinds: Kinds, config: DataConfig, root: Path) -> Dataset:
    """Load 4s and 7s in three sizes; the size determines how far a digit may rotate before its class is "turned".

    Every digit appears twice: at two of eight angles if its class never changes, otherwise upright and at an angle
    where the class is another. The data do not show where the class changes in between; half way is the only
    unbiased answer. Size and digit are independent, so a level must look at the image and cannot rely on the digit
    alone. `Split.reach` `(N,)` holds the true range of each image.

    Args:
        name: The name of the dataset.
        kinds: The scale, the range and the angles of each size.
        config: `source`, `validation` and `seed` are used.
        root: The data directory.

    Raises:
        UserError: If there are not enough digits for all sizes in the training and test images.
    """
    parts, note = split_digits(config, root, DIGITS)
    if min(len(images) for part in (parts[0], parts[2]) for images in part.values()) < len(kinds):
        digits = " and ".join(map(str, DIGITS))
        raise UserError(
            f"{name} needs at least {len(kinds)} images of each of the digits {digits} to train and to test"
        )
    classes = tuple(name for digit in DIGITS for name in (str(digit), f"{digit} turned"))
    splits = [_build_split(list(part.values()), kinds, config.seed + index) for index, part in enumerate(parts)]
    return Dataset(name, classes, splits[0], splits[1], splits[2], (note,))


def _build_split(images_of_digits: list[Tensor], kinds: Kinds, seed: int) -> Split:
    """Make both images of every digit; successive digits take the three sizes in turn."""
    generator = seeded_generator(seed)
    images, labels, reach = [], [], []
    for digit, originals in enumerate(images_of_digits):
        for kind, (scale, share, changed_at) in enumerate(kinds):
            scaled = _scale(originals[kind :: len(kinds)], scale)
            for turned, angles in enumerate(((0,), changed_at) if changed_at else (FREE_ANGLES, FREE_ANGLES)):
                angle = torch.tensor(angles)[torch.randint(len(angles), (len(scaled),), generator=generator)]
                jitter = JITTER * (2 * torch.rand(len(scaled), generator=generator) - 1)
                images.append(_rotate(scaled, angle + jitter))
                labels.append(torch.full((len(scaled),), 2 * digit + (turned if changed_at else 0)))
                reach.append(torch.full((len(scaled),), share))
    return Split(torch.cat(images), torch.cat(labels), torch.cat(reach))


def _rotate(images: Tensor, degrees: Tensor) -> Tensor:
    """Rotate each image `(N, C, H, W)` by its angle `(N,)`."""
    rotated = SO2().transform(images.float(), torch.deg2rad(degrees)[:, None], mode="bicubic")
    return rotated.round().clamp(0, 255).to(torch.uint8)


def _scale(images: Tensor, factor: float) -> Tensor:
    """Shrink images by a factor, in the centre of a black frame of the original size."""
    side = images.shape[-1]
    inner = side - 2 * round(side * (1 - factor) / 2)
    if inner == side:
        return images
    small = F.interpolate(images.float(), (inner, inner), mode="bilinear", antialias=True).round().to(torch.uint8)
    return F.pad(small, [(side - inner) // 2] * 4)
