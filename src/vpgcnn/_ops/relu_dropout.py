"""ReLU and dropout in one pass, on a CPU, over a few images at a time so that they stay in the cache.

Each number is dropped by eight random bits, so with a probability that is a multiple of 1/256: one of the two nearest
to p, chosen at random in each call so that p is the mean. The bits are compared as floating point numbers, which is
faster in torch than comparing integers. No mask is stored: outputs that are not positive have no gradient.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from vpgcnn._ops.autograd import Function
from vpgcnn._ops.chunks import parts

__all__ = ["Drop", "ReluDrop", "again", "draw", "possible"]

BITS = 8


class Drop(NamedTuple):
    """Which numbers of a tensor are dropped.

    Args:
        bits: Random integers from −2⁷ to 2⁷ − 1, in the shape and memory format of the tensor.
        dropped: How many of the 2⁸ possible values mean "dropped".
        seed: What the bits were made from.
    """

    bits: Tensor
    dropped: int
    seed: int


def possible(values: Tensor, p: float) -> bool:
    """Whether the fast path applies: a plain CPU tensor in single or double precision, and p at most 255/256."""
    plain = type(values) in (Tensor, nn.Parameter) and values.dtype in (torch.float32, torch.float64)
    return plain and values.device.type == "cpu" and p * 2**BITS <= 2**BITS - 1 and not torch.compiler.is_compiling()


def draw(like: Tensor, p: float, generator: torch.Generator | None) -> Drop:
    """Choose what to drop.

    Args:
        like: A tensor whose shape and memory format to use.
        p: The probability of dropping.
        generator: The source of the seed; None for torch's default.
    """
    seed = int(torch.randint(2**63 - 1, (), generator=generator))
    whole, rest = divmod(p * 2**BITS, 1)
    more = seed % 2**32 < rest * 2**32
    return Drop(_bits(like, seed), int(whole) + more, seed)


def again(values: Tensor, dropped: int, seed: int) -> Tensor:
    """What `ReluDrop` made of the values with the bits of this seed."""
    return ReluDrop.forward(values, _bits(values, seed), dropped)


def _bits(like: Tensor, seed: int) -> Tensor:
    many = np.random.SFC64(seed).random_raw(like.numel() // 8 + 1)  # twice as fast as torch
    return torch.from_numpy(many.view(np.int8)).as_strided(like.shape, like.stride())


def _scale(dropped: int) -> float:
    return 2**BITS / (2**BITS - dropped)


class ReluDrop(Function):
    """ReLU of the values, with dropped ones 0 and the others scaled to keep the mean. See `Drop`."""

    @staticmethod
    def forward(values: Tensor, bits: Tensor, dropped: int) -> Tensor:
        out = torch.empty_like(values)
        for into, some, random in zip(*map(parts, (out, values, bits)), strict=True):
            torch.clamp(some, min=0, out=into)
            # This op keeps its first argument where the second is above the third, and writes 0 elsewhere.
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
