"""The invariant encoder e_φ: from a feature to the parameters of a level, the same for every pose of the image."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vpgcnn._ops.active import Part, Use, assemble, can_read
from vpgcnn._ops.autograd import Function, apply
from vpgcnn._ops.constants import constant
from vpgcnn._ops.distributed import is_distributed, sum_over_processes
from vpgcnn._ops.memory_format import flat, is_channels_last, sums
from vpgcnn._ops.precision import full_precision
from vpgcnn.errors import NotFiniteError, UserError
from vpgcnn.features import GroupFeature
from vpgcnn.groups import Group, neighbour_index

__all__ = ["InvariantEncoder", "Standardise"]

GAIN = 16.0
"""How far the output moves when the last layer's parameters move by 1, whatever the width of the encoder.

An optimiser such as Adam moves every parameter by about its learning rate in a step. With this gain, learning rates
that suit a network's weights suit the encoder, too.
"""


FOLDED = ("own_tap", "last_weight", "last_bias")
"""What `InvariantEncoder.fold` computes."""


class Standardise(nn.BatchNorm1d):
    """Batch norm without parameters: mean 0 and variance 1 over images.

    A training batch of one image is normalised by the running statistics. After `nn.synchronise(model)`
    the statistics are those of all processes.

    Args:
        channels: Columns of the input.
    """

    synchronised = False
    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__(channels, affine=False)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Standardise `(B, C)` over images."""
        if self.training and self.synchronised and is_distributed():
            return self._together(input)
        if self.training and input.shape[0] < 2:
            return F.batch_norm(input, self.running_mean, self.running_var, eps=self.eps)
        out: Tensor = super().forward(input)
        return out

    def _together(self, pooled: Tensor) -> Tensor:
        images = sum_over_processes(pooled.new_tensor(float(pooled.shape[0])))
        mean = sum_over_processes(pooled.sum(dim=0)) / images
        var = sum_over_processes((pooled - mean).square().sum(dim=0)) / images
        with torch.no_grad():
            self.num_batches_tracked.add_(1)
            self.running_mean.lerp_(mean, self.momentum or 0.0)
            self.running_var.lerp_(var * images / (images - 1), self.momentum or 0.0)
        return (pooled - mean) * (var + self.eps).rsqrt()


def _sums(values: Tensor, dtype: torch.dtype, *, relu: bool) -> Tensor:
    """Sum each map of values `(B, C, G, H, W)`, or its ReLU, over positions: `(B, C·G)`."""
    # With channels and elements in one axis, the gradient has the memory layout of the map.
    maps = values.flatten(1, 2)
    if relu and maps.device.type == "cpu" and not torch.compiler.is_compiling():
        found: Tensor = apply(_RectifiedSum, maps, dtype)
        return found
    return (F.relu(maps) if relu else maps).sum(dim=(-2, -1), dtype=dtype)


def _sums_of(feature: GroupFeature, dtype: torch.dtype, *, relu: bool) -> Tensor:
    """The same of a feature, `(B, C·G)`; 0 for elements that were left out, whose weight is 0."""
    if feature.parts is None:
        return _sums(feature.values, dtype, relu=relu)
    parts = [
        Part(part.use, _sums(part.values, dtype, relu=relu).unflatten(1, part.values.shape[1:3]))
        for part in feature.parts
    ]
    return assemble(parts, feature.shape[0], feature.shape[2]).flatten(1)


def _quick_sums(values: Tensor, dtype: torch.dtype, *, relu: bool) -> Tensor:
    """`_sums` for evaluation: a product with ones reads channels-last maps several times as fast as a sum does."""
    if relu or values.dtype != dtype or not is_channels_last(values):
        return _sums(values, dtype, relu=relu)
    return sums(flat(values), values.shape).flatten(1)


