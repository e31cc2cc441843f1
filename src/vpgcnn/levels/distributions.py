"""q(u|f): the distributions over the group that levels return, as objects with `theta`, `weights` and `kl`.

    >>> q = WindowDistribution(SO2(4), theta=torch.tensor([[0.5]]))
    >>> q.weights(SO2(4).grid())            # each element's cell, as a share of [−90°, 90°]
    tensor([[0.5000, 0.2500, 0.0000, 0.2500]])

θ is `(B, K)` for windows, one number per axis of the group. Families that rank or sample elements have one
number per image, `(B, 1)`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import GetAttrKey, register_pytree_node

from vpgcnn._ops.autograd import Function, apply
from vpgcnn._ops.constants import constant
from vpgcnn._ops.precision import uniform
from vpgcnn.groups import Group

__all__ = [
    "Distribution",
    "GumbelDistribution",
    "RankedDistribution",
    "SampledWindowDistribution",
    "WindowDistribution",
]

NARROWEST = 1e-3
"""The narrowest window, as a share of the circle: a narrower θ is treated as this one, so no window is empty."""

Noise = Literal["ranked", "permuted", "exchangeable"]


class Distribution(ABC):
    """A distribution over the group for each image of a batch.

    Subclasses are frozen dataclasses whose tensors have the batch as their first axis. They travel with
    features and predictions, so torch may take them apart: every subclass is registered as a pytree.
    """

    group: Group
    theta: Tensor
    """θ, `(B, K)` or `(B, 1)`: the share of the group in use."""
    regularised: bool = True
    """Whether the KL belongs to the loss."""
    shared: bool = False
    """Whether it is the same for all images."""
    explored: Tensor | None = None
    """`(B, P)`: the random numbers behind windows that were drawn; negative for images whose window was decided. None:
    all were decided. The levels of one network explore the same images."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        register_pytree_node(
            cls,
            _flatten,
            _unflatten,
            serialized_type_name=f"{cls.__module__}.{cls.__qualname__}",
            flatten_with_keys_fn=_flatten_with_keys,
        )

    @abstractmethod
    def weights(self, elements: Tensor, span: Tensor | None = None) -> Tensor:
        """The weight of each element.

        Args:
            elements: Of an even grid, `(G, K)`, or each image's own, `(B, G, K)`.
            span: The share of each circle that the elements are spread over, `(B, K)`; None for all of it.

        Returns:
            Weights `(B, G)`; on an even grid of the whole group each row sums to 1.
        """

    @abstractmethod
    def kl(self) -> Tensor:
        """KL(q ‖ uniform) for each image, `(B,)`, in nats."""

    def unused(self) -> Tensor:
        """How much of the group is not in use, for each image: `(B,)`, from 0 for all of it to 1 for one element."""
        return -torch.expm1(-self.kl()) * per_span(self.group.order)


def per_span(order: int | None) -> float:
    """1 / (1 − 1/order): 1 over the share of an axis that can be left out; 0 if nothing can."""
    if order is None:
        return 1.0
    return order / (order - 1) if order > 1 else 0.0


def _flatten(q: Any) -> tuple[list[Any], tuple[type, tuple[str, ...], tuple[tuple[str, Any], ...]]]:
    """Split a distribution into tensors, the leaves, and everything else, the structure."""
    parts = {part.name: getattr(q, part.name) for part in fields(q)}
    leaves = {name: value for name, value in parts.items() if isinstance(value, Tensor)}
    rest = tuple((name, value) for name, value in parts.items() if name not in leaves)
    return list(leaves.values()), (type(q), tuple(leaves), rest)


def _flatten_with_keys(q: Any) -> tuple[list[tuple[Any, Any]], Any]:
    leaves, context = _flatten(q)
    return [(GetAttrKey(name), leaf) for name, leaf in zip(context[1], leaves, strict=True)], context


def _unflatten(leaves: Iterable[Any], context: tuple[type, tuple[str, ...], tuple[tuple[str, Any], ...]]) -> Any:
    kind, names, rest = context
    q: Any = object.__new__(kind)  # without the checks of __post_init__: leaves may be placeholders
    for name, value in (*zip(names, leaves, strict=True), *rest):
        object.__setattr__(q, name, value)
    return q


