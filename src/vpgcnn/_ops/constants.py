"""Small constant tensors, made once for each device: copying numbers from the host makes a GPU wait."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

__all__ = ["constant"]

Key = tuple[tuple[Any, ...], torch.dtype, torch.device]
MANY = 1024
"""How many constants are kept, at most."""

_made: dict[Key, Tensor] = {}
_fakes: WeakKeyDictionary[Any, dict[Key, Tensor]] = WeakKeyDictionary()
_FAKE, _PROXY = torch._C._TorchDispatchModeKey.FAKE, torch._C._TorchDispatchModeKey.PROXY


def constant(numbers: tuple[Any, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """`torch.tensor(numbers)`, made once and then shared. Do not write to it.

    Args:
        numbers: Nested tuples of numbers.
        dtype: Of the tensor.
        device: Of the tensor.
    """
    if torch.compiler.is_compiling() or torch._C._get_dispatch_mode(_PROXY) is not None:
        return torch.tensor(numbers, dtype=dtype, device=device)  # a constant of the traced program
    mode = torch._C._get_dispatch_mode(_FAKE)
    made = _made if mode is None else _fakes.setdefault(mode, {})  # a fake tensor must not leave its mode
    key = (numbers, dtype, device)
    found = made.get(key)
    if found is None:
        with torch.inference_mode(False):  # a tensor of inference mode could not be used in training
            found = torch.tensor(numbers, dtype=dtype, device=device)
        if len(made) < MANY and not torch._C._functorch.is_functorch_wrapped_tensor(found):
            made[key] = found
    return found
