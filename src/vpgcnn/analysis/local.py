"""Local equivariance: how fast a network's answer leaves where it ought to be, when the image begins to move.

The Lie derivative of f along a motion ρ is d/dt of ρ(−t) f(ρ(t) x) at t = 0: 0 for an equivariant f, and no larger
angle has to be chosen. By the chain rule that of a network is the sum of what its layers contribute, each carried to
the end by the layers after it, so that what is lost can be told layer by layer.

    >>> found = local_error(model, images, "hue")
    >>> found.relative.mean(), found.by_layer()
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from vpgcnn.analysis.layers import recorded, still
from vpgcnn.analysis.motion import Kind, check_images, speed
from vpgcnn.analysis.scores import as_logits
from vpgcnn.features import GroupFeature

__all__ = ["LocalError", "local_error", "local_speed"]

STEPS = {torch.float64: 1e-7}
STEP = 1e-3
"""Of a central difference, as a share of an image's size, in double and in lower precision: networks are linear almost
everywhere, so that it is exact but for rounding and for the units that switch in between."""
BETWEEN = "between layers"
"""What no layer is to blame for: functions that are called without being a module, say F.relu; and layers that are not
looked at, because they take several inputs, or maps that are neither B×C×H×W nor vectors (tokens, say)."""


@dataclass(frozen=True)
class LocalError:
    """Of N images, per radian.

    absolute: `(N,)`, the norm of the derivative of the logits less their mean. relative: over the norm of the logits
    less their mean. layers: for each layer its contribution `(N,)` in the units of `absolute`; they may cancel, so
    that they need not add up to it.
    """

    absolute: Tensor
    relative: Tensor
    layers: dict[str, Tensor] = field(default_factory=dict)

    def by_layer(self) -> dict[str, float]:
        """The root of the mean square of each layer's contribution."""
        return {name: float(values.square().mean().sqrt()) for name, values in self.layers.items()}


@torch.no_grad()
def local_speed(predict: Callable[[Tensor], object], images: Tensor, kind: Kind) -> tuple[Tensor, Tensor]:
    """The derivative of centred logits and the centred logits, both `(N, classes)`, of any function of images."""

    def logits(pixels: Tensor) -> Tensor:
        return _centred(as_logits(predict(pixels)))

    return _slope(logits, images, speed(images, kind)), logits(images)


def local_error(
    model: nn.Module, images: Tensor, kind: Kind, *, draws: int = 16, generator: torch.Generator | None = None
) -> LocalError:
    """The Lie derivative of a classifier `(N, C, H, W)` → `(N, classes)`, and which of its layers it comes from.

    The norms of contributions are exact for up to `draws` classes, and estimated from so many random directions for
    more. Double precision (model and images) makes derivatives right to some 6 digits.
    """
    check_images(images, kind)
    with still(model):
        derivative, logits = local_speed(model, images, kind)
        layers = _contributions(model, images, kind, draws, generator)
    absolute, size = (torch.linalg.vector_norm(values, dim=1) for values in (derivative, logits))
    return LocalError(absolute, absolute / size.clamp_min(torch.finfo(images.dtype).tiny), layers)


def _contributions(
    model: nn.Module, images: Tensor, kind: Kind, draws: int, generator: torch.Generator | None
) -> dict[str, Tensor]:
    """For each layer m the norm of J L, where L is its Lie derivative and J that of all that comes after it.

    In a direction v of the logits it is ⟨∂v/∂x, ẋ⟩ through m alone, less ⟨∂v/∂y, ẏ⟩, where m takes x to y and the dot
    is how each ought to move. So one backward pass for each direction tells all layers.
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
    directions = _directions(logits, draws, generator)
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
    """An orthonormal basis of the classes, or so many random directions: `(D, 1, classes)`."""
    classes = logits.shape[1]
    if classes <= draws:
        return torch.eye(classes, dtype=logits.dtype, device=logits.device)[:, None]
    random = torch.randn(draws, 1, classes, generator=generator or torch.Generator().manual_seed(0), dtype=logits.dtype)
    return random.to(logits.device)


def _slope(function: Callable[[Tensor], Tensor], images: Tensor, direction: Tensor) -> Tensor:
    """The derivative of a function at images along a direction, with a step of its own for each."""
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
    """Less their mean, which probabilities do not see."""
    return logits - logits.mean(dim=1, keepdim=True)