class _WindowShare(Function):
    """The share of the window [−θ, θ] inside the cell [near, far], all in units of π.

    The covered length is piecewise linear in θ. At a corner the gradient is that of the piece above, and at
    θ = 1, where there is none, that of the piece below: a window that has closed to one cell can open again,
    and a full one can close. near and far are `(…, G, K)`, θ is `(B, 1, K)`.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(near: Tensor, far: Tensor, theta: Tensor) -> Tensor:
        length = theta.clamp(near, far) - (-theta).clamp(near, far)
        length = length + F.relu(far + theta - 2)  # the part of the window that wraps around ±π
        # A cell that the window merely touches weighs exactly 0.
        return F.threshold(length, 2 * hair(theta), 0.0) / (2 * theta)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs, output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor]:
        near, far, theta, share = ctx.saved_tensors
        probe = (theta + hair(theta)).clamp_max(1 - hair(theta))
        ends_here = (probe < far) & (probe > near)
        ends_here_too = probe < -near  # the window's other end, beyond the identity
        slope = ends_here.to(share.dtype) + ends_here_too.to(share.dtype) + (far + probe > 2).to(share.dtype)
        derivative = (slope / 2 - share) / theta
        # The ends of a cell move where elements were placed by an earlier level.
        held = grads[0] * (share > 0).to(share.dtype) / (2 * theta)
        to_near = held * ((theta <= near).to(share.dtype) - (-theta < near).to(share.dtype))
        to_far = held * ((theta > far).to(share.dtype) + (far + theta > 2).to(share.dtype))
        return (
            to_near.sum_to_size(near.shape) if ctx.needs_input_grad[0] else None,
            to_far.sum_to_size(far.shape) if ctx.needs_input_grad[1] else None,
            (grads[0] * derivative).sum_to_size(theta.shape),
        )


def window_share(near: Tensor, far: Tensor, theta: Tensor) -> Tensor:
    """The share of windows [−θ, θ] inside cells [near, far], in units of π, with an exact gradient. Broadcasts."""
    share: Tensor = apply(_WindowShare, near, far, theta)
    return share


def hair(like: Tensor) -> float:
    """A difference of angles within rounding error."""
    return 16 * torch.finfo(like.dtype).eps


@dataclass(frozen=True, eq=False)
class WindowDistribution(Distribution):
    """Uniform on the window [−πθ, πθ] around the identity, on each axis.

    Each element owns the cell of angles nearest to it; its weight is the exact share of the window that the
    cell covers. This is a quadrature of the uniform density: continuous in θ, with an exact gradient, and
    at θ = 1 all elements weigh the same.

    Args:
        group: The group.
        theta: `(B, K)` in [0, 1].
        validate: Whether to check the range of θ.
        regularised: Whether the KL belongs to the loss.
        shared: Whether it is the same for all images.
        explored: As in `Distribution`.
        priced: θ once more, `(B, K)`, for `kl` and `unused` alone; None for θ itself. A level that predicts slopes
            learns theirs, which are the same for all images, apart from those of the classification loss.
    """

    group: Group
    theta: Tensor
    validate: bool = True
    regularised: bool = True
    shared: bool = False
    explored: Tensor | None = None
    priced: Tensor | None = None

    def __post_init__(self) -> None:
        axes = len(self.group.axes)
        if self.theta.dim() != 2 or self.theta.shape[1] != axes:
            raise ValueError(f"theta of {self.group} must be B×{axes}, got shape {tuple(self.theta.shape)}")
        if self.validate and self.theta.device.type == "cpu" and not torch.compiler.is_compiling():
            outside = ~((self.theta >= 0) & (self.theta <= 1))
            if bool(outside.any()):
                raise ValueError(f"theta must be in [0, 1], got {self.theta[outside][0].item()}")

    def weights(self, elements: Tensor, span: Tensor | None = None) -> Tensor:
        counts, given = self.group.counts_of(elements.shape[-2]), elements.dtype
        # In half precision a rounding error of an angle would be as large as a cell.
        elements = elements.to(torch.promote_types(given, torch.float32))
        theta = self.theta.to(elements.dtype).clamp_min(NARROWEST).unsqueeze(1)
        distance = elements.abs() / math.pi
        half = constant(tuple(1 / count for count in counts), elements.dtype, elements.device)
        if span is not None:  # elements spread over a part of the circle own smaller cells
            half = half * span.to(elements.dtype).unsqueeze(1)
        share = window_share(distance - half, distance + half, theta).to(given)
        return share.prod(dim=-1) if len(counts) > 1 else share.squeeze(-1)

    def end(self) -> Literal["closed", "open"] | None:
        """Whether the windows of all images hold the identity alone, or all elements of the group's grid.

        It reads θ, so only where the program may depend on it.
        """
        found, near = self.theta.tolist(), hair(self.theta)
        closed = [1 / count + near for count in self.group.counts]
        if found and all(share <= most for row in found for share, most in zip(row, closed, strict=True)):
            return "closed"
        return "open" if found and all(share == 1 for row in found for share in row) else None

    def kl(self) -> Tensor:
        """−log θ, summed over the axes: `(B,)`. The latent variable is the angle, not the element."""
        return -self._priced.log().sum(dim=1)

    def unused(self) -> Tensor:
        """How much of each axis is not in use, from 0 for all of it to 1 for the identity alone; their sum: `(B,)`."""
        scales = tuple(per_span(axis.order) for axis in self.group.axes)
        return ((1 - self._priced) * constant(scales, self.theta.dtype, self.theta.device)).sum(dim=1)

    @property
    def _priced(self) -> Tensor:
        return self.theta if self.priced is None else self.priced

    def sample(self, noise: Tensor) -> Tensor:
        """Sample elements u = πθε by the reparametrisation trick.

        Args:
            noise: ε, `(n, K)` in [−1, 1].

        Returns:
            Elements `(B, n, K)`.
        """
        return math.pi * self.theta.unsqueeze(1) * noise


@dataclass(frozen=True, eq=False)
class SampledWindowDistribution(WindowDistribution):
    """A window whose elements are sampled: each is kept with probability equal to the covered fraction of its cell.

    The kept elements share the weight evenly. The identity is always kept.

    Args:
        group: The group.
        theta: `(B, K)` in [0, 1].
        keys: `(B, G)` uniform random numbers behind a sample; its gradient is that of the probability
            (straight-through). None (evaluation) takes the exact mean over samples.
    """

    keys: Tensor | None = None

    def weights(self, elements: Tensor, span: Tensor | None = None) -> Tensor:
        counts = self.group.counts_of(elements.shape[-2])
        many = constant(counts, elements.dtype, elements.device)
        cells = self.theta.to(elements.dtype).clamp_min(NARROWEST) * many
        chances = super().weights(elements, span) * cells.clamp_min(1.0).prod(dim=1, keepdim=True)
        if self.keys is None:
            return _mean_of_draws(chances[:, 1:])
        drawn = (self.keys < chances).to(chances.dtype) + (chances - chances.detach())
        kept = F.pad(drawn[:, 1:], (1, 0), value=1.0)
        return kept / kept.sum(dim=1, keepdim=True)


def stratified(points: int, axes: int, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """One uniform draw from each of `points` equal parts of [−1, 1], `(points, axes)`."""
    jitter = uniform((points, axes), like, generator)
    return _strata(points, jitter, like)


def midpoints(points: int, axes: int, like: Tensor) -> Tensor:
    """The midpoints of `points` equal parts of [−1, 1], `(points, axes)`. Used in evaluation."""
    return _strata(points, torch.full((points, axes), 0.5, dtype=like.dtype, device=like.device), like)


def _strata(points: int, jitter: Tensor, like: Tensor) -> Tensor:
    left = torch.arange(points, dtype=like.dtype, device=like.device).unsqueeze(1)
    return (left + jitter) * (2 / points) - 1


@dataclass(frozen=True, eq=False)
class RankedDistribution(Distribution):
    """The paper's distribution for finite groups: keeps the elements whose softmax(β · rank) is large.

    w = softmax(β · rank), where β is 1/θ of the paper; elements with w > 1/G − η are kept and share the weight
    evenly. The forward value is the hard choice, the gradient that of w (straight-through).

    Args:
        group: The group.
        beta: β, `(B, 1)`, at least 0. At 0 all elements are kept; the element of the highest rank always is.
        count: G, the number of elements.
        eta: η.
        noise: How ranks are assigned. "ranked": by distance from the identity. "permuted": the identity first,
            the others at random. "exchangeable": independent random ranks, literally as in the paper, which
            leave the network fully equivariant in distribution for every β.
        keys: `(B, G)` uniform random numbers behind the noise; None (evaluation) takes the mean.
        regularised: Whether the KL belongs to the loss.
        shared: Whether it is the same for all images.
    """

    group: Group
    beta: Tensor
    count: int
    eta: float
    noise: Noise = "ranked"
    keys: Tensor | None = None
    regularised: bool = True
    shared: bool = False

    @property
    def theta(self) -> Tensor:  # type: ignore[override]
        """The share of the elements that are kept, in [1/G, 1], `(B, 1)`. The paper's θ is 1/β."""
        if self.noise == "exchangeable" and self.keys is None:
            return torch.ones_like(self.beta)  # the mean over random ranks keeps all elements alike
        ladder = torch.arange(self.count, 0, -1, dtype=self.beta.dtype, device=self.beta.device)
        _, kept = self._ladder(ladder)
        return kept.detach().sum(dim=-1, keepdim=True) / self.count

    def _ladder(self, ranks: Tensor) -> tuple[Tensor, Tensor]:
        """Softmax weights and the straight-through choice for ranks `(B, G)` or `(G,)`."""
        soft = torch.softmax(self.beta * ranks, dim=-1)
        kept = (soft > 1 / self.count - self.eta) | (soft >= soft.amax(dim=-1, keepdim=True))
        return soft, kept.to(soft.dtype) + (soft - soft.detach())

    def ranks(self, elements: Tensor) -> Tensor:
        """The rank of each element, `(G,)`, or `(B, G)` with noise. The highest ranks are kept first."""
        count = self.count
        near = self.group.angle(elements)
        # Ties are broken in a fixed order: positive angles before negative ones.
        behind = (elements < -1e-3).to(near.dtype).sum(dim=-1)
        # A tiny multiple of the position makes all keys differ, because ONNX has no stable sort.
        order = torch.arange(count, dtype=near.dtype, device=near.device)
        position = (near + 1e-3 * behind + 1e-5 * order).argsort().argsort()
        if self.noise == "exchangeable" and self.keys is not None:
            return (self.keys * count).floor() + 1
        if self.noise == "permuted" and self.keys is not None:
            position = (self.keys + (position > 0)).argsort(dim=-1).argsort(dim=-1)
        return (count - position).to(elements.dtype)

    def weights(self, elements: Tensor, span: Tensor | None = None) -> Tensor:
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
        """log G − H(w) of the softmax weights given the ranks, `(B,)`; 0 for the mean of exchangeable noise."""
        if self.noise == "exchangeable":
            if self.keys is None:
                return torch.zeros_like(self.beta[:, 0])
            return _entropy_gap(self._ladder((self.keys * self.count).floor() + 1)[0])
        ladder = torch.arange(self.count, 0, -1, dtype=self.beta.dtype, device=self.beta.device)
        return _entropy_gap(self._ladder(ladder)[0])


