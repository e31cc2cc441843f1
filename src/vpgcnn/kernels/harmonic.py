"""Harmonic kernels: rings times waves around the centre (circular harmonics), which turn in closed form."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vpgcnn.groups import Group, even_grid
from vpgcnn.kernels.base import RELU_GAIN, Kernel, KernelSpec, check_whole, tap_points

__all__ = ["Harmonic", "HarmonicKernel"]

WIDTH = 0.6
"""Standard deviation of a ring, in pixels."""


@dataclass(frozen=True)
class Harmonic(KernelSpec):
    """Circular harmonics R(r)·e^{imφ} with free coefficients, as in steerable CNNs (E(2)-CNN, 2019). For any group.

    R are Gaussian rings, one for each pixel of the radius. A ring of radius r has waves of up to 2r periods: more would
    alias. A turn by u multiplies e^{imφ} by e^{−imu}, so kernels turn without interpolation. On the group, functions of
    the relative element are waves too.

        >>> GroupConv2d(16, 16, 5, SO2(8), kernel=Harmonic())

    Args:
        frequency: The highest m; None for as many as each ring can hold.
        around: The highest frequency along each circle of the group.
    """

    frequency: int | None = None
    around: int = 2

    def __post_init__(self) -> None:
        if self.frequency is not None:
            check_whole("frequency", self.frequency, 0)
        check_whole("around", self.around, 0)

    def build(self, in_channels: int, out_channels: int, size: int, group: Group, *, lift: bool) -> HarmonicKernel:
        return HarmonicKernel(in_channels, out_channels, size, group, lift=lift, spec=self)


class HarmonicKernel(Kernel):
    """Equivariant: a sum of rings times waves of R_u⁻¹x and of the relative element. Built by `Harmonic`.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        size: Pixels of a side.
        group: The layer's group.
        lift: Whether the input is an image.
        spec: The other settings.
    """

    points: Tensor
    rings: Tensor

    def __init__(
        self, in_channels: int, out_channels: int, size: int, group: Group, *, lift: bool, spec: Harmonic
    ) -> None:
        super().__init__(in_channels, out_channels, size, group, lift=lift)
        self.spec = spec
        points = tap_points(size)
        radius = torch.linalg.vector_norm(points, dim=-1)
        middles = [ring + (0.0 if size % 2 else 0.5) for ring in range((size + 1) // 2)]
        # (ring, m), in the order of the coefficients; m > 0 has a cosine and a sine.
        self.waves = [
            (ring, m)
            for ring, middle in enumerate(middles)
            for m in range(min(int(2 * middle), int(2 * middle) if spec.frequency is None else spec.frequency) + 1)
        ]
        rings = torch.exp(-(radius[:, None] - torch.tensor(middles)).square() / (2 * WIDTH**2))
        if group.acts_on_plane:  # a disc, which turns onto itself
            rings = rings * (radius[:, None] <= max(size / 2, 0.5) + 1e-9)
        dtype = torch.get_default_dtype()
        self.register_buffer("points", points.to(dtype), persistent=False)
        self.register_buffer("rings", rings.to(dtype), persistent=False)
        grid = even_grid(group.counts)
        on_plane = self.on_plane(grid)
        on_group = self.on_group(grid, None if lift else grid)
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels, on_plane.shape[-1], on_group.shape[-1]))
        # Σ over taps, inputs and functions of their squares: unit scale for input that is white. Smooth features grow.
        power = on_plane.square().sum(dim=(1, 2)).mean() * on_group.square().sum(dim=(1, 2)).mean()
        inputs = on_group.shape[1]
        gain = 1.0 if lift else RELU_GAIN
        nn.init.normal_(self.weight, std=math.sqrt(gain / (in_channels * float(power) / inputs**2)))

    def on_plane(self, u: Tensor) -> Tensor:
        """The rings times waves at R_u⁻¹x: `(U, k², P)`."""
        turned = self.points.to(u.dtype) @ self.group.plane(u)  # rows x: (R_uᵀ x)ᵀ = xᵀ R_u
        size = torch.linalg.vector_norm(self.points.to(u.dtype), dim=-1, keepdim=True)
        cosine, sine = (turned / torch.where(size > 0, size, 1.0)).unbind(dim=-1)  # e^{iφ}; 0 at the centre
        powers = [(torch.ones_like(cosine), torch.zeros_like(sine))]
        for _ in range(max(m for _, m in self.waves)):
            real, imaginary = powers[-1]
            powers.append((real * cosine - imaginary * sine, real * sine + imaginary * cosine))
        rings = self.rings.to(u.dtype)
        parts = [rings[:, ring] * wave for ring, m in self.waves for wave in powers[m][: 2 if m else 1]]
        return torch.stack(parts, dim=-1)

    def on_group(self, u: Tensor, v: Tensor | None) -> Tensor:
        """Waves of the relative element v⁻¹u, `(U, V, Q)`: products of those of each circle. A constant at a lift."""
        if v is None:
            return u.new_ones(u.shape[0], 1, 1)
        relative = self.group.relative(u.unsqueeze(1), v.unsqueeze(0))
        functions = relative.new_ones(*relative.shape[:-1], 1)
        for angle, axis in zip(relative.unbind(dim=-1), self.group.axes, strict=True):
            waves = [torch.ones_like(angle)]
            for m in range(1, min(self.spec.around, axis.count // 2) + 1):
                waves += [torch.cos(m * angle)] if axis.order == 2 * m else [torch.cos(m * angle), torch.sin(m * angle)]
            functions = (functions.unsqueeze(-1) * torch.stack(waves, dim=-1).unsqueeze(-2)).flatten(-2)
        return functions

    def expand(self, u: Tensor, v: Tensor | None) -> Tensor:
        plane, around = self.on_plane(u), self.on_group(u, v)
        weight = torch.einsum("ocpq,uvq->ouvcp", self.weight.to(u.dtype), around / around.shape[1])
        square = torch.einsum("ouvcp,utp->oucvt", weight, plane)
        return self.undo_colors(square.unflatten(-1, (self.size, self.size)), u)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, {self.spec}"
