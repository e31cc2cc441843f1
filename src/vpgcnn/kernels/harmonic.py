"""Harmonic kernels: rings times circular harmonics, turned in closed form (as in E(2)-CNNs)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vpgcnn._ops.constants import constant
from vpgcnn.groups import Axis, Group, Product
from vpgcnn.kernels.base import KernelSpec, check_whole, tap_points
from vpgcnn.kernels.linear import LinearKernel

__all__ = ["Harmonic", "HarmonicKernel"]

RING = 0.6
"""The width of a ring in pixels, as a standard deviation."""
_gains: dict[tuple[Group, int, bool, float, int], float] = {}
"""Those that were computed, because networks have many layers alike."""


@dataclass(frozen=True)
class Harmonic(KernelSpec):
    """A smooth kernel of rings and circular harmonics, R(r)·e^{imφ}, times harmonics of the relative angle.

    It is linear in its numbers, so it learns as fast as a table, and it is turned in closed form, so it is there for
    any angle. The kernels of E(2)-CNNs (Weiler and Cesa, 2019) are made of the same functions. For any group.

        >>> GroupConv2d(16, 16, 5, SO2(8), kernel=Harmonic())

    Args:
        detail: At distance r from the centre, in pixels, frequencies m go up to detail·r. More is sharper, and less
            alike at angles between the pixels.
        order: The highest frequency on each circle of the group, at most what its grid can tell apart.
    """

    detail: float = 2.0
    order: int = 2

    def __post_init__(self) -> None:
        check_whole("order", self.order, 0)
        number = isinstance(self.detail, int | float) and not isinstance(self.detail, bool)
        if not (number and math.isfinite(self.detail) and self.detail >= 0):
            raise ValueError(f"detail must be a number of at least 0, got {self.detail!r}")

    def build(self, in_channels: int, out_channels: int, size: int, group: Group, *, lift: bool) -> HarmonicKernel:
        sizes = in_channels, out_channels, size
        return HarmonicKernel(*sizes, group, lift=lift, detail=self.detail, order=self.order)


class HarmonicKernel(LinearKernel):
    """A kernel of rings and harmonics: Σ weight·R_j(|x|)·(cos or sin)(m·∠R_u⁻¹x)·(harmonics of v⁻¹u).

    The distance |x| does not change when the plane is turned or mirrored, so the rings are constants; only the
    harmonics depend on u. Rings of the same frequency are made orthonormal over the taps, on average over all angles.
    Taps farther than half a pixel beyond the kernel's radius are 0. Built by `Harmonic`.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        size: Pixels of a side.
        group: The layer's group.
        lift: Whether the input is an image.
        detail: Frequencies for each pixel of distance from the centre.
        order: The highest frequency on each circle of the group.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        size: int,
        group: Group,
        *,
        lift: bool,
        detail: float = 2.0,
        order: int = 2,
    ) -> None:
        super().__init__(in_channels, out_channels, size, group, lift=lift)
        points, edge = tap_points(size), (size - 1) / 2
        distance = torch.linalg.vector_norm(points, dim=-1)
        taps = (distance <= edge + 0.5 + 1e-9).nonzero().squeeze(1)
        points, distance = points[taps], distance[taps].unsqueeze(1)
        radii = [edge - step for step in reversed(range(int(edge) + 1))]
        highest = [math.floor(detail * radius + 1e-9) for radius in radii]
        rings, part = [], []
        for m in range(max(highest) + 1):
            centres = points.new_tensor([radius for radius, most in zip(radii, highest, strict=True) if m <= most])
            ring = torch.exp(-(distance - centres).square() / (2 * RING**2))
            # With m > 0, nothing at the centre, which has no angle; elsewhere cos² and sin² are ½ on average.
            ring = _orthonormal(ring * (distance > 0)) * math.sqrt(2) if m else _orthonormal(ring)
            for place in (2 * m - 1, 2 * m) if m else (0,):
                rings.append(ring)
                part += [place] * ring.shape[1]
        self.detail, self.order = detail, order
        self.highest = max(highest)
        self.orders = () if lift else tuple(_highest(axis, order) for axis in group.axes)
        self.register_buffer("taps", taps, persistent=False)
        # Not buffers: a network in half precision would round them, and powers of a rounded angle are far off.
        self.directions = _numbers(points / distance.clamp_min(1e-9))
        self.rings, self.part = _numbers(torch.cat(rings, dim=1)), tuple(part)
        around = math.prod(_functions(axis, most) for axis, most in zip(group.axes, self.orders, strict=False))
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels, len(part) * around))
        self.start_at_unit_scale()

    def basis(self, u: Tensor, v: Tensor | None) -> Tensor:
        turned = constant(self.directions, u.dtype, u.device) @ self.group.plane(u)  # U T 2
        waves = torch.stack(_harmonics(turned[..., 0], turned[..., 1], self.highest), dim=-1)
        waves = waves.index_select(-1, constant(self.part, torch.long, u.device))
        place = constant(self.rings, u.dtype, u.device) * waves  # U T P
        if v is None or not self.orders:
            return place.unsqueeze(-3)
        relative = self.group.relative(u.unsqueeze(-2), v.unsqueeze(-3))
        around = torch.ones_like(relative[..., :1])
        for axis, most, angle in zip(self.group.axes, self.orders, relative.unbind(-1), strict=True):
            circle = _harmonics(torch.cos(angle), torch.sin(angle), most)
            if axis.order is not None and 2 * most == axis.order:
                circle = circle[:-1]  # the sine of the highest frequency is 0 on all elements
            scaled = [circle[0], *(math.sqrt(2) * wave for wave in circle[1:])]
            around = (around.unsqueeze(-1) * torch.stack(scaled, dim=-1).unsqueeze(-2)).flatten(-2)  # U V A
        return (place.unsqueeze(-3).unsqueeze(-1) * around.unsqueeze(-2).unsqueeze(-2)).flatten(-2)

    def _gain(self) -> float:
        settings = self.group, self.size, self.lift, self.detail, self.order  # the functions follow from these
        if settings not in _gains:
            _gains[settings] = self._gain_of_factors() if isinstance(self.group, Product) else super()._gain()
        return _gains[settings]

    def _gain_of_factors(self) -> float:
        """That of the factor that turns the plane; the waves on the other add about their mean square."""
        assert isinstance(self.group, Product)
        one, two = self.group.first, self.group.second
        turning, other = (two, one) if two.acts_on_plane else (one, two)
        with torch.random.fork_rng(devices=[]):  # the weights of this kernel must not depend on what is remembered
            like = HarmonicKernel(1, 1, self.size, turning, lift=self.lift, detail=self.detail, order=self.order)
        if self.lift:
            return like._gain()
        waves = math.prod(_functions(axis, _highest(axis, self.order)) for axis in other.axes)
        return like._gain() * waves / other.count

    def as_defined(self) -> bool:
        return self.inherits(HarmonicKernel, "expand", "basis", "columns", "mixing")

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, detail={self.detail:g}, order={self.order}"


