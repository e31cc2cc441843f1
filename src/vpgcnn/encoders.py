"""e_φ: from a feature to the parameters of a level, the same for every pose of the image."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vpgcnn.errors import NotFiniteError
from vpgcnn.features import GroupFeature
from vpgcnn.function import Function
from vpgcnn.groups import Group, neighbour_index
from vpgcnn.precision import full_precision
from vpgcnn.processes import across, sum_over_processes

__all__ = ["InvariantEncoder", "Standardise"]


class Standardise(nn.BatchNorm1d):
    """A batch norm without parameters, `(B, C)` → `(B, C)`: mean 0 and variance 1 over images.

    A single image in training has only the running statistics. `norm.synchronise` lets the
    statistics be those of all processes.
    """

    synchronised = False
    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__(channels, affine=False)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        if self.training and self.synchronised and across():
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


def _sums(values: Tensor, dtype: torch.dtype, *, rectify: bool) -> Tensor:
    """The sum of each map of values `(B, C, G, H, W)`, or of its ReLU: `(B, C·G)`."""
    # Channels and elements in one axis: the gradient then comes in their order, in which the map lies.
    maps = values.flatten(1, 2)
    if rectify and maps.device.type == "cpu" and not torch.compiler.is_compiling():
        found: Tensor = _RectifiedSum.apply(maps, dtype)
        return found
    return (F.relu(maps) if rectify else maps).sum(dim=(-2, -1), dtype=dtype)


class _RectifiedSum(Function):
    """The sum of a ReLU over positions, `(B, C, H, W)` → `(B, C)`, which is not kept and never whole in memory."""

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
    """Invariant: e(L_g f) = e(f) for every g in the group (on the grid, for continuous groups).

    The paper's light encoder: mean over space, two 1-D convolutions over the group, mean over the
    group, one linear layer. The first convolution looks at the neighbours of each element (a
    circular convolution of size 3 on a circle) where the group is finite; a continuous group has no
    nearest neighbours, and both are pointwise. Elements count by their weights in both means.
    What the linear layer sees is standardised over images (a batch norm without parameters): images
    differ little in such pooled features, and without it all of them get the same level for long.
    The activation is SiLU: pooled features are alike for all images at the start, so that a ReLU
    could be off for every one of them and never learn.

    group, channels: of the feature. start: `(P,)`, what the encoder answers at the start. hidden:
    channels within, as many as the feature's unless given; fewer make a lighter encoder.
    """

    neighbours: Tensor | None

    def __init__(self, group: Group, channels: int, start: Tensor, hidden: int | None = None) -> None:
        super().__init__()
        if channels < 1:
            raise ValueError(f"channels must be at least 1, got {channels}")
        hidden = channels if hidden is None else hidden
        if hidden < 1:
            raise ValueError(f"hidden must be at least 1, got {hidden}")
        index = None if group.order is None else neighbour_index(group)
        taps = 1 if index is None else index.shape[0]
        # Looking at neighbours is a product with a 0/1 matrix `(G·S, G)`, which is quick in both directions.
        picks = None if index is None else F.one_hot(index.t().flatten(), index.shape[1]).to(start.dtype)
        self.register_buffer("neighbours", picks, persistent=False)
        self.first = nn.Linear(channels * taps, hidden)
        self.second = nn.Linear(hidden, hidden)
        self.standardise = Standardise(hidden)
        self.linear = nn.Linear(hidden, start.numel())
        for layer in (self.first, self.second):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)
        nn.init.normal_(self.linear.weight, std=0.05 * hidden**-0.5)
        with torch.no_grad():
            self.linear.bias.copy_(start)

    def forward(self, feature: GroupFeature, *, rectify: bool = False) -> Tensor:
        """feature `(B, C, G, H, W)` → raw parameters `(B, P)`. rectify: look at it after a ReLU."""
        with full_precision(feature.device):
            # The mean as a sum: its gradient is then divided before it is spread over the map, not after.
            positions = feature.shape[-2] * feature.shape[-1]
            sums = _sums(feature.values, self.linear.weight.dtype, rectify=rectify)
            x = sums.unflatten(1, feature.shape[1:3]).transpose(1, 2) / positions  # B G C
            share = None if feature.weights is None else feature.weights.to(x.dtype).unsqueeze(-1)
            if share is not None:
                x = x * (share * share.shape[1])
            if self.neighbours is not None:
                count = self.neighbours.shape[1]
                if x.shape[1] != count:
                    raise ValueError(f"expected {count} elements, got {x.shape[1]}")
                x = torch.matmul(self.neighbours, x).reshape(x.shape[0], count, self.first.in_features)  # B G S·C
            x = F.silu(self.first(x))
            x = F.silu(self.second(x))
            pooled = x.mean(dim=1) if share is None else (x * share).sum(dim=1)
            raw: Tensor = self.linear(self._standardised(pooled))
            return raw

    def _standardised(self, pooled: Tensor) -> Tensor:
        """`(B, C)` with mean 0 and variance 1 over images."""
        visible = pooled.device.type != "meta" and not torch.compiler.is_compiling()
        if visible and not math.isfinite(pooled.detach().sum()):
            # Before the running statistics see it: they would not recover.
            image = int((~pooled.isfinite()).any(dim=1).nonzero()[0])
            raise NotFiniteError(
                f"the input of a level is not finite: image {image} of {len(pooled)} has NaN or infinity"
            )
        out: Tensor = self.standardise(pooled)
        return out
