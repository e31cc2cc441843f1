"""Table kernels: one number for each relative element and tap, for finite groups."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vpgcnn._ops import choice, cyclic
from vpgcnn._ops.active import can_read
from vpgcnn._ops.autograd import Function, apply
from vpgcnn._ops.constants import constant
from vpgcnn._ops.geometry import Geometry
from vpgcnn._ops.memory_format import is_channels_last
from vpgcnn._ops.precision import full_precision
from vpgcnn.groups import Group, relative_index
from vpgcnn.kernels.base import RELU_GAIN, Kernel, KernelSpec, tap_points

__all__ = ["Table", "TableKernel", "has_table", "spread_index"]


@dataclass(frozen=True)
class Table(KernelSpec):
    """A free number for each relative element and tap. For finite groups that move taps onto taps.

    Args:
        separable: Whether each (out, in) pair is a spatial kernel times a function on the group (CEConv).
    """

    separable: bool = False

    def build(self, in_channels: int, out_channels: int, size: int, group: Group, *, lift: bool) -> TableKernel:
        return TableKernel(in_channels, out_channels, size, group, lift=lift, separable=self.separable)


class TableKernel(Kernel):
    """Equivariant to a finite group that moves taps onto taps: Hue(m), C_1, C_2, C_4, D_1, D_2, D_4.

    One number for each (out, in, relative element, tap): k/G, so that sums over elements are averages.
    Turning is by index, so it is exact. Built by `Table`.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        size: Pixels of a side.
        group: The layer's group.
        lift: Whether the input is an image.
        separable: Whether each (out, in) pair is a spatial kernel times a function on the group (CEConv).
    """

    spread: Tensor
    gathered: Tensor
    allow_cyclic = True
    """Whether the cyclic algorithm may be used where it pays; without it every path is `expand` + `conv2d`."""

    def __init__(
        self, in_channels: int, out_channels: int, size: int, group: Group, *, lift: bool, separable: bool = False
    ) -> None:
        super().__init__(in_channels, out_channels, size, group, lift=lift)
        if not has_table(group):
            raise ValueError(f"{group} does not move the taps of a k×k kernel onto each other: use kernel=Harmonic()")
        count = 1 if lift else group.order or 1
        spread, gathered = spread_index(group, in_channels, size, lift)
        self.register_buffer("spread", spread, persistent=False)
        self.register_buffer("gathered", gathered, persistent=False)
        pairs = (out_channels, in_channels)
        self.weight = nn.Parameter(torch.empty(*pairs, *(() if lift or separable else (count,)), size, size))
        self.group_weight = nn.Parameter(torch.empty(*pairs, count)) if separable and not lift else None
        gain = 1.0 if lift else RELU_GAIN
        nn.init.normal_(self.weight, std=math.sqrt(gain / (in_channels * count * size**2)))
        if self.group_weight is not None:
            nn.init.normal_(self.group_weight)

    def table(self) -> Tensor:
        """k/G itself, `(O, C, G, k, k)`; G is 1 at a lift."""
        if self.lift:
            return self.weight.unsqueeze(2)
        if self.group_weight is None:
            return self.weight
        return self.weight.unsqueeze(2) * self.group_weight[..., None, None]

    def expand(self, u: Tensor, v: Tensor | None) -> Tensor:
        self._check_grid("output", u)
        if not self.lift:
            self._check_grid("input", v)
        rows = self.table().flatten(1, 2 if self.spread.dim() == 3 else -1)
        weight: Tensor = apply(_Spread, rows, self.spread.flatten(), self.gathered)
        shape = (self.out_channels, u.shape[0], self.in_channels, 1 if v is None else v.shape[0])
        return self.undo_colors(weight.reshape(*shape, self.size, self.size), u)

    def fold(self, u: Tensor, v: Tensor | None) -> Tensor:
        if self._cyclic() and cyclic.pays_anywhere(self._shape()):
            return self._analyse()
        return super().fold(u, v)

    def convolve(
        self,
        values: Tensor,
        weights: Tensor | None,
        v: Tensor | None,
        u: Tensor,
        geometry: Geometry,
        *,
        bias: Tensor | None = None,
        folded: Tensor | None = None,
    ) -> Tensor:
        quick = self._is_faster(values, weights, v, u, geometry) if folded is None else folded.dim() == 5
        if not quick:
            if folded is None and u.dim() == 2:
                folded = super().fold(u, v) if self.inherits(TableKernel, "fold") else self.fold(u, v)
            return super().convolve(values, weights, v, u, geometry, bias=bias, folded=folded)
        out = self._by_cyclic(values, weights, geometry, folded)
        return out if bias is None else out + bias.to(out.dtype)[:, None, None, None]

    def _by_cyclic(
        self, values: Tensor, weights: Tensor | None, geometry: Geometry, folded: Tensor | None = None
    ) -> Tensor:
        """The convolution without bias by the cyclic algorithm."""
        analysed = (self._analyse() if folded is None else folded).to(values.dtype)
        # The table averages over elements already, so weights are relative to the average.
        relative = None if weights is None else (weights * weights.shape[1]).to(values.dtype)
        return cyclic.convolve(values, relative, analysed, *geometry)

    def _is_faster(
        self, values: Tensor, weights: Tensor | None, v: Tensor | None, u: Tensor, geometry: Geometry
    ) -> bool:
        """Whether to take the cyclic path: by the rule, or by measurements where these are wanted."""
        rule = self._map_pays(values, geometry)
        if not (choice.is_measuring(values) and u.dim() == 2 and self._can_be_cyclic() and can_read(self.weight)):
            return rule
        shape, separable = self._shape(), self.group_weight is not None
        key = choice.key_of("table", values, *shape, *geometry, separable, weights is not None)

        def expanded(x: Tensor, w: Tensor | None = None) -> Tensor:
            return Kernel.convolve(self, x, w, v, u, geometry, folded=Kernel.fold(self, u, v))

        def by_cyclic(x: Tensor, w: Tensor | None = None) -> Tensor:
            return self._by_cyclic(x, w, geometry)

        tensors, programs = [values], {"expanded": expanded, "cyclic": by_cyclic}
        tensors += [] if weights is None else [weights]
        name = choice.choose(key, "cyclic" if rule else "expanded", tensors, programs, self.parameters())
        return name == "cyclic"

    @property
    def can_skip(self) -> bool:
        return self.inherits(TableKernel, "convolve", "fold")

    def whole_pays(self, values: Tensor, geometry: Geometry, pairs: int) -> bool:
        # The transforms of the cyclic algorithm take about half as long as its products.
        return pairs > 1.5 * cyclic.products(self.group.order or 1) and self._map_pays(values, geometry)

    def fold_some(
        self, u: Tensor, v: Tensor | None, rows: Sequence[int], columns: Sequence[int], folded: Tensor | None = None
    ) -> Tensor:
        if (folded is not None and folded.dim() == 4) or not self.inherits(TableKernel, "expand", "table"):
            return super().fold_some(u, v, rows, columns, folded)
        outer, inner = (constant(tuple(each), torch.long, self.spread.device) for each in (rows, columns))
        spread = self.spread[outer] if self.lift else self.spread[outer][:, :, inner]
        with full_precision(u.device):
            entries = self.table().flatten(1, 2 if self.spread.dim() == 3 else -1).index_select(1, spread.flatten())
            shape = (self.out_channels, len(rows), self.in_channels, len(columns), self.size, self.size)
            weight = self.undo_colors(entries.reshape(shape), u[outer])
        weight = weight.flatten(2, 3).flatten(0, 1)
        return weight if self.lift else weight * (self.spread.shape[2] / len(columns))

    def _shape(self) -> cyclic.Shape:
        return cyclic.Shape(self.group.order or 1, self.in_channels, self.out_channels, self.size)

    def _cyclic(self) -> bool:
        """Whether the cyclic algorithm computes what `expand` says, and could pay."""
        return self._can_be_cyclic() and cyclic.could_pay(self._shape())

    def _can_be_cyclic(self) -> bool:
        """Whether the cyclic algorithm computes what `expand` says."""
        circle = not (self.lift or self.group.acts_on_plane) and len(self.group.axes) == 1
        return self.allow_cyclic and circle and self.group.count > 1 and self.inherits(TableKernel, "expand", "fold")

    def _analyse(self) -> Tensor:
        with full_precision(self.weight.device):
            return cyclic.analyse(self.table())

    def _map_pays(self, values: Tensor, geometry: Geometry) -> bool:
        """Whether to take the cyclic path for this map."""
        if not self._cyclic():
            return False
        if is_channels_last(values) and not cyclic.pays_anywhere(self._shape()):
            return False  # a narrow convolution that needs no reordering is faster still
        rows, columns = (geometry.positions(side, self.size) for side in values.shape[-2:])
        return cyclic.pays(self._shape(), rows * columns)

    def _check_grid(self, which: str, elements: Tensor | None) -> None:
        got = None if elements is None else tuple(elements.shape)
        if got != (self.group.order, len(self.group.axes)):
            raise ValueError(
                f"the {which} of a table kernel has the {self.group.order} elements of {self.group}, got {got}"
            )


class _Spread(Function):
    """Copy rows `(O, N, …)` of a table to the places `(M,)` that need them.

    Every row is needed once for each output element, so the gradient is a sum of U gathers, at the
    places `(U, N)`: much faster than the scatter that autograd would take.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(rows: Tensor, spread: Tensor, gathered: Tensor) -> Tensor:
        return rows.index_select(1, spread)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[2])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (gathered,) = ctx.saved_tensors
        parts = grads[0].index_select(1, gathered.flatten())
        return parts.unflatten(1, gathered.shape).sum(dim=1), None, None


