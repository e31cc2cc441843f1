"""The base class of autograd functions."""

from __future__ import annotations

import inspect

import torch

__all__ = ["Function"]


class Function(torch.autograd.Function):
    """`torch.autograd.Function` with less overhead per call.

    Torch asks for the signature of `forward` in every call, and computing it takes Python longer than a small layer
    takes to run. Here it is computed once.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "forward" in vars(cls):
            cls.forward.__signature__ = inspect.signature(cls.forward)  # type: ignore[attr-defined]
