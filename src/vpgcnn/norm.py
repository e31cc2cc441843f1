"""Normalisation and dropout that honour the weights of elements: what is left out does not count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from vpgcnn.drop import ReluDrop, draw, parts, possible
from vpgcnn.encoders import Standardise
from vpgcnn.features import GroupFeature
from vpgcnn.function import Function
from vpgcnn.layout import Maps, by_pixel, flat, laid_out_as, over, sums, unflat
from vpgcnn.precision import full_precision, uniform
from vpgcnn.processes import across, sum_over_processes

__all__ = ["GroupBatchNorm", "GroupDropout", "GroupLayerNorm", "ReluDropout", "synchronise"]


def _check_channels(feature: GroupFeature, channels: int) -> None:
    if feature.shape[1] != channels:
        raise ValueError(f"expected {channels} channels, got {feature.shape[1]} ({feature})")


def _affine(values: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """values·scale + shift, both `(C,)` or `(B, C)`."""
    rows, shape = flat(values), values.shape
    wide = [over(each.reshape(-1, shape[1], 1), rows, shape) for each in (scale, shift)]
    # Two passes, and faster than addcmul: with an operand that is the same along a map it takes the slow way.
    return unflat((rows * wide[0]).add_(wide[1]), shape)


class GroupBatchNorm(nn.Module):
    """Equivariant. `nn.BatchNorm2d` with one mean and variance for all elements of the group.

    In training an element counts in the statistics by its weight, so one that was left out counts
    nothing and every image counts the same. Evaluation uses the running statistics.
    Under data parallelism the statistics are those of one process until `synchronise(model)` is called.
    """

    synchronised = False
    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(self, channels: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.channels, self.eps, self.momentum = channels, eps, momentum
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))
        self.register_buffer("num_batches_tracked", torch.tensor(0, dtype=torch.long))

    def forward(self, feature: GroupFeature) -> GroupFeature:
        """values `(B, C, G, H, W)` to the same shape."""
        _check_channels(feature, self.channels)
        synchronised = self.synchronised and across()
        if self.training and not synchronised and not feature.shape.numel():
            return feature  # nothing to learn statistics from
        if self.training:
            self.num_batches_tracked.add_(1)
        if self.training and (feature.weights is not None or synchronised or by_pixel(feature.values)):
            return feature.with_values(self._weighted(feature.values, feature.weights, synchronised))
        if by_pixel(feature.values):
            seen = Maps(feature.values)
            mean, var = seen.spread(self.running_mean, self.running_var)
            times, plus = seen.spread(self.weight, self.bias)  # apart: statistics have no gradient
            normed = F.batch_norm(seen(feature.values), mean, var, times, plus, training=False, eps=self.eps)
            return feature.with_values(seen.back(normed))
        normed = F.batch_norm(
            feature.values.flatten(2),
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training,
            self.momentum,
            self.eps,
        )
        return feature.with_values(normed.view_as(feature.values))

    def _weighted(self, values: Tensor, weights: Tensor | None, synchronised: bool) -> Tensor:
        with full_precision(values.device):
            dtype = self.weight.dtype
            share = None if weights is None else (weights.to(dtype) / weights.shape[0]).unsqueeze(1)  # B 1 G, sums to 1
            if synchronised:
                norm, share, mean, var = self._together(values.to(dtype), weights)
            else:
                norm, mean, var = _WeightedNorm.apply(values.to(dtype), share, self.weight, self.bias, self.eps)[:3]
            with torch.no_grad():
                unbiased = var * _bessel(values.shape, share, synchronised)
                self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
                self.running_var.lerp_(unbiased.to(self.running_var.dtype), self.momentum)
            return norm.to(values.dtype)

    def _together(self, values: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The same over the batches of all processes: normalised values, the share of each element, mean, variance."""
        weights = values.new_full(values.shape[:3:2], 1 / values.shape[2]) if weights is None else weights.to(values)
        share = (weights / sum_over_processes(weights.new_tensor(float(weights.shape[0])))).unsqueeze(1)
        centre = values.mean(dim=(-2, -1))
        spread = (values - centre[..., None, None]).square().mean(dim=(-2, -1))
        mean = sum_over_processes((centre * share).sum(dim=(0, 2)))
        var = sum_over_processes((((centre - mean[:, None]).square() + spread) * share).sum(dim=(0, 2)))
        scale = self.weight * (var + self.eps).rsqrt()
        return _affine(values, scale, self.bias - mean * scale), share, mean, var

    def extra_repr(self) -> str:
        return f"{self.channels}, eps={self.eps}, momentum={self.momentum}"


