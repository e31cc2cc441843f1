"""Sums over processes, for batch statistics of the whole batch under data parallelism."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor

from vpgcnn._ops.autograd import Function

__all__ = ["is_distributed", "processes", "sum_over_processes"]


def is_distributed() -> bool:
    """Whether several processes train one model."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def processes() -> tuple[int, int]:
    """How many processes train one model, and the number of this one."""
    return (dist.get_world_size(), dist.get_rank()) if is_distributed() else (1, 0)


class _Sum(Function):
    """The sum over processes. Each part enters the losses of all processes, so gradients are summed as well."""

    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:
        total = part.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        total: Tensor = _Sum.apply(grads[0].contiguous())  # itself differentiable, for second derivatives
        return total


def sum_over_processes(part: Tensor) -> Tensor:
    """Sum a tensor over all processes. Differentiable."""
    total: Tensor = _Sum.apply(part.contiguous())
    return total
