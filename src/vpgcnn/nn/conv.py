"""The convolutions: group + kernel + level, shaped like `nn.Conv2d`.

    lift:   h(u, y) = Σ_x k(R_u⁻¹(x−y)) ρ(u)⁻¹ f(x)        f recoloured by u⁻¹ where the group recolours
    group:  h(u, y) = Σ_v w(v) Σ_x k(R_u⁻¹(x−y), v⁻¹u) f(v, x)        Σ_v w(v) = 1

The weights q(u|f) of a layer's level travel beside the values; whatever sums over u applies them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from vpgcnn._ops.active import (
    Part,
    Use,
    assemble,
    can_read,
    can_skip,
    can_skip_in_training,
    crossed,
    merged,
    note_pair,
    noted_pairs,
    pick,
    split,
    unchanged,
    uses_of,
)
from vpgcnn._ops.constants import constant
from vpgcnn._ops.geometry import Geometry
from vpgcnn._ops.precision import autocast_now, uniform
from vpgcnn.features import GroupFeature, Trace, recorded
from vpgcnn.groups import Group, check_rgb, wrap
from vpgcnn.kernels import KernelSpec, default_kernel
from vpgcnn.kernels.base import check_whole
from vpgcnn.levels import Distribution, Full, InvariantEncoder, LevelSpec, WindowDistribution
from vpgcnn.levels.distributions import hair, midpoints, stratified
from vpgcnn.levels.encoder import FOLDED
from vpgcnn.nn._checks import check_centred, check_feature, check_square

__all__ = ["GroupConv2d", "LiftConv2d", "fold", "folded", "name_layers", "unfold"]

Padding = int | Literal["same"]
CUTS = 32
"""How many cuts of a folded kernel are kept, at most."""
_numbers = itertools.count(1)
_cuts: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
"""Cuts of folded kernels to some elements, for as long as the folded kernel lives."""


class _GroupConvolution(nn.Module):
    """What the lift and the group convolution share. Not for use by itself."""

    lifts: ClassVar[bool]
    folded: Tensor | None
    shares: Tensor | None
    """After folding, the weights `(1, G)` of a level that is the same for all images."""
    kept: Use | None
    """After folding, the elements that such a level keeps; None: all of them, or not known."""
    only: Tensor | None
    """After folding with an example, the kernel at the output and input elements `only_for`, the only ones in use."""
    only_for: tuple[tuple[int, ...], tuple[int, ...]] | None
    name: str
    """The name under which the layer's decisions stand in the trace; `name_layers` sets it to the path."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        group: Group,
        *,
        level: LevelSpec | None = None,
        kernel: KernelSpec | None = None,
        resample: bool = False,
        stride: int = 1,
        padding: Padding = 0,
        dilation: int = 1,
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if groups != 1:
            raise ValueError(
                f"{type(self).__name__} has no grouped convolutions: every output channel sees all input channels, got "
                f"groups={groups}"
            )
        level = Full() if level is None else level
        kernel = default_kernel(group) if kernel is None and isinstance(group, Group) else kernel
        for what, value, kind, example in (
            ("group", group, Group, "Hue(3)"),
            ("level", level, LevelSpec, "Variational()"),
            ("kernel", kernel, KernelSpec, "Siren(omega=4)"),
        ):
            if not isinstance(value, kind):
                raise TypeError(f"{what} must be a value such as {example}, got {value!r}")
        for name, number in (("kernel_size", kernel_size), ("stride", stride), ("dilation", dilation)):
            check_whole(name, number, 1)
        if self.lifts and group.acts_on_rgb and in_channels != 3:
            raise ValueError(f"{group} acts on RGB: a lift needs in_channels=3, got {in_channels}")
        assert kernel is not None
        self.group, self.count, self.resample = group, group.count, resample
        self.in_channels, self.out_channels, self.kernel_size = in_channels, out_channels, kernel_size
        self.geometry = Geometry(stride, _resolve(padding, kernel_size, dilation), dilation)
        self.kernel = kernel.build(in_channels, out_channels, kernel_size, group, lift=self.lifts)
        self.kernel.use_encoder(InvariantEncoder)
        if self.kernel.group != group:
            raise ValueError(f"{kernel} built a kernel on {self.kernel.group}, but the layer is on {group}")
        if self.lifts and level.condition == "input":
            raise ValueError("the level of a lift sees its output, as an image has no group axis: condition='output'")
        self.condition = level.condition or ("output" if self.lifts else "input")
        self.level = level.build(group, in_channels if self.condition == "input" else out_channels)
        if not self.lifts and self.condition == "output" and self.level.moves_elements:
            raise ValueError(
                "a level that moves elements sees the input, before they are placed: choose condition='input'"
            )
        self.bias = nn.Parameter(torch.zeros(out_channels)) if bias else None
        self.name = f"{type(self).__name__}-{next(_numbers)}"
        self.register_buffer("folded", None, persistent=False)
        self.register_buffer("shares", None, persistent=False)
        self.register_buffer("only", None, persistent=False)
        self.kept = self.only_for = None
        self.register_load_state_dict_pre_hook(_forget)

    @property
    def stride(self) -> int:
        return self.geometry.stride

    @property
    def padding(self) -> int:
        return self.geometry.padding

    @property
    def dilation(self) -> int:
        return self.geometry.dilation

    # ------------------------------------------------------------ elements

    def grid(self, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """A grid of elements `(G, K)`: at a random offset in training for continuous groups."""
        dtype = self._precision()
        if self.group.order is not None or not self.training:
            return self.group.grid(dtype=dtype, device=like.device)
        start = torch.zeros((), dtype=dtype, device=like.device)
        points = max(axis.count for axis in self.group.axes if axis.order is None)
        offset = uniform((), start, generator) * (2 * math.pi / points)
        return self.group.grid(offset, dtype=dtype, device=like.device)

    def _place(self, q: Distribution, generator: torch.Generator | None) -> Tensor:
        """Elements `(B, G, K)`, each image's own, spread over its window."""
        assert isinstance(q, WindowDistribution)
        size = (self.group.count, len(self.group.axes))
        noise = stratified(*size, q.theta, generator) if self.training else midpoints(*size, q.theta)
        return q.sample(noise).to(self._precision())

    def _precision(self) -> torch.dtype:
        return torch.promote_types(self._reference().dtype, torch.float32)

    def _reference(self) -> Tensor:
        """A tensor with the device and precision of the kernel, which may have no parameters."""
        return next(self.kernel.parameters(), torch.empty(0))

    def _given(self, elements: Tensor, batch: int) -> Tensor:
        """Elements that the caller wants: `(G, K)` or `(B, G, K)`, checked."""
        axes = len(self.group.axes)
        if not isinstance(elements, Tensor) or elements.dim() not in (2, 3) or elements.shape[-1] != axes:
            got = tuple(elements.shape) if isinstance(elements, Tensor) else type(elements).__name__
            raise ValueError(f"elements of {self.group} are a tensor G×{axes} or B×G×{axes}, got {got}")
        if elements.dim() == 3 and elements.shape[0] != batch:
            raise ValueError(f"expected elements for {batch} images, got {elements.shape[0]}")
        if self.group.order is None or torch.compiler.is_compiling():
            return elements
        grid = self.group.grid(dtype=elements.dtype, device=elements.device)
        others = f"{self.group} has one grid of elements, got others"
        if elements.shape != grid.shape:
            raise ValueError(f"{others}: shape {tuple(elements.shape)}")
        if elements.device.type != "cpu":  # reading from another device would wait for it
            torch._assert_async(((elements - grid).abs() <= 1e-4).all(), others)
        elif not torch.allclose(elements, grid, atol=1e-4):
            raise ValueError(f"{others}: {elements.tolist()}")
        return elements

    # ------------------------------------------------------------ the convolution

    def _convolve(self, values: Tensor, weights: Tensor | None, v: Tensor | None, u: Tensor) -> Tensor:
        """values `(B, C, V, H, W)` at elements v, averaged under weights, to `(B, O, U, H', W')` at u."""
        ready = self.folded if self._is_folded_for(u, v) else None
        return self.kernel.convolve(values, weights, v, u, self.geometry, bias=self.bias, folded=ready)

    def _is_folded_for(self, u: Tensor, v: Tensor | None) -> bool:
        """Whether the folded weight is that of these elements: of the layer's own grid, on both sides."""
        sides = [u] if v is None or v is u else [u, v]
        return self.folded is not None and self._is_own_grid(*sides)

    def _is_own_grid(self, *sides: Tensor) -> bool:
        """Whether these elements are the grid that the layer has in evaluation."""
        if self.training or any(side.dim() == 3 for side in sides):
            return False
        if self.group.order is not None:
            return True
        grid = self.grid(sides[0])
        same = all(side.shape == grid.shape for side in sides)
        if torch.compiler.is_compiling():
            # The elements cannot be looked at. Exported networks are given none from outside; others may be.
            return same and torch.compiler.is_exporting()
        return same and all(torch.equal(side, grid) for side in sides)

    def _check_map(self, given: Tensor | GroupFeature) -> None:
        sizes = given.shape[-2:]
        if not torch.compiler.is_compiling() and min(sizes) + 2 * self.padding < self.reach:
            raise ValueError(
                f"a kernel that spans {self.reach} pixels does not fit on a map of {sizes[0]}×{sizes[1]} with padding "
                f"{self.padding}: take larger images, fewer pools and strides, or padding='same'"
            )
        if self.stride > 1:
            check_centred("convolution", self.group, sizes, self.reach, self.stride, self.padding)

    @property
    def reach(self) -> int:
        """How many pixels the kernel spans, dilation included."""
        return self.dilation * (self.kernel_size - 1) + 1

    @property
    def _decides_first(self) -> bool:
        """Whether the level can decide before the convolution, whatever it is said to see: it does not look."""
        free = not self.training or can_skip_in_training()
        return self.level.same_for_all and free and not self.level.moves_elements

    def _weights(self, q: Distribution, u: Tensor, span: Tensor | None, *, uneven: bool) -> Tensor:
        """The weights `(B, G)` of elements u.

        Args:
            q: What the level decided.
            u: The elements of the output.
            span: As in `GroupFeature`.
            uneven: Whether they need not be an even grid of the group: then weights are renormalised.
        """
        if self.shares is not None and span is None and not torch.is_grad_enabled() and self._is_own_grid(u):
            return self.shares.expand(q.theta.shape[0], -1)
        weights = q.weights(u, span)
        return _renormalised(weights, self.group.angle(u)) if uneven else weights

    def _weigh(self, feature: GroupFeature, q: Distribution, shares: _Shares) -> GroupFeature:
        """Put q beside the values, as weights, and into the trace. The feature is the layer's output, unweighted."""
        trace, (weights, uses, dense) = recorded(feature.trace, self.name, q), shares
        if uses is None or weights is None:
            made = GroupFeature(feature.values, feature.elements, weights, self.group, trace, feature.span)
            return made.known_dense() if dense else made
        values = feature.values
        rest = feature.elements, weights, self.group, trace, feature.span
        return GroupFeature.of_parts(split(values, uses), lambda: values, *rest, None)

    # ------------------------------------------------------------ leaving out what has weight 0

    def _shares(
        self, q: Distribution, u: Tensor, span: Tensor | None, *, uneven: bool, together: bool = True
    ) -> _Shares:
        """The weights of elements u, and who uses them.

        Args:
            q: As for `_weights`, like all that follow.
            u: See `q`.
            span: See `q`.
            uneven: See `q`.
            together: Whether elements may be left out at all.
        """
        together = together and u.dim() == 2 and self.kernel.can_skip
        if not together or self.training or not can_skip():
            weights = self._weights(q, u, span, uneven=uneven)
            learns = together and self.level.same_for_all and can_skip_in_training()
            return _Shares(weights, self._uses_in_training(weights, q, u, span, uneven=uneven) if learns else None)
        own = span is None and self._is_own_grid(u)
        if own and self.shares is not None:
            weights = self.shares.expand(q.theta.shape[0], -1)
            return _Shares(weights, None if self.kept is None else (self.kept,), dense=self.kept is None)
        end = q.end() if own and type(q) is WindowDistribution and can_read(q.theta) else None
        if end is not None:
            count = u.shape[0]
            row = (1.0, *[0.0] * (count - 1)) if end == "closed" else (1 / count,) * count
            weights = constant((row,), u.dtype, u.device).expand(q.theta.shape[0], -1)
            closed = end == "closed" and count > 1
            return _Shares(weights, (Use(None, (0,), True),) if closed else None, dense=not closed)
        weights = self._weights(q, u, span, uneven=uneven and not own)  # on its own grid they sum to 1
        uses = uses_of(weights, same=q.shared) if can_read(weights) else None
        return _Shares(weights, uses, dense=uses is None and can_read(weights))

    @torch.no_grad()
    def _uses_in_training(
        self, weights: Tensor, q: Distribution, u: Tensor, span: Tensor | None, *, uneven: bool
    ) -> tuple[Use, ...] | None:
        """The elements whose weight is not 0, or would not be if θ grew; None for all of them."""
        if type(q) is not WindowDistribution or not can_read(q.theta) or not len(weights):
            return None
        row = weights[:1]
        if q.theta.requires_grad:
            one = replace(q, theta=(q.theta[:1] + 4 * hair(q.theta)).clamp_max(1))
            row = row + self._weights(one, u, None if span is None else span[:1], uneven=uneven)
        found = row[0].tolist()
        picks = tuple(place for place, weight in enumerate(found) if weight != 0)
        if len(picks) == len(found):
            return None
        fair, near = 1 / len(picks), 4 * torch.finfo(weights.dtype).eps
        even = not q.theta.requires_grad and all(abs(found[place] - fair) <= near * fair for place in picks)
        return (Use(None, picks, even),)

    def _parts_of(self, feature: GroupFeature) -> tuple[Part, ...]:
        """The input, without elements of weight 0 where they may be left out."""
        if feature.parts is not None:
            return feature.parts
        weights, every = feature.weights, tuple(range(feature.shape[2]))
        looks = weights is not None and not feature.dense and can_skip() and can_read(weights)
        uses = uses_of(weights) if looks and weights is not None else None
        return split(feature.values, uses or (Use(None, every, weights is None),))

    def _convolve_parts(
        self,
        parts: tuple[Part, ...],
        weights: Tensor | None,
        v: Tensor | None,
        u: Tensor,
        uses: Sequence[Use],
        ready: Tensor | None,
    ) -> tuple[Part, ...]:
        """The output at the elements that images use, from input parts with weights `(B, V)`."""
        made = []
        for part, use in crossed(parts, uses):
            rows, columns, share = use.picks, part.use.picks, part.weights(weights)
            note_pair(self, rows, columns)
            products, values = len(rows) * len(columns), part.values
            everything = products == u.shape[0] * (1 if v is None else v.shape[0])
            if everything or self.kernel.whole_pays(values, self.geometry, products):
                if not everything and v is not None:
                    inside, images = replace(part.use, images=None), values.shape[0]
                    share = values.new_full((images, len(columns)), 1 / len(columns)) if share is None else share
                    share = assemble([Part(inside, share.unsqueeze(1))], images, v.shape[0]).squeeze(1)
                    values = assemble([Part(inside, values)], images, v.shape[0])
                out = self.kernel.convolve(values, share, v, u, self.geometry, bias=self.bias, folded=ready)
                made.append(Part(use, pick(out, rows)))
                continue
            weight = self._weight_of(u, v, rows, columns, ready)
            made.append(Part(use, self.kernel.convolve_expanded(values, share, weight, self.geometry, self.bias)))
        return merged(made)

    def _weight_of(
        self, u: Tensor, v: Tensor | None, rows: tuple[int, ...], columns: tuple[int, ...], ready: Tensor | None
    ) -> Tensor:
        """The expanded kernel at some elements. Those of a folded kernel are made once."""
        if self.only_for == (rows, columns) and self._is_own_grid(u, u if v is None else v):
            assert self.only is not None
            return self.only
        if ready is None or type(ready) is not Tensor or torch.compiler.is_compiling():
            return self.kernel.fold_some(u, v, rows, columns, ready)
        known = _cuts.setdefault(ready, {})
        if (rows, columns) not in known:
            made = self.kernel.fold_some(u, v, rows, columns, ready)
            if len(known) >= CUTS:
                return made
            known[rows, columns] = made
        return known[rows, columns]

    def _output(
        self, given: tuple[Part, ...], shares: Tensor | None, v: Tensor | None, plan: _Plan, uses: Sequence[Use]
    ) -> GroupFeature:
        """The layer's output at the elements in use; the others are computed when somebody reads the values.

        Args:
            given: The input.
            shares: Its weights `(B, V)`, or None.
            v: Its elements, or None at a lift.
            plan: All of the output but its values.
            uses: Who uses what.
        """
        u, weights, batch = plan.elements, plan.weights, plan.batch
        every = (Use(None, tuple(range(u.shape[0])), True),)

        def whole() -> Tensor:
            return assemble(self._convolve_parts(given, shares, v, u, every, ready), batch, u.shape[0])

        ready = self.folded if self._is_folded_for(u, v) else None
        if weights is None or not uses:
            return GroupFeature(whole(), u, weights, self.group, plan.trace, plan.span)
        made = self._convolve_parts(given, shares, v, u, uses, ready)
        inputs = [part.values for part in given]
        learns = self.training or torch.is_grad_enabled()
        later = unchanged(whole, lambda: [*inputs, *(() if ready is not None else self.parameters())])
        later = _refused if learns else later
        rest = u, weights, self.group, plan.trace, plan.span
        return GroupFeature.of_parts(made, later, *rest, autocast_now(u.device))

    def train(self, mode: bool = True) -> Self:
        """As `nn.Module.train`. Training changes the kernel, so a folded one is dropped."""
        if mode or self.training:
            _unfold(self)
        return super().train(mode)

    def extra_repr(self) -> str:
        parts = [f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, {self.group}"]
        parts += [f"padding={self.padding}"]
        parts += [f"{name}={getattr(self, name)}" for name in ("stride", "dilation") if getattr(self, name) != 1]
        return ", ".join(parts)


class _Shares(NamedTuple):
    """The weights `(B, G)` of a layer's output, and who uses which elements; None if all are needed.

    `dense` says that this was looked at: later layers need not.
    """

    weights: Tensor | None
    uses: tuple[Use, ...] | None
    dense: bool = False


class _Plan(NamedTuple):
    """All of a layer's output but its values: the number of images, and as in `GroupFeature`."""

    batch: int
    elements: Tensor
    weights: Tensor | None
    trace: Trace
    span: Tensor | None


def _leaves_out(parts: tuple[Part, ...], feature: GroupFeature) -> bool:
    """Whether some elements of the feature are in no part."""
    return any(len(part.use.picks) < feature.shape[2] for part in parts)


def _refused() -> Tensor:
    raise RuntimeError(
        "elements of weight 0 were left out of this feature in training: read `values` without `with used_elements():`"
    )


def _renormalised(weights: Tensor, distance: Tensor) -> Tensor:
    """Rows `(B, G)` that sum to 1; where no element is in the window, the one nearest to the identity is kept."""
    total = weights.sum(dim=1, keepdim=True)
    nearest = torch.zeros_like(weights).scatter(1, distance.expand_as(weights).argmin(dim=1, keepdim=True), 1.0)
    return torch.where(total > 1e-6, weights / total.clamp_min(1e-6), nearest)


def _resolve(padding: Padding, kernel_size: int, dilation: int) -> int:
    if padding == "same":
        if kernel_size % 2 == 0:
            raise ValueError(f"padding='same' needs an odd kernel to stay centred, got kernel_size={kernel_size}")
        return dilation * (kernel_size // 2)
    if isinstance(padding, bool) or not isinstance(padding, int) or padding < 0:
        raise ValueError(f"padding must be 'same' or a whole number ≥ 0, got {padding!r}")
    return padding


class LiftConv2d(_GroupConvolution):
    """Equivariant to the group with `Full()`, to as much of it as the level allows otherwise.

    From an image to a feature on the group:

        >>> LiftConv2d(1, 10, 7, SO2(8), level=Variational())(images)
        GroupFeature(SO2(n=8): 64 images, 10 channels, 8 elements, 22×22, weighted, float32, cpu)

    A variational level sees the lifted feature, after a ReLU: the image itself has no group axis.
    A stride above 1 keeps rotations only where its positions are symmetric about the centre; a
    warning says when they are not.

    Args:
        in_channels: Channels of the images; 3 where the group acts on colour.
        out_channels: Channels of the feature.
        kernel_size: Pixels of a side.
        group: A value such as `SO2(8)` or `Hue(3)`.
        level: How much of the group to use: `Full()` (default), `Shared()`, `Variational()`.
        kernel: `Table()`, `Harmonic()`, `Siren()`, or one that may break the symmetry, as `Relaxed()`; None for the
            group's default.
        resample: No effect at a lift, which always makes a new grid.
        stride: As in `nn.Conv2d`.
        padding: A number, or "same" for an odd kernel.
        dilation: As in `nn.Conv2d`.
        groups: Only 1: there are no grouped convolutions.
        bias: As in `nn.Conv2d`.
    """

    lifts = True

    def forward(
        self, image: Tensor, *, elements: Tensor | None = None, generator: torch.Generator | None = None
    ) -> GroupFeature:
        """Images to a feature on the group.

        Args:
            image: `(B, C, H, W)`, floating point.
            elements: `(G, K)` to use instead of the layer's own choice.
            generator: For the random offset and the noise of training. Not under `torch.compile`, which
                cannot take one as an argument: seed the default generator there.

        Returns:
            A feature with values `(B, O, G, H', W')`.
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
        check_square(self.group, *image.shape[-2:])
        self._check_map(image)
        signal, uneven, q = image.unsqueeze(2), elements is not None, None
        u = self.grid(image, generator) if elements is None else wrap(self._given(elements, image.shape[0]))
        if self._decides_first and u.dim() == 2 and not self.group.recolors:
            seen = GroupFeature(signal[:, :1, :, :1, :1].expand(-1, -1, u.shape[0], -1, -1), u, None, self.group)
            q = self.level(seen, generator)
            weights, uses, _ = self._shares(q, u, None, uneven=uneven)
            if uses is not None:
                part = Part(Use(None, (0,), True), signal)
                plan = _Plan(image.shape[0], u, weights, recorded({}, self.name, q), None)
                return self._output((part,), None, None, plan, uses)
        feature = GroupFeature(self._lifted(signal, u), u, None, self.group)
        if self.level.is_full:
            return feature
        q = self.level.after_relu(feature, generator) if q is None else q
        if self.level.moves_elements and elements is None:
            u = self._place(q, generator)
            feature = GroupFeature(self._lifted(signal, u), u, None, self.group, span=q.theta)
            return self._weigh(feature, q, _Shares(None, None))
        return self._weigh(feature, q, self._shares(q, u, None, uneven=uneven))

    def _lifted(self, signal: Tensor, u: Tensor) -> Tensor:
        """The images `(B, C, 1, H, W)` at elements u: `(B, O, U, H', W')`."""
        if not self.group.recolors:
            return self._convolve(signal, None, None, u)
        back = self.group.inverse(u)
        views = self.group.recolor(signal.transpose(1, 2), back if u.dim() == 3 else back.unsqueeze(0))
        ready = self.folded if self._is_folded_for(u, None) else None
        return self.kernel.convolve_views(views.transpose(1, 2), u, self.geometry, self.bias, ready)


class GroupConv2d(_GroupConvolution):
    """Equivariant to the group with `Full()`, to as much of it as the level allows otherwise.

    From a feature on the group to another, on the same elements: the grid travels with the feature.
    Input elements are averaged under the weights that they bring; the output carries the weights of
    this layer's level.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        kernel_size: Pixels of a side.
        group: A value such as `SO2(8)` or `Hue(3)`, the same as the feature's.
        level: How much of the group to use: `Full()` (default), `Shared()`, `Variational()`.
        kernel: `Table()`, `Harmonic()`, `Siren()`, or one that may break the symmetry, as `Relaxed()`; None for the
            group's default.
        resample: Whether to draw a new random grid in training, on continuous groups. Evaluation has one grid
            for all layers, so relative angles that only training sees make batch statistics less fitting.
        stride: As in `nn.Conv2d`; see `LiftConv2d`.
        padding: A number, or "same" for an odd kernel.
        dilation: As in `nn.Conv2d`.
        groups: Only 1: there are no grouped convolutions.
        bias: As in `nn.Conv2d`.
    """

    lifts = False

    def forward(
        self,
        feature: GroupFeature,
        *,
        elements: Tensor | GroupFeature | None = None,
        generator: torch.Generator | None = None,
    ) -> GroupFeature:
        """A feature to a feature.

        Args:
            feature: values `(B, C, G, H, W)`.
            elements: Those of the output, instead of the layer's own choice: the elements of another feature,
                so that the two can be added, or `(G, K)`, or `(B, G, K)`.
            generator: As for `LiftConv2d`.

        Returns:
            A feature with values `(B, O, G', H', W')`.
        """
        check_feature(self, feature)
        if feature.shape[1] != self.in_channels:
            raise ValueError(f"expected {self.in_channels} channels, got {feature.shape[1]} ({feature})")
        if feature.group != self.group:
            raise ValueError(f"expected a feature on {self.group}, got one on {feature.group}")
        self._check_map(feature)
        early = not self.level.is_full and (self.condition == "input" or self._decides_first)
        q = self.level(feature, generator) if early else None
        placed = q is not None and self.level.moves_elements and elements is None
        span = None
        if isinstance(elements, GroupFeature):
            u, span = self._given(elements.elements, feature.shape[0]), elements.span
        elif elements is not None:
            u = wrap(self._given(elements, feature.shape[0]))
        elif q is not None and placed:
            u, span = self._place(q, generator), q.theta
        elif self.resample and self.group.order is None:
            u = self.grid(feature.some, generator)
        else:
            u, span = feature.elements, feature.span
        uneven = isinstance(elements, Tensor) or self.group.order is None  # a shifted grid sums to 1 up to rounding
        together = u.dim() == 2 and not feature.moves_elements and self.kernel.can_skip
        decided = q is not None and not placed
        shares = self._shares(q, u, span, uneven=uneven, together=together) if q and decided else _Shares(None, None)
        weights, uses, _ = shares
        parts = self._parts_of(feature) if together else None
        if parts is not None and (uses is not None or _leaves_out(parts, feature)):
            trace = feature.trace if q is None else recorded(feature.trace, self.name, q)
            plan = _Plan(feature.shape[0], u, weights, trace, span)
            out = self._output(parts, feature.weights, feature.elements, plan, uses or ())
        else:
            values = self._convolve(feature.values, feature.weights, feature.elements, u)
            out = GroupFeature(values, u, None, self.group, feature.trace, span)
            if q is not None:
                return self._weigh(out, q, shares)
        if self.level.is_full or early:
            return out
        q = self.level.after_relu(out, generator)
        return self._weigh(out, q, self._shares(q, u, span, uneven=uneven))


def name_layers(model: nn.Module) -> nn.Module:
    """Name the layers of a model by their paths: these are the keys of `Prediction.trace` and `.theta`.

    Without it a layer is called by its class and a number. Call it at the end of your network's `__init__`.

    Args:
        model: Any module with layers of this package inside.

    Returns:
        The model.
    """
    for path, layer in model.named_modules():
        if isinstance(layer, _GroupConvolution):
            layer.name = path or layer.name
    return model


# ---------------------------------------------------------------- folding


def fold(model: nn.Module, example: Tensor | None = None) -> nn.Module:
    """Expand every kernel once, for evaluation: layers on a shared grid are then a plain `conv2d`.

    In place, and only used in `eval()` mode; the state dict does not change. Undo with `unfold`, or
    use `with folded(model):`. Fold again after changing parameters by hand; `train()` and loading a
    state dict unfold by themselves. Layers that move elements stay as they are. Levels that are the same for all
    images (`Shared`, `Fixed`) decide once, and the elements that they leave out are not computed any more.

    Args:
        model: Any module with layers of this package inside.
        example: Images for one call of the model, in evaluation mode. With it, the kernels hold no elements that
            such levels have left out: if all levels are closed, the model is an ordinary CNN, also when exported.

    Returns:
        The model.
    """
    layers = [part for part in model.modules() if isinstance(part, _GroupConvolution)]
    unfold(model)
    with torch.no_grad():
        for layer in layers:
            for encoder in _encoders(layer):
                encoder.fold()
            if not layer.level.moves_elements:
                grid = layer.group.grid(dtype=layer._precision(), device=layer._reference().device)
                layer.folded = layer.kernel.fold(grid, None if layer.lifts else grid)
                if layer.level.same_for_all:
                    _fold_level(layer, grid)
        if example is not None:
            with noted_pairs() as pairs:
                model(example)
            for layer in layers:
                _fold_to_pairs(layer, pairs.get(id(layer), set()))
    return model


def _fold_to_pairs(layer: _GroupConvolution, pairs: set[tuple[tuple[int, ...], tuple[int, ...]]]) -> None:
    """Drop all of a folded kernel but the elements of the one pair of output and input that is in use."""
    if len(pairs) != 1 or layer.folded is None:
        return
    grid = layer.group.grid(dtype=layer._precision(), device=layer.folded.device)
    ((rows, columns),) = pairs
    if len(rows) < len(grid) or (not layer.lifts and len(columns) < len(grid)):
        inputs = None if layer.lifts else grid
        layer.only = layer.kernel.fold_some(grid, inputs, rows, columns, layer.folded)
        layer.only_for, layer.folded = (rows, columns), None


def _fold_level(layer: _GroupConvolution, grid: Tensor) -> None:
    """Decide once, for all images."""
    level, layer.shares = layer.level, None
    training = level.training
    try:
        seen = GroupFeature(grid.new_zeros(1, 1, grid.shape[0], 1, 1), grid, None, layer.group)
        uneven = not layer.lifts and layer.group.order is None
        layer.shares = layer._weights(level.eval()(seen), grid, None, uneven=uneven)
    finally:
        level.train(training)
    uses = uses_of(layer.shares, same=True)
    layer.kept = None if uses is None else uses[0]


def unfold(model: nn.Module) -> nn.Module:
    """Drop the expanded kernels of `fold`."""
    for layer in model.modules():
        if isinstance(layer, _GroupConvolution):
            _unfold(layer)
    return model


def _encoders(layer: _GroupConvolution) -> list[InvariantEncoder]:
    return [module for module in layer.level.modules() if isinstance(module, InvariantEncoder)]


def _unfold(layer: _GroupConvolution) -> None:
    for encoder in _encoders(layer):
        encoder.unfold()
    layer.folded = layer.shares = layer.only = None
    layer.kept = layer.only_for = None


@contextmanager
def folded(model: nn.Module) -> Iterator[nn.Module]:
    """`fold` for the length of a `with` block; then the layers are as they were."""
    layers = [layer for layer in model.modules() if isinstance(layer, _GroupConvolution)]
    before = [(layer.folded, layer.shares, layer.kept, layer.only, layer.only_for) for layer in layers]
    encoders = [encoder for layer in layers for encoder in _encoders(layer)]
    known = [[getattr(encoder, name) for name in FOLDED] for encoder in encoders]
    try:
        yield fold(model)
    finally:
        for layer, ready in zip(layers, before, strict=True):
            layer.folded, layer.shares, layer.kept, layer.only, layer.only_for = ready
        for encoder, tensors in zip(encoders, known, strict=True):
            for name, tensor in zip(FOLDED, tensors, strict=True):
                setattr(encoder, name, tensor)


def _forget(module: nn.Module, *_: object) -> None:
    unfold(module)
