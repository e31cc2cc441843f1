"""Normalisation and dropout that honour the weights of elements: what is left out does not count."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from vpgcnn.encoders import Standardise
from vpgcnn.features import GroupFeature
from vpgcnn.layout import by_maps, by_pixel, flat, laid_out_as, maps, of_maps, over, sums, unflat
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
        _check_channels(feature, self.channels)
        if self.training:
            self.num_batches_tracked.add_(1)
        synchronised = self.synchronised and across()
        if self.training and (feature.weights is not None or synchronised or by_pixel(feature.values)):
            return feature.with_values(self._weighted(feature.values, feature.weights, synchronised))
        if by_pixel(feature.values):
            statistics = self.running_mean, self.running_var, self.weight, self.bias
            return feature.with_values(_normalised(feature.values, *statistics, self.eps))
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
                norm, mean, var, *_ = _WeightedNorm.apply(values.to(dtype), share, self.weight, self.bias, self.eps)
            with torch.no_grad():
                # Bessel's factor for as many values as the weights amount to.
                squares = (
                    mean.new_tensor(1 / (values.shape[0] * values.shape[2])) if share is None else share.square().sum()
                )
                if synchronised:
                    squares = sum_over_processes(squares)
                count = values.shape[-2] * values.shape[-1] / squares
                unbiased = var * (count / (count - 1).clamp_min(1))
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


class _WeightedNorm(torch.autograd.Function):
    """Batch norm under weights: torch's own kernels for what all images share, and one more pass for the weights.

    values `(B, C, G, H, W)`, share `(B, 1, G)` that sums to 1, or None where all are the same; weight and bias `(C,)`.
    Also returns the mean and the variance `(C,)`, which have no gradient.
    """

    @staticmethod
    def forward(
        values: Tensor, share: Tensor | None, weight: Tensor, bias: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        if share is None:
            centre, apart = (each.view(values.shape[1], -1) for each in _moments(maps(values)))
            mean = centre.mean(dim=1)
            apart = apart + (centre - mean[:, None]).square()
            var = apart.mean(dim=1)
        else:
            positions = values.shape[-2] * values.shape[-1]
            rows, shape = flat(values), values.shape
            centre = sums(rows, shape) / positions
            mean = (centre * share).sum(dim=(0, 2))
            wide = over(mean[None, :, None], rows, shape)
            # A few images at a time, which then are in the cache. As var_mean, and many times faster on a CPU.
            apart = torch.cat([sums((some - wide).square_(), shape) for some in _parts(rows)]) / positions
            var = (apart * share).sum(dim=(0, 2))
        return _normalised(values, mean, var, weight, bias, eps), mean, var, centre, apart

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
        shape, channels = values.shape, maps(values)
        grad = maps(laid_out_as(grads[0], values))
        wide = partial(of_maps, values=values)
        _, *found = torch.ops.aten.native_batch_norm_backward(
            grad, channels, wide(weight), wide(mean), wide(var), None, None, False, ctx.eps, [False, True, True]
        )
        slope, total = (each.view(shape[1], -1).sum(dim=1) for each in found)
        scale = weight * (var + ctx.eps).rsqrt()
        positions = shape[-2] * shape[-1]
        same = 1 / (shape[0] * shape[2] * positions) if share is None else 1.0
        centre_of, spread_of, times, plus = map(wide, (mean, var, -same * scale * slope, -same * scale * total))
        slopes = wide(scale).view(-1, *[1] * (channels.dim() - 2))
        chances = None if share is None else by_maps(share / positions, values)
        # In an order of which `maps` is a view, whatever order the values came in.
        order = torch.preserve_format if by_pixel(values) else torch.contiguous_format
        to_values = torch.empty_like(values, memory_format=order)
        into = maps(to_values)
        step = _few(channels)
        for start in range(0, len(channels), step):
            some = slice(start, start + step)
            back = F.batch_norm(channels[some], centre_of, spread_of, times, plus, training=False, eps=ctx.eps)
            back = back if chances is None else back.mul_(chances[some])
            into[some] = back.addcmul_(slopes, grad[some])
        to_share = None
        if share is not None:
            steep = scale * (var + ctx.eps).rsqrt() * slope
            to_share = -(centre * (scale * total)[:, None] + apart * (steep / 2)[:, None]).sum(dim=1, keepdim=True)
        return to_values, to_share, slope, total, None  # no view: autograd can then add another gradient in place


def _moments(channels: Tensor) -> Sequence[Tensor]:
    """Mean and variance of each channel of `(B, C, ...)`."""
    if channels.device.type == "cpu" and not torch.compiler.is_compiling():
        return torch.batch_norm_update_stats(channels, None, None, 0)  # as var_mean, and many times faster
    return torch.var_mean(channels, dim=(0, *range(2, channels.dim())), correction=0)[::-1]


def _normalised(values: Tensor, mean: Tensor, var: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Values `(B, C, G, H, W)` with these statistics `(C,)` of their channels: one pass."""
    mean, var, weight, bias = (of_maps(each, values) for each in (mean, var, weight, bias))
    return F.batch_norm(maps(values), mean, var, weight, bias, training=False, eps=eps).view_as(values)


def _parts(tensor: Tensor) -> tuple[Tensor, ...]:
    """A few images at a time: as many as make up half a million numbers."""
    return tensor.split(_few(tensor))


def _few(tensor: Tensor) -> int:
    return max(1, 2**19 // max(1, tensor[:1].numel()))


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

    As `nn.Dropout(p)` after a ReLU, in half the time on a CPU: one pass for both, another for the gradient, which
    needs no mask, and random numbers of 16 bits (so that p is met to 1e-5).
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"p must be in [0, 1), got {p}")
        self.p = p

    def forward(self, feature: GroupFeature, *, generator: torch.Generator | None = None) -> GroupFeature:
        if not self.training or self.p == 0:
            return feature.map(F.relu)
        if feature.device.type != "cpu" or torch.compiler.is_compiling():
            return GroupDropout(self.p, each=True)(feature.map(F.relu), generator=generator)
        values = feature.values if by_pixel(feature.values) else feature.values.contiguous()
        out: Tensor = _ReluDrop.apply(values, _bits(values, generator), self.p)
        return feature.with_values(out)

    def extra_repr(self) -> str:
        return f"p={self.p}"


def _bits(like: Tensor, generator: torch.Generator | None) -> Tensor:
    """16 random bits for each number of a tensor, as whole numbers from −2¹⁵ on, laid out as the tensor is."""
    many = torch.empty(like.numel() // 4 + 1, dtype=torch.int64).random_(-(2**63), None, generator=generator)
    return many.view(torch.int16).as_strided(like.shape, like.stride())


def _dropped(p: float) -> int:
    """Of 2¹⁶ numbers, how many are dropped: never all."""
    return min(round(p * 2**16), 2**16 - 1)


class _ReluDrop(torch.autograd.Function):
    @staticmethod
    def forward(values: Tensor, bits: Tensor, p: float) -> Tensor:
        dropped = _dropped(p)
        out = torch.empty_like(values)
        kept = torch.empty_like(_parts(values)[0])  # as numbers: five times as fast to multiply with as truth values
        for into, some, random in zip(*map(_parts, (out, values, bits)), strict=True):
            torch.clamp(some, min=0, out=into)
            into.mul_(torch.ge(random, dropped - 2**15, out=kept[: len(some)])).mul_(2**16 / (2**16 - dropped))
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.scale = 2**16 / (2**16 - _dropped(inputs[2]))
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (output,) = ctx.saved_tensors
        return torch.ops.aten.threshold_backward(grads[0], output, 0).mul_(ctx.scale), None, None
