"""Where a stride would quietly break a symmetry."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch

from vpgcnn.groups import Group

__all__ = ["EquivarianceWarning", "check_centred"]


class EquivarianceWarning(UserWarning):
    """A size was used that makes a layer less equivariant than its name says."""


def check_centred(what: str, group: Group, sizes: Sequence[int], reach: int, stride: int, padding: int = 0) -> None:
    """Warn when the positions that a stride visits are not symmetric about the image's centre."""
    if stride == 1 or group.order == 1 or not group.acts_on_plane or torch.compiler.is_compiling():
        return
    for size in sizes:
        rest = (size + 2 * padding - reach) % stride
        if not rest:
            continue
        warnings.warn(
            f"a {what} of size {reach} with stride {stride} and padding {padding} leaves {rest} pixel(s) of {size} "
            f"over on one side: it is not equivariant to {group} there",
            EquivarianceWarning,
            stacklevel=4,
        )
        return
