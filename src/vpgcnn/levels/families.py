"""Families: kinds of distributions over the group that a level can learn, as values without tensors.

    >>> Variational(RankedSoftmax(noise="permuted"))        # a level that learns another family than windows

A family says which raw parameters a level learns, brings them into their range, and makes a distribution of them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vpgcnn._ops.autograd import Function, apply
from vpgcnn._ops.constants import constant
from vpgcnn._ops.precision import uniform
from vpgcnn.groups import Group
from vpgcnn.levels.distributions import (
    NARROWEST,
    Distribution,
    GumbelDistribution,
    Noise,
    RankedDistribution,
    SampledWindowDistribution,
    WindowDistribution,
)

__all__ = [
    "Family",
    "GumbelSoftmax",
    "RankedSoftmax",
    "ReparametrizedWindow",
    "SampledWindow",
    "Window",
    "bound",
]

MOST_LIKELY = 0.99
"""The highest probability that an element of a Gumbel-softmax level can start with: at 1 it could not learn."""
LARGEST_LOGIT = 30.0
"""Beyond it a probability underflows in single precision, and the KL has no gradient there."""


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
    """Clamp raw parameters; both ends can be reached, and left again.

    Args:
        raw: `(B, P)`, any numbers.
        low: The lower end of each of the P columns.
        high: The upper end of all columns.

    Returns:
        `(B, P)` in at least single precision. The gradient passes unless it pushes further outside.
    """
    raw = raw.to(torch.promote_types(raw.dtype, torch.float32))
    bounded: Tensor = apply(_Bound, raw, constant(tuple(low), raw.dtype, raw.device), high)
    return bounded


class Family(ABC):
    """A kind of distribution over the group, as a value: it holds no tensors and knows no layer."""

    moves_elements = False
    """Whether each image gets elements of its own, instead of weights on a shared grid."""

    @property
    def directions(self) -> int:
        """How many angles that turn with the image the family needs on each axis.

        The encoder puts them after the parameters that `start` counts, `(B, K·directions)`, in units of π.
        """
        return 0

    def at(self, progress: float) -> Family:
        """The family at a point of training, `progress` in [0, 1]. Most families do not change."""
        return self

    @abstractmethod
    def start(self, group: Group) -> Tensor:
        """The raw parameters `(P,)` that training starts from."""

    @abstractmethod
    def bounded(self, raw: Tensor, group: Group) -> Tensor:
        """Raw parameters `(B, P)`, any numbers, brought into the family's range."""

    def inside(self) -> Family:
        """The family of a level nested in another one: it starts with all that the outer level allows."""
        raise ValueError(f"a nested level needs windows or Gumbel-softmax, got {self}")

    def within(self, own: Tensor, below: Tensor, group: Group) -> Tensor:
        """Bounded parameters `(B, P)` of a level that uses the share `own` of an outer level's `below`."""
        raise NotImplementedError

    def opened(self, opening: Tensor, group: Group) -> Tensor | None:
        """Parameters `(B, P)` from the closed (0) to the open end (1) of the family's range, by openings `(B, P)`.

        None: the family has no such ends. Then a level cannot compare them, and learns from slopes at its own width.
        """
        return None

    def dialled(self, parameters: Tensor, dial: Tensor, group: Group) -> Tensor | None:
        """Bounded parameters `(B, P)`, moved towards the closed end (dial −1) or the open end (dial 1) of the range.

        None: the family has no such ends.
        """
        return None

    @abstractmethod
    def distribution(
        self, parameters: Tensor, group: Group, *, noisy: bool, generator: torch.Generator | None
    ) -> Distribution:
        """q from bounded parameters.

        Args:
            parameters: `(B, P)`, from `bounded`.
            group: The group.
            noisy: Whether to draw the family's noise (training) or not (evaluation).
            generator: The source of that noise; None for torch's default.
        """


