"""How images and features inside a network should move when the image rotates or its hue shifts.

A map `(B, C, H, W)` rotates with the image. So does a `GroupFeature`, whose elements also move along their circle. A
hue shift mixes the channels of an RGB image, moves the elements of a feature on hues, and changes nothing else. A
vector, such as logits, stays.

Between its elements, a feature on a circle is read by trigonometric interpolation. At multiples of the step this is
the permutation of the elements. For the lift of a linear hue shift on 3 or more hues it is exact everywhere, because
the rotation of RGB about the grey axis has no frequency above 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from vpgcnn._ops import resample
from vpgcnn.errors import UserError
from vpgcnn.features import GroupFeature
from vpgcnn.groups import SO2, Hue

__all__ = ["KINDS", "Kind", "check_images", "move", "speed"]

Kind = Literal["rotation", "hue"]
KINDS: tuple[Kind, ...] = ("rotation", "hue")
Output = TypeVar("Output", bound=Tensor | GroupFeature)


def check_images(images: Tensor, kind: Kind) -> None:
    """Refuse images that cannot be moved."""
    if kind not in KINDS:
        raise UserError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    if images.dim() != 4 or not len(images):
        raise UserError(f"images are N×C×H×W, got shape {tuple(images.shape)}")
    if kind == "hue" and images.shape[1] != 3:
        raise UserError(f"hue needs colour images, got {images.shape[1]} channel")


def move(output: Output, kind: Kind, angle: float, *, image: torch.Size | None = None) -> Output:
    """An image, map, feature or vector as it should be once the image has moved.

    Args:
        output: The image itself, or what a layer answered.
        kind: "rotation" or "hue".
        angle: In radians.
        image: Shape `(B, 3, H, W)` of the images; without it, every map of 3 channels counts as RGB.
    """
    return cast("Output", _moved(output, kind, _Finite(angle), image))


def speed(output: Output, kind: Kind, *, image: torch.Size | None = None) -> Output:
    """The derivative of `move` with respect to the angle at 0, per radian; positions by central differences.

    Args:
        output: As for `move`.
        kind: "rotation" or "hue".
        image: As for `move`.
    """
    return cast("Output", _moved(output, kind, _Infinitesimal(), image))


@dataclass(frozen=True)
class _Finite:
    """A move by an angle."""

    angle: float

    def still(self, values: Tensor) -> Tensor:
        return values

    def both(self, values: Tensor, one: Callable[[Tensor], Tensor], two: Callable[[Tensor], Tensor]) -> Tensor:
        return two(one(values))

    def plane(self, values: Tensor) -> Tensor:
        """Maps `(B, …, H, W)`, rotated about their centre."""
        flat = values.reshape(values.shape[0], -1, *values.shape[-2:])
        return resample.move(flat, SO2().plane(flat.new_tensor([self.angle]))).view_as(values)

    def rgb(self, images: Tensor) -> Tensor:
        return Hue(360).transform(images, self.angle)

    def circle(self, values: Tensor, axis: int) -> Tensor:
        """f(u) → f(u − angle)."""
        count = values.shape[axis]
        steps = self.angle * count / (2 * math.pi)
        if abs(steps - round(steps)) < 1e-5:
            return values.roll(round(steps), axis)
        return _filtered(values, axis, lambda frequency: torch.exp(-1j * self.angle * frequency))


class _Infinitesimal:
    """The derivative of a move with respect to its angle, at 0."""

    def still(self, values: Tensor) -> Tensor:
        return torch.zeros_like(values)

    def both(self, values: Tensor, one: Callable[[Tensor], Tensor], two: Callable[[Tensor], Tensor]) -> Tensor:
        return one(values) + two(values)

    def plane(self, values: Tensor) -> Tensor:
        """y ∂f/∂x − x ∂f/∂y of maps `(B, …, H, W)`, in pixels about the centre, y up, 0 outside."""
        height, width = values.shape[-2:]
        x = torch.arange(width, dtype=values.dtype, device=values.device) - (width - 1) / 2
        y = (height - 1) / 2 - torch.arange(height, dtype=values.dtype, device=values.device)
        wide = F.pad(values, (1, 1, 1, 1))
        across = (wide[..., 1:-1, 2:] - wide[..., 1:-1, :-2]) / 2
        up = (wide[..., :-2, 1:-1] - wide[..., 2:, 1:-1]) / 2
        return y[:, None] * across - x * up

    def rgb(self, images: Tensor) -> Tensor:
        third = torch.tensor([2 * math.pi / 3], dtype=torch.float64)  # exact: the rotation has no frequency above 1
        matrix = (Hue(3).rgb(third) - Hue(3).rgb(-third)) / (2 * math.sin(float(third)))
        return torch.einsum("ij,bjhw->bihw", matrix.to(images), images)

    def circle(self, values: Tensor, axis: int) -> Tensor:
        """−f′(u)."""
        return _filtered(values, axis, lambda frequency: -1j * frequency)


def _moved(
    output: Tensor | GroupFeature, kind: Kind, motion: _Finite | _Infinitesimal, image: torch.Size | None
) -> Tensor | GroupFeature:
    if isinstance(output, GroupFeature):
        return _feature(output, kind, motion)
    if kind == "rotation":
        return motion.plane(output) if output.dim() == 4 else motion.still(output)
    colored = output.dim() == 4 and output.shape[1] == 3 and image in (None, output.shape)
    return motion.rgb(output) if colored else motion.still(output)


def _feature(feature: GroupFeature, kind: Kind, motion: _Finite | _Infinitesimal) -> GroupFeature:
    if feature.moves_elements:
        raise UserError(
            "a level that moves elements gives each image other elements: they form no circle to move features along"
        )
    names = [axis.name for axis in feature.group.axes]
    counts = feature.group.counts_of(feature.shape[2])

    def along(tensor: Tensor, dim: int) -> Tensor:
        if kind not in names:
            return motion.still(tensor)
        moved = motion.circle(tensor.unflatten(dim, counts), dim + names.index(kind))
        return moved.flatten(dim, dim + len(counts) - 1)

    values = feature.values
    turned = motion.both(values, lambda v: along(v, 2), motion.plane) if kind == "rotation" else along(values, 2)
    return replace(feature, values=turned, weights=None if feature.weights is None else along(feature.weights, 1))


def _filtered(values: Tensor, axis: int, response: Callable[[Tensor], Tensor]) -> Tensor:
    """A function on a circle with each of its frequencies multiplied by a response.

    For even counts the highest frequency has no sign and is multiplied by the real part.
    """
    count = values.shape[axis]
    frequency = torch.arange(count // 2 + 1, dtype=torch.float64, device=values.device)
    factor = response(frequency)
    if count % 2 == 0:
        factor[-1] = factor[-1].real + 0j
    shape = [1] * values.dim()
    shape[axis] = len(factor)
    spectrum = torch.fft.rfft(values, dim=axis)
    return torch.fft.irfft(spectrum * factor.view(shape).to(spectrum.dtype), n=count, dim=axis)
