"""Activations as modules, so that `nn.Sequential` works."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from vpgcnn.features import GroupFeature
from vpgcnn.nn._checks import check_feature

__all__ = ["Pointwise", "ReLU"]


class Pointwise(nn.Module):
    """Equivariant. Applies a function to every number of a feature by itself.

        >>> nn.Sequential(LiftConv2d(3, 8, 3, Hue(3)), Pointwise(F.silu))

    Args:
        function: From a tensor to a tensor of the same shape; a module with parameters is registered.
    """

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, feature: GroupFeature) -> GroupFeature:
        """values `(B, C, G, H, W)` to the same shape."""
        check_feature(self, feature)
        return feature.map(self.function)

    def extra_repr(self) -> str:
        return "" if isinstance(self.function, nn.Module) else getattr(self.function, "__name__", str(self.function))


class ReLU(Pointwise):
    """Equivariant. `nn.ReLU` on a feature."""

    def __init__(self) -> None:
        super().__init__(F.relu)
