"""What every network answers, and how names become groups and levels."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from vpgcnn.errors import UserError
from vpgcnn.features import Prediction
from vpgcnn.groups import O2, SO2, Dihedral, Group, Hue, Product, Rotations
from vpgcnn.levels import (
    Drawn,
    Family,
    Full,
    GumbelSoftmax,
    Learned,
    Level,
    LevelFactory,
    Pathwise,
    RankedSoftmax,
    Variational,
    Window,
)
from vpgcnn.models.config import FamilyName, GroupName, LevelName

__all__ = ["EXPANSION", "Description", "Placement", "Prediction", "aside", "block_shapes", "group_of"]

EXPANSION = 4
"""A bottleneck ends with so many times the channels of its 3×3 convolution."""


class Description(NamedTuple):
    """What the last linear layer of a network sees of images.

    values: `(B, width)`. divergence: `(B,)`, the KL of all its levels.
    """

    values: Tensor
    divergence: Tensor


def group_of(name: GroupName, elements: int, hues: int = 1) -> tuple[Group, int | None]:
    """A group and its number of points: "t2" is the trivial group, an ordinary network. hues: as a second factor."""
    if elements < 1 or hues < 1:
        raise UserError(f"elements and hues must be at least 1, got {elements} and {hues}")
    if hues > 1:
        first, points = group_of(name, elements)
        return Hue(hues) if name == "t2" else Product(first, Hue(hues)), points
    if name == "t2":
        return Rotations(1), None
    if name == "rotations":
        return Rotations(elements), None
    if name == "dihedral":
        return Dihedral(elements), None
    if name == "so2":
        return SO2(), elements
    if name == "o2":
        return O2(), elements
    raise UserError(f"unknown group {name!r}: choose t2, rotations, dihedral, so2 or o2")


def block_shapes(inner: int, outer: int, stride: int, *, bottleneck: bool) -> list[tuple[int, int, int, int]]:
    """The convolutions of a residual block: channels before and after, kernel size, stride."""
    if bottleneck:
        return [(inner, outer, 1, 1), (outer, outer, 3, stride), (outer, outer * EXPANSION, 1, 1)]
    return [(inner, outer, 3, stride), (outer, outer, 3, 1)]


class Placement:
    """Which layer has which level.

    level: that of all layers; but one of the levels `placed` is for the layers named in `where`, and the
    others have the level `elsewhere`. initial: θ at the start of training. monotonic: a learned level stays within
    the one that was asked for before it. encoder: channels of the encoders of variational levels, 0 for as many as
    their layers have. detached: those encoders do not shape what they see.
    """

    def __init__(
        self,
        level: LevelName,
        where: tuple[str, ...],
        elsewhere: LevelName,
        family: FamilyName,
        initial: float,
        placed: tuple[LevelName, ...] = ("variational",),
        *,
        monotonic: bool = False,
        encoder: int = 0,
        detached: bool = False,
    ) -> None:
        self.monotonic, self.last = monotonic, None  # type: bool, Learned | None
        if isinstance(where, str):
            raise UserError(f"where is a tuple of names, got the text {where!r}")
        self.level, self.where, self.elsewhere, self.placed = level, where, elsewhere, placed
        if not 0 < initial <= 1:
            raise UserError(f"initial is a θ in (0, 1], got {initial}")
        if encoder < 0:
            raise UserError(f"encoder is a number of channels, or 0 for as many as the layer has, got {encoder}")
        self.hidden, self.detached = encoder or None, detached
        self.family = _family(family, initial)
        self.seen: list[str] = []

    def __call__(self, layer: str) -> LevelFactory:
        """The level of a layer, as the factory that layers take."""
        self.seen.append(layer)
        chosen = self.level
        if chosen in self.placed and not any(_covers(name, layer) for name in self.where):
            chosen = self.elsewhere
        if chosen == "full":
            return Full
        if chosen == "learned":
            return self._within if self.monotonic else partial(Learned, family=self.family)
        if chosen == "variational":
            return partial(Variational, family=self.family, hidden=self.hidden, detached=self.detached)
        raise UserError(f"unknown level {chosen!r}: choose full, learned or variational")

    def _within(self, group: Group, channels: int, points: int | None) -> Learned:
        self.last = Learned(group, channels, points, family=self.family, below=self.last)
        return self.last

    def check(self) -> None:
        """After all layers were made: complain of names in `where` that none of them has."""
        if self.level not in self.placed:
            return
        if not self.where:
            raise UserError(f"where names no layer, so that no level would be {self.level}: choose level full for that")
        unknown = [name for name in self.where if not any(_covers(name, layer) for layer in self.seen)]
        if unknown:
            stages = dict.fromkeys(layer.split(".")[0] for layer in self.seen)
            inner = [layer for layer in self.seen if "." in layer]
            more = f", or a layer within, such as {inner[0]}" if inner else ""
            raise UserError(
                f"no layer that can have a level is called {unknown[0]!r}: choose from {', '.join(stages)}{more}"
            )


def aside(make: LevelFactory) -> LevelFactory:
    """A level whose random numbers are its own.

    Networks then begin with the same weights for the same seed whatever their levels, so that a comparison of
    levels is not one of beginnings.
    """

    def made(group: Group, channels: int, points: int | None) -> Level:
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(int(torch.randint(2**62, ())))
            return make(group, channels, points)

    return made


def _covers(name: str, layer: str) -> bool:
    """A name stands for its layer, and for all layers within it: stage4 for stage4.0.first."""
    return layer == name or layer.startswith(f"{name}.")


def _family(name: FamilyName, initial: float) -> Family:
    if name == "window":
        return Window(initial=initial)
    if name == "drawn":
        return Drawn(initial=initial)
    if name == "pathwise":
        return Pathwise(initial=initial)
    if name == "ranked":
        return RankedSoftmax(initial=1 - initial)
    if name == "gumbel":
        return GumbelSoftmax(initial=min(initial, GumbelSoftmax.initial), final=0.1)
    raise UserError(f"unknown family {name!r}: choose window, drawn, pathwise, ranked or gumbel")
