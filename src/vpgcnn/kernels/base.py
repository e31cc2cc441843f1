"""What a kernel is: a function on the plane and the group, and the convolution with it.

A kernel is a function k(x, g) of a tap x of the plane and a relative element g = v⁻¹u, with values
in (out × in) matrices; at a lift there is no g. All that a kernel has to define is its *expansion*,

    expand(u, v)[o, i, c, j] = k[o, c](R_{u_i}⁻¹ x, v_j⁻¹ u_i) / V        (O, U, C, V, k, k)

which turns the taps with the output element, averages over the V input elements and, at the lift,
undoes the change of colours (ρ(u)⁻¹). `convolve` and `fold` follow from it; a kernel overrides them
only to compute the same faster.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vpgcnn._ops import spectral
from vpgcnn._ops.constants import constant
from vpgcnn._ops.geometry import Geometry
from vpgcnn._ops.precision import full_precision
from vpgcnn.groups import Group

__all__ = ["Kernel", "KernelSpec", "check_strength", "check_whole", "tap_points"]

EncoderMaker = Callable[[Group, int, Tensor, int | None], nn.Module]
"""Makes an invariant encoder from the group, the channels that it sees, its output at the start, and its width."""
RELU_GAIN = 2.0
"""E[relu(z)²] is half of E[z²]."""


def check_whole(name: str, value: object, least: int) -> None:
    """Refuse what is not a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")