def _numbers(matrix: Tensor) -> tuple[tuple[float, ...], ...]:
    return tuple(map(tuple, matrix.tolist()))


def _highest(axis: Axis, order: int) -> int:
    """The highest frequency on an axis: that of a finite one at most half its order, else what the grid can follow."""
    return min(order, axis.order // 2 if axis.order is not None else max(axis.count - 1, 0) // 2)


def _functions(axis: Axis, most: int) -> int:
    """How many cosines and sines there are up to a frequency."""
    return 2 * most if axis.order is not None and most and 2 * most == axis.order else 2 * most + 1


def _harmonics(cosine: Tensor, sine: Tensor, highest: int) -> list[Tensor]:
    """1, cos φ, sin φ, cos 2φ, sin 2φ, …, from cos φ and sin φ: polynomials, so nothing jumps at any angle."""
    waves = [torch.ones_like(cosine)]
    even, odd = cosine, sine
    for _ in range(highest):
        waves += [even, odd]
        even, odd = even * cosine - odd * sine, odd * cosine + even * sine
    return waves


def _orthonormal(columns: Tensor) -> Tensor:
    """The symmetric orthonormalisation of columns `(T, J)`: the nearest orthonormal ones; dependent ones vanish."""
    left, size, right = torch.linalg.svd(columns, full_matrices=False)
    return left * (size > 1e-3 * size.max()) @ right
