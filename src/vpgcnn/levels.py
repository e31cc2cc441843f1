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
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vpgcnn.distributions import (
    NARROWEST,
    Distribution,
    DrawnDistribution,
    GumbelDistribution,
    Noise,
    RankedDistribution,
    WindowDistribution,
)
from vpgcnn.encoders import InvariantEncoder
from vpgcnn.features import GroupFeature
from vpgcnn.function import Function
from vpgcnn.groups import Group
from vpgcnn.precision import uniform

__all__ = [
    "Drawn",
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
    "circles_of",
    "layer_of",
    "tell_progress",
]


MOST_LIKELY = 0.99
"""The highest chance that an element of a Gumbel-softmax level can begin with: at 1 it could not learn."""
LARGEST_LOGIT = 30.0
"""Beyond it a chance soon is 0 in single precision, where the KL has no gradient."""


class _Bound(Function):
    """Clamp whose gradient is stopped only where it would push further outside."""

    generate_vmap_rule = True

    @staticmethod
    def forward(raw: Tensor, low: Tensor, high: float) -> Tensor:
        return raw.clamp_max(high).maximum(low)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], inputs[1])
        ctx.high = inputs[2]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (grad,), (raw, low) = grads, ctx.saved_tensors
        outwards = ((raw >= ctx.high) & (grad < 0)) | ((raw <= low) & (grad > 0))
        return torch.where(outwards, 0.0, grad), None, None


def bound(raw: Tensor, low: list[float], high: float) -> Tensor:
    """raw `(B, P)` inside [low, high], with a low end for each of P. The ends can be reached, and left again."""
    raw = raw.to(torch.promote_types(raw.dtype, torch.float32))
    bounded: Tensor = _Bound.apply(raw, raw.new_tensor(low), high)
    return bounded


# ---------------------------------------------------------------- families


class Family(ABC):
    """A kind of distribution over the group, as a value: it knows no tensors and no layer."""

    per_image = False
    """Whether each image gets elements of its own, instead of weights on a shared grid."""

    def at(self, progress: float) -> Family:
        """The family as it is when training has come so far, in [0, 1]: most do not change."""
        return self

    @abstractmethod
    def start(self, group: Group, points: int | None) -> Tensor:
        """The raw parameters `(P,)` that training begins with."""

    @abstractmethod
    def bounded(self, raw: Tensor, group: Group, points: int | None) -> Tensor:
        """Raw parameters `(B, P)`, any numbers, brought into the family's range."""

    def inside(self) -> Family:
        """The family of a level that stays within another: it begins with as much of it as there can be."""
        raise ValueError(f"a level within another needs windows or Gumbel-softmax, got {self}")

    def within(self, own: Tensor, below: Tensor, group: Group, points: int | None) -> Tensor:
        """Bounded parameters `(B, P)` of a level that uses the share `own` of another one's."""
        raise NotImplementedError

    @abstractmethod
    def distribution(
        self, parameters: Tensor, group: Group, points: int | None, *, noisy: bool, generator: torch.Generator | None
    ) -> Distribution:
        """q from bounded parameters `(B, P)`; with its noise, or without (`noisy=False`, evaluation)."""


def _check_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name} must be in [{low:g}, {high:g}], got {value}")


@dataclass(frozen=True)
class Window(Family):
    """The window [−πθ, πθ] on each axis, weights by exact cell coverage. For every group.

    initial: θ at the start of training; wide, so that data which want the whole group keep it.
    floor: the smallest θ on continuous axes; on an axis of m elements it is 1/m, where the identity
    is alone and nothing changes any more.
    """

    initial: float = 0.9
    floor: float = 0.03

    def __post_init__(self) -> None:
        _check_range("floor", self.floor, NARROWEST, 1)
        _check_range("initial", self.initial, NARROWEST, 1)

    def start(self, group: Group, points: int | None) -> Tensor:
        return torch.tensor([max(self.initial, floor) for floor in self._floors(group)])

    def bounded(self, raw: Tensor, group: Group, points: int | None) -> Tensor:
        return bound(raw, self._floors(group), 1.0)

    def inside(self) -> Window:
        return replace(self, initial=1.0)

    def within(self, own: Tensor, below: Tensor, group: Group, points: int | None) -> Tensor:
        return self.bounded(own * below, group, points)

    def distribution(
        self, parameters: Tensor, group: Group, points: int | None, *, noisy: bool, generator: torch.Generator | None
    ) -> WindowDistribution:
        return WindowDistribution(group, parameters, validate=False)

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


def _order(group: Group, family: str) -> int:
    if group.order is None:
        raise ValueError(f"{family} chooses among the elements of a finite group, got {group}: use Window or Pathwise")
    return group.order


