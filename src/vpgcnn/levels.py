"""Levels: modules that look at a feature and return q(u|f), how much of the group to use.

    >>> level = Variational(SO2(), channels=16, points=8)
    >>> q = level(feature)
    >>> q.theta, q.kl()                       # per image

Three levels, from the least to the most aware: `Full` (all of the group, a G-CNN), `Learned` (one
level for all images, Partial G-CNN), `Variational` (one for each image, VP G-CNN). What is learned
is a *family* of distributions: the circle window (default), or one of the paper's own.
A layer builds its level by calling `level(group, channels, points)`, so a class is a fine argument
and `functools.partial(Variational, family=Pathwise())` a finer one.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vpgcnn.distributions import (
    Distribution,
    GumbelDistribution,
    Noise,
    RankedDistribution,
    WindowDistribution,
)
from vpgcnn.encoders import InvariantEncoder
from vpgcnn.features import GroupFeature
from vpgcnn.groups import Group

__all__ = [
    "Family",
    "Full",
    "GumbelSoftmax",
    "Learned",
    "Level",
    "LevelFactory",
    "Pathwise",
    "RankedSoftmax",
    "Variational",
    "Window",
]


class _Bound(torch.autograd.Function):
    """Clamp whose gradient is stopped only where it would push further outside."""

    @staticmethod
    def forward(ctx: Any, raw: Tensor, low: Tensor, high: float) -> Tensor:
        ctx.save_for_backward(raw, low)
        ctx.high = high
        return raw.clamp_max(high).maximum(low)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (grad,), (raw, low) = grads, ctx.saved_tensors
        outwards = ((raw >= ctx.high) & (grad < 0)) | ((raw <= low) & (grad > 0))
        return grad.masked_fill(outwards, 0.0), None, None


def bound(raw: Tensor, low: Tensor, high: float) -> Tensor:
    """raw `(B, P)` inside [low `(P,)`, high]. The bounds can be reached, and left again."""
    bounded: Tensor = _Bound.apply(raw, low, high)
    return bounded


# ---------------------------------------------------------------- families


class Family(ABC):
    """A kind of distribution over the group, as a value: it knows no tensors and no layer."""

    per_image = False
    """Whether each image gets elements of its own, instead of weights on a shared grid."""

    @abstractmethod
    def start(self, group: Group, points: int | None) -> Tensor:
        """The raw parameters `(P,)` that training begins with."""

    @abstractmethod
    def distribution(
        self, raw: Tensor, group: Group, points: int | None, *, noisy: bool, generator: torch.Generator | None
    ) -> Distribution:
        """q from raw parameters `(B, P)`; with its noise, or without (`noisy=False`, evaluation)."""


def _check_unit(name: str, value: float) -> None:
    if not 0 < value <= 1:
        raise ValueError(f"{name} must be in (0, 1], got {value}")


@dataclass(frozen=True)
class Window(Family):
    """The window [−πθ, πθ] on each axis, weights by exact cell coverage. For every group.

    start: θ at the start of training; wide, so that data which want the whole group keep it.
    floor: the smallest θ on continuous axes; on an axis of m elements it is 1/m, where the identity
    is alone and nothing changes any more.
    """

    initial: float = 0.9
    floor: float = 0.03

    def __post_init__(self) -> None:
        _check_unit("initial", self.initial)
        _check_unit("floor", self.floor)

    def start(self, group: Group, points: int | None) -> Tensor:
        return torch.tensor([max(self.initial, floor) for floor in self._floors(group)])

    def distribution(
        self, raw: Tensor, group: Group, points: int | None, *, noisy: bool, generator: torch.Generator | None
    ) -> WindowDistribution:
        return WindowDistribution(group, bound(raw, raw.new_tensor(self._floors(group)), 1.0), validate=False)

    def _floors(self, group: Group) -> list[float]:
        return [1 / axis.order if axis.order else self.floor for axis in group.axes]


@dataclass(frozen=True)
class Pathwise(Window):
    """The paper's SO(2) family: elements u = πθε of each image's own, ε stratified over [−1, 1].

    The same window, estimated by moving elements instead of weighing them: the gradient goes
    through the kernels. Needs a continuous group and a continuous kernel.
    """

    per_image = True

    def start(self, group: Group, points: int | None) -> Tensor:
        if any(axis.order for axis in group.axes):
            raise ValueError(f"Pathwise moves elements continuously: {group} has finite axes, use Window")
        return super().start(group, points)


@dataclass(frozen=True)
class RankedSoftmax(Family):
    """The paper's family for finite groups: ranks, softmax(rank/θ), a threshold 1/G − η.

    eta: None for 1/(G(G+1)), the threshold 1/(G+1), as in the paper's worked example.
    noise: "ranked" (none), "permuted" or "exchangeable"; see `RankedDistribution`.
    initial: β = 1/θ at the start, as a share of β_max = log(G+1), where the identity is alone.
    """

    eta: float | None = None
    noise: Noise = "ranked"
    initial: float = 0.1

    def __post_init__(self) -> None:
        if self.noise not in ("ranked", "permuted", "exchangeable"):
            raise ValueError(f"noise is 'ranked', 'permuted' or 'exchangeable', got {self.noise!r}")
        if self.eta is not None and not 0 <= self.eta <= 1:
            raise ValueError(f"eta must be in [0, 1/G], got {self.eta}")

    def start(self, group: Group, points: int | None) -> Tensor:
        return torch.full((1,), self.initial * math.log(_count(group, points) + 1))

    def distribution(
        self, raw: Tensor, group: Group, points: int | None, *, noisy: bool, generator: torch.Generator | None
    ) -> RankedDistribution:
        count = _count(group, points)
        beta = bound(raw, raw.new_zeros(1), math.log(count + 1))
        eta = 1 / (count * (count + 1)) if self.eta is None else self.eta
        keys = None
        if noisy and self.noise != "ranked":
            keys = torch.rand(raw.shape[0], count, generator=generator, dtype=raw.dtype, device=raw.device)
        return RankedDistribution(group, beta, count, eta, self.noise, keys)


@dataclass(frozen=True)
class GumbelSoftmax(Family):
    """Partial G-CNN's family for finite groups: a logit for each element, Gumbel-softmax draws.

    temperature: of the relaxed gradient. samples: draws for each image, None for one per element.
    """

    temperature: float = 1.0
    samples: int | None = None

    def __post_init__(self) -> None:
        if self.temperature <= 0:
            raise ValueError(f"temperature must be positive, got {self.temperature}")

    def start(self, group: Group, points: int | None) -> Tensor:
        return torch.zeros(_count(group, points))

    def distribution(
        self, raw: Tensor, group: Group, points: int | None, *, noisy: bool, generator: torch.Generator | None
    ) -> GumbelDistribution:
        noise = None
        if noisy:
            shape = (self.samples or raw.shape[1], *raw.shape)
            uniform = torch.rand(shape, generator=generator, dtype=raw.dtype, device=raw.device)
            noise = -torch.log(-torch.log(uniform.clamp(1e-7, 1 - 1e-7)))
        return GumbelDistribution(group, raw, self.temperature, noise)


def _count(group: Group, points: int | None) -> int:
    return math.prod(group.counts(points))


# ---------------------------------------------------------------- levels


class Level(nn.Module, ABC):
    """A module from a feature to q(u|f).

    partial:      whether it ever leaves elements out (if not, layers need not ask it).
    regularised:  whether its KL belongs to the loss.
    per_image:    whether images get elements of their own.
    """

    partial = True
    regularised = False
    per_image = False

    @abstractmethod
    def forward(self, feature: GroupFeature, generator: torch.Generator | None = None) -> Distribution: ...


LevelFactory = Callable[[Group, int, int | None], Level]
"""What layers take: called with (group, channels, points)."""


class Full(Level):
    """All of the group for every image: θ = 1. A plain, fully equivariant G-CNN."""

    partial = False

    def __init__(self, group: Group, channels: int = 0, points: int | None = None) -> None:
        super().__init__()
        self.group = group

    def forward(self, feature: GroupFeature, generator: torch.Generator | None = None) -> WindowDistribution:
        return WindowDistribution(self.group, torch.ones(feature.shape[0], len(self.group.axes), device=feature.device))


class Learned(Level):
    """One learned level for all images (Partial G-CNN).

    regularised: add its KL to the loss too; Partial G-CNN does not.
    """

    def __init__(
        self,
        group: Group,
        channels: int = 0,
        points: int | None = None,
        *,
        family: Family | None = None,
        regularised: bool = False,
    ) -> None:
        super().__init__()
        self.group, self.points, self.regularised = group, points, regularised
        self.family = family or Window()
        self.per_image = self.family.per_image
        self.raw = nn.Parameter(self.family.start(group, points))

    def forward(self, feature: GroupFeature, generator: torch.Generator | None = None) -> Distribution:
        raw = self.raw.expand(feature.shape[0], -1)
        return self.family.distribution(raw, self.group, self.points, noisy=self.training, generator=generator)

    def extra_repr(self) -> str:
        return f"{self.group}, {self.family}"


class Variational(Level):
    """A level for each image (VP G-CNN), from an encoder that is invariant: θ(L_g f) = θ(f).

    family: the distributions to choose from, `Window()` by default.
    """

    regularised = True

    def __init__(self, group: Group, channels: int, points: int | None = None, *, family: Family | None = None) -> None:
        super().__init__()
        self.group, self.points = group, points
        self.family = family or Window()
        self.per_image = self.family.per_image
        self.encoder = InvariantEncoder(group, channels, self.family.start(group, points))

    def forward(self, feature: GroupFeature, generator: torch.Generator | None = None) -> Distribution:
        raw = self.encoder(feature)
        if not torch.compiler.is_compiling() and not math.isfinite(raw.detach().sum()):
            image = int((~raw.isfinite()).any(dim=1).nonzero()[0])
            value = raw[image].tolist()
            raise ValueError(f"the input of a level is not finite: image {image} of the batch encodes to {value}")
        return self.family.distribution(raw, self.group, self.points, noisy=self.training, generator=generator)

    def extra_repr(self) -> str:
        return f"{self.group}, {self.family}"
