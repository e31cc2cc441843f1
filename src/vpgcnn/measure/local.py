"""Local equivariance: how fast a network's answer leaves its place when the image starts to move.

The Lie derivative of f along a motion ρ is d/dt of ρ(−t) f(ρ(t) x) at t = 0. It is 0 for an equivariant f, and there
is no angle to choose. By the chain rule, the derivative of a network is the sum of the contributions of its layers,
each carried to the end by the layers after it.

    >>> found = local_error(model, images, "hue")
    >>> found.relative.mean(), found.by_layer()
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from vpgcnn.features import GroupFeature
from vpgcnn.measure.layers import recorded, still
from vpgcnn.measure.motion import Kind, check_images, speed
from vpgcnn.measure.scores import as_logits

__all__ = ["LocalError", "local_error", "local_speed"]

MEMORY = 1e9
"""Bytes that the derivatives of some images at a time may need, roughly."""
COPIES = 5
"""How many times the inputs and outputs of all layers a derivative needs at once: these, copies, motions, gradients."""
STEPS = {torch.float64: 1e-7}
STEP = 1e-3
"""Step of a central difference as a share of an image's size, in double and in lower precision. Networks are linear
almost everywhere, so the difference is exact up to rounding and the units that switch in between."""
BETWEEN = "between layers"
"""The contribution that belongs to no layer: functions that are no modules, such as F.relu, and layers that are not
recorded, because they take several inputs or maps other than B×C×H×W and vectors (such as tokens)."""


@dataclass(frozen=True)
class LocalError:
    """The Lie derivative of a classifier, per radian.

    Args:
        absolute: `(N,)`, the norm of the derivative of the centred logits (logits minus their mean).
        relative: `(N,)`, the same over the norm of the centred logits.
        layers: Layer → its contribution `(N,)`, in the units of `absolute`. Contributions may cancel, so they need
            not add up to it.
    """

    absolute: Tensor
    relative: Tensor
    layers: dict[str, Tensor] = field(default_factory=dict)

    def by_layer(self) -> dict[str, float]:
        """The root mean square of each layer's contribution over the images."""
        return {name: float(values.square().mean().sqrt()) for name, values in self.layers.items()}


@torch.no_grad()
def local_speed(predict: Callable[[Tensor], object], images: Tensor, kind: Kind) -> tuple[Tensor, Tensor]:
    """The derivative of the centred logits, and the centred logits, both `(N, classes)`, of any classifier."""

    def logits(pixels: Tensor) -> Tensor:
        return _centred(as_logits(predict(pixels)))

    return _slope(logits, images, speed(images, kind)), logits(images)


def local_error(
    model: nn.Module,
    images: Tensor,
    kind: Kind,
    *,
    draws: int = 16,
    generator: torch.Generator | None = None,
    memory: float = MEMORY,
) -> LocalError:
    """The Lie derivative of a classifier, and the contribution of each of its layers.

    In double precision (model and images) derivatives are right to about 6 digits.

    Args:
        model: Images `(N, C, H, W)` to logits `(N, classes)`.
        images: As the model takes them.
        kind: "rotation" or "hue".
        draws: With more classes than this, the norms of contributions are estimated from so many random directions.
        generator: Source of the random directions; a fixed one by default.
        memory: Bytes that may be used, roughly: so many images are taken at a time, at least one.
    """
    check_images(images, kind)
    with still(model):
        many = _fitting(model, images, memory)
        parts = images.split(many)
        speeds = [local_speed(model, part, kind) for part in parts]
        derivative, logits = (torch.cat(column) for column in zip(*speeds, strict=True))
        directions = _directions(logits, draws, generator)
        rows = [_contributions(model, part, kind, directions) for part in parts]
        layers = {name: torch.cat([row[name] for row in rows]) for name in rows[0]}
    absolute, size = (torch.linalg.vector_norm(values, dim=1) for values in (derivative, logits))
    return LocalError(absolute, absolute / size.clamp_min(torch.finfo(images.dtype).tiny), layers)


