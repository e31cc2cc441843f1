"""Pooling over space and over the group, and joining two branches."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vpgcnn.centring import check_centred
from vpgcnn.features import GroupFeature

__all__ = ["GroupPool", "SpatialPool", "join"]


class SpatialPool(nn.Module):
    """Equivariant to rotations where size and stride divide the map evenly; a warning says when not.

    mode: "max" or "avg". antialias: pool densely, then blur with a small binomial filter before the
    stride, so that the result moves smoothly with the image.
    """

    blur: Tensor | None

    def __init__(
        self,
        mode: Literal["max", "avg"],
        size: int,
        *,
        stride: int | None = None,
        padding: int = 0,
        antialias: bool = False,
    ) -> None:
        super().__init__()
        if mode not in ("max", "avg"):
            raise ValueError(f"mode is 'max' or 'avg', got {mode!r}")
        stride = size if stride is None else stride
        if size < 1 or stride < 1:
            raise ValueError(f"size and stride must be at least 1, got {size} and {stride}")
        if not 0 <= padding <= size // 2 or (padding and antialias):
            raise ValueError(f"padding is at most half of the size, and 0 with antialias, got {padding}")
        self.mode, self.size, self.stride, self.padding = mode, size, stride, padding
        self.register_buffer("blur", _binomial(2 * self.stride - 1) if antialias else None, persistent=False)

    def forward(self, feature: GroupFeature) -> GroupFeature:
        """values `(B, C, G, H, W)` → `(B, C, G, H', W')`, as `nn.MaxPool2d` or `nn.AvgPool2d`."""
        check_centred("pool", feature.group, feature.shape[-2:], self.size, self.stride, self.padding)
        pool = F.max_pool2d if self.mode == "max" else F.avg_pool2d
        flat = feature.values.flatten(1, 2)
        if self._halves(flat):
            rows = torch.maximum(flat[..., ::2, :], flat[..., 1::2, :])
            flat = torch.maximum(rows[..., ::2], rows[..., 1::2])
        elif self.blur is None:
            flat = pool(flat, self.size, self.stride, self.padding)
        else:
            border = self.blur.shape[-1] // 2
            dense = F.pad(pool(flat, self.size, 1), (border,) * 4, mode="replicate").flatten(0, 1).unsqueeze(1)
            flat = (
                F.conv2d(dense, self.blur.to(dense.dtype), stride=self.stride).squeeze(1).unflatten(0, flat.shape[:2])
            )
        return feature.with_values(flat.unflatten(1, feature.shape[1:3]))

    def _halves(self, flat: Tensor) -> bool:
        """Whether two plain maxima do it: on a CPU, without gradients, that is ten times as fast."""
        plain = self.mode == "max" and self.size == self.stride == 2 and not self.padding and self.blur is None
        even = flat.shape[-2] % 2 == 0 and flat.shape[-1] % 2 == 0
        quick = flat.device.type == "cpu" and not torch.is_grad_enabled() and not torch.compiler.is_compiling()
        return plain and even and quick

    def extra_repr(self) -> str:
        sizes = f"size={self.size}, stride={self.stride}, padding={self.padding}"
        return f"{self.mode}, {sizes}, antialias={self.blur is not None}"


def _binomial(size: int) -> Tensor:
    row = torch.ones(1)
    for _ in range(size - 1):
        row = F.pad(row, (0, 1)) + F.pad(row, (1, 0))
    kernel = torch.outer(row, row)
    return (kernel / kernel.sum())[None, None]


class GroupPool(nn.Module):
    """Sum the group away: GroupFeature → Tensor.

    "mean": Σ_u q(u) h(u), invariant. "max": the largest h(u) among the kept, invariant. "flatten":
    h(u) times its coverage, elements as channels, `(B, C·G, H, W)`; not invariant (it remembers
    which element was which), for finite groups.
    The maximum is taken over m + c(u)(h(u) − m), with the mean m and the coverage c in [0, 1]: an
    element enters gradually as the window reaches it, so that θ feels it, and at full coverage this
    is the plain maximum.
    """

    def __init__(self, mode: Literal["mean", "max", "flatten"] = "mean") -> None:
        super().__init__()
        if mode not in ("mean", "max", "flatten"):
            raise ValueError(f"mode is 'mean', 'max' or 'flatten', got {mode!r}")
        self.mode = mode

    def forward(self, feature: GroupFeature) -> Tensor:
        """values `(B, C, G, H, W)` → `(B, C, H, W)`, or `(B, C·G, H, W)` for "flatten"."""
        if self.mode == "mean":
            return feature.mean()
        coverage = feature.coverage()
        share = None if coverage is None else coverage.to(feature.dtype)[:, None, :, None, None]
        if self.mode == "flatten":
            if feature.per_image:
                raise ValueError("flatten needs elements shared by all images, got elements of each image's own")
            kept = feature.values if share is None else feature.values * share
            return kept.flatten(1, 2)
        if share is None:
            return feature.values.amax(dim=2)
        mean = feature.mean().unsqueeze(2)
        return (mean + share * (feature.values - mean)).amax(dim=2)

    def extra_repr(self) -> str:
        return self.mode


def join(first: GroupFeature, second: GroupFeature, *, origin: GroupFeature) -> GroupFeature:
    """The residual sum of two branches on the same elements. Equivariant.

    Values add. The join keeps what both branches keep: the smaller coverage of the two, made to sum
    to 1 again. Of two windows on a circle this is exactly the narrower one, and an element that one
    branch left out stays out (unless nothing would be left, as drawn elements may have it: then both are kept).
    Divergences add, without counting twice what both had from `origin`, the feature
    where the branches part (for an identity shortcut, `second` is `origin`).
    """
    if first.shape != second.shape or first.group != second.group:
        raise ValueError(f"cannot join {first} and {second}: shapes or groups differ")
    same = first.elements is second.elements
    if not same and not torch.compiler.is_compiling():
        same = first.elements.shape == second.elements.shape and torch.equal(first.elements, second.elements)
        if not same:
            raise ValueError(
                "cannot join features on different elements: pass `elements=` of one branch to the other's convolution"
            )
    one, two = first.coverage(), second.coverage()
    if one is None or two is None:
        weights = second.weights if one is None else first.weights
    else:
        kept = torch.minimum(one, two)
        # Elements that are drawn may have nothing in common; then the sum keeps what either branch keeps.
        kept = torch.where(kept.sum(dim=1, keepdim=True) > 0, kept, one + two)
        weights = kept / kept.sum(dim=1, keepdim=True)
    return replace(
        first,
        values=first.values + second.values,
        weights=weights,
        divergence=first.divergence + second.divergence - origin.divergence,
    )
