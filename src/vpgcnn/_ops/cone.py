"""Saturation and luminance of RGB colours, moved along circles.

A colour is its grey part, the mean ℓ of the channels, and what is left, c. Grey colours are the axis of a double cone
with its tips at black and white, the widest that fits into the RGB cube: |c| ≤ √1.5 · min(ℓ, 1 − ℓ). The saturation s
is |c| over that limit. Both ℓ and s lie in [0, 1], an interval, which is half of a circle seen from the side: with
s = |sin(t/2)| every s above 0 belongs to two angles, t and −t. A move adds to the angle t in [0, π], and the cone and
the hue stay. As long as t stays in [0, π], moves add up like angles; beyond, the colour comes back on the other side.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["move_luminance", "move_saturation", "widest"]

STEEPNESS = math.sqrt(1.5)
"""The radius of the double cone over the distance from its tip, along ℓ."""


def _along(share: Tensor, angle: Tensor) -> Tensor:
    """|sin(t/2 + angle/2)| for sin(t/2) = share in [0, 1] and t in [0, π]."""
    inside = 1 - share.square()
    positive = inside > 0
    cosine = torch.where(positive, inside, 1.0).sqrt() * positive.to(share.dtype)
    return (share * torch.cos(angle / 2) + cosine * torch.sin(angle / 2)).abs()


def widest(grey: Tensor) -> Tensor:
    """The largest |c| of the cone at each luminance."""
    return STEEPNESS * torch.minimum(grey, 1 - grey).clamp_min(0)


def move_saturation(images: Tensor, angle: Tensor) -> Tensor:
    """Colours of another saturation; hue and luminance stay, and so do grey pixels.

    Args:
        images: `(…, 3, H, W)` in [0, 1]. More saturated colours than the cone holds move as those on its surface do.
        angle: `(…)`, in radians; above 0 for more saturation.

    Returns:
        `(…, 3, H, W)`, in the precision of the images.
    """
    grey = images.mean(dim=-3, keepdim=True)
    rest = images - grey
    square = rest.square().sum(dim=-3, keepdim=True)
    colored = square > (16 * torch.finfo(images.dtype).eps) ** 2  # the mean of equal numbers is off by rounding
    size = torch.where(colored, square, 1.0).sqrt()
    limit = widest(grey)
    share = (size / torch.where(limit > 0, limit, 1e-30)).clamp_max(1)
    factor = _along(share, angle[..., None, None, None]) / share
    return grey + rest * torch.where(colored, factor, 1.0)


def move_luminance(images: Tensor, angle: Tensor) -> Tensor:
    """Colours of another luminance; hue and saturation stay.

    Args:
        images: `(…, 3, H, W)` in [0, 1].
        angle: `(…)`, in radians; above 0 for lighter colours.

    Returns:
        `(…, 3, H, W)`, in the precision of the images.
    """
    grey = images.mean(dim=-3, keepdim=True)
    share = grey.clamp(0, 1)
    moved = grey + (_along(share, angle[..., None, None, None]) - share)
    before, after = widest(grey), widest(moved)
    factor = torch.where(before > 0, after / torch.where(before > 0, before, 1.0), 1.0)
    return moved + (images - grey) * factor