def _fitting(model: nn.Module, images: Tensor, memory: float) -> int:
    """How many images fit the memory, by what the layers take and give for the first one."""
    with torch.no_grad(), recorded(model, 1) as calls:
        model(images[:1])
    parts = [part for call in calls for side in (call.given, call.gave) for part in _parts(side)]
    own = COPIES * sum(part.numel() * part.element_size() for part in parts)
    return max(1, min(len(images), int(memory // max(own, 1))))


def _contributions(model: nn.Module, images: Tensor, kind: Kind, directions: Tensor) -> dict[str, Tensor]:
    """For each layer m the norm of J L, where L is its Lie derivative and J the Jacobian of all later layers.

    In a direction v of the logits it is ⟨∂v/∂x, ẋ⟩ through m alone, minus ⟨∂v/∂y, ẏ⟩, where m maps x to y, and ẋ, ẏ
    are their motions. One backward pass for each direction therefore serves all layers.
    """
    pixels = images.detach().clone().requires_grad_()
    with torch.enable_grad(), recorded(model, len(images)) as calls:
        logits = _centred(as_logits(model(pixels)))
    ends: list[Tensor] = []
    moving: list[Tensor] = []
    signs: list[tuple[str, int]] = []
    for call in calls:
        for side, sign in ((call.given, 1), (call.gave, -1)):
            motion = _parts(speed(side.detach(), kind, image=images.shape))
            for part, step in zip(_parts(side), motion, strict=True):
                if part.requires_grad:  # what does not depend on the image does not move
                    ends.append(part)
                    moving.append(step)
                    signs.append((call.name, sign))
    names = [*dict.fromkeys(call.name for call in calls), BETWEEN]
    squares = torch.zeros(len(names), len(images), dtype=images.dtype, device=images.device)
    start = speed(images, kind)
    for direction in directions:
        first, *slopes = torch.autograd.grad(
            (logits * direction).sum(), [pixels, *ends], retain_graph=True, allow_unused=True
        )
        signed = dict.fromkeys(names, torch.zeros_like(squares[0]))
        for (name, sign), slope, step in zip(signs, slopes, moving, strict=True):
            if slope is not None:
                signed[name] = signed[name] + sign * _dot(slope, step)
        signed[BETWEEN] = (0 if first is None else _dot(first, start)) - sum(signed.values())
        squares += torch.stack(list(signed.values())).square()
    scale = 1.0 if len(directions) == logits.shape[1] else 1 / len(directions)
    return dict(zip(names, (scale * squares).sqrt(), strict=True))


def _dot(one: Tensor, two: Tensor) -> Tensor:
    return (one * two).flatten(1).sum(dim=1)


def _directions(logits: Tensor, draws: int, generator: torch.Generator | None) -> Tensor:
    """An orthonormal basis of the classes, or `draws` random directions: `(D, 1, classes)`."""
    classes = logits.shape[1]
    if classes <= draws:
        return torch.eye(classes, dtype=logits.dtype, device=logits.device)[:, None]
    random = torch.randn(draws, 1, classes, generator=generator or torch.Generator().manual_seed(0), dtype=logits.dtype)
    return random.to(logits.device)


def _slope(function: Callable[[Tensor], Tensor], images: Tensor, direction: Tensor) -> Tensor:
    """The derivative of a function at images along a direction, with a step size for each image."""
    reach = direction.abs().amax(dim=(1, 2, 3), keepdim=True)
    size = images.abs().amax(dim=(1, 2, 3), keepdim=True)
    step = STEPS.get(images.dtype, STEP) * size / torch.where(reach > 0, reach, 1)
    ahead, back = function(images + step * direction), function(images - step * direction)
    step = step[:, 0, 0]
    return (ahead - back) / (2 * torch.where(step > 0, step, 1))


def _parts(output: Tensor | GroupFeature) -> list[Tensor]:
    """The tensors of an output that move."""
    if isinstance(output, Tensor):
        return [output]
    return [output.values] if output.weights is None else [output.values, output.weights]


def _centred(logits: Tensor) -> Tensor:
    """Logits minus their mean, which does not change probabilities."""
    return logits - logits.mean(dim=1, keepdim=True)
