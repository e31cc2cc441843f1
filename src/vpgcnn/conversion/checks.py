"""What `convert` and `soften` are given, checked before anything runs: each refusal names the value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from vpgcnn.errors import UserError
from vpgcnn.groups import Group

__all__ = ["Numbers", "check_channels", "check_group", "check_images", "standard_of"]

Numbers = float | Sequence[float]
"""One number for all channels, or one for each."""


def standard_of(
    mean: Numbers, std: Numbers, *, names: tuple[str, str] = ("mean", "std")
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation as tuples of finite numbers, all deviations above 0.

    Args:
        mean: One number for all channels, or one for each.
        std: The same, of the standard deviation.
        names: What the user calls them.
    """
    means, stds = _numbers(mean, names[0]), _numbers(std, names[1])
    if not min(stds) > 0:
        raise UserError(f"{names[1]} must be above 0, got {_listed(stds)}")
    return means, stds


def check_channels(values: Sequence[float], channels: int, name: str) -> None:
    """Refuse numbers that are neither one for all channels nor one for each."""
    if len(values) not in (1, channels):
        each = f" or {channels}, one for each channel" if channels != 1 else ""
        raise UserError(f"{name} takes one number{each}, got {len(values)}: {_listed(values)}")


def _numbers(value: Any, name: str) -> tuple[float, ...]:
    value = value.tolist() if isinstance(value, Tensor) else value
    try:
        found = tuple(value) if not isinstance(value, str | Real) else (value,)
    except TypeError:
        found = (value,)
    if not found or not all(isinstance(each, Real) for each in found):
        raise TypeError(f"{name} must be a number, or one for each channel, got {value!r}")
    numbers = tuple(map(float, found))
    if not all(map(math.isfinite, numbers)):
        raise UserError(f"{name} must be finite, got {_listed(numbers)}")
    return numbers


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{each:g}" for each in values)


def check_group(group: Group, what: str) -> None:
    """Refuse what is no finite group with several elements. what: Where it leads, as the end of a sentence."""
    if not isinstance(group, Group):
        raise TypeError(f"group must be a value such as Rotations(4), got {group!r}")
    if group.order is None:
        raise UserError(f"{what} a finite group, got {group}: choose Rotations(4), say")
    if group.order == 1:
        raise UserError(f"{group} has one element, which moves nothing: choose Hue(3) or Rotations(4), say")


def check_images(
    group: Group, images: Tensor, mean: Sequence[float], std: Sequence[float], what: str = "the example"
) -> None:
    """Refuse images that a network cannot be tried on.

    Args:
        group: The group.
        images: They should be `(B, C, H, W)`, floating point, before standardisation.
        mean: Of the images.
        std: Their standard deviation.
        what: What the images are called.
    """
    if not isinstance(images, Tensor):
        raise TypeError(f"{what} must be a tensor of images B×C×H×W, got {type(images).__name__}")
    shape = tuple(images.shape)
    if images.dim() != 4:
        raise UserError(f"{what} must be images B×C×H×W, got the shape {shape}")
    if not images.numel():
        raise UserError(f"{what} has no images or no pixels, got the shape {shape}")
    if not images.is_floating_point():
        advice = ": divide by 255" if images.dtype == torch.uint8 else ""
        raise UserError(f"{what} must have floating point pixels in [0, 1], got {images.dtype}{advice}")
    odd = images[~images.isfinite()]
    if len(odd):
        raise UserError(f"{what} has {len(odd):,} pixels that are not finite numbers, such as {float(odd[0])}")
    if group.acts_on_rgb and shape[1] != 3:
        raise UserError(f"{group} acts on RGB: expected 3 channels, got {shape[1]} ({what} has the shape {shape})")
    for name, values in (("mean", mean), ("std", std)):
        check_channels(values, shape[1], name)
