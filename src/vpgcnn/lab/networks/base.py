"""What all networks share: standardised input, features before a linear head, and the placement of levels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vpgcnn.errors import UserError
from vpgcnn.features import Prediction, Trace
from vpgcnn.groups import Group
from vpgcnn.lab.networks.config import LevelPlacement
from vpgcnn.levels import Level, LevelSpec, Shared, SharedLevel

__all__ = [
    "EXPANSION",
    "Features",
    "ImageNetwork",
    "Placement",
    "Prediction",
    "block_shapes",
    "seeded_separately",
    "to_unit",
]

EXPANSION = 4
"""A bottleneck ends with this many times the channels of its 3×3 convolution."""


def to_unit(images: Tensor) -> Tensor:
    """Convert bytes to numbers in [0, 1], the input of networks; floating point numbers are not changed."""
    return images if images.is_floating_point() else images.to(torch.get_default_dtype()) / 255


class Features(NamedTuple):
    """The input of a network's last linear layer.

    Args:
        values: `(B, width)`.
        trace: The decisions of the levels.
    """

    values: Tensor
    trace: Trace


class ImageNetwork(nn.Module, ABC):
    """A network from images in [0, 1] to a `Prediction`. It holds the mean and standard deviation of its data.

    Args:
        mean: Mean of the training images, one number or one for each channel.
        std: Their standard deviation, likewise.
    """

    mean: Tensor
    std: Tensor
    head: nn.Module

    def __init__(self, mean: Sequence[float] = (0.0,), std: Sequence[float] = (1.0,)) -> None:
        super().__init__()
        if len(mean) != len(std) or min(std) <= 0:
            raise UserError(f"mean and std must have the same length, with std above 0, got {mean} and {std}")
        self.register_buffer("mean", torch.tensor(tuple(mean)).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(tuple(std)).view(1, -1, 1, 1))

    def standardised(self, images: Tensor) -> Tensor:
        """(images − mean) / std, for images `(B, C, H, W)` in [0, 1]."""
        return (images - self.mean) / self.std

    def input_on(self, group: Group, images: Tensor) -> Tensor:
        """The input of a lift to a group: standardised images, or the images themselves where the group recolours.

        Saturation and luminance have a meaning in [0, 1] only. The norm after the lift sets the scale there.
        """
        return images if group.recolors else self.standardised(images)

    @abstractmethod
    def features(self, images: Tensor) -> Features:
        """The input of the head, for images `(B, C, H, W)` in [0, 1]."""

    def forward(self, images: Tensor) -> Prediction:
        """Images `(B, C, H, W)` in [0, 1] to logits `(B, classes)` and the decisions of the levels."""
        values, trace = self.features(images)
        return Prediction(self.head(values), trace)


def block_shapes(inner: int, outer: int, stride: int, *, bottleneck: bool) -> list[tuple[int, int, int, int]]:
    """The convolutions of a residual block: channels before and after, kernel size, stride."""
    if bottleneck:
        return [(inner, outer, 1, 1), (outer, outer, 3, stride), (outer, outer * EXPANSION, 1, 1)]
    return [(inner, outer, 3, stride), (outer, outer, 3, 1)]


class Placement:
    """Chooses the level of each layer by its name.

    Args:
        plan: The level, its layers, and the level of the other layers.
        everywhere: Kinds of levels that are placed in all layers, whatever `where` says.
    """

    def __init__(self, plan: LevelPlacement, everywhere: tuple[type[LevelSpec], ...] = ()) -> None:
        if isinstance(plan.where, str):
            raise UserError(f"where must be a tuple of names, got the text {plan.where!r}")
        self.plan = plan
        self.placed = not plan.level.is_full and not isinstance(plan.level, everywhere)
        self.chain = _Chain() if plan.monotonic else None
        self.layers: list[str] = []

    def __call__(self, layer: str) -> LevelSpec:
        """The level of a layer, for its argument `level=`."""
        self.layers.append(layer)
        chosen = self.plan.level
        if self.placed and not any(_covers(name, layer) for name in self.plan.where):
            chosen = self.plan.elsewhere
        if self.chain is not None and isinstance(chosen, Shared):
            return _Within(chosen, self.chain)
        return chosen

    def check(self) -> None:
        """After all layers are built: refuse names in `where` that no layer has."""
        if not self.placed:
            return
        if not self.plan.where:
            raise UserError("where is empty, so no layer would have the level: name layers, or choose the level Full()")
        unknown = [name for name in self.plan.where if not any(_covers(name, layer) for layer in self.layers)]
        if unknown:
            stages = dict.fromkeys(layer.split(".")[0] for layer in self.layers)
            inner = [layer for layer in self.layers if "." in layer]
            more = f", or a layer inside one, such as {inner[0]}" if inner else ""
            raise UserError(f"no layer with a level is called {unknown[0]!r}: choose from {', '.join(stages)}{more}")


class _Chain:
    """Remembers the shared level that was built last, for monotonic networks."""

    last: SharedLevel | None = None


@dataclass(frozen=True)
class _Within(LevelSpec):
    """A shared level inside that of the layer before it."""

    inner: Shared
    chain: _Chain

    def build(self, group: Group, channels: int) -> Level:
        self.chain.last = self.inner.build(group, channels, below=self.chain.last)
        return self.chain.last


@dataclass(frozen=True)
class _SeparatelySeeded(LevelSpec):
    """A level whose initial weights do not consume the network's random numbers."""

    inner: LevelSpec

    @property
    def is_full(self) -> bool:
        return self.inner.is_full

    @property
    def condition(self) -> str | None:  # type: ignore[override]
        return self.inner.condition

    def build(self, group: Group, channels: int) -> Level:
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(int(torch.randint(2**62, ())))
            return self.inner.build(group, channels)


def seeded_separately(level: LevelSpec) -> LevelSpec:
    """A level that is initialised with separate random numbers.

    With the same seed, networks then start with the same weights whatever their levels, so that comparisons of levels
    do not compare initial weights.
    """
    return _SeparatelySeeded(level)


def _covers(name: str, layer: str) -> bool:
    """A name stands for its layer and for all layers inside it: stage4 for stage4.0.first."""
    return layer == name or layer.startswith(f"{name}.")
