"""q(u|f): what a level can say about one image, as objects with `theta`, `weights` and `kl`.

    >>> q = WindowDistribution(SO2(), theta=torch.tensor([[0.5]]))
    >>> q.weights(SO2().grid(4))            # each element's cell, as a share of [−90°, 90°]
    tensor([[0.5000, 0.2500, 0.0000, 0.2500]])

θ is `(B, K)` for windows, one number for each axis of the group; the families of the paper that
rank or sample elements have one number for each image, `(B, 1)`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vpgcnn.function import Function
from vpgcnn.groups import Group
from vpgcnn.precision import uniform

__all__ = ["Distribution", "DrawnDistribution", "GumbelDistribution", "RankedDistribution", "WindowDistribution"]

NARROWEST = 1e-3
"""A window narrower than this share of the circle is treated as this narrow: never empty."""

Noise = Literal["ranked", "permuted", "exchangeable"]


class Distribution(ABC):
    """A distribution over the group for each image of a batch."""

    group: Group
    theta: Tensor
    """The level, `(B, K)` or `(B, 1)`: how much of the group is used."""

    @abstractmethod
    def weights(self, elements: Tensor) -> Tensor:
        """The share of each element of an even grid `(G, K)`: `(B, G)`, rows sum to 1."""

    @abstractmethod
    def kl(self) -> Tensor:
        """KL(q ‖ uniform) for each image, `(B,)`, in nats."""


class _WindowShare(Function):
    """The share of the window [−θ, θ] inside the cell [near, far], all in units of π.

    The covered length is piecewise linear in θ, so that only the slope on a corner needs care. There
    the piece above is taken, and at θ = 1, where there is none, the piece below: a window that has
    closed to one cell feels what it would gain by opening, one that is full what it would gain by
    closing. near, far `(…, G, K)`, θ `(B, 1, K)`.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(near: Tensor, far: Tensor, theta: Tensor) -> Tensor:
        length = theta.clamp(near, far) - (-theta).clamp(near, far)
        length = length + F.relu(far + theta - 2)  # the other end, where it comes in over ±π
        # A cell that is only touched weighs exactly 0.
        return F.threshold(length, 2 * _hair(theta), 0.0) / (2 * theta)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs, output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None, Tensor]:
        near, far, theta, share = ctx.saved_tensors
        probe = (theta + _hair(theta)).clamp_max(1 - _hair(theta))
        ends_here = (probe < far) & (probe > near)
        ends_here_too = probe < -near  # on the other side of the identity
        slope = ends_here.to(share.dtype) + ends_here_too.to(share.dtype) + (far + probe > 2).to(share.dtype)
        derivative = (slope / 2 - share) / theta
        return None, None, (grads[0] * derivative).sum_to_size(theta.shape)


def _hair(like: Tensor) -> float:
    """A difference of angles that is nothing but rounding."""
    return 16 * torch.finfo(like.dtype).eps


@dataclass(frozen=True, eq=False)
class WindowDistribution(Distribution):
    """Uniform on the window [−πθ, πθ] around the identity, on each axis: `theta` `(B, K)` in [0, 1].

    An element of a grid owns the cell of angles nearest to it, and weighs the exact share of the
    window that its cell covers. This is the quadrature of the uniform density, it is continuous in
    θ with an exact gradient, and at θ = 1 every element weighs the same.
    """

    group: Group
    theta: Tensor
    validate: bool = True

    def __post_init__(self) -> None:
        axes = len(self.group.axes)
        if self.theta.dim() != 2 or self.theta.shape[1] != axes:
            raise ValueError(f"theta of {self.group} must be B×{axes}, got shape {tuple(self.theta.shape)}")
        if self.validate and self.theta.device.type != "meta" and not torch.compiler.is_compiling():
            outside = ~((self.theta >= 0) & (self.theta <= 1))
            if bool(outside.any()):
                raise ValueError(f"theta must be in [0, 1], got {self.theta[outside][0].item()}")

    def weights(self, elements: Tensor) -> Tensor:
        counts = self.group.counts(self.group.points_of(elements.shape[-2]))
        theta = self.theta.to(elements.dtype).clamp_min(NARROWEST).unsqueeze(1)
        distance, half = elements.detach().abs() / math.pi, elements.new_tensor([1 / count for count in counts])
        share: Tensor = _WindowShare.apply(distance - half, distance + half, theta)
        return share.prod(dim=-1) if len(counts) > 1 else share.squeeze(-1)

    def kl(self) -> Tensor:
        """−log θ, summed over the axes: the latent is the angle, the element the cell it falls in."""
        return -self.theta.log().sum(dim=1)

    def cell_kl(self, elements: Tensor) -> Tensor:
        """log G − H(weights), `(B,)`: the divergence of the cells. At most `kl()`; for reports."""
        return _entropy_gap(self.weights(elements))

    def sample(self, noise: Tensor) -> Tensor:
        """Elements u = πθε by the reparametrisation trick: noise ε `(n, K)` in [−1, 1] → `(B, n, K)`."""
        return math.pi * self.theta.unsqueeze(1) * noise