def check_strength(name: str, value: object) -> None:
    """Refuse what is not a finite number of at least 0."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not number or value < 0:  # type: ignore[operator]
        raise ValueError(f"{name} must be a number of at least 0, got {value!r}")


def tap_points(size: int) -> Tensor:
    """Positions of the taps of a k×k kernel about its centre, `(k², 2)`: x right, y up, in pixels."""
    line = torch.arange(size, dtype=torch.float64) - (size - 1) / 2
    y, x = torch.meshgrid(-line, line, indexing="ij")
    return torch.stack([x.flatten(), y.flatten()], dim=-1)


@dataclass(frozen=True)
class KernelSpec(ABC):
    """A kernel as a value: what `kernel=` of a layer takes."""

    @abstractmethod
    def build(self, in_channels: int, out_channels: int, size: int, group: Group, *, lift: bool) -> Kernel:
        """The module.

        Args:
            in_channels: Channels of the input.
            out_channels: Channels of the output.
            size: Pixels of a side.
            group: The layer's group.
            lift: Whether the input is an image, without a group axis.
        """


class Kernel(nn.Module, ABC):
    """Common to all kernels. Equivariant where `expand` depends on u and v through R_u⁻¹x and v⁻¹u only.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        size: Pixels of a side.
        group: The layer's group.
        lift: Whether the input is an image, without a group axis.
    """

    def __init__(self, in_channels: int, out_channels: int, size: int, group: Group, *, lift: bool) -> None:
        super().__init__()
        for name, value in (("in_channels", in_channels), ("out_channels", out_channels), ("kernel_size", size)):
            check_whole(name, value, 1)
        self.in_channels, self.out_channels, self.size = in_channels, out_channels, size
        self.group, self.lift = group, lift

    @abstractmethod
    def expand(self, u: Tensor, v: Tensor | None) -> Tensor:
        """The weights of a plane convolution.

        Args:
            u: Output elements `(U, K)`.
            v: Input elements `(V, K)`; None at a lift.

        Returns:
            `(O, U, C, V, k, k)`, with V = 1 at a lift. Applied to all input elements they average over v.
        """

    def fold(self, u: Tensor, v: Tensor | None) -> Tensor:
        """All that depends on the parameters and these elements, computed once: `convolve` takes it as `folded`.

        Args:
            u: Output elements `(U, K)`.
            v: Input elements `(V, K)`; None at a lift.

        Returns:
            `(O·U, C·V, k, k)`; other shapes are a subclass's own business.
        """
        with full_precision(u.device):
            weight = self.expand(u, v)
        inputs = 1 if v is None else v.shape[-2]
        expected = (self.out_channels, u.shape[-2], self.in_channels, inputs, self.size, self.size)
        if weight.shape != expected:
            name = type(self).__name__
            raise ValueError(f"{name}.expand must return O×U×C×V×k×k = {expected}, got {tuple(weight.shape)}")
        return weight.flatten(2, 3).flatten(0, 1)

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
        """The convolution: values at elements v, averaged under weights, to elements u.

        Args:
            values: `(B, C, V, H, W)`; V = 1 at a lift.
            weights: `(B, V)`, rows sum to 1; None for uniform.
            v: Input elements `(V, K)` or `(B, V, K)`; None at a lift.
            u: Output elements `(U, K)` or `(B, U, K)`.
            geometry: Stride, padding and dilation.
            bias: `(O,)`, or None.
            folded: What `fold(u, v)` returned, or None.

        Returns:
            `(B, O, U, H', W')`.
        """
        if u.dim() == 3 or (v is not None and v.dim() == 3):
            return self._convolve_each(values, weights, v, u, geometry, bias)
        weight = self.fold(u, v) if folded is None else folded
        return self.convolve_expanded(values, weights, weight, geometry, bias)

    def convolve_expanded(
        self, values: Tensor, weights: Tensor | None, weight: Tensor, geometry: Geometry, bias: Tensor | None
    ) -> Tensor:
        """The convolution with an expanded weight `(O·U, C·V, k, k)`; the other arguments are those of `convolve`."""
        weight = weight.to(values.dtype)
        count = weight.shape[0] // self.out_channels
        # The expansion averages over elements already, so weights are relative to the average.
        relative = None if weights is None else (weights * weights.shape[1]).to(values.dtype)
        factors = None if relative is None else relative[:, None].expand(-1, values.shape[1], -1).flatten(1)
        wide = None if bias is None else bias.to(values.dtype).repeat_interleave(count)
        out = spectral.conv2d(values.flatten(1, 2), weight, wide, *geometry, factors)
        return out.unflatten(1, (self.out_channels, count))

    def convolve_views(
        self, views: Tensor, u: Tensor, geometry: Geometry, bias: Tensor | None, folded: Tensor | None = None
    ) -> Tensor:
        """The convolution of a lift whose group `recolors`: each output element sees a view of the image.

        Args:
            views: `(B, C, U, H, W)`, the images moved back by each element, as far as no matrix does it.
            u: Output elements `(U, K)` or `(B, U, K)`.
            geometry: Stride, padding and dilation.
            bias: `(O,)`, or None.
            folded: What `fold(u, None)` returned, or None.

        Returns:
            `(B, O, U, H', W')`.
        """
        if u.dim() == 3:
            each = [self.convolve_views(views[i : i + 1], one, geometry, bias) for i, one in enumerate(u)]
            sides = (geometry.positions(side, self.size) for side in views.shape[-2:])
            return torch.cat(each) if each else views.new_zeros(0, self.out_channels, u.shape[1], *sides)
        weight = folded if folded is not None and folded.dim() == 4 else Kernel.fold(self, u, None)
        count = u.shape[0]
        own = weight.to(views.dtype).unflatten(0, (self.out_channels, count)).transpose(0, 1)  # U O C k k
        bias = None if bias is None else bias.to(views.dtype)
        if views.device.type == "cpu" and not torch.compiler.is_compiling():
            # Groups of three channels are slow on a CPU: one convolution for each element takes a third of the time.
            parts = zip(views.unbind(dim=2), own.unbind(), strict=True)
            return torch.stack([F.conv2d(view, kernel, bias, *geometry) for view, kernel in parts], dim=2)
        wide = None if bias is None else bias.repeat(count)
        stacked = views.transpose(1, 2).flatten(1, 2)
        out = F.conv2d(stacked, own.flatten(0, 1), wide, *geometry, groups=count)
        return out.unflatten(1, (count, self.out_channels)).transpose(1, 2)

    def use_encoder(self, make: EncoderMaker) -> None:
        """Take an encoder, if the kernel looks at images. A layer calls it once; most kernels do nothing."""

    def penalty(self) -> Tensor | None:
        """What the prior of this kernel adds to the training loss, a scalar; None if there is none.

        `vpgcnn.penalty` sums it over a network. Kernels inside this one are not included: they have their own.
        """
        return None

    def dual_step(self) -> None:
        """Move the multipliers of constraints after a step of the optimiser; nothing where there are none.

        `vpgcnn.dual_step` calls it for each kernel of a network.
        """

    # ------------------------------------------------------------ some of the elements

    @property
    def can_skip(self) -> bool:
        """Whether elements may be left out: not where `convolve` is a subclass's own business."""
        return self.inherits(Kernel, "convolve", "fold")

    def whole_pays(self, values: Tensor, geometry: Geometry, pairs: int) -> bool:
        """Whether all elements are computed faster than this many pairs of an output and an input element."""
        return False

    def fold_some(
        self, u: Tensor, v: Tensor | None, rows: Sequence[int], columns: Sequence[int], folded: Tensor | None = None
    ) -> Tensor:
        """What `fold` returns for some of the elements.

        Args:
            u: Output elements `(U, K)`.
            v: Input elements `(V, K)`; None at a lift.
            rows: Positions of output elements.
            columns: Positions of input elements; `(0,)` at a lift.
            folded: What `fold(u, v)` returned, or None.

        Returns:
            `(O·len(rows), C·len(columns), k, k)`; applied to these input elements it averages over them.
        """
        weight = folded if folded is not None and folded.dim() == 4 else Kernel.fold(self, u, v)
        return self.cut(weight, rows, columns, u.shape[0], 1 if v is None else v.shape[0])

    def cut(self, weight: Tensor, rows: Sequence[int], columns: Sequence[int], outputs: int, inputs: int) -> Tensor:
        """Some elements of a weight `(O·U, C·V, k, k)`, scaled so that it averages over those of the input."""
        if len(rows) < outputs:
            index = constant(tuple(rows), torch.long, weight.device)
            weight = weight.unflatten(0, (self.out_channels, outputs)).index_select(1, index).flatten(0, 1)
        if len(columns) < inputs:
            index = constant(tuple(columns), torch.long, weight.device)
            weight = weight.unflatten(1, (self.in_channels, inputs)).index_select(2, index).flatten(1, 2)
            weight = weight * (inputs / len(columns))
        return weight

    def _convolve_each(
        self,
        values: Tensor,
        weights: Tensor | None,
        v: Tensor | None,
        u: Tensor,
        geometry: Geometry,
        bias: Tensor | None,
    ) -> Tensor:
        """The same where images have elements of their own: one expansion for each image."""
        parts = []
        for image in range(len(values)):
            one = slice(image, image + 1)
            parts.append(
                self.convolve(
                    values[one],
                    None if weights is None else weights[one],
                    v[image] if v is not None and v.dim() == 3 else v,
                    u[image] if u.dim() == 3 else u,
                    geometry,
                    bias=bias,
                )
            )
        if parts:
            return torch.cat(parts)
        sides = (geometry.positions(side, self.size) for side in values.shape[-2:])
        return values.new_zeros(0, self.out_channels, u.shape[-2], *sides)

    def undo_colors(self, weight: Tensor, u: Tensor) -> Tensor:
        """Follow the taps `(O, U, C, 1, k, k)` of a lift by ρ(u)⁻¹ where the group acts on RGB."""
        if not (self.lift and self.group.acts_on_rgb):
            return weight
        undo = self.group.rgb(self.group.inverse(u)).to(weight.dtype)
        return torch.einsum("oucvxy,ucd->oudvxy", weight, undo)

    def grid(self, like: Tensor) -> Tensor:
        """The group's grid `(G, K)`, on the device of a parameter and in at least single precision."""
        return self.group.grid(dtype=torch.promote_types(like.dtype, torch.float32), device=like.device)

    def inherits(self, owner: type, *names: str) -> bool:
        """Whether these methods are still the owner's: a fast path may be used only if it computes what they say."""
        return all(getattr(type(self), name) is getattr(owner, name) and name not in vars(self) for name in names)

    def extra_repr(self) -> str:
        role = "lift" if self.lift else "group"
        return f"{self.in_channels}, {self.out_channels}, size={self.size}, {role}, {self.group}"
