"""Normalisation that honours the weights of elements: an element of weight 0 does not enter the statistics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vpgcnn._ops.active import unchanged
from vpgcnn._ops.autograd import Function, apply
from vpgcnn._ops.chunks import parts
from vpgcnn._ops.distributed import is_distributed, sum_over_processes
from vpgcnn._ops.memory_format import Maps, flat, is_channels_last, laid_out_as, over, sums, unflat
from vpgcnn._ops.precision import full_precision
from vpgcnn._ops.recompute import noted
from vpgcnn.features import GroupFeature
from vpgcnn.levels.encoder import Standardise
from vpgcnn.nn._checks import check_feature

__all__ = ["GroupBatchNorm", "GroupLayerNorm", "synchronise"]


def _check_channels(layer: nn.Module, feature: GroupFeature, channels: int) -> None:
    check_feature(layer, feature)
    if feature.shape[1] != channels:
        raise ValueError(f"expected {channels} channels, got {feature.shape[1]} ({feature})")


def _affine(values: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Compute values·scale + shift, for scale and shift of shape `(C,)` or `(B, C)`."""
    rows, shape = flat(values), values.shape
    wide = [over(each.reshape(-1, shape[1], 1), rows, shape) for each in (scale, shift)]
    # Two passes are faster than addcmul, which is slow for operands that are constant along a map.
    return unflat((rows * wide[0]).add_(wide[1]), shape)


class GroupBatchNorm(nn.Module):
    """Equivariant. `nn.BatchNorm2d` with one mean and variance for all elements of the group.

    In training, each element enters the statistics by its weight and every image counts the same; elements
    of weight 0 do not count. Evaluation uses the running statistics. Under data parallelism each process has
    statistics of its own until `synchronise(model)` is called.

    Args:
        channels: Channels of the feature.
        eps: Added to the variance.
        momentum: Share of the current batch in the running statistics.
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
        """Normalise the values.

        Args:
            feature: values `(B, C, G, H, W)`.

        Returns:
            A feature of the same shape, in the same memory format.
        """
        _check_channels(self, feature, self.channels)
        synchronised = self.synchronised and is_distributed()
        if self.training and not synchronised and not feature.shape.numel():
            return feature  # an empty batch has no statistics
        if self.training:
            self.num_batches_tracked.add_(1)
        if self.training:
            return feature.each_weighted(lambda values, weights: self._by_batch(values, weights, synchronised))
        by = self._by_running_statistics
        return feature.each(by, None if feature.parts is None else unchanged(by, self._numbers))

    def _by_batch(self, values: Tensor, weights: Tensor | None, synchronised: bool) -> Tensor:
        """Normalise with the statistics of the batch, which also move the running ones."""
        if weights is not None or synchronised or is_channels_last(values):
            return self._weighted(values, weights, synchronised)
        numbers = self.running_mean, self.running_var, self.weight, self.bias
        normed = F.batch_norm(values.flatten(2), *numbers, True, self.momentum, self.eps).view_as(values)
        return noted(normed, _by_own_statistics, values, self.weight, self.bias, self.eps)

    def _numbers(self) -> tuple[Tensor, ...]:
        return self.running_mean, self.running_var, self.weight, self.bias

    def _by_running_statistics(self, values: Tensor) -> Tensor:
        if not is_channels_last(values):
            rows, numbers = values.flatten(2), (self.running_mean, self.running_var, self.weight, self.bias)
            return F.batch_norm(rows, *numbers, training=False, eps=self.eps).view_as(values)
        seen = Maps(values)
        mean, var = seen.spread(self.running_mean, self.running_var)
        times, plus = seen.spread(self.weight, self.bias)  # a separate call: statistics have no gradient
        return seen.back(F.batch_norm(seen(values), mean, var, times, plus, training=False, eps=self.eps))

    def _weighted(self, values: Tensor, weights: Tensor | None, synchronised: bool) -> Tensor:
        with full_precision(values.device):
            dtype = self.weight.dtype
            share = None if weights is None else (weights.to(dtype) / weights.shape[0]).unsqueeze(1)  # B 1 G, sums to 1
            if synchronised:
                norm, share, mean, var = self._together(values.to(dtype), weights)
            else:
                norm, mean, var = apply(_WeightedNorm, values.to(dtype), share, self.weight, self.bias, self.eps)[:3]
                if dtype == values.dtype:
                    noted(norm, _by_statistics, values, mean, var, self.weight, self.bias, self.eps)
            with torch.no_grad():
                unbiased = var * _bessel(values.shape, share, synchronised)
                self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
                self.running_var.lerp_(unbiased.to(self.running_var.dtype), self.momentum)
            return norm.to(values.dtype)

    def _together(self, values: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Normalise with the statistics of all processes; also returns the share of each element, mean and variance."""
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


