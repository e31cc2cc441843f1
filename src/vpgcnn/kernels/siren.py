"""Continuous kernels: small sine networks (SIREN), for any group."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vpgcnn.groups import Group
from vpgcnn.kernels.base import KernelSpec, check_strength, tap_points
from vpgcnn.kernels.linear import LinearKernel

__all__ = ["Nonstationary", "Siren", "SirenKernel"]


@dataclass(frozen=True)
class Siren(KernelSpec):
    """A continuous kernel, a small sine network of position and relative angle. For any group.

    Args:
        hidden: Width of the network.
        omega: Its first frequency ω₀; lower is smoother.
    """

    hidden: int = 32
    omega: float = 10.0

    def build(self, in_channels: int, out_channels: int, size: int, group: Group, *, lift: bool) -> SirenKernel:
        sizes = in_channels, out_channels, size
        return SirenKernel(*sizes, group, lift=lift, hidden=self.hidden, omega=self.omega)


@dataclass(frozen=True)
class Nonstationary(KernelSpec):
    """A `Siren` that also sees the absolute element, through a learned scale with a prior at 0. For any group.

    The kernel is k(R_u⁻¹x, v⁻¹u, ωu), after van der Ouderaa et al. (2022). The scale ω has one number for each axis of
    the group and starts at 0: exactly the `Siren`. Its prior, decay·‖ω‖², is `penalty(model)`: add it to the loss.

        >>> GroupConv2d(16, 16, 5, SO2(8), kernel=Nonstationary(omega=4))

    Args:
        hidden: Width of the network.
        omega: Its first frequency ω₀; lower is smoother.
        decay: Strength of the prior on the scale, 1/(2σ²). The larger, the closer to equivariant.
    """

    hidden: int = 32
    omega: float = 10.0
    decay: float = 1e-2

    def __post_init__(self) -> None:
        check_strength("decay", self.decay)

    def build(self, in_channels: int, out_channels: int, size: int, group: Group, *, lift: bool) -> SirenKernel:
        sizes, decay = (in_channels, out_channels, size), self.decay
        return SirenKernel(*sizes, group, lift=lift, hidden=self.hidden, omega=self.omega, absolute_decay=decay)


class SirenKernel(LinearKernel):
    """A continuous kernel for any group: sin(ω₀(W₁p + b₁)) → sin(ω₀(W₂h + b₂)) → linear.

    The point p is R_u⁻¹x in units of the kernel's radius, and (cos, sin) of each relative angle, so
    that nothing jumps anywhere on the circle. Taps outside the disc (29 of 49 are inside for k = 7)
    are 0 and never evaluated, for groups that turn the plane. Built by `Siren`; `Nonstationary` adds to p the
    (cos, sin) of the output element's own angles times `scale`, and is equivariant while that is 0.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        size: Pixels of a side.
        group: The layer's group.
        lift: Whether the input is an image.
        hidden: Width of the network.
        omega: Its first frequency ω₀; lower is smoother.
        absolute_decay: Strength of the prior on `scale`; None for a kernel that does not see the absolute element.
    """

    taps: Tensor
    positions: Tensor

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        size: int,
        group: Group,
        *,
        lift: bool,
        hidden: int = 32,
        omega: float = 10.0,
        absolute_decay: float | None = None,
    ) -> None:
        super().__init__(in_channels, out_channels, size, group, lift=lift)
        if omega <= 0 or hidden < 1:
            raise ValueError(f"Siren needs omega > 0 and hidden ≥ 1, got omega={omega}, hidden={hidden}")
        self.omega = omega
        points, radius = tap_points(size), max(size // 2, 1)
        inside = torch.linalg.vector_norm(points, dim=-1) <= radius + 1e-9
        taps = inside.nonzero().squeeze(1) if group.acts_on_plane else torch.arange(size**2)
        self.register_buffer("taps", taps, persistent=False)
        self.register_buffer("positions", (points[taps] / radius).to(torch.get_default_dtype()), persistent=False)
        circles = sum(1 if axis.order == 2 else 2 for axis in group.axes)
        around = 0 if lift else circles
        self.phase = nn.Parameter(torch.empty(hidden))
        self.spatial = nn.Linear(2, hidden, bias=False) if size > 1 else None  # a single tap is at 0
        self.angular = nn.Linear(around, hidden, bias=False) if around else None
        self.second = nn.Linear(hidden, hidden)
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels, hidden))
        self.bias = nn.Parameter(torch.zeros(out_channels, in_channels))
        self.absolute_decay, absolute = absolute_decay, absolute_decay is not None
        self.absolute = nn.Linear(circles, hidden, bias=False) if absolute else None
        self.scale = nn.Parameter(torch.zeros(len(group.axes))) if absolute else None
        self._initialise(2 + around)

    @torch.no_grad()
    def _initialise(self, coordinates: int) -> None:
        """Frequencies as in SIREN, random phases, and a last layer that keeps unit scale."""
        nn.init.uniform_(self.phase, -math.pi / self.omega, math.pi / self.omega)
        for layer in (self.spatial, self.angular):
            if layer is not None:
                nn.init.uniform_(layer.weight, -1 / coordinates, 1 / coordinates)
        bound = math.sqrt(6 / self.second.in_features) / self.omega
        nn.init.uniform_(self.second.weight, -bound, bound)
        nn.init.uniform_(self.second.bias, -math.pi / self.omega, math.pi / self.omega)
        self.start_at_unit_scale()
        if self.absolute is not None:
            nn.init.uniform_(self.absolute.weight, -1 / coordinates, 1 / coordinates)

    def basis(self, u: Tensor, v: Tensor | None) -> Tensor:
        space, circle = self._phases(u, v)
        phase = space.unsqueeze(-3)
        return self._second(phase if circle is None else phase + circle.unsqueeze(-2))

    def columns(self, u: Tensor, v: Tensor | None) -> Tensor:
        space, circle = self._phases(u, v)
        phase = space.transpose(-2, -3).unsqueeze(-4)  # 1 T U hidden
        if circle is not None:
            phase = phase + circle.transpose(-2, -3).unsqueeze(-3)  # V 1 U hidden
        return self._second(phase).flatten(-2).flatten(-3, -2)

    def _phases(self, u: Tensor, v: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """ω times what the first layer makes of places `(..., U, T, hidden)` and of angles `(..., U, V, hidden)`."""
        turned = self.positions.to(u.dtype) @ self.group.plane(u)
        phase = self.omega * self.phase.to(u.dtype)
        if self.spatial is None:  # a single tap
            space = phase.expand(*turned.shape[:-1], -1)
        else:
            space = F.linear(turned, self.omega * self.spatial.weight.to(u.dtype), phase)
        if self.absolute is not None and self.scale is not None:
            coordinates = self._circle(u) * self._each_circle(self.scale.to(u.dtype))
            space = space + F.linear(coordinates, self.omega * self.absolute.weight.to(u.dtype)).unsqueeze(-2)
        if v is None or self.angular is None:
            return space, None
        relative = self.group.relative(u.unsqueeze(-2), v.unsqueeze(-3))
        return space, F.linear(self._circle(relative), self.omega * self.angular.weight.to(u.dtype))

    def _second(self, phase: Tensor) -> Tensor:
        """The second layer on top of the sine of the first, and one more function for the bias: sin(π/2) = 1."""
        weight, bias = (self.omega * part.to(phase.dtype) for part in (self.second.weight, self.second.bias))
        weight, bias = F.pad(weight, (0, 0, 0, 1)), F.pad(bias, (0, 1), value=math.pi / 2)
        return torch.sin(F.linear(torch.sin(phase), weight, bias))

    def _circle(self, relative: Tensor) -> Tensor:
        """(cos, sin) of each angle, ±1 for a mirror: `(..., K)` → `(..., coordinates)`."""
        return self._each_circle(torch.cos(relative), torch.sin(relative))

    def _each_circle(self, first: Tensor, second: Tensor | None = None) -> Tensor:
        """Numbers `(..., K)` for the cosines and for the sines, which mirrors lack: `(..., coordinates)`."""
        keep = [i for i, axis in enumerate(self.group.axes) if axis.order != 2]
        return torch.cat([first, (first if second is None else second)[..., keep]], dim=-1)

    def penalty(self) -> Tensor | None:
        if self.scale is None or self.absolute_decay is None:
            return None
        return self.absolute_decay * self.scale.square().sum()

    def mixing(self) -> Tensor:
        """The last layer with its bias as one more function, `(O, C, hidden + 1)`."""
        return torch.cat([self.weight, self.bias.unsqueeze(-1)], dim=-1)

    def as_defined(self) -> bool:
        return self.inherits(SirenKernel, "expand", "basis", "columns", "mixing")
