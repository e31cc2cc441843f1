"""Pooling over space and over the group."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vpgcnn.features import GroupFeature, mean_over
from vpgcnn.nn._checks import check_centred, check_feature

__all__ = ["GroupPool", "SpatialPool"]


class SpatialPool(nn.Module):
    """Equivariant to rotations where size and stride divide the map evenly; warns where they do not.

    Args:
        mode: "max" or "avg".
        size: Pixels of a side of the pooling window.
        stride: Pixels between two windows; `size` if None.
        padding: Zeros on each side, at most half of `size`.
        antialias: Pool densely, then blur with a small binomial filter before striding, so that the output
            changes smoothly as the image moves. Not with padding.
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
            raise ValueError(f"mode must be 'max' or 'avg', got {mode!r}")
        stride = size if stride is None else stride
        if size < 1 or stride < 1:
            raise ValueError(f"size and stride must be at least 1, got {size} and {stride}")
        if not 0 <= padding <= size // 2 or (padding and antialias):
            raise ValueError(f"padding must be at most half of size, and 0 with antialias, got {padding}")
        self.mode, self.size, self.stride, self.padding = mode, size, stride, padding
        self.register_buffer("blur", _binomial(2 * self.stride - 1) if antialias else None, persistent=False)

    def forward(self, feature: GroupFeature) -> GroupFeature:
        """Pool each element's maps as `nn.MaxPool2d` or `nn.AvgPool2d` does.

        Args:
            feature: values `(B, C, G, H, W)`.

        Returns:
            A feature with values `(B, C, G, H', W')`.
        """
        check_feature(self, feature)
        check_centred("pool", feature.group, feature.shape[-2:], self.size, self.stride, self.padding)
        return feature.each(self._pooled)

    def _pooled(self, values: Tensor) -> Tensor:
        pool = F.max_pool2d if self.mode == "max" else F.avg_pool2d
        flat = values.flatten(1, 2)
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
        return flat.unflatten(1, values.shape[1:3])

    def _halves(self, flat: Tensor) -> bool:
        """Whether two elementwise maxima suffice: on a CPU, without gradients, they are ten times as fast."""
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
    """Invariant but for "flatten". Pools over the elements of the group: a feature becomes a tensor.

    The maximum is taken over m + c(u)(h(u) − m), where m is the mean and c in [0, 1] the coverage. An
    element thus enters gradually as the window grows, which gives θ a gradient; at full coverage this is
    the plain maximum.

    Args:
        mode: "mean": Σ_u q(u) h(u). "rms": the root of Σ_u q(u) h(u)²: what a channel sees in one pose only is divided
            by √n in a window of n elements, and by n in a mean; h(u) should not be negative. "max": the largest h(u)
            among the elements in use. "flatten": h(u) times its coverage, with elements as channels; not invariant,
            and only for elements that all images share.
    """

    def __init__(self, mode: Literal["mean", "rms", "max", "flatten"] = "mean") -> None:
        super().__init__()
        if mode not in ("mean", "rms", "max", "flatten"):
            raise ValueError(f"mode must be 'mean', 'rms', 'max' or 'flatten', got {mode!r}")
        self.mode = mode

    def forward(self, feature: GroupFeature) -> Tensor:
        """Pool over the group.

        Args:
            feature: values `(B, C, G, H, W)`.

        Returns:
            `(B, C, H, W)`, or `(B, C·G, H, W)` for "flatten".
        """
        check_feature(self, feature)
        if self.mode == "mean":
            return feature.mean()
        if self.mode == "flatten":
            if feature.moves_elements:
                raise ValueError(
                    "flatten needs elements that all images share, but the level moved them for each image"
                )
            return feature.put_together(_covered).flatten(1, 2)
        return feature.pooled(_root_mean_square if self.mode == "rms" else _largest)

    def extra_repr(self) -> str:
        return self.mode


def _coverage(values: Tensor, weights: Tensor) -> Tensor:
    return (weights / weights.amax(dim=1, keepdim=True)).to(values.dtype)[:, None, :, None, None]


def _covered(values: Tensor, weights: Tensor | None) -> Tensor:
    """Values times their coverage."""
    return values if weights is None else values * _coverage(values, weights)


SOFT = 0.25
"""Below this, the root is rounded off, so that its slope stays finite where a channel is 0."""


def _root_mean_square(values: Tensor, weights: Tensor | None) -> Tensor:
    """√(Σ q h² + ε²) − ε, which is 0 where h is."""
    return (mean_over(values.square(), weights) + SOFT**2).sqrt() - SOFT


def _largest(values: Tensor, weights: Tensor | None) -> Tensor:
    """The maximum over elements, each of which enters by its coverage."""
    if weights is None:
        return values.amax(dim=2) if values.shape[2] > 1 else values.squeeze(2)
    mean = mean_over(values, weights).unsqueeze(2)
    return (mean + _coverage(values, weights) * (values - mean)).amax(dim=2)