def _in_order(parts: tuple[Part, ...], rows: list[Tensor], images: int) -> Tensor:
    """Rows `(N, D)` of the images of each part, as rows `(B, D)`."""
    out = rows[0].new_zeros(images, rows[0].shape[1])
    for part, some in zip(parts, rows, strict=True):
        assert part.use.images is not None
        out.index_copy_(0, constant(part.use.images, torch.long, out.device), some)
    return out


class _RectifiedSum(Function):
    """The sum of a ReLU over positions, `(B, C, H, W)` → `(B, C)`, without storing the ReLU's output."""

    generate_vmap_rule = True

    @staticmethod
    def forward(maps: Tensor, dtype: torch.dtype) -> Tensor:
        few = max(1, 2**18 // max(1, maps[:1].numel()))
        return torch.cat([F.relu(some).sum(dim=(-2, -1), dtype=dtype) for some in maps.split(few)])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (maps,) = ctx.saved_tensors
        spread = grads[0].to(maps.dtype)[..., None, None].expand_as(maps)
        return torch.ops.aten.threshold_backward(spread, maps, 0), None


class InvariantEncoder(nn.Module):
    """Invariant: e(L_g f) = e(f) for every g in the group (on the grid, for continuous groups); directions turn with f.

    The paper's light encoder: mean over positions, two 1-D convolutions over the group, mean over the
    group, one linear layer. For a finite group the first convolution sees the neighbours of each element
    (on a circle it is a circular convolution of size 3); elements of a continuous group have no nearest
    neighbours, so both convolutions are pointwise. Both means weight the elements.

    The input of the linear layer is standardised over images, because images differ little in pooled
    features: without it, all of them keep the same level for a long time. The activation is SiLU, because
    pooled features are similar for all images at the start: a ReLU could be off for all of them and never
    learn.

    Args:
        group: The feature's group.
        channels: The feature's channels.
        start: `(P,)`, the output at the start of training.
        hidden: Width of the encoder; None for as many as `channels`.
        directions: How many angles it also finds on each axis; these turn with the image.
    """

    neighbours: Tensor | None
    start: Tensor
    own_tap: Tensor | None
    """After folding, the first layer's weight `(hidden, C)` for an element itself, without its neighbours."""
    last_weight: Tensor | None
    """After folding, the last layer `(P, hidden)` together with the standardisation before it; also `last_bias`."""
    last_bias: Tensor | None

    def __init__(
        self, group: Group, channels: int, start: Tensor, hidden: int | None = None, directions: int = 0
    ) -> None:
        super().__init__()
        if channels < 1:
            raise ValueError(f"channels must be at least 1, got {channels}")
        hidden = channels if hidden is None else hidden
        if hidden < 1:
            raise ValueError(f"width must be at least 1, got {hidden}")
        index = None if group.order is None else neighbour_index(group)
        taps = 1 if index is None else index.shape[0]
        # Neighbours are gathered by a product with a 0/1 matrix `(G·S, G)`: fast forward and backward.
        picks = None if index is None else F.one_hot(index.t().flatten(), index.shape[1]).to(start.dtype)
        self.register_buffer("neighbours", picks, persistent=False)
        self.first = nn.Linear(channels * taps, hidden)
        self.second = nn.Linear(hidden, hidden)
        self.standardise = Standardise(hidden)
        self.linear = nn.Linear(hidden, start.numel())
        for layer in (self.first, self.second):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)
        nn.init.normal_(self.linear.weight, std=0.05 * hidden**0.5 / GAIN)
        nn.init.zeros_(self.linear.bias)
        self.register_buffer("start", start.clone())
        for name in FOLDED:
            self.register_buffer(name, None, persistent=False)
        self.compass = nn.Linear(hidden, directions * len(group.axes), bias=False) if directions else None

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: Any, strict: bool, *rest: Any
    ) -> None:
        """Refuse weights from before the output was scaled, even where missing keys are allowed."""
        if f"{prefix}linear.weight" in state_dict and f"{prefix}start" not in state_dict:
            raise UserError(f"{prefix.rstrip('.')} is from an older version: its output was scaled differently")
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, *rest)

    def forward(self, feature: GroupFeature, *, relu: bool = False, keep: Tensor | None = None) -> Tensor:
        """Compute the raw parameters of a level.

        Args:
            feature: values `(B, C, G, H, W)`.
            relu: Whether to apply a ReLU to the values first.
            keep: Factors `(B, C)` for the channels of each image, the same for all elements: dropout. None: all 1.

        Returns:
            Raw parameters `(B, P)`, then the angles `(B, K·directions)` in units of π, which are covariant.
        """
        if self.last_weight is not None and keep is None and self._can_use_folded(feature):
            return self._folded(feature, relu=relu)
        with full_precision(feature.device):
            # The mean as a sum: its gradient is divided before it is expanded over the map, not after.
            positions = feature.shape[-2] * feature.shape[-1]
            sums = _sums_of(feature, self.linear.weight.dtype, relu=relu)
            x = sums.unflatten(1, feature.shape[1:3]).transpose(1, 2) / positions  # B G C
            share = None if feature.weights is None else feature.weights.to(x.dtype).unsqueeze(-1)
            if share is not None:
                x = x * (share * share.shape[1])
            if keep is not None:
                x = x * keep.to(x.dtype).unsqueeze(1)
            if self.neighbours is not None:
                count = self.neighbours.shape[1]
                if x.shape[1] != count:
                    raise ValueError(f"expected {count} elements, got {x.shape[1]}")
                x = torch.matmul(self.neighbours, x).reshape(x.shape[0], count, self.first.in_features)  # B G S·C
            x = F.silu(self.first(x))
            x = F.silu(self.second(x))
            pooled = x.mean(dim=1) if share is None else (x * share).sum(dim=1)
            # The mean over the encoder's width: its output moves equally fast at every width.
            raw: Tensor = self.start + GAIN * self.linear(self._standardised(pooled) / pooled.shape[1])
            if self.compass is None:
                return raw
            needles = self.compass(x) if share is None else self.compass(x) * share
            return torch.cat([raw, self._angles(needles, feature.elements).to(raw.dtype)], dim=1)

    # ------------------------------------------------------------ folded, for evaluation

    @torch.no_grad()
    def fold(self) -> None:
        """Compute what depends on the parameters alone, for evaluation. Undone by `unfold`, not by changing them."""
        self.unfold()
        if self.compass is not None or not isinstance(self.standardise.running_var, Tensor):
            return
        channels, norm = self.first.in_features // self.taps, self.standardise
        self.own_tap = self.first.weight.detach()[:, :channels].clone()  # the first neighbour is the element itself
        scale = (norm.running_var.double() + norm.eps).rsqrt()
        weight = self.linear.weight.double() * scale * (GAIN / self.linear.in_features)
        bias = self.start.double() + GAIN * self.linear.bias.double() - weight @ norm.running_mean.double()
        self.last_weight, self.last_bias = weight.to(self.linear.weight.dtype), bias.to(self.linear.weight.dtype)

    def unfold(self) -> None:
        """Drop what `fold` computed."""
        self.own_tap = self.last_weight = self.last_bias = None

    @property
    def taps(self) -> int:
        """How many neighbours of an element the first layer sees, itself included."""
        return 1 if self.neighbours is None else self.neighbours.shape[0] // self.neighbours.shape[1]

    def _can_use_folded(self, feature: GroupFeature) -> bool:
        if torch.compiler.is_compiling() or self.training or torch.is_grad_enabled():
            return False
        return can_read(feature.some)

    def _folded(self, feature: GroupFeature, *, relu: bool) -> Tensor:
        """The raw parameters `(B, P)`, from the elements in use only: the others have weight 0 in the mean."""
        with full_precision(feature.device):
            count, weights = feature.shape[2], feature.weights
            parts = feature.parts or (Part(Use(None, tuple(range(count)), weights is None), feature.values),)
            made = [self._of(part, weights, count, relu=relu) for part in parts]
            pooled = made[0] if parts[0].use.images is None else _in_order(parts, made, feature.shape[0])
            self._check_finite(pooled)
            return F.linear(pooled, self.last_weight, self.last_bias)  # type: ignore[arg-type]

    def _of(self, part: Part, weights: Tensor | None, count: int, *, relu: bool) -> Tensor:
        """What is pooled of some images: `(N, hidden)`."""
        values, picks, dtype = part.values, part.use.picks, self.linear.weight.dtype
        positions = values.shape[-2] * values.shape[-1]
        sums = _quick_sums(values, dtype, relu=relu)  # N C·G'
        share = part.weights(weights)
        if len(picks) == 1 and share is None and self.own_tap is not None:
            x = F.silu(F.linear(sums * (count / positions), self.own_tap, self.first.bias))
            return F.silu(self.second(x))
        x = sums.unflatten(1, values.shape[1:3]).transpose(1, 2)  # N G' C
        if share is None:
            x = x * (count / (len(picks) * positions))
        else:
            share = share.to(dtype).unsqueeze(-1)
            x = x * (share * (count / positions))
        if self.neighbours is not None:
            if len(self.neighbours[0]) != count:
                raise ValueError(f"expected {len(self.neighbours[0])} elements, got {count}")
            x = torch.matmul(self._neighbours_of(picks, count), x).reshape(*x.shape[:2], self.first.in_features)
        x = F.silu(self.second(F.silu(self.first(x))))
        return x.mean(dim=1) if share is None else (x * share).sum(dim=1)

    def _neighbours_of(self, picks: tuple[int, ...], count: int) -> Tensor:
        """`neighbours` between some elements only, `(G'·S, G')`."""
        assert self.neighbours is not None
        if len(picks) == count:
            return self.neighbours
        index = constant(picks, torch.long, self.neighbours.device)
        return self.neighbours.unflatten(0, (count, -1)).index_select(0, index).flatten(0, 1).index_select(1, index)

    @staticmethod
    def _angles(needles: Tensor, elements: Tensor) -> Tensor:
        """The mean directions `(B, K·N)`, in units of π, of numbers `(B, G, K·N)` at elements `(…, G, K)`.

        If g moves the feature, number and element move together, and so does the direction of their sum.
        """
        axes = elements.shape[-1]
        numbers = needles.unflatten(-1, (axes, -1))  # B G K N
        around = elements.to(needles.dtype).unsqueeze(-1)
        sine, cosine = (numbers * torch.sin(around)).sum(dim=-3), (numbers * torch.cos(around)).sum(dim=-3)
        return (torch.atan2(sine, cosine) / math.pi).flatten(1)

    def _standardised(self, pooled: Tensor) -> Tensor:
        """Standardise `(B, C)` over images; refuse NaN and infinity."""
        self._check_finite(pooled)
        out: Tensor = self.standardise(pooled)
        return out

    def _check_finite(self, pooled: Tensor) -> None:
        # Checked on the CPU only: reading values of another device would wait for it.
        visible = pooled.device.type == "cpu" and not torch.compiler.is_compiling() and not _is_transformed(pooled)
        if visible and not math.isfinite(pooled.detach().sum()):
            # Raise before the running statistics are updated: they would not recover.
            image = int((~pooled.isfinite()).any(dim=1).nonzero()[0])
            raise NotFiniteError(
                f"the input of a level is not finite: image {image} of {len(pooled)} has NaN or infinity"
            )


def _is_transformed(tensor: Tensor) -> bool:
    """Whether the values of a tensor cannot be read: inside `torch.func` transforms, or without data."""
    return type(tensor) is not Tensor or torch._C._functorch.is_functorch_wrapped_tensor(tensor)
