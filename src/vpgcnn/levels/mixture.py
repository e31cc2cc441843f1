"""Mixtures of windows: a level that says which way, and several ways at once.

    >>> Variational(Mixture(2))                      # two windows of each image, anywhere on the circle
    >>> Variational(Mixture(1, covariant=True))      # a window that turns with the image

A mixture has its own means, widths and shares for each image. There are two kinds of means. *Invariant* ones are
the same for every pose of an image, as θ is: a window may then be off the identity. *Covariant* ones turn with
the image, μ(L_g f) = g·μ(f), so q(u|L_g f) = q(g⁻¹u|f), and the layer stays exactly equivariant at every width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vpgcnn._ops.constants import constant
from vpgcnn.groups import Group
from vpgcnn.levels.distributions import NARROWEST, Distribution, hair, per_span, window_share
from vpgcnn.levels.families import LARGEST_LOGIT, Family, Window, bound

__all__ = ["Mixture", "MixtureDistribution"]


@dataclass(frozen=True, eq=False)
class MixtureDistribution(Distribution):
    """A mixture of N windows on each axis, the axes independent of each other.

    As for one window, an element weighs the exact share of the density in its cell.

    Args:
        group: The group.
        means: `(B, K, N)`, the middles of the windows, in units of π; 0 is the identity.
        widths: `(B, K, N)` in (0, 1], the share of the circle inside each window.
        shares: `(B, K, N)`, of the windows in the mixture; they sum to 1 over N.
        regularised: Whether the KL belongs to the loss.
        shared: Whether it is the same for all images.
    """

    group: Group
    means: Tensor
    widths: Tensor
    shares: Tensor
    regularised: bool = True
    shared: bool = False

    @property
    def theta(self) -> Tensor:  # type: ignore[override]
        """exp(−KL) of each axis, `(B, K)`: the width of one window that would be as far from the whole circle."""
        return torch.exp(-self._kl())

    def weights(self, elements: Tensor, span: Tensor | None = None) -> Tensor:
        counts = self.group.counts_of(elements.shape[-2])
        means, widths, shares = (
            part.to(elements.dtype).unsqueeze(1) for part in (self.means, self.widths, self.shares)
        )
        apart = _wrapped(elements.unsqueeze(-1) / math.pi - means).abs()  # B G K N
        half = constant(tuple(1 / count for count in counts), elements.dtype, elements.device).unsqueeze(-1)
        if span is not None:
            half = half * span.to(elements.dtype)[:, None, :, None]
        inside = window_share(apart - half, apart + half, widths.clamp_min(NARROWEST))
        return (inside * shares).sum(dim=-1).prod(dim=-1)

    def kl(self) -> Tensor:
        """KL to the whole group, `(B,)`: the integral of p log(p / uniform), exactly, summed over the axes."""
        return self._kl().sum(dim=1)

    def unused(self) -> Tensor:
        """As for one window, with θ as above: `(B,)`."""
        theta, scales = self.theta, tuple(per_span(axis.order) for axis in self.group.axes)
        return ((1 - theta) * constant(scales, theta.dtype, theta.device)).sum(dim=1)

    def _kl(self) -> Tensor:
        """The same for each axis, `(B, K)`. The density is constant between the ends of windows: a finite sum."""
        # A full window has no ends; a hair less has two.
        widths = self.widths.clamp(NARROWEST, 1 - hair(self.widths))
        ends = _wrapped(torch.cat([self.means + widths, self.means - widths], dim=-1)).sort(dim=-1).values  # B K 2N
        following = torch.cat([ends[..., 1:], ends[..., :1] + 2], dim=-1)
        length, middle = following - ends, (following + ends) / 2
        apart = _wrapped(middle.unsqueeze(-1) - self.means.unsqueeze(-2)).abs()  # B K 2N N
        covers = (apart < widths.unsqueeze(-2)).to(widths.dtype)
        density = (covers * (self.shares / widths).unsqueeze(-2)).sum(dim=-1)  # over that of the whole circle
        density = torch.where(density > 0, density, 1.0)  # 0 log 0 = 0 = 1 log 1, which has a slope
        return (length / 2 * density * density.log()).sum(dim=-1)


def _wrapped(places: Tensor) -> Tensor:
    """Places on a circle of length 2, in (−1, 1]. The slope is 1 everywhere."""
    return places - 2 * torch.ceil((places - 1) / 2)


@dataclass(frozen=True)
class Mixture(Family):
    """A mixture of windows on each axis, with means, widths and shares of their own. For groups of circles.

    One window whose mean is 0 is exactly a `Window`. The KL and the weights are exact. Windows are not drawn at random
    in training (`explore` is 0): the price is compared at the window's own width only.

    Args:
        windows: How many windows the mixture has.
        covariant: Whether means turn with the image. If not, they are the same for every pose of it.
        initial: The width of each window at the start. Invariant means start evenly spaced, the first at the identity.
        floor: The smallest width on continuous axes; on an axis of m elements it is 1/m.
    """

    windows: int = 2
    covariant: bool = False
    initial: float = 0.9
    floor: float = 0.03

    def __post_init__(self) -> None:
        if isinstance(self.windows, bool) or not isinstance(self.windows, int) or self.windows < 1:
            raise ValueError(f"windows must be a whole number of at least 1, got {self.windows!r}")
        Window(self.initial, self.floor)

    @property
    def directions(self) -> int:
        return self.windows if self.covariant else 0

    def start(self, group: Group) -> Tensor:
        mirrors = [axis.name for axis in group.axes if axis.name == "mirror"]
        if mirrors:
            raise ValueError(f"a mixture needs circles, but {group} has a mirror: use Window")
        widths = Window(self.initial, self.floor).start(group).repeat_interleave(self.windows)
        logits = torch.zeros(len(widths))
        if self.covariant:
            return torch.cat([widths, logits])
        return torch.cat([widths, logits, torch.arange(self.windows).repeat(len(group.axes)) * (2 / self.windows)])

    def bounded(self, raw: Tensor, group: Group) -> Tensor:
        count = self.windows * len(group.axes)
        floors = [1 / axis.order if axis.order else self.floor for axis in group.axes for _ in range(self.windows)]
        widths = bound(raw[:, :count], floors, 1.0)
        logits = bound(raw[:, count : 2 * count], [-LARGEST_LOGIT] * count, LARGEST_LOGIT)
        return torch.cat([widths, logits, raw[:, 2 * count :].to(widths.dtype)], dim=1)  # means wrap by themselves

    def dialled(self, parameters: Tensor, dial: Tensor, group: Group) -> Tensor:
        count = self.windows * len(group.axes)
        floors = tuple(1 / axis.order if axis.order else self.floor for axis in group.axes for _ in range(self.windows))
        low = constant(floors, parameters.dtype, parameters.device)
        dial, widths = dial.to(parameters.dtype), parameters[:, :count]
        widths = widths + F.relu(dial) * (1 - widths) - F.relu(-dial) * (widths - low)
        return torch.cat([widths, parameters[:, count:]], dim=1)

    def distribution(
        self, parameters: Tensor, group: Group, *, noisy: bool, generator: torch.Generator | None
    ) -> MixtureDistribution:
        shape = (len(group.axes), self.windows)
        widths, logits, means = (part.unflatten(1, shape) for part in parameters.chunk(3, dim=1))
        return MixtureDistribution(group, means, widths, logits.softmax(dim=-1))
