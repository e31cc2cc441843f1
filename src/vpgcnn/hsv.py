"""The hue shift of photo editors: of the hue in HSV, with saturation and value kept.

It is not the action of `Hue(m)`, which is linear: both permute the channels at multiples of 120° and agree there
and nowhere else. This one keeps colours inside the cube and bends at its edges; it is no rotation, and no
convolution is equivariant to it between those angles. Use it to see how a model answers to what people call another
hue, and for augmentation.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["shift_hue"]


def shift_hue(images: Tensor, shift: Tensor | float) -> Tensor:
    """Images `(…, 3, H, W)` in [0, 1] with their hue moved by `shift` of the circle, red → green → blue → red.

    shift: one number, 0.5 being the complementary colour, or one for each image, `(…)`.
    """
    if images.dim() < 3 or images.shape[-3] != 3 or not images.is_floating_point():
        raise ValueError(f"images are …×3×H×W numbers in [0, 1], got {images.dtype} {tuple(images.shape)}")
    moved = torch.as_tensor(shift, dtype=images.dtype, device=images.device)[..., None, None]
    value, which = images.max(dim=-3)
    chroma = value - images.amin(dim=-3)
    red, green, blue = images.unbind(dim=-3)
    over = torch.where(chroma > 0, chroma, 1)
    sixths = torch.where(which == 0, green - blue, torch.where(which == 1, blue - red, red - green)) / over
    hue = sixths + 2 * which + 6 * moved
    channels = []
    for place in (5, 3, 1):
        k = torch.remainder(hue + place, 6)
        channels.append(value - chroma * torch.minimum(k, 4 - k).clamp(0, 1))
    return torch.stack(channels, dim=-3)
