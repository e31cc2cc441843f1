"""How a feature lies in memory: map by map, or pixel by pixel.

Torch's default is map by map. Pixel by pixel (`torch.channels_last`), the channels and elements of one pixel lie
together. On a CPU, convolutions with few channels then need no reordering and take two thirds of the time.
The layout of the images is that of every feature made of them.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["Maps", "by_pixel", "flat", "laid_out_as", "over", "prefer_by_pixel", "sums", "unflat"]


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


class Maps:
    """Values `(B, C, G, H, W)` as torch's own layers see them, which do one thing to all of a map: `(B, C, G·H·W)`.

    What lies pixel by pixel is `(B, W·C·G, H, 1)`: a row of the image at once, of which each number is a map of its
    own. Torch's loops over channels are long then, and its threads do not write next to each other all the time.
    """

    def __init__(self, values: Tensor) -> None:
        self.shape, self.by_pixel = values.shape, by_pixel(values)
        self.row = self.shape[4], *self.shape[1:3]

    def __call__(self, values: Tensor) -> Tensor:
        """The view of values that lie as those do which this was made of."""
        return _pixels(values).flatten(2).transpose(1, 2).unsqueeze(-1) if self.by_pixel else values.flatten(2)

    def back(self, seen: Tensor) -> Tensor:
        """The view `(B, C, G, H, W)` of what a layer made of them."""
        if not self.by_pixel:
            return seen.view(self.shape)
        return seen.squeeze(-1).transpose(1, 2).unflatten(2, self.row).permute(0, 3, 4, 1, 2)

    def spread(self, *numbers: Tensor) -> tuple[Tensor, ...]:
        """Numbers `(C,)`, one for each channel of the values, as one for each map."""
        if not self.by_pixel:
            return numbers
        together = torch.stack(numbers).view(-1, 1, self.row[1], 1).expand(-1, *self.row)
        # One number by itself would be left expanded, and torch's kernels read on from where it lies.
        return together.reshape(len(numbers), -1).contiguous().unbind()

    def collect(self, numbers: Tensor) -> Tensor:
        """Numbers of maps, one each, as `(any, C, any)`, by the channels that they belong to."""
        return numbers.view(self.row) if self.by_pixel else numbers.view(1, -1, 1)

    def by_element(self, numbers: Tensor) -> Tensor:
        """Numbers `(B, 1, G)`, one for each element of each image, in a shape that goes with the view."""
        if self.by_pixel:
            return numbers.unsqueeze(1).expand(-1, *self.row).reshape(len(numbers), -1, 1, 1)
        return numbers.repeat_interleave(self.shape[-2] * self.shape[-1], dim=2)


def _pixels(values: Tensor) -> Tensor:
    return values.permute(0, 3, 4, 1, 2)
