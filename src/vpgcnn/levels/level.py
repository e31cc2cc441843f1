"""Levels: how much of the group a layer uses.

    >>> LiftConv2d(1, 10, 7, SO2(8), level=Variational(Window(initial=0.5)))

A level is given to a layer as a value, `Full()`, `Shared()` or `Variational()`; the layer builds the module from it
that looks at a feature and returns q(u|f):

    >>> level = Variational().build(SO2(8), channels=16)
    >>> q = level(feature)
    >>> q.theta, q.kl()                       # one for each image

From the least to the most aware of the image: `Full` (the whole group, a G-CNN), `Shared` (one learned level for
all images, Partial G-CNN), `Variational` (one level for each image, VP G-CNN).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vpgcnn._ops.active import can_read
from vpgcnn._ops.distributed import processes
from vpgcnn._ops.precision import uniform
from vpgcnn.errors import UserError
from vpgcnn.features import GroupFeature
from vpgcnn.groups import Group
from vpgcnn.levels import costs
from vpgcnn.levels.distributions import Distribution, WindowDistribution
from vpgcnn.levels.encoder import InvariantEncoder
from vpgcnn.levels.families import Family, Window

__all__ = [
    "Condition",
    "Fixed",
    "FixedLevel",
    "Full",
    "FullLevel",
    "Level",
    "LevelSpec",
    "Shared",
    "SharedLevel",
    "Variational",
    "VariationalLevel",
    "set_dial",
    "set_progress",
]

Condition = Literal["input", "output"]

EXPLORE = 0.5
"""The share of the training images whose windows are drawn at random."""
WIDTH = 32
"""The least width of an encoder that learns what every width of a window costs."""
DROPOUT = 0.5
"""The largest share of its channels that an encoder does not see in training; see `dropout`."""


def dropout(channels: int) -> float:
    """The share of so many channels that an encoder does not see in training, a different set for each image.

    What tells how far an image may move is often its class, which many channels know; how hard this one picture is,
    few do. An encoder that cannot rely on any one channel follows the former. Narrow features have no channel to
    spare: none is dropped of 16, half from 32 on.
    """
    return min(max((channels - 16) / 32, 0.0), DROPOUT)


class Level(nn.Module, ABC):
    """A module from a feature to q(u|f). What layers build from a `LevelSpec`."""

    group: Group
    is_full = False
    """Whether it always keeps the whole group: then layers do not call it."""
    moves_elements = False
    """Whether it gives images elements of their own."""
    same_for_all = False
    """Whether its decision does not depend on the feature, only on its parameters."""
    progress = 0.0
    """How far training has come, in [0, 1]; see `set_progress`."""
    explore = 0.0
    """The share of the training images whose decision is random; see `Variational`."""

    @abstractmethod
    def forward(self, feature: GroupFeature, generator: torch.Generator | None = None) -> Distribution:
        """q(u|f) for each image of the feature.

        Args:
            feature: values `(B, C, G, H, W)`.
            generator: The source of the family's noise in training; None for torch's default.
        """

    def after_relu(self, feature: GroupFeature, generator: torch.Generator | None = None) -> Distribution:
        """q from the feature after a ReLU. Override it to fuse the two."""
        out: Distribution = self(feature.map(F.relu), generator)
        return out


@dataclass(frozen=True)
class LevelSpec(ABC):
    """A level as a value: what `level=` of a layer takes."""

    @property
    def is_full(self) -> bool:
        """Whether it always keeps the whole group."""
        return False

    @property
    def condition(self) -> Condition | None:
        """What the level sees: the layer's input or output; None for the layer's default."""
        return None

    @abstractmethod
    def build(self, group: Group, channels: int) -> Level:
        """The module.

        Args:
            group: The layer's group.
            channels: Of the feature that the level will see.
        """


def set_progress(model: nn.Module, progress: float) -> None:
    """Tell every level of a model how far training has come, in [0, 1], for families that change over training."""
    for module in model.modules():
        if isinstance(module, Level):
            module.progress = progress


def set_dial(model: nn.Module, dial: float) -> None:
    """Open or close the windows of a trained network: −1 closes all, 0 leaves them as learned, 1 opens all.

    In between, every image's window moves in proportion. The dial acts in evaluation only, so that training is that of
    the windows as learned. It is saved with the weights; `vpgcnn tune` chooses it.

    Args:
        model: A network with variational levels.
        dial: From −1 to 1.

    Raises:
        UserError: If the dial is out of range, or no level of the model has windows for each image.
    """
    if not -1 <= dial <= 1:
        raise UserError(f"the dial goes from −1 (closed) to 1 (open), got {dial}")
    levels = [module for module in model.modules() if isinstance(module, VariationalLevel) and module.has_dial]
    if not levels:
        raise UserError("no level of this network has a window for each image, so there is nothing to open or close")
    for level in levels:
        level.dial.fill_(dial)


def _check_family(family: Family) -> None:
    if not isinstance(family, Family):
        raise TypeError(f"family must be a value such as Window(), got {family!r}")


# ---------------------------------------------------------------- Full


@dataclass(frozen=True)
class Full(LevelSpec):
    """The whole group for every image, θ = 1: a plain, fully equivariant G-CNN."""

    @property
    def is_full(self) -> bool:
        return True

    def build(self, group: Group, channels: int = 0) -> FullLevel:
        return FullLevel(group)


class FullLevel(Level):
    """The whole group for every image. Built by `Full`."""

    is_full = True

    def __init__(self, group: Group) -> None:
        super().__init__()
        self.group = group

    def forward(self, feature: GroupFeature, generator: torch.Generator | None = None) -> WindowDistribution:
        theta = torch.ones(feature.shape[0], len(self.group.axes), device=feature.device)
        return WindowDistribution(self.group, theta, regularised=False, shared=True)


# ---------------------------------------------------------------- Fixed


@dataclass(frozen=True)
class Fixed(LevelSpec):
    """The same window for every image, not learned: what a learned level has to be compared with.

    Args:
        theta: The share of each circle in use, in (0, 1]. On an axis of m elements, 1/m keeps the identity alone.
    """

    theta: float = 0.5

    def __post_init__(self) -> None:
        if not isinstance(self.theta, (int, float)) or not 0 < self.theta <= 1:
            raise ValueError(f"theta must be a number in (0, 1], got {self.theta!r}")

    def build(self, group: Group, channels: int = 0) -> FixedLevel:
        return FixedLevel(group, self.theta)


class FixedLevel(Level):
    """The same window for every image. Built by `Fixed`."""

    same_for_all = True

    def __init__(self, group: Group, theta: float) -> None:
        super().__init__()
        self.group, self.theta = group, theta

    def forward(self, feature: GroupFeature, generator: torch.Generator | None = None) -> WindowDistribution:
        dtype = torch.promote_types(feature.dtype, torch.float32)
        theta = torch.full((feature.shape[0], len(self.group.axes)), self.theta, dtype=dtype, device=feature.device)
        return WindowDistribution(self.group, theta, validate=False, regularised=False, shared=True)

    def after_relu(self, feature: GroupFeature, generator: torch.Generator | None = None) -> Distribution:
        out: Distribution = self(feature, generator)  # the feature does not matter
        return out

    def extra_repr(self) -> str:
        return f"{self.group}, theta={self.theta}"


# ---------------------------------------------------------------- Shared


@dataclass(frozen=True)
class Shared(LevelSpec):
    """One learned level for all images (Partial G-CNN).

    Args:
        family: The kind of distribution.
        regularised: Whether its KL belongs to the loss; in Partial G-CNN it does not.
    """

    family: Family = Window()
    regularised: bool = False

    def __post_init__(self) -> None:
        _check_family(self.family)

    def build(self, group: Group, channels: int = 0, *, below: SharedLevel | None = None) -> SharedLevel:
        """The module.

        Args:
            group: The layer's group.
            channels: Not needed: the level does not depend on the feature.
            below: A level of an earlier layer that this one stays within (Partial G-CNN's monotonic variant):
                θ is then that level's θ times a learned share, which starts at 1. For windows and Gumbel-softmax.
        """
        return SharedLevel(group, self.family, regularised=self.regularised, below=below)


class SharedLevel(Level):
    """One learned level for all images. Built by `Shared`."""

    same_for_all = True

    def __init__(self, group: Group, family: Family, *, regularised: bool, below: SharedLevel | None = None) -> None:
        super().__init__()
        self.group, self.family, self.regularised = group, family, regularised
        if below is not None:
            if type(below.family) is not type(family):
                raise ValueError(
                    f"a nested level must have the family of the outer one, got {family} in {below.family}"
                )
            self.family = family.inside()
        self.below = (below,)  # in a tuple: its parameters belong to another layer
        self.moves_elements = self.family.moves_elements
        if self.family.directions:
            raise ValueError(f"{self.family} turns with an image, but a shared level sees none: use Variational")
        self.raw = nn.Parameter(self.family.start(group))

    def shared_parameters(self) -> Tensor:
        """The bounded parameters `(1, P)` that all images share."""
        # Bounded before it is expanded over the batch: the bound then sees the gradient of all images together.
        own = self.family.bounded(self.raw.unsqueeze(0), self.group)
        if self.below[0] is None:
            return own
        return self.family.within(own, self.below[0].shared_parameters(), self.group)

    def forward(self, feature: GroupFeature, generator: torch.Generator | None = None) -> Distribution:
        same = self.shared_parameters().expand(feature.shape[0], -1)
        family = self.family.at(self.progress)
        q = family.distribution(same, self.group, noisy=self.training, generator=generator)
        return replace(q, regularised=self.regularised, shared=True)  # type: ignore[type-var]

    def after_relu(self, feature: GroupFeature, generator: torch.Generator | None = None) -> Distribution:
        out: Distribution = self(feature, generator)  # the feature does not matter
        return out

    def extra_repr(self) -> str:
        return f"{self.group}, {self.family}"


# ---------------------------------------------------------------- Variational


@dataclass(frozen=True)
class Variational(LevelSpec):
    """A level for each image (VP G-CNN), from an invariant encoder: θ(L_g f) = θ(f).

    Args:
        family: The kind of distribution.
        condition: What the encoder sees: the layer's "input", as in the paper, or its "output" after a ReLU,
            which is often more telling. None: the output at a lift (an image has no group axis), else the input.
        encoder_width: Channels of the encoder; None for as many as the feature has, and at least `WIDTH` where it has
            to learn what every width costs (`explore` above 0).
        detach_features: Stop gradients from the encoder into the features.
        explore: The share of the training images whose window is drawn at random. The network then learns to answer at
            every width, and the encoder what each width costs an image; the window is the width that costs least (see
            `vpgcnn.levels.costs`). It sees a random half of the channels if there are many. 0: nothing of this; the
            encoder's output is θ, which follows the slope of the loss at θ, as in the paper. None: `EXPLORE` for
            families that can.
    """

    family: Family = Window()
    condition: Condition | None = None
    encoder_width: int | None = None
    detach_features: bool = True
    explore: float | None = None

    def __post_init__(self) -> None:
        _check_family(self.family)
        if self.condition not in (None, "input", "output"):
            raise ValueError(f"condition must be 'input', 'output' or None, got {self.condition!r}")
        if self.encoder_width is not None and self.encoder_width < 1:
            raise ValueError(f"encoder_width must be at least 1, got {self.encoder_width}")
        if self.explore is not None and not 0 <= self.explore < 1:
            raise ValueError(f"explore is a share of the images, from 0 to below 1, got {self.explore}")

    def build(self, group: Group, channels: int) -> VariationalLevel:
        return VariationalLevel(group, channels, self)


class VariationalLevel(Level):
    """A level for each image. Built by `Variational`."""

    dial: Tensor
    """How far windows are opened (up to 1) or closed (down to −1) after training; see `set_dial`."""
    prior: nn.Parameter | None
    """Slopes `(P, KNOTS)` of what all images pay alike, such as the price. None for levels whose encoder answers θ."""

    def __init__(self, group: Group, channels: int, spec: Variational) -> None:
        super().__init__()
        self.group, self.family, self.detach_features = group, spec.family, spec.detach_features
        self.moves_elements = self.family.moves_elements
        start = self.family.start(group)
        can = self.family.opened(torch.zeros(1, start.numel()), group) is not None
        if spec.explore and not can:
            raise ValueError(f"{self.family} cannot draw windows at random: leave explore out, or choose Window()")
        self.has_dial = self.family.dialled(start[None], torch.zeros(()), group) is not None
        self.register_buffer("dial", torch.zeros(()))
        self.explore = (EXPLORE if can else 0.0) if spec.explore is None else spec.explore
        self.prior = nn.Parameter(torch.zeros(start.numel(), costs.KNOTS)) if self.explore > 0 else None
        self.dropout = 0.0 if self.prior is None else dropout(channels)
        start = start if self.prior is None else self._valley(start)
        width = spec.encoder_width
        if width is None and self.prior is not None:
            width = max(channels, WIDTH)
        self.encoder = InvariantEncoder(group, channels, start, width, self.family.directions)

    def _valley(self, start: Tensor) -> Tensor:
        """What an encoder answers at first so that windows start at parameters `(P,)` of the family."""
        ends = self.family.opened(torch.stack([torch.zeros_like(start), torch.ones_like(start)]), self.group)
        assert ends is not None
        closed, whole = ends
        return costs.bowl(torch.where(whole > closed, (start - closed) / (whole - closed), 1.0))

    def forward(self, feature: GroupFeature, generator: torch.Generator | None = None) -> Distribution:
        return self._decide(feature, generator, relu=False)

    def after_relu(self, feature: GroupFeature, generator: torch.Generator | None = None) -> Distribution:
        return self._decide(feature, generator, relu=True)

    def _decide(self, feature: GroupFeature, generator: torch.Generator | None, *, relu: bool) -> Distribution:
        keep = self._keep(feature, generator) if self.training and self.dropout > 0 else None
        learns = torch.is_grad_enabled()
        raw = self.encoder(feature.detach() if self.detach_features and learns else feature, relu=relu, keep=keep)
        family = self.family.at(self.progress)
        if self.prior is None:
            own = self._dialled(self.family.bounded(raw, self.group))
            return family.distribution(own, self.group, noisy=self.training, generator=generator)
        if not (self.training or learns) and can_read(raw) and raw.device.type == "cpu":
            own = self._opened(costs.decided(raw, self.prior))
            return family.distribution(own, self.group, noisy=False, generator=generator)
        slopes = costs.slopes_of(raw)
        prior = self.prior.to(slopes.dtype).expand_as(slopes)
        opening, noise = costs.cheapest(slopes + prior), None
        if self.training and self.explore > 0:
            noise = self._noise(feature, opening, generator)
            opening = torch.where(noise < 0, opening, costs.drawn(noise))
        to_answer = to_pay = opening
        if learns:
            paid = costs.slopes_at(prior, opening)
            to_answer = costs.teach(opening, costs.slopes_at(slopes, opening), paid.detach())
            to_pay = costs.teach(opening, paid)
        own = self._opened(to_answer)
        q = family.distribution(own, self.group, noisy=self.training, generator=generator)
        return replace(q, explored=noise, priced=self._opened(to_pay))  # type: ignore[type-var]

    def _opened(self, opening: Tensor) -> Tensor:
        own = self.family.opened(opening, self.group)
        assert own is not None
        return self._dialled(own)

    def _dialled(self, own: Tensor) -> Tensor:
        """The parameters `(B, P)` that the dial makes of decided ones, in evaluation."""
        turned = None if self.training or self._dial_is_at_rest() else self.family.dialled(own, self.dial, self.group)
        return own if turned is None else turned

    def _dial_is_at_rest(self) -> bool:
        """Whether the dial is known to be 0. It is looked at on the CPU only: another device would be waited for."""
        if torch.compiler.is_compiling():
            return False
        return self.dial.device.type == "cpu" and can_read(self.dial) and float(self.dial) == 0

    def _keep(self, feature: GroupFeature, generator: torch.Generator | None) -> Tensor:
        """Dropout of the encoder's input: factors `(B, C)`."""
        numbers = _uniform(feature.shape[0], feature.shape[1], self.encoder.linear.weight.detach(), generator)
        return (numbers >= self.dropout).to(numbers.dtype) / (1 - self.dropout)

    def _noise(self, feature: GroupFeature, own: Tensor, generator: torch.Generator | None) -> Tensor:
        """Random numbers `(B, P)`: from 0 to 1 for the images to explore, −1 for the others.

        They are those of the network's first level, so that all its windows are closed, open or in between together.
        """
        for q in feature.trace.values():
            if q.explored is not None and q.explored.shape == own.shape:
                return q.explored.to(own.dtype)
        noise = _uniform(len(own), 1 + own.shape[1], own, generator)
        return torch.where(noise[:, :1] < self.explore, noise[:, 1:], -1.0)

    def extra_repr(self) -> str:
        detached = ", detach_features=True" if self.detach_features else ""
        return f"{self.group}, {self.family}{detached}, explore={self.explore:g}, dropout={self.dropout:g}"


def _uniform(images: int, columns: int, like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Random numbers `(images, columns)` in [0, 1). All processes draw those of all images and take their own."""
    count, place = processes()
    return uniform((count * images, columns), like, generator)[place * images : (place + 1) * images]
