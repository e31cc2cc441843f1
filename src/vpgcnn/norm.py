"""Normalisation and dropout that honour the weights of elements: what is left out does not count."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vpgcnn.encoders import Standardise
from vpgcnn.features import GroupFeature
from vpgcnn.precision import full_precision, uniform
from vpgcnn.processes import across, sum_over_processes

__all__ = ["GroupBatchNorm", "GroupDropout", "GroupLayerNorm", "synchronise"]


def _check_channels(feature: GroupFeature, channels: int) -> None:
    if feature.shape[1] != channels:
        raise ValueError(f"expected {channels} channels, got {feature.shape[1]} ({feature})")


def _affine(values: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """values·scale + shift, both `(C,)` or `(B, C)`."""
    return torch.addcmul(shift[..., None, None, None], values, scale[..., None, None, None])


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
        if self.training and (feature.weights is not None or synchronised):
            weights = feature.weights
            if weights is None:
                weights = self.weight.new_full((feature.shape[0], feature.shape[2]), 1 / feature.shape[2])
            return feature.with_values(self._weighted(feature.values, weights, synchronised))
        flat = F.batch_norm(
            feature.values.flatten(2),
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training,
            self.momentum,
            self.eps,
        )
        return feature.with_values(flat.view_as(feature.values))

    def _weighted(self, values: Tensor, weights: Tensor, synchronised: bool) -> Tensor:
        def together(part: Tensor) -> Tensor:
            return sum_over_processes(part) if synchronised else part

        with full_precision(values.device):
            images = together(self.weight.new_tensor(float(weights.shape[0])))
            share = (weights.to(self.weight.dtype) / images).unsqueeze(1)  # B 1 G, sums to 1
            exact = values.to(share.dtype)
            spread, centre = torch.var_mean(exact, dim=(-2, -1), correction=0)
            mean = together((centre * share).sum(dim=(0, 2)))
            var = together((((centre - mean[:, None]).square() + spread) * share).sum(dim=(0, 2)))
            with torch.no_grad():
                # Bessel's factor for as many values as the weights amount to.
                count = values.shape[-2] * values.shape[-1] / together(share.square().sum())
                unbiased = var * (count / (count - 1).clamp_min(1))
                self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
                self.running_var.lerp_(unbiased.to(self.running_var.dtype), self.momentum)
            scale = self.weight * (var + self.eps).rsqrt()
            shift = self.bias - mean * scale
            return _affine(exact, scale, shift).to(values.dtype)

    def extra_repr(self) -> str:
        return f"{self.channels}, eps={self.eps}, momentum={self.momentum}"


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
            spread, centre = torch.var_mean(exact, dim=(1, 3, 4), correction=0)
            share = feature.weights.to(centre.dtype)
            mean = (centre * share).sum(dim=1, keepdim=True)
            var = (((centre - mean).square() + spread) * share).sum(dim=1, keepdim=True)
            scale = self.weight * (var + self.eps).rsqrt()
            shift = self.bias - mean * scale
            return feature.with_values(_affine(exact, scale, shift).to(values.dtype))

    def extra_repr(self) -> str:
        return f"{self.channels}, eps={self.eps}"


class GroupDropout(nn.Module):
    """Equivariant. Drops whole channels of an image: all elements, all positions."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"p must be in [0, 1), got {p}")
        self.p = p

    def forward(self, feature: GroupFeature, *, generator: torch.Generator | None = None) -> GroupFeature:
        if not self.training or self.p == 0:
            return feature
        draw = uniform(feature.shape[:2], feature.divergence, generator)
        keep = (draw >= self.p).to(feature.dtype) / (1 - self.p)
        return feature.map(lambda x: x * keep[..., None, None, None])

    def extra_repr(self) -> str:
        return f"p={self.p}"
