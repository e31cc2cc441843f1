"""Sums over processes: what makes batch statistics those of the whole batch under data parallelism."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor

from vpgcnn.function import Function

__all__ = ["across", "sum_over_processes"]


def across() -> bool:
    """Whether several processes train together."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


class _Sum(Function):
    """The sum over processes. Each one's part enters the loss of all, so gradients are summed as well."""

    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:
        total = part.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        total = grads[0].contiguous().clone()
        dist.all_reduce(total)
        return total


def sum_over_processes(part: Tensor) -> Tensor:
    """The sum of a tensor over all processes, with gradients."""
    total: Tensor = _Sum.apply(part.contiguous())
    return total
