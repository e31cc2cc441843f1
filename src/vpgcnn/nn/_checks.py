"""Warnings about strides that break a symmetry."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch

from vpgcnn.groups import Group

__all__ = ["EquivarianceWarning", "check_centred"]


class EquivarianceWarning(UserWarning):
    """A combination of sizes makes a layer less equivariant than it claims to be."""


def check_centred(what: str, group: Group, sizes: Sequence[int], reach: int, stride: int, padding: int = 0) -> None:
    """Warn when the positions that a stride visits are not symmetric about the centre of the map.

    Args:
        what: Name of the operation, for the message.
        group: The layer's group; groups that leave the plane alone never warn.
        sizes: Height and width of the map.
        reach: Pixels that the kernel or window spans.
        stride: Pixels between two positions.
        padding: Zeros on each side.
    """
    if stride == 1 or group.order == 1 or not group.acts_on_plane or torch.compiler.is_compiling():
        return
    for size in sizes:
        rest = (size + 2 * padding - reach) % stride
        if not rest:
            continue
        warnings.warn(
            f"a {what} of size {reach} with stride {stride} and padding {padding} leaves {rest} pixel(s) of {size} "
            f"over on one side: it is not equivariant to {group} on this map",
            EquivarianceWarning,
            stacklevel=4,
        )
        return
