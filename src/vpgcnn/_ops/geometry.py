"""Stride, padding and dilation of a convolution."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Geometry"]


class Geometry(NamedTuple):
    """How a kernel moves over the plane, as in `nn.Conv2d`.

    Args:
        stride: Pixels between two positions.
        padding: Zeros on each side.
        dilation: Pixels between two taps.
    """

    stride: int = 1
    padding: int = 0
    dilation: int = 1

    def positions(self, size: int, kernel_size: int) -> int:
        """The number of output positions along a side of `size` pixels."""
        return (size + 2 * self.padding - self.dilation * (kernel_size - 1) - 1) // self.stride + 1
