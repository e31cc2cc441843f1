"""Split a batch into parts that fit the cache."""

from __future__ import annotations

import math

from torch import Tensor

__all__ = ["parts"]


def parts(tensor: Tensor) -> tuple[Tensor, ...]:
    """Split a tensor along its first axis into parts of about half a million numbers, at least one row each."""
    few = max(1, 2**19 // max(1, math.prod(tensor.shape[1:])))
    return (tensor,) if few >= len(tensor) else tensor.split(few)
