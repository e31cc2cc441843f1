"""Quarter turns and mirrors of maps: the moves of the plane that put pixels on pixels."""

from __future__ import annotations

import torch
from torch import Tensor

from vpgcnn.conversion.views import Matrix
from vpgcnn.errors import UserError
from vpgcnn.groups import Group

__all__ = ["moved", "moves_of"]


def moves_of(group: Group) -> tuple[Matrix, ...]:
    """What each element of the grid does to the plane, as whole numbers."""
    planes = group.plane(group.grid(dtype=torch.float64))
    if float((planes - planes.round()).abs().max()) > 1e-6:
        raise UserError(f"{group} moves pixels off their grid: choose quarter turns or mirrors")
    return tuple(tuple(tuple(int(x) for x in row) for row in plane.round().tolist()) for plane in planes)  # type: ignore[misc]


def moved(maps: Tensor, matrix: Matrix) -> Tensor:
    """Maps `(…, H, W)` moved by a quarter turn or mirror: f(x) becomes f(A⁻¹x), points being (x right, y up)."""
    (a, b), (c, d) = matrix
    if a:
        flips = [axis for axis, sign in ((-1, a), (-2, d)) if sign < 0]
    else:
        if maps.shape[-1] != maps.shape[-2]:
            raise UserError(f"quarter turns need square images and maps, got {maps.shape[-2]}×{maps.shape[-1]}")
        maps = maps.transpose(-1, -2)
        flips = [axis for axis, sign in ((-1, b), (-2, c)) if sign > 0]
    return maps.flip(flips) if flips else maps