def spread_index(group: Group, channels: int, size: int, lift: bool) -> tuple[Tensor, Tensor]:
    """Where each expanded weight comes from, and where each table entry goes.

    With taps that stay, a row is a pair (c, g) with its k² taps: `(U, C, V)` and `(U, C·G)`. With taps
    that turn, it is a single number (c, g, x): `(U, C, V, k²)` and `(U, C·G·k²)`.
    """
    count, taps = group.order or 1, size**2
    relative = torch.zeros(count, 1, dtype=torch.long) if lift else relative_index(group)  # (U, V)
    inner = relative.shape[1]
    spread = torch.arange(channels)[None, :, None] * inner + relative[:, None, :]
    turned = _turned_taps(group, size)
    if turned is not None:
        spread = spread.unsqueeze(-1) * taps + turned[:, None, None, :]
    gathered = spread.flatten(1).argsort(dim=1)  # each row of `spread` is a permutation
    return spread, gathered + torch.arange(count).unsqueeze(1) * gathered.shape[1]


def has_table(group: Group) -> bool:
    """Whether every element of the group maps k×k taps onto each other."""
    if group.order is None:
        return False
    plane = group.plane(group.grid(dtype=torch.float64))
    return bool((plane == plane.round()).all())


def _turned_taps(group: Group, size: int) -> Tensor | None:
    """Positions `(U, k²)` of R_u⁻¹x among the taps x; None when the group leaves the plane alone."""
    if not group.acts_on_plane:
        return None
    points = tap_points(size)
    source = points @ group.plane(group.grid(dtype=torch.float64))  # rows x: (R_uᵀ x)ᵀ = xᵀ R_u
    column = (source[..., 0] + (size - 1) / 2).round().long()
    row = ((size - 1) / 2 - source[..., 1]).round().long()
    return row * size + column
