"""Moves: circles of transformations of images, to see how a model answers.

>>> turns = rotations(12)
>>> turns.places                          # degrees: 0, 30, …, 330
>>> rotated = turns(images, 30.0)         # images (B, C, H, W) in [0, 1]
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from vpgcnn.color import shift_hue
from vpgcnn.errors import UserError
from vpgcnn.groups import SO2, Hue

__all__ = ["MOVES", "Moves", "hues", "linear_hues", "moves_of", "rotations"]


@dataclass(frozen=True)
class Moves:
    """A circle of transformations, sampled evenly. The first place is the identity.

    Args:
        name: What people call it.
        unit: Unit of the places.
        whole: Once around the circle, in that unit.
        places: The samples.
        move: From images and a place (one for all images, or one for each) to moved images.
        colour: Whether it needs colour images.
    """

    name: str
    unit: str
    whole: float
    places: tuple[float, ...]
    move: Callable[[Tensor, Tensor | float], Tensor]
    colour: bool = False

    def __call__(self, images: Tensor, place: float) -> Tensor:
        """Images `(B, C, H, W)` in [0, 1], moved by `place`; at 0 the same tensor."""
        if self.colour and images.shape[1] != 3:
            raise UserError(f"{self.name} needs colour images, got {images.shape[1]} channel")
        return images if place == 0 else self.move(images, place)

    @property
    def exact(self) -> bool:
        """Whether moving there and back returns the same image, because no pixel is resampled."""
        return self.colour

    def shown(self, place: float) -> str:
        """A place as text, in degrees from −180° to 180°: hues too, which are shares of the circle elsewhere."""
        near = place - self.whole if place > self.whole / 2 else place
        return f"{near * 360 / self.whole:+.0f}°"

    def there_and_back(self, images: Tensor, place: float) -> Tensor:
        """Moved by `place` and back again: what resampling alone does."""
        return self(self(images, place), -place)


def _even(count: int, whole: float) -> tuple[float, ...]:
    if count < 2:
        raise UserError(f"a circle needs at least 2 places, got {count}")
    return tuple(whole * number / count for number in range(count))


def rotations(count: int = 12) -> Moves:
    """Rotations about the centre, in degrees, counter-clockwise; uncovered corners are black."""
    return Moves("rotation", "°", 360.0, _even(count, 360.0), _turned)


def hues(count: int = 12) -> Moves:
    """Shifts of the hue in HSV, as shares of the circle: a change of hue as people see it."""
    return Moves("hue", "of the circle", 1.0, _even(count, 1.0), shift_hue, colour=True)


def linear_hues(count: int = 12) -> Moves:
    """Rotations of RGB about the grey axis, as shares of the circle: the action of `Hue(m)`, without clipping."""
    return Moves("hue (the linear rotation of RGB)", "of the circle", 1.0, _even(count, 1.0), _mixed, colour=True)


MOVES = {"rotation": rotations, "hue": hues, "linear-hue": linear_hues}


def moves_of(name: str, count: int = 12) -> Moves:
    """Moves by name: "rotation", "hue" or "linear-hue"."""
    if name not in MOVES:
        raise UserError(f"unknown moves {name!r}: choose from {', '.join(MOVES)}")
    return MOVES[name](count)


def _turned(images: Tensor, degrees: Tensor | float) -> Tensor:
    angle = torch.deg2rad(torch.as_tensor(degrees, dtype=images.dtype, device=images.device))
    return SO2().transform(images, angle[:, None] if angle.dim() else angle, mode="bicubic").clamp(0, 1)


def _mixed(images: Tensor, share: Tensor | float) -> Tensor:
    angle = 2 * math.pi * torch.as_tensor(share, dtype=images.dtype, device=images.device)
    return Hue(360).transform(images, angle[:, None] if angle.dim() else angle)