def _bessel(shape: torch.Size, share: Tensor | None, synchronised: bool) -> Tensor | float:
    """n / (n − 1), for as many values n as the shares amount to."""
    positions = shape[-2] * shape[-1]
    if share is None:
        count = positions * shape[0] * shape[2]
        return count / max(count - 1, 1)
    squares = share.square().sum()
    many = positions / (sum_over_processes(squares) if synchronised else squares)
    return many / (many - 1).clamp_min(1)


class _WeightedNorm(Function):
    """Batch norm under weights: torch's own kernels for what all images share, and one more pass for the weights.

    values `(B, C, G, H, W)`, share `(B, 1, G)` that sums to 1, or None where all are the same; weight and bias `(C,)`.
    Also returns the mean and the variance `(C,)`, and what they were made of, all without a gradient.
    """

    @staticmethod
    def forward(values: Tensor, share: Tensor | None, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, ...]:
        seen = Maps(values)
        channels = seen(values)
        if share is None:
            centre, apart = map(seen.collect, _moments(channels))
            mean = centre.mean(dim=(0, 2))
            var = ((centre - mean[:, None]).square_() + apart).mean(dim=(0, 2))
        else:
            positions = values.shape[-2] * values.shape[-1]
            rows, shape = flat(values), values.shape
            centre = sums(rows, shape) / positions
            mean = (centre * share).sum(dim=(0, 2))
            middle = over(mean[None, :, None], rows, shape)
            # A few images at a time, which then are in the cache. As var_mean, and many times faster on a CPU.
            apart = torch.cat([sums((some - middle).square_(), shape) for some in parts(rows)]) / positions
            var = (apart * share).sum(dim=(0, 2))
        around, spread, times, plus = seen.spread(mean, var, weight, bias)
        normed = F.batch_norm(channels, around, spread, times, plus, training=False, eps=eps)
        return seen.back(normed), mean, var, centre, apart

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        values, share, weight, _, ctx.eps = inputs
        ctx.save_for_backward(values, share, weight, *output[1:])
        ctx.mark_non_differentiable(*output[1:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, Tensor, Tensor, None]:
        # With x̂ = (x − μ)r, A = Σg and B = Σgx̂ of a channel, and the probability p of each value:
        # dL/dx = wr(g − pA − px̂B), dL/dμ = −wrA, dL/dσ² = −wr²B/2, dL/dp = x·dL/dμ + (x − μ)²·dL/dσ².
        values, share, weight, mean, var, centre, apart = ctx.saved_tensors
        shape, seen = values.shape, Maps(values)
        channels, grad = seen(values), seen(laid_out_as(grads[0], values))
        reciprocal = (var + ctx.eps).rsqrt()
        scale = weight * reciprocal
        around, spread, own, slopes = seen.spread(mean, var, weight, scale)
        _, *found = torch.ops.aten.native_batch_norm_backward(
            grad, channels, own, around, spread, None, None, False, ctx.eps, [False, True, True]
        )
        slope, total = (seen.collect(each).sum(dim=(0, 2)) for each in found)
        positions = shape[-2] * shape[-1]
        less = scale * (-1 / (shape[0] * shape[2] * positions) if share is None else -1.0)
        times, plus = seen.spread(less * slope, less * total)
        # In an order of which there is such a view, whatever order the values came in.
        order = torch.preserve_format if seen.by_pixel else torch.contiguous_format
        to_values = torch.empty_like(values, memory_format=order)
        into = seen(to_values)
        _normalise(channels, around, spread, times, plus, ctx.eps, into)
        if share is not None:
            into.mul_(seen.by_element(share / positions))
        into.addcmul_(slopes.view(-1, *[1] * (channels.dim() - 2)), grad)
        to_share = None
        if share is not None:
            steep = scale * reciprocal * slope
            to_share = -(centre * (scale * total)[:, None] + apart * (steep / 2)[:, None]).sum(dim=1, keepdim=True)
        # No view: autograd can then add another gradient in place.
        return to_values, to_share, slope, total, None


def _moments(channels: Tensor) -> Sequence[Tensor]:
    """Mean and variance of each channel of `(B, C, ...)`."""
    if channels.device.type == "cpu" and not torch.compiler.is_compiling():
        return torch.batch_norm_update_stats(channels, None, None, 0)  # as var_mean, and many times faster
    return torch.var_mean(channels, dim=(0, *range(2, channels.dim())), correction=0)[::-1]


def _normalise(
    channels: Tensor, mean: Tensor, var: Tensor, weight: Tensor, bias: Tensor, eps: float, into: Tensor
) -> None:
    """`F.batch_norm` of `(B, C, ...)` in evaluation, written into a tensor that is there already."""
    if channels.device.type == "cpu" and not torch.compiler.is_compiling():
        none = channels.new_empty(0)  # statistics of the batch, of which there are none
        torch.ops.aten.native_batch_norm.out(
            channels, weight, bias, mean, var, False, 0.0, eps, out=into, save_mean=none, save_invstd=none
        )
    else:
        into.copy_(F.batch_norm(channels, mean, var, weight, bias, training=False, eps=eps))


def synchronise(model: nn.Module) -> nn.Module:
    """Let all batch statistics of a model be those of the batches of all processes together.

    Two processes then compute what one does with the batch of both. Returns the model.
    """
    for module in model.modules():
        if isinstance(module, GroupBatchNorm | Standardise):
            module.synchronised = True
    return model


class GroupLayerNorm(nn.Module):
    """Equivariant. Each image is normalised over channels, elements (by weight) and space."""

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.channels, self.eps = channels, eps
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, feature: GroupFeature) -> GroupFeature:
        _check_channels(feature, self.channels)
        values = feature.values
        if feature.weights is None:
            return feature.with_values(F.group_norm(values, 1, self.weight, self.bias, self.eps))
        with full_precision(values.device):
            exact = values.to(self.weight.dtype)
            centre = exact.mean(dim=(1, 3, 4))
            spread = (exact - centre[:, None, :, None, None]).square().mean(dim=(1, 3, 4))
            share = feature.weights.to(centre.dtype)
            mean = (centre * share).sum(dim=1, keepdim=True)
            var = (((centre - mean).square() + spread) * share).sum(dim=1, keepdim=True)
            scale = self.weight * (var + self.eps).rsqrt()
            shift = self.bias - mean * scale
            return feature.with_values(_affine(exact, scale, shift).to(values.dtype))

    def extra_repr(self) -> str:
        return f"{self.channels}, eps={self.eps}"


