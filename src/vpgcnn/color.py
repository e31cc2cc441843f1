"""The hue shift of photo editors: it changes the hue in HSV and keeps saturation and value.

This is not the action of `Hue(m)`, which is linear. Both permute the channels at multiples of 120° and agree only
there. The HSV shift keeps colours inside the RGB cube but is not a rotation, and no convolution is equivariant to it
between those angles. Use it for augmentation, and to test how a model responds to what people call another hue.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["shift_hue"]


def shift_hue(images: Tensor, shift: Tensor | float) -> Tensor:
    """Shift the hue of images, red → green → blue → red.

    Args:
        images: `(…, 3, H, W)`, floating point, in [0, 1].
        shift: Share of the colour circle, one for all images or `(…)`; 0.5 gives complementary colours.

    Returns:
        Images of the same shape.

    Raises:
        ValueError: If the images are not RGB or not floating point.
    """
    if images.dim() < 3 or images.shape[-3] != 3 or not images.is_floating_point():
        raise ValueError(f"images must be …×3×H×W, floating point, got {images.dtype} {tuple(images.shape)}")
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
