"""Kernels: tables for finite groups, small sine networks (SIREN) for any.

A kernel is a function k(x, g) of a tap x of the plane and a relative element g = v⁻¹u, with values
in (out × in) matrices; at a lift there is no g. What convolutions need of it is its *expansion*,

    expand(u, v)[o, i, c, j] = k[o, c](R_{u_i}⁻¹ x, v_j⁻¹ u_i) / V        (O, U, C, V, k, k)

which turns the taps with the output element, takes the average over the V input elements and, at
the lift, mixes the colours back (ρ(u)⁻¹).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vpgcnn.function import Function
from vpgcnn.groups import Group, relative_index

__all__ = ["Kernel", "KernelFactory", "SirenKernel", "TableKernel", "default_kernel"]

RELU_GAIN = 2.0  # E[relu(z)²] is half of E[z²]


def check_whole(name: str, value: object, least: int) -> None:
    """Refuse what is not a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")


def tap_points(size: int) -> Tensor:
    """Positions of the taps of a k×k kernel about its centre, `(k², 2)`: x right, y up, in pixels."""
    line = torch.arange(size, dtype=torch.float64) - (size - 1) / 2
    y, x = torch.meshgrid(-line, line, indexing="ij")
    return torch.stack([x.flatten(), y.flatten()], dim=-1)


class Kernel(nn.Module, ABC):
    """Common to all kernels: their sizes, and what they expand to."""

    def __init__(self, in_channels: int, out_channels: int, size: int, group: Group, *, lift: bool) -> None:
        super().__init__()
        for name, value in (("in_channels", in_channels), ("out_channels", out_channels), ("kernel_size", size)):
            check_whole(name, value, 1)
        self.in_channels, self.out_channels, self.size = in_channels, out_channels, size
        self.group, self.lift = group, lift

    @abstractmethod
    def expand(self, u: Tensor, v: Tensor | None) -> Tensor:
        """Weights `(O, U, C, V, k, k)` for output elements u `(U, K)` and input elements v `(V, K)`.

        They sum to the average over v. At a lift v is None and V is 1.
        """

    def mix_colors(self, weight: Tensor, u: Tensor) -> Tensor:
        """Follow the taps `(O, U, C, 1, k, k)` of a lift by ρ(u)⁻¹ where the group acts on RGB."""
        if not (self.lift and self.group.acts_on_rgb):
            return weight
        undo = self.group.rgb(self.group.inverse(u)).to(weight.dtype)
        return torch.einsum("oucvxy,ucd->oudvxy", weight, undo)

    def extra_repr(self) -> str:
        role = "lift" if self.lift else "group"
        return f"{self.in_channels}, {self.out_channels}, size={self.size}, {role}, {self.group}"


KernelFactory = Callable[..., Kernel]
"""What layers take: called with (in_channels, out_channels, size, group, lift=…)."""


class TableKernel(Kernel):
    """Equivariant to a finite group that moves taps onto taps: Hue(m), C_1, C_2, C_4, D_1, D_2, D_4.

    One number for each (out, in, relative element, tap): k/G, so that sums over elements are averages.
    Turning is by index, so it is exact.
    separable: each (out, in) pair is a spatial kernel times a function on the group (CEConv).
    """

    spread: Tensor
    gathered: Tensor

    def __init__(
        self, in_channels: int, out_channels: int, size: int, group: Group, *, lift: bool, separable: bool = False
    ) -> None:
        super().__init__(in_channels, out_channels, size, group, lift=lift)
        if not has_table(group):
            raise ValueError(f"{group} does not move the taps of a k×k kernel onto each other: use SirenKernel")
        count = 1 if lift else group.order or 1
        spread, gathered = _spread_index(group, in_channels, size, lift)
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
        weight: Tensor = _Spread.apply(rows, self.spread.flatten(), self.gathered)
        shape = (self.out_channels, u.shape[0], self.in_channels, 1 if v is None else v.shape[0])
        return self.mix_colors(weight.reshape(*shape, self.size, self.size), u)

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


def _spread_index(group: Group, channels: int, size: int, lift: bool) -> tuple[Tensor, Tensor]:
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


