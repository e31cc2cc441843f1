"""How a feature lies in memory: map by map, or pixel by pixel.

Torch's default is map by map. Pixel by pixel (`torch.channels_last`), the channels and elements of one pixel lie
together. On a CPU, convolutions with few channels then need no reordering and take two thirds of the time.
The layout of the images is that of every feature made of them.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = [
    "by_maps",
    "by_pixel",
    "flat",
    "laid_out_as",
    "maps",
    "of_maps",
    "over",
    "prefer_by_pixel",
    "sums",
    "unflat",
]


def by_pixel(values: Tensor) -> bool:
    """Whether values `(B, C, G, H, W)` lie pixel by pixel, and not also map by map."""
    return not values.is_contiguous() and _pixels(values).is_contiguous()


def prefer_by_pixel(images: Tensor) -> Tensor:
    """Images `(B, C, H, W)` laid out pixel by pixel where that is faster: on a CPU."""
    return images.contiguous(memory_format=torch.channels_last) if images.device.type == "cpu" else images


def laid_out_as(values: Tensor, model: Tensor) -> Tensor:
    """Values `(B, C, G, H, W)`, copied if they do not lie in memory as the model does."""
    if by_pixel(model):
        return _pixels(values).contiguous().permute(0, 3, 4, 1, 2)
    return values.contiguous()


def flat(values: Tensor) -> Tensor:
    """A view that torch passes over quickly: `(B, H·W, C·G)` of what lies pixel by pixel, other values as they are."""
    return _pixels(values).flatten(3, 4).flatten(1, 2) if by_pixel(values) else values


def unflat(rows: Tensor, shape: torch.Size) -> Tensor:
    """The view `(B, C, G, H, W)` of what `flat` made."""
    if rows.dim() == 5:
        return rows
    return rows.unflatten(2, shape[1:3]).unflatten(1, shape[3:]).permute(0, 3, 4, 1, 2)


def over(numbers: Tensor, rows: Tensor, shape: torch.Size) -> Tensor:
    """Numbers `(B or 1, C, G or 1)`, one for each map, in a shape that goes with `rows = flat(values)`."""
    if rows.dim() == 5:
        return numbers[..., None, None]
    return numbers.expand(-1, -1, shape[2]).reshape(len(numbers), 1, -1)


def sums(rows: Tensor, shape: torch.Size) -> Tensor:
    """The sum of each map, `(B, C, G)`, of `rows = flat(values)`."""
    if rows.dim() == 5:
        return rows.flatten(-2) @ rows.new_ones(shape[-2] * shape[-1])  # small maps are slow to sum
    ones = rows.new_ones(1, 1, rows.shape[1]).expand(rows.shape[0], -1, -1)
    return torch.bmm(ones, rows).view(-1, *shape[1:3])  # a product with ones: many times as fast as a sum


def maps(values: Tensor) -> Tensor:
    """A view for torch's own layers: `(B, C·G, H, W)` of what lies pixel by pixel, `(B, C, G·H·W)` of other values."""
    return values.flatten(1, 2) if by_pixel(values) else values.flatten(2)


def of_maps(numbers: Tensor, values: Tensor) -> Tensor:
    """Numbers `(C,)`, one for each channel of `maps(values)`."""
    return numbers.repeat_interleave(values.shape[2]) if by_pixel(values) else numbers


def by_maps(numbers: Tensor, values: Tensor) -> Tensor:
    """Numbers `(B, 1, G)`, one for each element of each image, in a shape that goes with `maps(values)`."""
    if by_pixel(values):
        return numbers.expand(-1, values.shape[1], -1).flatten(1)[..., None, None]
    return numbers.repeat_interleave(values.shape[-2] * values.shape[-1], dim=2)


def _pixels(values: Tensor) -> Tensor:
    return values.permute(0, 3, 4, 1, 2)
