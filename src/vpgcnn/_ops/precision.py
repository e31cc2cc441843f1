"""Precision of small, sensitive computations, and random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

__all__ = ["autocast_as", "autocast_now", "full_precision", "uniform"]


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """A context without autocast: angles, phases, levels and statistics need more precision than bfloat16 has."""
    if torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def autocast_now(device: torch.device) -> torch.dtype | None:
    """The precision of autocast; None without it."""
    if torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type):
        return torch.get_autocast_dtype(device.type)
    return None


def autocast_as(dtype: torch.dtype | None, device: torch.device) -> AbstractContextManager[object]:
    """A context with autocast as `autocast_now` found it."""
    if not torch.amp.is_autocast_available(device.type):
        return nullcontext()
    return torch.autocast(device.type, dtype, enabled=dtype is not None)


def uniform(shape: Sequence[int], like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Draw uniform random numbers in [0, 1).

    Args:
        shape: Of the result.
        like: A tensor whose device and precision to use.
        generator: The source of randomness; None for torch's default.

    Returns:
        A tensor of this shape. The same seed gives the same numbers with and without a generator.
    """
    if generator is None:  # vmap needs the functional form
        return torch.rand(tuple(shape), dtype=like.dtype, device=like.device)
    # torch.compile cannot trace torch.rand with a generator for a changing batch size.
    return torch.empty(tuple(shape), dtype=like.dtype, device=like.device).uniform_(generator=generator)
