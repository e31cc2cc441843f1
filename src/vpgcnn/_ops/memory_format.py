"""The memory format of features: contiguous or channels last.

In the channels-last format the channels and elements of a pixel are adjacent in memory. On a CPU, convolutions with
few channels then need no reordering and take two thirds of the time. Layers keep the format of their input, so the
format of the images decides.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["Maps", "flat", "is_channels_last", "laid_out_as", "over", "prefer_channels_last", "sums", "unflat"]


def is_channels_last(values: Tensor) -> bool:
    """Whether values `(B, C, G, H, W)` are in the channels-last format and not contiguous as well."""
    return not values.is_contiguous() and _pixels(values).is_contiguous()


def prefer_channels_last(images: Tensor) -> Tensor:
    """Convert images `(B, C, H, W)` to the channels-last format where that is faster: on a CPU."""
    return images.contiguous(memory_format=torch.channels_last) if images.device.type == "cpu" else images


def laid_out_as(values: Tensor, model: Tensor) -> Tensor:
    """Values `(B, C, G, H, W)` in the memory format of `model`, copied if necessary."""
    if is_channels_last(model):
        return _pixels(values).contiguous().permute(0, 3, 4, 1, 2)
    return values.contiguous()


def flat(values: Tensor) -> Tensor:
    """A view that torch iterates over fast: `(B, H·W, C·G)` of channels-last values, other values unchanged."""
    return _pixels(values).flatten(3, 4).flatten(1, 2) if is_channels_last(values) else values


def unflat(rows: Tensor, shape: torch.Size) -> Tensor:
    """Undo `flat`: a view `(B, C, G, H, W)`."""
    if rows.dim() == 5:
        return rows
    return rows.unflatten(2, shape[1:3]).unflatten(1, shape[3:]).permute(0, 3, 4, 1, 2)


def over(numbers: Tensor, rows: Tensor, shape: torch.Size) -> Tensor:
    """Reshape numbers `(B or 1, C, G or 1)`, one for each map, to broadcast against `rows = flat(values)`."""
    if rows.dim() == 5:
        return numbers[..., None, None]
    return numbers.expand(-1, -1, shape[2]).reshape(numbers.shape[0], 1, -1)


def sums(rows: Tensor, shape: torch.Size) -> Tensor:
    """Sum each map of `rows = flat(values)`: `(B, C, G)`."""
    if rows.dim() == 5:
        return rows.flatten(-2) @ rows.new_ones(shape[-2] * shape[-1])  # faster than a sum over small maps
    ones = rows.new_ones(1, 1, rows.shape[1]).expand(rows.shape[0], -1, -1)
    return torch.bmm(ones, rows).view(-1, *shape[1:3])  # many times as fast as a sum


class Maps:
    """A view of values `(B, C, G, H, W)` for torch's own layers, which treat all numbers of a channel alike.

    The view is `(B, C, G·H·W)` for contiguous values and `(B, W·C·G, H, 1)` for channels-last ones, with a whole
    row of the image as channels. Torch's loops over channels are then long, and its threads rarely write to
    adjacent memory.

    Args:
        values: The values, or others of the same shape and memory format.
    """

    def __init__(self, values: Tensor) -> None:
        self.shape, self.channels_last = values.shape, is_channels_last(values)
        self.row = self.shape[4], *self.shape[1:3]

    def __call__(self, values: Tensor) -> Tensor:
        """The view of values in the same shape and memory format."""
        return _pixels(values).flatten(2).transpose(1, 2).unsqueeze(-1) if self.channels_last else values.flatten(2)

    def back(self, seen: Tensor) -> Tensor:
        """The view `(B, C, G, H, W)` of a layer's output."""
        if not self.channels_last:
            return seen.view(self.shape)
        return seen.squeeze(-1).transpose(1, 2).unflatten(2, self.row).permute(0, 3, 4, 1, 2)

    def spread(self, *numbers: Tensor) -> tuple[Tensor, ...]:
        """Expand numbers `(C,)`, one for each channel of the values, to one for each channel of the view."""
        if not self.channels_last:
            return numbers
        together = torch.stack(numbers).view(-1, 1, self.row[1], 1).expand(-1, *self.row)
        # Torch's kernels read contiguous memory, which a single expanded number is not.
        return together.reshape(len(numbers), -1).contiguous().unbind()

    def collect(self, numbers: Tensor) -> Tensor:
        """Arrange numbers, one for each channel of the view, by the channel of the values: `(…, C, …)`."""
        return numbers.view(self.row) if self.channels_last else numbers.view(1, -1, 1)

    def by_element(self, numbers: Tensor) -> Tensor:
        """Reshape numbers `(B, 1, G)`, one for each element of each image, to broadcast against the view."""
        if self.channels_last:
            return numbers.unsqueeze(1).expand(-1, *self.row).reshape(numbers.shape[0], -1, 1, 1)
        return numbers.repeat_interleave(self.shape[-2] * self.shape[-1], dim=2)


def _pixels(values: Tensor) -> Tensor:
    return values.permute(0, 3, 4, 1, 2)