class GroupDropout(nn.Module):
    """Drops whole channels of an image, all elements and all positions: equivariant.

    each: drop every number by itself instead, as `nn.Dropout`: equivariant in distribution.
    """

    def __init__(self, p: float = 0.5, *, each: bool = False) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"p must be in [0, 1), got {p}")
        self.p, self.each = p, each

    def forward(self, feature: GroupFeature, *, generator: torch.Generator | None = None) -> GroupFeature:
        if not self.training or self.p == 0:
            return feature
        if self.each and generator is None:
            return feature.map(lambda x: F.dropout(x, self.p))
        shape = feature.shape if self.each else (*feature.shape[:2], 1, 1, 1)
        draw = uniform(shape, feature.divergence, generator)
        keep = (draw >= self.p).to(feature.dtype) / (1 - self.p)
        return feature.map(lambda x: x * keep)

    def extra_repr(self) -> str:
        return f"p={self.p}, each={self.each}"


class ReluDropout(nn.Module):
    """A ReLU, then dropout of each number by itself: equivariant in distribution, and a ReLU alone in evaluation.

    As `nn.Dropout(p)` after a ReLU, in a fifth of the time on a CPU (drop.py says how), but that a NaN or an infinity
    which is dropped is 0 too.
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"p must be in [0, 1), got {p}")
        self.p = p

    def forward(self, feature: GroupFeature, *, generator: torch.Generator | None = None) -> GroupFeature:
        """values `(B, C, G, H, W)` to the same shape."""
        if not self.training or self.p == 0:
            return feature.map(F.relu)
        if not possible(feature.values, self.p):
            return GroupDropout(self.p, each=True)(feature.map(F.relu), generator=generator)
        values = feature.values if by_pixel(feature.values) else feature.values.contiguous()
        return feature.with_values(ReluDrop.apply(values, *draw(values, self.p, generator)))

    def extra_repr(self) -> str:
        return f"p={self.p}"
