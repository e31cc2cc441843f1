"""Functions with a gradient of their own."""

from __future__ import annotations

import inspect

import torch

__all__ = ["Function"]


class Function(torch.autograd.Function):
    """`torch.autograd.Function`, quicker to call.

    Torch asks for the signature of `forward` in every call, and Python then works it out, which takes longer than a
    small layer's own computing. Here it is worked out once.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "forward" in vars(cls):
            cls.forward.__signature__ = inspect.signature(cls.forward)  # type: ignore[attr-defined]