def _by_own_statistics(values: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """What batch norm makes of a training batch, without running statistics."""
    return F.batch_norm(values.flatten(2), None, None, weight, bias, True, 0.0, eps).view_as(values)


def _by_statistics(values: Tensor, mean: Tensor, var: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Values `(B, C, G, H, W)`, normalised with a mean and variance `(C,)`."""
    seen = Maps(values)
    around, spread, times, plus = seen.spread(mean, var, weight, bias)
    return seen.back(F.batch_norm(seen(values), around, spread, times, plus, training=False, eps=eps))


def _bessel(shape: torch.Size, share: Tensor | None, synchronised: bool) -> Tensor | float:
    """Bessel's correction n / (n − 1), where n is the effective sample size under the shares."""
    positions = shape[-2] * shape[-1]
    if share is None:
        count = positions * shape[0] * shape[2]
        return count / max(count - 1, 1)
    squares = share.square().sum()
    many = positions / (sum_over_processes(squares) if synchronised else squares)
    return many / (many - 1).clamp_min(1)


class _WeightedNorm(Function):
    """Batch norm under weights: torch's own kernels do the unweighted part, one more pass applies the weights.

    Takes values `(B, C, G, H, W)`, share `(B, 1, G)` that sums to 1 (None for equal shares), weight and bias
    `(C,)`, and eps. Returns the normalised values, the mean and variance `(C,)`, and the moments `(…, C, …)`
    of which they are averages; only the first of these has a gradient. Twice differentiable.
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
            # A few images at a time, which fit the cache: many times faster than var_mean on a CPU.
            apart = torch.cat([sums((some - middle).square_(), shape) for some in parts(rows)]) / positions
            var = (apart * share).sum(dim=(0, 2))
        return _by_statistics(values, mean, var, weight, bias, eps), mean, var, centre, apart

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        values, share, weight, _, ctx.eps = inputs
        ctx.save_for_backward(values, share, weight, *output[1:])
        ctx.mark_non_differentiable(*output[1:])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, Tensor, Tensor, None]:
        # With x̂ = (x − μ)r, A = Σg and B = Σgx̂ of a channel, and the probability p of each value:
        # dL/dx = wr(g − pA − px̂B), dL/dμ = −wrA, dL/dσ² = −wr²B/2, dL/dp = x·dL/dμ + (x − μ)²·dL/dσ².
        values, share, weight, mean, var, centre, apart = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True: the result will be differentiated again
            return *_differentiable_gradients(values, share, weight, grads[0], ctx.eps), None
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
        # `seen` needs a view of the result, which not every order of axes allows.
        order = torch.preserve_format if seen.channels_last else torch.contiguous_format
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
        # `to_values` is not a view, so autograd can accumulate into it in place.
        return to_values, to_share, slope, total, None


def _differentiable_gradients(
    values: Tensor, share: Tensor | None, weight: Tensor, grad: Tensor, eps: float
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """The gradients of `_WeightedNorm` for values, share, weight and bias, by operations that torch can differentiate.

    The statistics are computed again: the saved ones have no gradient.
    """
    each = (0, 2, 3, 4)
    positions = values.shape[-2] * values.shape[-1]
    p = 1 / (values.shape[0] * values.shape[2] * positions) if share is None else share[..., None, None] / positions
    centred = values - (p * values).sum(dim=each, keepdim=True)
    reciprocal = ((p * centred.square()).sum(dim=each, keepdim=True) + eps).rsqrt()
    normed = centred * reciprocal
    scale = weight[:, None, None, None] * reciprocal
    total, slope = grad.sum(dim=each, keepdim=True), (grad * normed).sum(dim=each, keepdim=True)
    to_values = scale * (grad - p * (total + normed * slope))
    to_share = None
    if share is not None:
        change = -scale * (values * total + normed * centred * slope / 2)
        to_share = change.mean(dim=(3, 4)).sum(dim=1, keepdim=True)
    return to_values, to_share, slope.flatten(), total.flatten()


def _moments(channels: Tensor) -> Sequence[Tensor]:
    """Mean and variance of each channel of `(B, C, ...)`."""
    if channels.device.type == "cpu" and not torch.compiler.is_compiling():
        return torch.batch_norm_update_stats(channels, None, None, 0)  # many times faster than var_mean
    return torch.var_mean(channels, dim=(0, *range(2, channels.dim())), correction=0)[::-1]


def _normalise(
    channels: Tensor, mean: Tensor, var: Tensor, weight: Tensor, bias: Tensor, eps: float, into: Tensor
) -> None:
    """`F.batch_norm` of `(B, C, ...)` in evaluation mode, written into an existing tensor."""
    if channels.device.type == "cpu" and not torch.compiler.is_compiling():
        none = channels.new_empty(0)  # no batch statistics are saved
        torch.ops.aten.native_batch_norm.out(
            channels, weight, bias, mean, var, False, 0.0, eps, out=into, save_mean=none, save_invstd=none
        )
    else:
        into.copy_(F.batch_norm(channels, mean, var, weight, bias, training=False, eps=eps))


def synchronise(model: nn.Module) -> nn.Module:
    """Make all batch statistics of a model those of the batches of all processes together.

    Two processes then compute what one process computes with both batches.

    Args:
        model: Any module with layers of this package inside; changed in place.

    Returns:
        The model.
    """
    for module in model.modules():
        if isinstance(module, GroupBatchNorm | Standardise):
            module.synchronised = True
    return model


class GroupLayerNorm(nn.Module):
    """Equivariant. Normalises each image over channels, positions and elements, elements by their weights.

    Args:
        channels: Channels of the feature.
        eps: Added to the variance.
    """

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.channels, self.eps = channels, eps
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, feature: GroupFeature) -> GroupFeature:
        """Normalise the values.

        Args:
            feature: values `(B, C, G, H, W)`.

        Returns:
            A feature of the same shape.
        """
        _check_channels(self, feature, self.channels)
        by = self._normalised
        return feature.each_weighted(by if feature.parts is None else unchanged(by, lambda: (self.weight, self.bias)))

    def _normalised(self, values: Tensor, weights: Tensor | None) -> Tensor:
        if weights is None:
            return F.group_norm(values, 1, self.weight, self.bias, self.eps)
        with full_precision(values.device):
            exact = values.to(self.weight.dtype)
            centre = exact.mean(dim=(1, 3, 4))
            spread = (exact - centre[:, None, :, None, None]).square().mean(dim=(1, 3, 4))
            share = weights.to(centre.dtype)
            mean = (centre * share).sum(dim=1, keepdim=True)
            var = (((centre - mean).square() + spread) * share).sum(dim=1, keepdim=True)
            scale = self.weight * (var + self.eps).rsqrt()
            shift = self.bias - mean * scale
            return _affine(exact, scale, shift).to(values.dtype)

    def extra_repr(self) -> str:
        return f"{self.channels}, eps={self.eps}"
