"""Keeping small, sensitive computations out of mixed precision, and drawing numbers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

__all__ = ["full_precision", "uniform"]


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """No autocast inside: angles, phases, levels and statistics need more digits than bfloat16 has."""
    if torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def uniform(shape: Sequence[int], like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Random numbers in [0, 1) with the device and precision of `like`.

    `torch.rand` with a generator argument cannot be compiled for a changing batch size; this can.
    """
    return torch.empty(tuple(shape), dtype=like.dtype, device=like.device).uniform_(generator=generator)