def _check_range(name: str, value: float, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ValueError(f"{name} must be in [{low:g}, {high:g}], got {value!r}")


@dataclass(frozen=True)
class Window(Family):
    """The window [−πθ, πθ] on each axis, weighted by exact cell coverage. For every group.

    Args:
        initial: θ at the start of training; wide, so that data which want the whole group keep it.
        floor: The smallest θ on continuous axes. On an axis of m elements it is 1/m, where only the
            identity is left and nothing changes any more.
    """

    initial: float = 0.9
    floor: float = 0.03

    def __post_init__(self) -> None:
        _check_range("floor", self.floor, NARROWEST, 1)
        _check_range("initial", self.initial, NARROWEST, 1)

    def start(self, group: Group) -> Tensor:
        if self.initial < self.floor and group.order is None:
            raise ValueError(f"initial must be at least the floor {self.floor:g} on {group}, got {self.initial:g}")
        return torch.tensor([max(self.initial, floor) for floor in self._floors(group)])

    def bounded(self, raw: Tensor, group: Group) -> Tensor:
        return bound(raw, self._floors(group), 1.0)

    def inside(self) -> Window:
        return replace(self, initial=1.0)

    def within(self, own: Tensor, below: Tensor, group: Group) -> Tensor:
        return self.bounded(own * below, group)

    def dialled(self, parameters: Tensor, dial: Tensor, group: Group) -> Tensor:
        low = constant(tuple(self._floors(group)), parameters.dtype, parameters.device)
        dial = dial.to(parameters.dtype)
        return parameters + F.relu(dial) * (1 - parameters) - F.relu(-dial) * (parameters - low)

    def opened(self, opening: Tensor, group: Group) -> Tensor:
        opening = opening.to(torch.promote_types(opening.dtype, torch.float32))
        floors = tuple(self._floors(group))
        low, high = (constant(ends, opening.dtype, opening.device) for ends in (floors, (1.0,) * len(floors)))
        return torch.lerp(low, high, opening)  # both ends exactly

    def distribution(
        self, parameters: Tensor, group: Group, *, noisy: bool, generator: torch.Generator | None
    ) -> WindowDistribution:
        return WindowDistribution(group, parameters, validate=False)

    def _floors(self, group: Group) -> list[float]:
        return [1 / axis.order if axis.order else self.floor for axis in group.axes]


@dataclass(frozen=True)
class ReparametrizedWindow(Window):
    """The paper's SO(2) family: each image gets its own elements u = πθε, with ε stratified over [−1, 1].

    The same window, estimated by moving elements instead of weighting them: the gradient flows
    through the kernels. Needs a continuous group.

    Args:
        initial: As for `Window`.
        floor: As for `Window`.
    """

    moves_elements = True

    def start(self, group: Group) -> Tensor:
        if any(axis.order for axis in group.axes):
            raise ValueError(
                f"ReparametrizedWindow moves elements continuously, but {group} has finite axes: use Window"
            )
        return super().start(group)


def _order(group: Group, family: str) -> int:
    if group.order is None:
        raise ValueError(
            f"{family} chooses among the elements of a finite group, got {group}: use Window or ReparametrizedWindow"
        )
    return group.order


@dataclass(frozen=True)
class SampledWindow(Window):
    """A window whose elements are sampled in training; each is kept with probability equal to its coverage.

    θ and the KL are those of `Window`. Sampling regularises the network as dropout does; evaluation takes the
    exact mean. For finite groups; on continuous ones `ReparametrizedWindow` samples.

    Args:
        initial: As for `Window`.
        floor: As for `Window`.
    """

    def start(self, group: Group) -> Tensor:
        _order(group, "SampledWindow")
        return super().start(group)

    def distribution(
        self, parameters: Tensor, group: Group, *, noisy: bool, generator: torch.Generator | None
    ) -> SampledWindowDistribution:
        shape = (parameters.shape[0], _order(group, "SampledWindow"))
        keys = uniform(shape, parameters, generator) if noisy else None
        return SampledWindowDistribution(group, parameters, validate=False, keys=keys)


@dataclass(frozen=True)
class RankedSoftmax(Family):
    """The paper's family for finite groups: ranks, softmax(β · rank), a threshold 1/G − η.

    Args:
        eta: In [0, 1/G]; None for 1/(G(G+1)), the threshold 1/(G+1) of the paper's worked example.
        noise: "ranked" (none), "permuted" or "exchangeable"; see `RankedDistribution`.
        initial: β = 1/θ at the start, as a share of β_max = log(G+1), where (with the default η) only
            the identity is left.
    """

    eta: float | None = None
    noise: Noise = "ranked"
    initial: float = 0.1

    def __post_init__(self) -> None:
        if self.noise not in ("ranked", "permuted", "exchangeable"):
            raise ValueError(f"noise must be 'ranked', 'permuted' or 'exchangeable', got {self.noise!r}")
        _check_range("initial", self.initial, 0, 1)

    def start(self, group: Group) -> Tensor:
        order = _order(group, "RankedSoftmax")
        _check_range(f"eta for {group}", self._eta(order), 0, 1 / order)
        return torch.full((1,), self.initial * math.log(order + 1))

    def bounded(self, raw: Tensor, group: Group) -> Tensor:
        return bound(raw, [0.0], math.log(_order(group, "RankedSoftmax") + 1))

    def distribution(
        self, parameters: Tensor, group: Group, *, noisy: bool, generator: torch.Generator | None
    ) -> RankedDistribution:
        order = _order(group, "RankedSoftmax")
        random = noisy and self.noise != "ranked"
        keys = uniform((parameters.shape[0], order), parameters, generator) if random else None
        return RankedDistribution(group, parameters, order, self._eta(order), self.noise, keys)

    def _eta(self, order: int) -> float:
        return 1 / (order * (order + 1)) if self.eta is None else self.eta


@dataclass(frozen=True)
class GumbelSoftmax(Family):
    """Partial G-CNN's family for finite groups: each element is kept with a learned probability, the identity always.

    All images of a batch share the random numbers of a draw. Evaluation takes the exact mean.

    Args:
        initial: The probability of each element at the start.
        temperature: Of the relaxed gradient, at the start of training.
        final: The temperature at the end, approached geometrically (see `set_progress`); None keeps it constant.
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

    def start(self, group: Group) -> Tensor:
        others = _order(group, "GumbelSoftmax") - 1
        return torch.full((others,), math.log(self.initial / (1 - self.initial)))

    def bounded(self, raw: Tensor, group: Group) -> Tensor:
        return bound(raw, [-LARGEST_LOGIT] * raw.shape[1], LARGEST_LOGIT)

    def inside(self) -> GumbelSoftmax:
        return replace(self, initial=MOST_LIKELY)

    def within(self, own: Tensor, below: Tensor, group: Group) -> Tensor:
        chance = F.logsigmoid(own) + F.logsigmoid(below)  # the logarithm of the product of both
        return chance - torch.log(-torch.expm1(chance.clamp_max(-1e-6)))

    def distribution(
        self, parameters: Tensor, group: Group, *, noisy: bool, generator: torch.Generator | None
    ) -> GumbelDistribution:
        noise = None
        if noisy:
            noise = torch.logit(uniform((1, parameters.shape[1]), parameters, generator), eps=1e-6)
        return GumbelDistribution(group, parameters, self.temperature, noise)