@dataclass(frozen=True, eq=False)
class GumbelDistribution(Distribution):
    """Keeps each element with a probability, the identity always (Partial G-CNN). Kept elements weigh the same.

    Args:
        group: The group.
        logits: `(B, G − 1)`, the logits of these probabilities, in the order of the grid without the identity.
        temperature: Of the relaxation that gives the gradient.
        noise: Logistic random numbers `(…, G − 1)`; elements are sampled by a two-class Gumbel-softmax,
            straight-through. None (evaluation) takes the exact mean over samples.
        regularised: Whether the KL belongs to the loss.
        shared: Whether it is the same for all images.
    """

    group: Group
    logits: Tensor
    temperature: float
    noise: Tensor | None = None
    regularised: bool = True
    shared: bool = False

    @property
    def theta(self) -> Tensor:  # type: ignore[override]
        """The expected share of elements that are kept, `(B, 1)` in [1/G, 1]."""
        return (1 + self.logits.sigmoid().sum(dim=1, keepdim=True)) / (self.logits.shape[1] + 1)

    def weights(self, elements: Tensor, span: Tensor | None = None) -> Tensor:
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
        """log G − H of the mean weights, `(B,)`: 0 where all elements are always kept."""
        return _entropy_gap(self._mean())

    def _mean(self) -> Tensor:
        return _mean_of_draws(self.logits.sigmoid())