@dataclass(frozen=True)
class Drawn(Window):
    """The window, of which training draws elements: each is in by the chance that is the covered share of its cell.

    For finite groups; `Pathwise` is what draws from windows on continuous ones.
    The same θ and KL; what is left out now and then by chance cannot be relied on, so that levels regularise the
    network as dropout does. Evaluation does not draw: it takes the mean.
    """

    def start(self, group: Group, points: int | None) -> Tensor:
        _order(group, "Drawn")
        return super().start(group, points)

    def distribution(
        self, parameters: Tensor, group: Group, points: int | None, *, noisy: bool, generator: torch.Generator | None
    ) -> DrawnDistribution:
        shape = (parameters.shape[0], _order(group, "Drawn"))
        keys = uniform(shape, parameters, generator) if noisy else None
        return DrawnDistribution(group, parameters, validate=False, keys=keys)


@dataclass(frozen=True)
class RankedSoftmax(Family):
    """The paper's family for finite groups: ranks, softmax(rank/θ), a threshold 1/G − η.

    eta: in [0, 1/G]; None for 1/(G(G+1)), the threshold 1/(G+1), as in the paper's worked example.
    noise: "ranked" (none), "permuted" or "exchangeable"; see `RankedDistribution`.
    initial: β = 1/θ at the start, as a share of β_max = log(G+1), where (with the default η) the
    identity is alone.
    """

    eta: float | None = None
    noise: Noise = "ranked"
    initial: float = 0.1

    def __post_init__(self) -> None:
        if self.noise not in ("ranked", "permuted", "exchangeable"):
            raise ValueError(f"noise is 'ranked', 'permuted' or 'exchangeable', got {self.noise!r}")
        _check_range("initial", self.initial, 0, 1)

    def start(self, group: Group, points: int | None) -> Tensor:
        order = _order(group, "RankedSoftmax")
        _check_range(f"eta for {group}", self._eta(order), 0, 1 / order)
        return torch.full((1,), self.initial * math.log(order + 1))

    def bounded(self, raw: Tensor, group: Group, points: int | None) -> Tensor:
        return bound(raw, [0.0], math.log(_order(group, "RankedSoftmax") + 1))

    def distribution(
        self, parameters: Tensor, group: Group, points: int | None, *, noisy: bool, generator: torch.Generator | None
    ) -> RankedDistribution:
        order = _order(group, "RankedSoftmax")
        random = noisy and self.noise != "ranked"
        keys = uniform((parameters.shape[0], order), parameters, generator) if random else None
        return RankedDistribution(group, parameters, order, self._eta(order), self.noise, keys)

    def _eta(self, order: int) -> float:
        return 1 / (order * (order + 1)) if self.eta is None else self.eta


@dataclass(frozen=True)
class GumbelSoftmax(Family):
    """Partial G-CNN's family for finite groups: a chance for each element to be in; the identity always is.

    initial: the chance of each at the start. temperature: of the relaxed gradient of a draw, at the start of
    training. final: the temperature at the end, reached in equal ratios (see `tell_progress`); None: the same.
    The random numbers of a draw are the same for all images of a batch. Evaluation does not draw: it takes the mean.
    """

    initial: float = 0.9
    temperature: float = 1.0
    final: float | None = None

    def __post_init__(self) -> None:
        _check_range("initial", self.initial, 0.001, MOST_LIKELY)
        if min(self.temperature, self.final or 1.0) <= 0 or self.final == 0:
            raise ValueError(f"temperature must be positive, got {self.temperature} and {self.final}")

    def at(self, progress: float) -> GumbelSoftmax:
        if self.final is None:
            return self
        return replace(self, temperature=self.temperature * (self.final / self.temperature) ** progress)

    def start(self, group: Group, points: int | None) -> Tensor:
        others = _order(group, "GumbelSoftmax") - 1
        return torch.full((others,), math.log(self.initial / (1 - self.initial)))

    def bounded(self, raw: Tensor, group: Group, points: int | None) -> Tensor:
        return bound(raw, [-LARGEST_LOGIT] * raw.shape[1], LARGEST_LOGIT)

    def inside(self) -> GumbelSoftmax:
        return replace(self, initial=MOST_LIKELY)

    def within(self, own: Tensor, below: Tensor, group: Group, points: int | None) -> Tensor:
        chance = F.logsigmoid(own) + F.logsigmoid(below)  # the logarithm of the product of both
        return chance - torch.log(-torch.expm1(chance.clamp_max(-1e-6)))

    def distribution(
        self, parameters: Tensor, group: Group, points: int | None, *, noisy: bool, generator: torch.Generator | None
    ) -> GumbelDistribution:
        noise = None
        if noisy:
            noise = torch.logit(uniform((1, parameters.shape[1]), parameters, generator), eps=1e-6)
        return GumbelDistribution(group, parameters, self.temperature, noise)


# ---------------------------------------------------------------- levels