class SirenKernel(Kernel):
    """A continuous kernel for any group: sin(ω₀(W₁p + b₁)) → sin(ω₀(W₂h + b₂)) → linear.

    The point p is R_u⁻¹x in units of the kernel's radius, and (cos, sin) of each relative angle, so
    that nothing jumps anywhere on the circle. Taps outside the disc (29 of 49 are inside for k = 7)
    are 0 and never evaluated, for groups that turn the plane.

    hidden, omega: width and first frequency ω₀ of the network.
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
    ) -> None:
        super().__init__(in_channels, out_channels, size, group, lift=lift)
        if omega <= 0 or hidden < 1:
            raise ValueError(f"SirenKernel needs omega > 0 and hidden ≥ 1, got omega={omega}, hidden={hidden}")
        self.omega = omega
        points, radius = tap_points(size), max(size // 2, 1)
        inside = torch.linalg.vector_norm(points, dim=-1) <= radius + 1e-9
        taps = inside.nonzero().squeeze(1) if group.acts_on_plane else torch.arange(size**2)
        self.register_buffer("taps", taps, persistent=False)
        self.register_buffer("positions", (points[taps] / radius).to(torch.get_default_dtype()), persistent=False)
        around = 0 if lift else sum(1 if axis.name == "mirror" else 2 for axis in group.axes)
        self.phase = nn.Parameter(torch.empty(hidden))
        self.spatial = nn.Linear(2, hidden, bias=False) if size > 1 else None  # a single tap is at 0
        self.angular = nn.Linear(around, hidden, bias=False) if around else None
        self.second = nn.Linear(hidden, hidden)
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels, hidden))
        self.bias = nn.Parameter(torch.zeros(out_channels, in_channels))
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
        nn.init.normal_(self.weight)
        self.weight.div_(math.sqrt(self._gain()))

    def _gain(self) -> float:
        """E[h²] of the layer's output, for pre-activations of unit scale and a last layer of unit scale.

        Neighbouring taps of a smooth kernel are alike, and so are the features that it makes: how much
        they add up depends on the hidden functions. The correlation of features between elements and
        positions is followed through a few layers of a wide network, exactly: the kernel acts on it as
        a product in the Fourier basis of the plane, a ReLU by its known second moment.
        """
        grid = self.group.grid(None if self.group.order else 4, dtype=torch.float64)
        hidden = self.basis(grid, None if self.lift else grid)
        if self.lift:  # images, taken as white
            return float(hidden.square().sum(dim=(1, 2, 3)).mean()) * self.in_channels
        count, field = len(grid), 2 * self.size + 1
        square = hidden.new_zeros(count, count, self.size**2, hidden.shape[-1]).index_copy(2, self.taps, hidden)
        taps = square.unflatten(2, (self.size, self.size)).permute(4, 0, 1, 2, 3) / count
        waves = torch.fft.fft2(taps, s=(field, field))
        correlation = hidden.new_zeros(count, count, field, field)
        correlation[range(count), range(count), 0, 0] = 1
        gains = []
        for _ in range(6):
            moment = torch.fft.fft2(_relu_moment(correlation)).to(waves.dtype)
            turned = torch.einsum("suvxy,vwxy->suwxy", waves, moment)
            covariance = torch.fft.ifft2(torch.einsum("suwxy,stwxy->utxy", turned, waves.conj())).real
            energy = covariance[range(count), range(count), 0, 0]
            gains.append(float(energy.mean()))
            correlation = covariance / (energy[:, None] * energy).sqrt()[..., None, None]
        # The first layers still see noise; the mean of logarithms is what a deep net multiplies up.
        return math.exp(sum(map(math.log, gains[2:])) / len(gains[2:])) * self.in_channels

    def basis(self, u: Tensor, v: Tensor | None) -> Tensor:
        """The hidden functions s at the taps, `(..., U, V, T, hidden)`: k = weight·s + bias.

        u `(..., U, K)` and v `(..., V, K)` may be shared, or one row for each image.
        """
        space, circle = self._phases(u, v)
        phase = space.unsqueeze(-3)
        return self._second(phase if circle is None else phase + circle.unsqueeze(-2))

    def columns(self, u: Tensor, v: Tensor | None) -> Tensor:
        """The same as a matrix for each image, `(..., V·T, U·(hidden + 1))`, with the constant 1 after the others."""
        space, circle = self._phases(u, v)
        phase = space.transpose(-2, -3).unsqueeze(-4)  # 1 T U hidden
        if circle is not None:
            phase = phase + circle.transpose(-2, -3).unsqueeze(-3)  # V 1 U hidden
        return self._second(phase, constant=True).flatten(-2).flatten(-3, -2)

    def _phases(self, u: Tensor, v: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """ω times what the first layer makes of places `(..., U, T, hidden)` and of angles `(..., U, V, hidden)`."""
        turned = self.positions.to(u.dtype) @ self.group.plane(u)
        phase = self.omega * self.phase.to(u.dtype)
        if self.spatial is None:  # a single tap
            space = phase.expand(*turned.shape[:-1], -1)
        else:
            space = F.linear(turned, self.omega * self.spatial.weight.to(u.dtype), phase)
        if v is None or self.angular is None:
            return space, None
        relative = self.group.relative(u.unsqueeze(-2), v.unsqueeze(-3))
        return space, F.linear(self._circle(relative), self.omega * self.angular.weight.to(u.dtype))

    def _second(self, phase: Tensor, *, constant: bool = False) -> Tensor:
        """The second layer on top of the sine of the first. constant: and one more function, sin(π/2) = 1."""
        weight, bias = (self.omega * part.to(phase.dtype) for part in (self.second.weight, self.second.bias))
        if constant:
            weight, bias = F.pad(weight, (0, 0, 0, 1)), F.pad(bias, (0, 1), value=math.pi / 2)
        return torch.sin(F.linear(torch.sin(phase), weight, bias))

    def _circle(self, relative: Tensor) -> Tensor:
        """(cos, sin) of each angle, ±1 for a mirror: `(..., K)` → `(..., coordinates)`."""
        cos, sin = torch.cos(relative), torch.sin(relative)
        keep = [i for i, axis in enumerate(self.group.axes) if axis.name != "mirror"]
        return torch.cat([cos, sin[..., keep]], dim=-1)

    def expand(self, u: Tensor, v: Tensor | None) -> Tensor:
        return self.mix_colors(self._assemble(self.mixing(), self.basis(u, v)), u)

    def _assemble(self, mixing: Tensor, hidden: Tensor) -> Tensor:
        """mixing `(O, C, hidden + 1)` and functions `(U, V, T, hidden)` to weights `(O, U, C, V, k, k)`."""
        outputs, inputs = hidden.shape[:2]
        # The functions are laid into the square first, with a constant for the bias: 0 outside the disc.
        square = hidden.new_zeros(outputs, inputs, self.size**2, hidden.shape[-1] + 1)
        square = square.index_copy(2, self.taps, torch.cat([hidden, torch.ones_like(hidden[..., :1])], dim=-1))
        weight = _mixed(mixing.to(hidden.dtype) / inputs, square.flatten(1, 2))
        return weight.unflatten(3, (inputs, self.size, self.size))

    @property
    def functions(self) -> int:
        """How many functions are mixed: the hidden ones and a constant."""
        return self.second.out_features + 1

    def mixing(self) -> Tensor:
        """The last layer with its bias as one more function, `(O, C, hidden + 1)`."""
        return torch.cat([self.weight, self.bias.unsqueeze(-1)], dim=-1)


def _mixed(mixing: Tensor, functions: Tensor) -> Tensor:
    """mixing `(O, C, S)` and functions `(U, P, S)` to `(O, U, C, P)`, as conv2d wants it, in few large products."""
    each = torch.bmm(mixing.flatten(0, 1).expand(len(functions), -1, -1), functions.transpose(1, 2))
    return each.unflatten(1, mixing.shape[:2]).transpose(0, 1).contiguous()


def _relu_moment(correlation: Tensor) -> Tensor:
    """E[relu(a) relu(b)] for standard normal a, b with this correlation."""
    angle = torch.arccos(correlation.clamp(-1, 1))
    return (torch.sin(angle) + (math.pi - angle) * correlation) / (2 * math.pi)


def default_kernel(group: Group) -> KernelFactory:
    """A table where turning by index is exact, a SIREN elsewhere."""
    return TableKernel if has_table(group) else SirenKernel