def _mean_of_draws(chances: Tensor) -> Tensor:
    """The exact mean of the weights over samples.

    If S of the other elements are kept, the identity weighs 1/(1 + S) = ∫₀¹ tˢ dt, whose mean is the integral
    of Π(1 − p + pt). An element of probability p weighs, on average, p times the integral of t times the same
    product without its own factor. Both are polynomials in t, for which Gauss's rule is exact.

    Args:
        chances: `(B, G − 1)`, the probabilities of all elements but the first, which is always kept.

    Returns:
        Mean weights `(B, G)`.
    """
    rule = _gauss(chances.shape[1] // 2 + 1)
    places, parts = (constant(each, chances.dtype, chances.device) for each in rule)
    chances = chances.unsqueeze(1)  # B 1 G−1
    factors = 1 - chances + chances * places[:, None]  # B N G−1, above 0 as places are
    product = factors.prod(dim=2) * parts
    others = (chances * (product * places).unsqueeze(2) / factors).sum(dim=1)
    return torch.cat([product.sum(dim=1, keepdim=True), others], dim=1)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _gauss(count: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Nodes in (0, 1) and weights of Gauss's rule with `count` nodes, exact for polynomials of degree < 2·count."""
    places, parts = np.polynomial.legendre.leggauss(count)
    return tuple(((places + 1) / 2).tolist()), tuple((parts / 2).tolist())


def _entropy_gap(weights: Tensor) -> Tensor:
    """KL of weights `(B, G)` to the uniform distribution, `(B,)`: log G + Σ w log w."""
    return math.log(weights.shape[-1]) + torch.xlogy(weights, weights).sum(dim=-1)
