"""Functions of the absolute element: what kernels are made of that may break the symmetry.

Such a function is given by its values on the group's grid. A finite group has no other elements. On a continuous axis
the values in between follow by trigonometric interpolation, which is exact on the grid and keeps constants constant.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vpgcnn._ops.constants import constant
from vpgcnn.groups import Group

__all__ = ["at_elements", "at_pairs"]


def at_elements(values: Tensor, group: Group, u: Tensor, dim: int = 0) -> Tensor:
    """The values of a function at elements u, from its values on the grid.

    Args:
        values: `(..., G, ...)`, with the G elements of `group.grid()` along `dim`.
        group: The group.
        u: Elements `(U, K)`; all of them, in the order of the grid, for a finite group.
        dim: The axis of elements.

    Returns:
        `(..., U, ...)`.
    """
    if group.order is not None:
        if u.shape[0] != group.order:
            raise ValueError(f"expected the {group.order} elements of {group}, got {u.shape[0]}")
        return values
    along = values.movedim(dim, -1)
    return (along @ _interpolation(group, u).to(values.dtype).T).movedim(-1, dim)


def at_pairs(values: Tensor, group: Group, u: Tensor, v: Tensor | None) -> Tensor:
    """The expansion of a free kernel at output elements u and input elements v, from that on the grid.

    Args:
        values: `(O, G, C, G, k, k)`, or `(O, G, C, 1, k, k)` at a lift.
        group: The group.
        u: Output elements `(U, K)`.
        v: Input elements `(V, K)`; None at a lift.

    Returns:
        `(O, U, C, V, k, k)`. Applied to all input elements it averages over v, however many there are.
    """
    values = at_elements(values, group, u, dim=1)
    if v is None:
        return values
    return at_elements(values, group, v, dim=3) * (group.count / v.shape[0])


def _interpolation(group: Group, u: Tensor) -> Tensor:
    """The share `(U, G)` of each grid element in the value at each u: rows sum to 1."""
    apart = u.unsqueeze(1) - group.grid(dtype=u.dtype, device=u.device)  # U G K
    shares = []
    for angle, count in zip(apart.unbind(dim=-1), group.counts, strict=True):
        # All frequencies that the points of this axis can tell apart; an even number of them sees half of the last.
        last = count // 2
        factors = [1.0, *[2.0] * last]
        if count % 2 == 0:
            factors[-1] = 1.0
        frequencies = constant(tuple(range(last + 1)), u.dtype, u.device)
        amplitudes = constant(tuple(factor / count for factor in factors), u.dtype, u.device)
        shares.append((torch.cos(angle.unsqueeze(-1) * frequencies) * amplitudes).sum(dim=-1))
    return math.prod(shares[1:], start=shares[0])