@dataclass(frozen=True, eq=False)
class DrawnDistribution(WindowDistribution):
    """The window, its elements drawn: each is in by the chance that is the covered share of its cell.

    Those that are in count alike. The cell of the identity is covered by every window that is not narrower than it.
    keys: `(B, G)` uniform random numbers of a draw, whose gradient is that of the chance (straight-through). None
    (evaluation) takes the mean of what would be drawn.
    """

    keys: Tensor | None = None

    def weights(self, elements: Tensor) -> Tensor:
        counts = self.group.counts(self.group.points_of(elements.shape[-2]))
        cells = self.theta.to(elements.dtype).clamp_min(NARROWEST) * elements.new_tensor(counts)
        chances = super().weights(elements) * cells.clamp_min(1.0).prod(dim=1, keepdim=True)
        if self.keys is None:
            return _mean_of_draws(chances[:, 1:])
        drawn = (self.keys < chances).to(chances.dtype) + (chances - chances.detach())
        kept = F.pad(drawn[:, 1:], (1, 0), value=1.0)
        return kept / kept.sum(dim=1, keepdim=True)


def stratified(points: int, axes: int, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """One draw from each of `points` equal parts of [−1, 1], `(points, axes)`."""
    jitter = uniform((points, axes), like, generator)
    return _strata(points, jitter, like)


def midpoints(points: int, axes: int, like: Tensor) -> Tensor:
    """The middles of `points` equal parts of [−1, 1], `(points, axes)`: what evaluation uses."""
    return _strata(points, torch.full((points, axes), 0.5, dtype=like.dtype, device=like.device), like)


def _strata(points: int, jitter: Tensor, like: Tensor) -> Tensor:
    left = torch.arange(points, dtype=like.dtype, device=like.device).unsqueeze(1)
    return (left + jitter) * (2 / points) - 1


@dataclass(frozen=True, eq=False)
class RankedDistribution(Distribution):
    """The paper's distribution for finite groups: keep elements whose softmax(rank/θ) is large.

    w = softmax(β · rank) with β = 1/θ, kept where w > 1/G − η; the kept share the weight evenly.
    The forward value is the hard choice, the gradient that of w (straight-through).
    beta: `(B, 1)`, ≥ 0. At β = 0 all are kept; the identity has the highest rank and always stays.
    noise: who gets which rank. "ranked": by distance from the identity. "permuted": identity first,
    the others at random. "exchangeable": the paper's literal i.i.d. ranks, which leave the network
    fully equivariant in distribution, whatever θ.
    keys: `(B, G)` uniform random numbers behind the noise; None (evaluation) takes the mean.
    """

    group: Group
    beta: Tensor
    count: int
    eta: float
    noise: Noise = "ranked"
    keys: Tensor | None = None

    @property
    def theta(self) -> Tensor:  # type: ignore[override]
        """The paper's θ = 1/β in [0, ∞]."""
        return 1 / self.beta

    def _ladder(self, ranks: Tensor) -> tuple[Tensor, Tensor]:
        """Softmax weights and the straight-through choice for ranks `(B, G)` or `(G,)`."""
        soft = torch.softmax(self.beta * ranks, dim=-1)
        kept = (soft > 1 / self.count - self.eta) | (soft >= soft.amax(dim=-1, keepdim=True))
        return soft, kept.to(soft.dtype) + (soft - soft.detach())

    def ranks(self, elements: Tensor) -> Tensor:
        """The rank of each element, highest kept first: `(G,)`, or `(B, G)` under noise."""
        count = self.count
        near = self.group.angle(elements)
        # Elements at the same distance come in a fixed order: positive angles before negative ones.
        behind = (elements < -1e-3).to(near.dtype).sum(dim=-1)
        position = (near + 1e-3 * behind).argsort(stable=True).argsort()
        if self.noise == "exchangeable" and self.keys is not None:
            return (self.keys * count).floor() + 1
        if self.noise == "permuted" and self.keys is not None:
            position = (self.keys + (position > 0)).argsort(dim=-1).argsort(dim=-1)
        return (count - position).to(elements.dtype)

    def weights(self, elements: Tensor) -> Tensor:
        if elements.shape != (self.count, len(self.group.axes)):
            raise ValueError(f"expected {self.count} elements of {self.group}, got shape {tuple(elements.shape)}")
        _, kept = self._ladder(self.ranks(elements))
        if self.keys is None and self.noise == "exchangeable":
            return torch.full_like(kept, 1 / self.count)
        if self.keys is None and self.noise == "permuted":
            number, first = kept.sum(dim=1, keepdim=True), self.ranks(elements) == self.count
            others = (number - 1) / (number * max(self.count - 1, 1))
            return torch.where(first, 1 / number, others)
        return kept / kept.sum(dim=1, keepdim=True)

    def kl(self) -> Tensor:
        """log G − H(w) of the softmax weights given the ranks; 0 for the mean of exchangeable noise."""
        if self.noise == "exchangeable":
            if self.keys is None:
                return torch.zeros_like(self.beta[:, 0])
            return _entropy_gap(self._ladder((self.keys * self.count).floor() + 1)[0])
        ladder = torch.arange(self.count, 0, -1, dtype=self.beta.dtype, device=self.beta.device)
        return _entropy_gap(self._ladder(ladder)[0])


@dataclass(frozen=True, eq=False)
class GumbelDistribution(Distribution):
    """Each element but the identity is in by a chance of its own; those that are in count alike (Partial G-CNN).

    logits: `(B, G − 1)` of these chances, in the order of the grid, whose first element, the identity, always is
    in. noise: logistic draws `(…, G − 1)`, by which elements are drawn as two-class Gumbel-softmax, straight-through.
    None (evaluation) takes the mean of what would be drawn.
    """

    group: Group
    logits: Tensor
    temperature: float
    noise: Tensor | None = None

    @property
    def theta(self) -> Tensor:  # type: ignore[override]
        """The share of the elements that is in, on average, in [1/G, 1], `(B, 1)`."""
        return (1 + self.logits.sigmoid().sum(dim=1, keepdim=True)) / (self.logits.shape[1] + 1)

    def weights(self, elements: Tensor) -> Tensor:
        count = self.logits.shape[1] + 1
        if elements.shape[-2] != count:
            raise ValueError(f"expected {count} elements, got {elements.shape[-2]}")
        if self.noise is None:
            return self._mean()
        soft = ((self.logits + self.noise) / self.temperature).sigmoid()
        drawn = (soft > 0.5).to(soft.dtype) + (soft - soft.detach())
        kept = F.pad(drawn, (1, 0), value=1.0)
        return kept / kept.sum(dim=1, keepdim=True)

    def kl(self) -> Tensor:
        """log G − H of the mean weights: 0 where all elements always are in."""
        return _entropy_gap(self._mean())

    def _mean(self) -> Tensor:
        return _mean_of_draws(self.logits.sigmoid())


def _mean_of_draws(chances: Tensor) -> Tensor:
    """The mean weights, exactly, `(B, G)`, where all but the first element are in by a chance, `(B, G − 1)`.

    With S of the other elements in, the identity has 1/(1 + S) = ∫₀¹ tˢ dt, whose mean is the integral of
    Π(1 − p + pt); an element of chance p has p times the integral of t and the same product without its own
    factor. Both are polynomials in t, for which Gauss's rule is exact.
    """
    places, parts = (chances.new_tensor(each) for each in _gauss(chances.shape[1] // 2 + 1))
    chances = chances.unsqueeze(1)  # B 1 G−1
    factors = 1 - chances + chances * places[:, None]  # B N G−1, above 0 as places are
    product = factors.prod(dim=2) * parts
    others = (chances * (product * places).unsqueeze(2) / factors).sum(dim=1)
    return torch.cat([product.sum(dim=1, keepdim=True), others], dim=1)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _gauss(count: int) -> tuple[list[float], list[float]]:
    """Places in (0, 1) and weights of Gauss's rule, exact for polynomials of a degree below twice their number."""
    places, parts = np.polynomial.legendre.leggauss(count)
    return ((places + 1) / 2).tolist(), (parts / 2).tolist()


def _entropy_gap(weights: Tensor) -> Tensor:
    """KL of weights `(B, G)` to the uniform ones: log G + Σ w log w."""
    return math.log(weights.shape[-1]) + torch.xlogy(weights, weights).sum(dim=-1)
