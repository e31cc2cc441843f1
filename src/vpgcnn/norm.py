"""Normalisation and dropout that honour the weights of elements: what is left out does not count."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from vpgcnn.encoders import Standardise
from vpgcnn.features import GroupFeature
from vpgcnn.layout import by_pixel, flat, laid_out_as, over, sums, unflat
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
            weights = feature.weights
            if weights is None:
                weights = self.weight.new_full((feature.shape[0], feature.shape[2]), 1 / feature.shape[2])
            return feature.with_values(self._weighted(feature.values, weights, synchronised))
        if by_pixel(feature.values):
            scale = self.weight * (self.running_var + self.eps).rsqrt()
            shift = self.bias - self.running_mean * scale
            return feature.with_values(_affine(feature.values, scale.to(feature.dtype), shift.to(feature.dtype)))
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

    def _weighted(self, values: Tensor, weights: Tensor, synchronised: bool) -> Tensor:
        with full_precision(values.device):
            dtype = self.weight.dtype
            if synchronised:
                norm, share, mean, var = self._together(values.to(dtype), weights.to(dtype))
            else:
                share = (weights.to(dtype) / weights.shape[0]).unsqueeze(1)  # B 1 G, sums to 1
                norm, mean, var, *_ = _WeightedNorm.apply(values.to(dtype), share, self.weight, self.bias, self.eps)
            with torch.no_grad():
                # Bessel's factor for as many values as the weights amount to.
                squares = share.square().sum()
                if synchronised:
                    squares = sum_over_processes(squares)
                count = values.shape[-2] * values.shape[-1] / squares
                unbiased = var * (count / (count - 1).clamp_min(1))
                self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
                self.running_var.lerp_(unbiased.to(self.running_var.dtype), self.momentum)
            return norm.to(values.dtype)

    def _together(self, values: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The same over the batches of all processes: normalised values, the share of each element, mean, variance."""
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
    """Batch norm under weights, with a gradient that passes over the values four times instead of ten.

    values `(B, C, G, H, W)`, share `(B, 1, G)` that sums to 1, weight and bias `(C,)`; also returns the
    mean and the variance `(C,)`, which have no gradient.
    """

    @staticmethod
    def forward(
        values: Tensor, share: Tensor, weight: Tensor, bias: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        positions = values.shape[-2] * values.shape[-1]
        rows, shape = flat(values), values.shape
        # A few images at a time, which then are in the cache. As var_mean, and many times faster on a CPU.
        if by_pixel(values):
            centre = sums(rows, shape) / positions
            mean = (centre * share).sum(dim=(0, 2))
            wide = over(mean[None, :, None], rows, shape)
            apart = torch.cat([sums((some - wide).square_(), shape) for some in _parts(rows)]) / positions
        else:
            centres, spreads = [], []
            for some in _parts(rows):
                centres.append(sums(some, shape) / positions)
                spreads.append(torch.linalg.vector_norm(some - centres[-1][..., None, None], dim=(-2, -1)))
            centre = torch.cat(centres)
            mean = (centre * share).sum(dim=(0, 2))
            apart = (centre - mean[:, None]).square() + torch.cat(spreads).square() / positions
        var = (apart * share).sum(dim=(0, 2))
        scale = weight * (var + eps).rsqrt()
        return _affine(values, scale, bias - mean * scale), mean, var, centre, apart

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        values, share, weight, _, ctx.eps = inputs
        ctx.save_for_backward(values, share, weight, *output[1:])
        ctx.mark_non_differentiable(*output[1:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, None]:
        # With x̂ = (x − μ)r, A = Σg and B = Σgx̂ of a channel, and the probability p of each value:
        # dL/dx = wr(g − pA − px̂B), dL/dμ = −wrA, dL/dσ² = −wr²B/2, dL/dp = x·dL/dμ + (x − μ)²·dL/dσ².
        values, share, weight, mean, var, centre, apart = ctx.saved_tensors
        shape = values.shape
        positions = shape[-2] * shape[-1]
        rows, grad = flat(values), flat(laid_out_as(grads[0], values))
        along, total = torch.zeros_like(mean), torch.zeros_like(mean)
        for some, own in zip(_parts(grad), _parts(rows), strict=True):
            along += sums(some * own, shape).sum(dim=(0, 2))
            total += sums(some, shape).sum(dim=(0, 2))
        inverse = (var + ctx.eps).rsqrt()
        slope = (along - mean * total) * inverse
        scale = weight * inverse
        steep = scale * inverse * slope
        probability = share / positions
        factor = -steep[:, None] * probability
        constant = (steep * mean - scale * total)[:, None] * probability
        to_values = torch.empty_like(rows)
        slopes = over(scale[None, :, None], rows, shape)
        for into, some, own, *terms in zip(
            *map(_parts, (to_values, grad, rows)), _parts(constant, rows), _parts(factor, rows), strict=True
        ):
            plus, times = (over(term, rows, shape) for term in terms)
            torch.mul(own, times, out=into).add_(plus).addcmul_(slopes, some)
        to_share = -(centre * (scale * total)[:, None] + apart * (steep / 2)[:, None]).sum(dim=1, keepdim=True)
        return unflat(to_values, shape), to_share, slope, total, None


def _parts(tensor: Tensor, like: Tensor | None = None) -> tuple[Tensor, ...]:
    """A few images at a time: as many as make up half a million numbers, of this tensor or of another."""
    each = max(1, (tensor if like is None else like)[:1].numel())
    return tensor.split(max(1, 2**19 // each))


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
        for into, some, random in zip(*map(_parts, (out, values, bits)), strict=True):
            torch.clamp(some, min=0, out=into)
            into.mul_(random >= dropped - 2**15).mul_(2**16 / (2**16 - dropped))
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.scale = 2**16 / (2**16 - _dropped(inputs[2]))
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (output,) = ctx.saved_tensors
        return torch.ops.aten.threshold_backward(grads[0], output, 0).mul_(ctx.scale), None, None
