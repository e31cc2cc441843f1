"""A ReLU and a dropout at once, on a CPU: in passes over a few images at a time, which then are in the cache.

A number is dropped by eight random bits of its own, so by a chance that is a multiple of 1/256: one of the two nearest
to p, drawn in each call so that p is the mean. The bits are compared as floating point numbers, which torch is quicker
at than at whole ones, and no mask is kept: what is not above 0 in the end has no gradient.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from vpgcnn.function import Function

__all__ = ["Drop", "ReluDrop", "draw", "parts", "possible"]

BITS = 8


class Drop(NamedTuple):
    """Which numbers of a tensor are dropped.

    bits: whole numbers from −2⁷ to 2⁷ − 1, one for each number, laid out as these are. dropped: how many of the 2⁸
    mean that a number is dropped.
    """

    bits: Tensor
    dropped: int


def possible(values: Tensor, p: float) -> bool:
    """Whether this is for such values, and such a chance: ordinary tensors on a CPU, and not nearly all dropped."""
    plain = type(values) in (Tensor, nn.Parameter) and values.dtype in (torch.float32, torch.float64)
    return plain and values.device.type == "cpu" and p * 2**BITS <= 2**BITS - 1 and not torch.compiler.is_compiling()


def draw(like: Tensor, p: float, generator: torch.Generator | None) -> Drop:
    """What is dropped of a tensor by the chance p. The random numbers come of one that torch draws."""
    seed = int(torch.randint(2**63 - 1, (), generator=generator))
    many = np.random.SFC64(seed).random_raw(like.numel() // 8 + 1)  # in half the time that torch takes
    bits = torch.from_numpy(many.view(np.int8)).as_strided(like.shape, like.stride())
    whole, rest = divmod(p * 2**BITS, 1)
    more = seed % 2**32 < rest * 2**32
    return Drop(bits, int(whole) + more)


def parts(tensor: Tensor) -> tuple[Tensor, ...]:
    """A few images at a time: as many as make up half a million numbers."""
    few = max(1, 2**19 // max(1, math.prod(tensor.shape[1:])))
    return (tensor,) if few >= len(tensor) else tensor.split(few)


def _scale(dropped: int) -> float:
    return 2**BITS / (2**BITS - dropped)


class ReluDrop(Function):
    """The ReLU of values, those that are dropped 0 and the others larger, for the same mean. See `Drop`."""

    @staticmethod
    def forward(values: Tensor, bits: Tensor, dropped: int) -> Tensor:
        out = torch.empty_like(values)
        for into, some, random in zip(*map(parts, (out, values, bits)), strict=True):
            torch.clamp(some, min=0, out=into)
            # What this op of torch's does is to leave the first where the second is above the third, and 0 elsewhere.
            below = dropped - 2 ** (BITS - 1) - 1
            torch.ops.aten.threshold_backward.grad_input(into, random.to(into.dtype), below, grad_input=into)
            into.mul_(_scale(dropped))
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.scale = _scale(inputs[2])
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (output,) = ctx.saved_tensors
        return torch.ops.aten.threshold_backward(grads[0], output, 0).mul_(ctx.scale), None, None
