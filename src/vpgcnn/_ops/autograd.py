"""The base class of autograd functions."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch.autograd import forward_ad

__all__ = ["Function", "apply"]


class Function(torch.autograd.Function):
    """`torch.autograd.Function` with less overhead per call.

    Torch asks for the signature of `forward` in every call, and computing it takes Python longer than a small layer
    takes to run. Here it is computed once.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "forward" in vars(cls):
            cls.forward.__signature__ = inspect.signature(cls.forward)  # type: ignore[attr-defined]


def apply(function: type[Function], *inputs: Any) -> Any:
    """`function.apply(*inputs)`, without the steps that its inputs do not need.

    Torch binds the inputs to the signature of `forward` in every call, for defaults and names, which takes longer than
    a small operation. All inputs are given by position here. Where there can be no gradient, `forward` is all there is.
    """
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return function.apply(*inputs)
    if not torch.is_grad_enabled() and forward_ad._current_level < 0:
        return function.forward(*inputs)
    alive = (torch._C._functorch.unwrap_if_dead(each) if isinstance(each, torch.Tensor) else each for each in inputs)
    return super(torch.autograd.Function, function).apply(*alive)  # type: ignore[misc]
