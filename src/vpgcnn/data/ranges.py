"""Digits whose range of rotations is known, image by image: what a level should find is written beside each."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from vpgcnn.data.base import Dataset, Split, seeded
from vpgcnn.data.config import DataConfig
from vpgcnn.data.mnist import digits_apart
from vpgcnn.errors import UserError
from vpgcnn.groups import SO2

__all__ = ["DIGITS", "KINDS", "load_ranges"]

DIGITS = (4, 7)
KINDS = ((1.0, 0.25, (-90, 90)), (0.75, 0.5, (180,)), (0.5, 1.0, ()))
"""For each range: the size of its digits, how far they may be turned as a share of the circle, and by which angles
(in degrees) the label becomes another. The change is expected half way."""
FREE = (0, 45, 90, 135, 180, -135, -90, -45)
JITTER = 5.0
"""Every digit is turned by up to so many degrees besides, so that all of them are interpolated alike."""


def load_ranges(config: DataConfig, root: Path) -> Dataset:
    """4s and 7s in three sizes. The size says how far a digit may be turned before it counts as "turned".

    Every digit is there twice. Of those that may be turned at will, at two of eight angles; of the others, upright
    and at an angle where the label is another. Where the change happens in between is not in the data: half way is the
    only answer without a preference. The size and the digit are independent: a level that is right must look
    at the image, and not at which digit it is.
    """
    parts, note = digits_apart(config, root, DIGITS)
    if min(len(images) for part in (parts[0], parts[2]) for images in part.values()) < len(KINDS):
        raise UserError("mnist-ranges needs a digit of each size in every part")
    classes = tuple(name for digit in DIGITS for name in (str(digit), f"{digit} turned"))
    made = [_made(list(part.values()), config.seed + place) for place, part in enumerate(parts)]
    return Dataset("mnist-ranges", classes, made[0], made[1], made[2], (note,))


def _made(base: list[Tensor], seed: int) -> Split:
    """Both pictures of every digit, in the size of its kind; kinds by turns."""
    generator = seeded(seed)
    images, labels, reach = [], [], []
    for digit, whole in enumerate(base):
        for kind, (size, share, others) in enumerate(KINDS):
            own = _resized(whole[kind :: len(KINDS)], size)
            for turned, angles in enumerate(((0,), others) if others else (FREE, FREE)):
                chosen = torch.tensor(angles)[torch.randint(len(angles), (len(own),), generator=generator)]
                jitter = JITTER * (2 * torch.rand(len(own), generator=generator) - 1)
                images.append(_turned(own, chosen + jitter))
                labels.append(torch.full((len(own),), 2 * digit + (turned if others else 0)))
                reach.append(torch.full((len(own),), share))
    return Split(torch.cat(images), torch.cat(labels), torch.cat(reach))


def _turned(images: Tensor, degrees: Tensor) -> Tensor:
    """Each by its own angle."""
    moved = SO2().transform(images.float(), torch.deg2rad(degrees)[:, None], mode="bicubic")
    return moved.round().clamp(0, 255).to(torch.uint8)


def _resized(images: Tensor, size: float) -> Tensor:
    """Smaller by this factor, in the middle of a frame as large as before."""
    side = images.shape[-1]
    inner = side - 2 * round(side * (1 - size) / 2)
    if inner == side:
        return images
    small = F.interpolate(images.float(), (inner, inner), mode="bilinear", antialias=True).round().to(torch.uint8)
    return F.pad(small, [(side - inner) // 2] * 4)
