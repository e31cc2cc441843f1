"""The convolutions: group + kernel + level, shaped like `nn.Conv2d`.

    lift:   h(u, y) = Σ_x k(R_u⁻¹(x−y)) ρ(u)⁻¹ f(x)
    group:  h(u, y) = Σ_v w(v) Σ_x k(R_u⁻¹(x−y), v⁻¹u) f(v, x)        Σ_v w(v) = 1

and beside the values the weights q(u|f) of their level, which whatever sums over u applies.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from vpgcnn import cyclic, spectral
from vpgcnn.centring import check_centred
from vpgcnn.distributions import Distribution, WindowDistribution, midpoints, stratified
from vpgcnn.features import GroupFeature
from vpgcnn.groups import Group, check_rgb, wrap
from vpgcnn.kernels import KernelFactory, SirenKernel, TableKernel, check_whole, default_kernel
from vpgcnn.layout import by_pixel
from vpgcnn.levels import Full, LevelFactory
from vpgcnn.own import Steps, convolve_own
from vpgcnn.precision import full_precision, uniform

__all__ = ["GroupConv2d", "LiftConv2d", "fold", "folded", "unfold"]

Padding = int | Literal["same"]
Sight = Literal["input", "output"]


class _GroupConvolution(nn.Module):
    """What the lift and the group convolution share. Not for use by itself.

    points: how many angles of each continuous axis to use; finite groups are used whole. level: a
    class or factory of `levels`. kernel: likewise of `kernels`, None for the group's default. sees: what
    the level looks at, see `GroupConv2d`. The rest is as in `nn.Conv2d`. A stride above 1 keeps rotations
    only where its positions are symmetric about the centre (a warning says when they are not), and an
    even kernel needs its padding as a number.
    """

    lifts: ClassVar[bool]
    folded: Tensor | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        group: Group,
        *,
        points: int | None = None,
        level: LevelFactory = Full,
        kernel: KernelFactory | None = None,
        sees: Sight | None = None,
        stride: int = 1,
        padding: Padding = 0,
        dilation: int = 1,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if not isinstance(group, Group):
            raise TypeError(f"group must be a value such as Hue(3), got {group!r}")
        if isinstance(level, nn.Module) or not callable(level):
            raise TypeError(f"level must be a class or factory such as Variational, got {level!r}")
        for name, value in (("kernel_size", kernel_size), ("stride", stride), ("dilation", dilation)):
            check_whole(name, value, 1)
        if self.lifts and group.acts_on_rgb and in_channels != 3:
            raise ValueError(f"{group} acts on RGB: a lift needs in_channels=3, got {in_channels}")
        self.group, self.points, self.count = group, points, math.prod(group.counts(points))
        self.in_channels, self.out_channels, self.kernel_size = in_channels, out_channels, kernel_size
        self.stride, self.dilation = stride, dilation
        self.padding = _resolve(padding, kernel_size, dilation)
        make_kernel = kernel or default_kernel(group)
        self.kernel = make_kernel(in_channels, out_channels, kernel_size, group, lift=self.lifts)
        self.sees: Sight = ("output" if self.lifts else "input") if sees is None else sees
        self.level = level(group, in_channels if self.sees == "input" else out_channels, points)
        self._check_sight()
        self.bias = nn.Parameter(torch.zeros(out_channels)) if bias else None
        if self.level.per_image and not isinstance(self.kernel, SirenKernel):
            raise ValueError(f"elements of each image's own need a SirenKernel, got {type(self.kernel).__name__}")
        self.cyclic = isinstance(self.kernel, TableKernel) and cyclic.applies(self.kernel)
        self.register_buffer("folded", None, persistent=False)
        self.register_load_state_dict_pre_hook(_forget)

    def _check_sight(self) -> None:
        if self.sees not in ("input", "output"):
            raise ValueError(f"sees is 'input' or 'output', got {self.sees!r}")
        if self.lifts and self.sees == "input":
            raise ValueError("the level of a lift sees its output: an image has no group axis yet")
        if not self.lifts and self.sees == "output" and self.level.per_image:
            raise ValueError("a level that places elements sees the input, before they are placed: choose sees='input'")

    # ------------------------------------------------------------ elements

    def grid(self, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """The elements `(G, K)` of a step: a grid, at a random offset in training for continuous groups."""
        dtype = self._precision()
        if self.group.order is not None or not self.training:
            return self.group.grid(self.points, dtype=dtype, device=like.device)
        start = torch.zeros((), dtype=dtype, device=like.device)
        offset = uniform((), start, generator) * (2 * math.pi / (self.points or 1))
        return self.group.grid(self.points, offset, dtype=dtype, device=like.device)

    def place(self, q: Distribution, generator: torch.Generator | None) -> Tensor:
        """Elements `(B, G, K)` of each image's own, spread over its window."""
        assert isinstance(q, WindowDistribution)
        assert self.points is not None
        size = (self.points, len(self.group.axes))
        noise = stratified(*size, q.theta, generator) if self.training else midpoints(*size, q.theta)
        return q.sample(noise).to(self._precision())

    def _precision(self) -> torch.dtype:
        return torch.promote_types(next(self.kernel.parameters()).dtype, torch.float32)

    # ------------------------------------------------------------ the convolution

    def prepare(self, u: Tensor, v: Tensor | None, *, cyclic_basis: bool) -> Tensor:
        """What plane convolutions need of the kernel: expanded `(O·U, C·V, k, k)`, or cyclic `(r, O, C, k, k)`."""
        with full_precision(u.device):
            if cyclic_basis and isinstance(self.kernel, TableKernel):
                return cyclic.analyse(self.kernel.table())
            return self.kernel.expand(u, v).flatten(2, 3).flatten(0, 1)

    def convolve(self, values: Tensor, weights: Tensor | None, v: Tensor | None, u: Tensor) -> Tensor:
        """values `(B, C, V, H, W)` at elements v, averaged under weights, to `(B, O, U, H', W')` at u."""
        if self.stride > 1:
            check_centred("convolution", self.group, values.shape[-2:], self.reach, self.stride, self.padding)
        if u.dim() == 3 or (v is not None and v.dim() == 3):
            return self._convolve_own(values, weights, v, u)
        ready = self.folded if self._folded_for(u, v) else None
        quick = self._map_pays(values) if ready is None else ready.dim() == 5
        weight = (self.prepare(u, v, cyclic_basis=quick) if ready is None else ready).to(values.dtype)
        # The kernel averages over elements already, so weights are relative to the average.
        relative = None if weights is None else (weights * weights.shape[1]).to(values.dtype)
        if quick:
            out = cyclic.convolve(values, relative, weight, self.stride, self.padding, self.dilation)
            return out if self.bias is None else out + self.bias.to(out.dtype)[:, None, None, None]
        factors = None if relative is None else relative[:, None].expand(-1, values.shape[1], -1).flatten(1)
        bias = None if self.bias is None else self.bias.to(values.dtype).repeat_interleave(u.shape[0])
        out = spectral.conv2d(values.flatten(1, 2), weight, bias, self.stride, self.padding, self.dilation, factors)
        return out.unflatten(1, (self.out_channels, u.shape[0]))

    def _folded_for(self, u: Tensor, v: Tensor | None) -> bool:
        """Whether the folded weight is that of these elements: of the layer's own grid, on both sides."""
        if self.folded is None or self.training:
            return False
        if self.group.order is not None:
            return True
        grid = self.grid(u)
        sides = [u] if v is None else [u, v]
        same = all(side.shape == grid.shape for side in sides)
        return same and (torch.compiler.is_compiling() or all(torch.equal(side, grid) for side in sides))

    def _convolve_own(self, values: Tensor, weights: Tensor | None, v: Tensor | None, u: Tensor) -> Tensor:
        """The same with elements of each image's own, on either side."""
        if not isinstance(self.kernel, SirenKernel):
            raise ValueError(f"elements of each image's own need a SirenKernel, not a {type(self.kernel).__name__}")
        out = convolve_own(self.kernel, values, weights, v, u, self.steps)
        return out if self.bias is None else out + self.bias.to(out.dtype)[:, None, None, None]

    def _positions(self, size: int) -> int:
        return self.steps.positions(size, self.kernel_size)

    @property
    def steps(self) -> Steps:
        """How the kernel moves over the plane."""
        return Steps(self.stride, self.padding, self.dilation)

    def _map_pays(self, values: Tensor) -> bool:
        """Whether to take the cyclic path for this map."""
        if not (self.cyclic and isinstance(self.kernel, TableKernel)):
            return False
        if by_pixel(values) and not cyclic.pays_anywhere(self.kernel):
            return False  # a narrow convolution that needs no reordering is faster still
        return cyclic.pays(self.kernel, self._positions(values.shape[-2]) * self._positions(values.shape[-1]))

    @property
    def reach(self) -> int:
        """How many pixels the kernel spans, dilation included."""
        return self.dilation * (self.kernel_size - 1) + 1

    def _given(self, elements: Tensor, batch: int) -> Tensor:
        """Elements that the caller wants: `(G, K)` or `(B, G, K)`, of the group, wrapped."""
        axes = len(self.group.axes)
        if not isinstance(elements, Tensor) or elements.dim() not in (2, 3) or elements.shape[-1] != axes:
            got = tuple(elements.shape) if isinstance(elements, Tensor) else type(elements).__name__
            raise ValueError(f"elements of {self.group} are a tensor G×{axes} or B×G×{axes}, got {got}")
        if elements.dim() == 3 and elements.shape[0] != batch:
            raise ValueError(f"expected elements for {batch} images, got {elements.shape[0]}")
        if self.group.order is not None and not torch.compiler.is_compiling():
            grid = self.group.grid(dtype=elements.dtype, device=elements.device)
            if elements.shape != grid.shape or not torch.allclose(elements, grid, atol=1e-4):
                raise ValueError(f"{self.group} has one grid of elements, got others: {elements.tolist()}")
        return wrap(elements)

    def _weigh(self, feature: GroupFeature, q: Distribution, *, placed: bool, given: bool) -> GroupFeature:
        """Put q beside the values, as weights, and its KL into the divergence.

        placed: the elements were drawn from q and weigh the same. given: they came from the caller and
        need not be an even grid, so that their shares are made to sum to 1.
        """
        weights = None if placed else q.weights(feature.elements)
        if weights is not None and given:
            weights = weights / weights.sum(dim=1, keepdim=True).clamp_min(1e-6)
        divergence = feature.divergence
        if self.level.regularised:
            divergence = divergence + q.kl().to(divergence.dtype)
        return replace(feature, weights=weights, divergence=divergence)

    def train(self, mode: bool = True) -> Self:
        """As `nn.Module.train`. Training changes the kernel, so a folded one is forgotten."""
        if mode:
            self.folded = None
        return super().train(mode)

    def extra_repr(self) -> str:
        parts = [f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, {self.group}"]
        parts += [f"elements={self.count}", f"padding={self.padding}"]
        parts += [f"{name}={getattr(self, name)}" for name in ("stride", "dilation") if getattr(self, name) != 1]
        return ", ".join(parts)


def _resolve(padding: Padding, kernel_size: int, dilation: int) -> int:
    if padding == "same":
        if kernel_size % 2 == 0:
            raise ValueError(f"padding='same' needs an odd kernel to stay centred, got kernel_size={kernel_size}")
        return dilation * (kernel_size // 2)
    if isinstance(padding, bool) or not isinstance(padding, int) or padding < 0:
        raise ValueError(f"padding is 'same' or a whole number ≥ 0, got {padding!r}")
    return padding


class LiftConv2d(_GroupConvolution):
    """Equivariant to the group with `Full`, to as much of it as the level allows otherwise.

    From an image to a feature on the group:

        >>> LiftConv2d(1, 10, 7, SO2(), points=8, level=Variational)(images)
        GroupFeature(SO2(): 64 images, 10 channels, 8 elements, 22×22, weighted, float32, cpu)

    A variational level sees the lifted feature, after a ReLU: the image itself has no group axis.
    """

    lifts = True

    def forward(
        self, image: Tensor, *, elements: Tensor | None = None, generator: torch.Generator | None = None
    ) -> GroupFeature:
        """image `(B, C, H, W)` → values `(B, O, G, H', W')`.

        elements: `(G, K)` to use instead of the layer's own choice, so that two branches can be joined.
        generator: for the random offset and the noise of training (not under `torch.compile`, which
        cannot take one as an argument: seed the default generator there).
        """
        if not isinstance(image, Tensor):
            raise TypeError(f"LiftConv2d takes images as a tensor B×C×H×W, got {type(image).__name__}")
        if image.dim() != 4:
            raise ValueError(f"expected images B×C×H×W, got shape {tuple(image.shape)}")
        check_rgb(self.group, image)
        if image.shape[1] != self.in_channels:
            raise ValueError(f"expected {self.in_channels} channels, got {image.shape[1]} (shape {tuple(image.shape)})")
        if not image.is_floating_point():
            raise ValueError(f"expected images of floating point numbers, got {image.dtype}")
        signal = image.unsqueeze(2)
        u = self.grid(image, generator) if elements is None else self._given(elements, image.shape[0])
        divergence = torch.zeros(image.shape[0], dtype=u.dtype, device=image.device)
        feature = GroupFeature(self.convolve(signal, None, None, u), u, None, divergence, self.group)
        if not self.level.partial:
            return feature
        q = self.level.after_relu(feature, generator)
        placed = self.level.per_image and elements is None
        if placed:
            u = self.place(q, generator)
            feature = GroupFeature(self.convolve(signal, None, None, u), u, None, divergence, self.group)
        return self._weigh(feature, q, placed=placed, given=elements is not None)


class GroupConv2d(_GroupConvolution):
    """Equivariant to the group with `Full`, to as much of it as the level allows otherwise.

    From a feature on the group to another. Input elements are averaged under the weights that they
    bring; the output carries the weights of this layer's level.
    The level sees the layer's input, or with `sees="output"` its output after a ReLU (before the level),
    as at a lift: more telling where the layer makes more of the image than a mean over space can, and
    cheaper where its map is smaller.
    """

    lifts = False

    def forward(
        self, feature: GroupFeature, *, elements: Tensor | None = None, generator: torch.Generator | None = None
    ) -> GroupFeature:
        """values `(B, C, G, H, W)` → `(B, O, G', H', W')`. Arguments as for `LiftConv2d`."""
        if not isinstance(feature, GroupFeature):
            raise TypeError(f"GroupConv2d takes a GroupFeature, got {type(feature).__name__}: begin with LiftConv2d")
        if feature.shape[1] != self.in_channels:
            raise ValueError(f"expected {self.in_channels} channels, got {feature.shape[1]} ({feature})")
        if feature.group != self.group:
            raise ValueError(f"expected a feature on {self.group}, got one on {feature.group}")
        early = self.level.partial and self.sees == "input"
        q = self.level(feature, generator) if early else None
        placed = q is not None and self.level.per_image and elements is None
        if elements is not None:
            u = self._given(elements, feature.shape[0])
        elif q is not None and placed:
            u = self.place(q, generator)
        elif self.group.order is not None:
            u = feature.elements  # there is only one grid
        else:
            u = self.grid(feature.values, generator)
        values = self.convolve(feature.values, feature.weights, feature.elements, u)
        out = GroupFeature(values, u, None, feature.divergence, self.group)
        if self.level.partial and not early:
            q = self.level.after_relu(out, generator)
        return out if q is None else self._weigh(out, q, placed=placed, given=elements is not None)


# ---------------------------------------------------------------- folding


def fold(model: nn.Module) -> nn.Module:
    """Expand every kernel once, for evaluation: layers on a shared grid then are a plain `conv2d`.

    In place, and only used in `eval()` mode; the state dict does not change. Undo with `unfold`, or
    use `with folded(model):`. Fold again after changing parameters by hand; `train()` and loading a
    state dict unfold by themselves. Layers whose input or output elements belong to single images stay as they are.
    """
    for layer in model.modules():
        if isinstance(layer, _GroupConvolution) and not layer.level.per_image:
            with torch.no_grad():
                reference = next(layer.kernel.parameters())
                grid = layer.group.grid(layer.points, dtype=layer._precision(), device=reference.device)
                basis = layer.cyclic and isinstance(layer.kernel, TableKernel) and cyclic.pays_anywhere(layer.kernel)
                layer.folded = layer.prepare(grid, None if layer.lifts else grid, cyclic_basis=basis)
    return model


def unfold(model: nn.Module) -> nn.Module:
    """Forget the expanded kernels of `fold`."""
    for layer in model.modules():
        if isinstance(layer, _GroupConvolution):
            layer.folded = None
    return model


@contextmanager
def folded(model: nn.Module) -> Iterator[nn.Module]:
    """`fold` for the length of a `with` block; then the layers are as they were."""
    layers = [layer for layer in model.modules() if isinstance(layer, _GroupConvolution)]
    before = [layer.folded for layer in layers]
    try:
        yield fold(model)
    finally:
        for layer, weight in zip(layers, before, strict=True):
            layer.folded = weight


def _forget(module: nn.Module, *_: object) -> None:
    unfold(module)