class Level(nn.Module, ABC):
    """A module from a feature to q(u|f).

    partial:      whether it ever leaves elements out (if not, layers need not ask it).
    regularised:  whether its KL belongs to the loss.
    per_image:    whether images get elements of their own.
    rectifies:    whether it takes `rectify=True`, to look at the feature after a ReLU, which need not be computed then.
    """

    group: Group
    partial = True
    regularised = False
    per_image = False
    rectifies = False
    progress = 0.0
    """How far training has come, in [0, 1]; see `tell_progress`."""

    @abstractmethod
    def forward(self, feature: GroupFeature, generator: torch.Generator | None = None) -> Distribution: ...

    def after_relu(self, feature: GroupFeature, generator: torch.Generator | None = None) -> Distribution:
        """q from the feature after a ReLU."""
        if self.rectifies:
            return self(feature, generator, rectify=True)
        return self(feature.map(F.relu), generator)


def tell_progress(model: nn.Module, progress: float) -> None:
    """Tell every level of a model how far training has come, in [0, 1], for families that change on the way."""
    for module in model.modules():
        if isinstance(module, Level):
            module.progress = progress


def layer_of(path: str) -> str:
    """What a layer is called that has the level at this path: without the modules that only wrap the network."""
    while path.startswith("network."):
        path = path.removeprefix("network.")
    return path.removesuffix(".level")


def circles_of(layer: str, level: nn.Module) -> list[str]:
    """What the columns of a layer's θ are called: its own name, or "last rotation" and "last hue" on a product."""
    axes = level.group.axes if isinstance(level, Level) else ()
    return [layer] if len(axes) < 2 else [f"{layer} {axis.name}" for axis in axes]


LevelFactory = Callable[[Group, int, int | None], Level]
"""What layers take: called with (group, channels, points)."""


def _family(family: Family | None) -> Family:
    if family is not None and not isinstance(family, Family):
        raise TypeError(f"family must be a value such as Window(), got {family!r}")
    return family or Window()


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

    regularised: add its KL to the loss too; Partial G-CNN does not. below: a level of an earlier layer that this
    one stays within, whatever is learned, so that equivariance only falls with depth (its monotonic variant);
    then θ is that level's θ times a learned share, which begins with all of it. For windows and Gumbel-softmax.
    """

    rectifies = True

    def __init__(
        self,
        group: Group,
        channels: int = 0,
        points: int | None = None,
        *,
        family: Family | None = None,
        regularised: bool = False,
        below: Learned | None = None,
    ) -> None:
        super().__init__()
        self.group, self.points, self.regularised = group, points, regularised
        self.family = _family(family)
        if below is not None:
            if type(below.family) is not type(self.family):
                raise ValueError(f"a level within another is of its family, got {self.family} and {below.family}")
            self.family = self.family.inside()
        self.below = (below,)  # in a tuple: its parameters are not this level's
        self.per_image = self.family.per_image
        self.raw = nn.Parameter(self.family.start(group, points))

    def parameters_of_all(self) -> Tensor:
        """The bounded parameters `(1, P)` that all images share."""
        # Bounded before it is spread over the batch: the bound then sees the gradient of all images together.
        own = self.family.bounded(self.raw.unsqueeze(0), self.group, self.points)
        if self.below[0] is None:
            return own
        return self.family.within(own, self.below[0].parameters_of_all(), self.group, self.points)

    def forward(
        self, feature: GroupFeature, generator: torch.Generator | None = None, *, rectify: bool = False
    ) -> Distribution:
        same = self.parameters_of_all().expand(feature.shape[0], -1)
        family = self.family.at(self.progress)
        return family.distribution(same, self.group, self.points, noisy=self.training, generator=generator)

    def extra_repr(self) -> str:
        return f"{self.group}, {self.family}"


class Variational(Level):
    """A level for each image (VP G-CNN), from an encoder that is invariant: θ(L_g f) = θ(f).

    family: the distributions to choose from, `Window()` by default. hidden: channels of the encoder, as many as the
    feature has by default. detached: the encoder only looks: θ is learned by the encoder alone, and no gradient of it
    shapes the feature.
    """

    regularised = True
    rectifies = True
    detached = False

    def __init__(
        self,
        group: Group,
        channels: int,
        points: int | None = None,
        *,
        family: Family | None = None,
        hidden: int | None = None,
        detached: bool = False,
    ) -> None:
        super().__init__()
        self.group, self.points, self.detached = group, points, detached
        self.family = _family(family)
        self.per_image = self.family.per_image
        self.encoder = InvariantEncoder(group, channels, self.family.start(group, points), hidden)

    def forward(
        self, feature: GroupFeature, generator: torch.Generator | None = None, *, rectify: bool = False
    ) -> Distribution:
        raw = self.encoder(feature.detach() if self.detached else feature, rectify=rectify)
        own = self.family.bounded(raw, self.group, self.points)
        family = self.family.at(self.progress)
        return family.distribution(own, self.group, self.points, noisy=self.training, generator=generator)

    def extra_repr(self) -> str:
        return f"{self.group}, {self.family}{', detached' if self.detached else ''}"
