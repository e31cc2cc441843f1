"""Checks that layers share: what they are given, and sizes that break a symmetry."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch

from vpgcnn.features import GroupFeature
from vpgcnn.groups import Group

__all__ = ["EquivarianceWarning", "check_centred", "check_feature", "check_square"]


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


def check_feature(layer: object, feature: object) -> None:
    """Refuse anything but a feature on the group."""
    if not isinstance(feature, GroupFeature):
        raise TypeError(
            f"{type(layer).__name__} takes a GroupFeature, got {type(feature).__name__}: begin with LiftConv2d"
        )


def check_square(group: Group, height: int, width: int) -> None:
    """Warn when a group rotates images that are not square: a quarter turn does not map their frame onto itself."""
    if height == width or torch.compiler.is_compiling() or not group.acts_on_plane:
        return
    if all(axis.order is not None and axis.order <= 2 for axis in group.axes):
        return  # half turns and mirrors need no square
    warnings.warn(
        f"{group} rotates images, and {height}×{width} is not square: only half turns and mirrors are exact",
        EquivarianceWarning,
        stacklevel=4,
    )
