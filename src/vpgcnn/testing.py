"""Measure equivariance: of layers of this package, of your own model, of any function of images.

    >>> equivariance_error(model, images, Rotations(4))
    EquivarianceError(relative=2.1e-07, absolute=4.0e-07, floor=0.0e+00, 3 elements)
    >>> assert_equivariant(model, images, Hue(3), tolerance=1e-5)

What "equivariant" means depends on the output. A `GroupFeature` must move with the image, along the group and
in the plane. A map `(B, C, H, W)` must move in the plane. A vector `(B, N)`, such as logits, must not change.
Of a tuple, dictionary or dataclass the first tensor is compared.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vpgcnn._ops import resample
from vpgcnn.features import GroupFeature, output_of
from vpgcnn.groups import Group, translate_index

__all__ = ["EquivarianceError", "assert_equivariant", "equivariance_error", "smooth_images"]

Model = Callable[[Tensor], object]


@dataclass(frozen=True)
class EquivarianceError:
    """How far a model is from equivariance, for each group element and image.

    Args:
        elements: The elements g, `(E, K)`.
        absolute: ‖Φ(L_g x) − L_g Φ(x)‖, `(E, B)`.
        relative: The absolute error over ‖Φ(x)‖, `(E, B)`.
        floor: ‖Φ(L_g⁻¹ L_g x) − Φ(x)‖ / ‖Φ(x)‖, `(E, B)`: the effect of resampling alone, measured by moving
            the image there and back. 0 where the group permutes pixels.
    """

    elements: Tensor
    absolute: Tensor
    relative: Tensor
    floor: Tensor

    @property
    def worst(self) -> float:
        """The largest relative error over elements and images."""
        return float(self.relative.max())

    @property
    def mean(self) -> float:
        """The mean relative error."""
        return float(self.relative.mean())

    def __repr__(self) -> str:
        return (
            f"EquivarianceError(relative={self.worst:.1e}, absolute={float(self.absolute.max()):.1e}, "
            f"floor={float(self.floor.max()):.1e}, {len(self.elements)} elements)"
        )


def equivariance_error(
    model: Model, images: Tensor, group: Group, elements: Tensor | Sequence[float] | None = None
) -> EquivarianceError:
    """Measure the equivariance error of a model or layer.

    Modules run in evaluation mode; each returns to its own mode afterwards.

    Args:
        model: A function of images.
        images: `(B, C, H, W)`.
        group: The group.
        elements: The elements to try, `(E, K)`, or angles for a group of one axis; None for all of the group's
            grid but the identity.

    Returns:
        Absolute and relative errors, and the floor due to resampling.
    """
    modes = {module: module.training for module in model.modules()} if isinstance(model, nn.Module) else {}
    for module in modes:
        module.training = False
    try:
        tried = _elements(group, elements, images)
        with torch.no_grad():
            plain = output_of(model(images))
            rows = [_one(model, images, group, g, plain) for g in tried]
    finally:
        for module, mode in modes.items():
            module.training = mode
    absolute, relative, floor = (torch.stack(column) for column in zip(*rows, strict=True))
    return EquivarianceError(tried, absolute, relative, floor)


def assert_equivariant(
    model: Model,
    images: Tensor,
    group: Group,
    elements: Tensor | Sequence[float] | None = None,
    *,
    tolerance: float = 1e-5,
    floors: float = 0.0,
) -> None:
    """Assert that a model or layer is equivariant.

    Args:
        model: A function of images.
        images: `(B, C, H, W)`.
        group: The group.
        elements: As for `equivariance_error`.
        tolerance: The largest relative error.
        floors: How many times the resampling floor to add to the tolerance.

    Raises:
        AssertionError: If a relative error exceeds tolerance + floors × floor.
    """
    error = equivariance_error(model, images, group, elements)
    excess = error.relative - tolerance - floors * error.floor
    if not bool((excess <= 0).all()):
        element, image = divmod(int(excess.argmax()), excess.shape[1])
        raise AssertionError(
            f"not equivariant to {group}: relative error {error.relative[element, image]:.2e} "
            f"(floor {error.floor[element, image]:.2e}) for element {error.elements[element].tolist()} and image "
            f"{image}, allowed {tolerance:.0e} + {floors:g} × floor"
        )


def smooth_images(
    batch: int, channels: int, size: int, *, cutoff: float = 0.15, generator: torch.Generator | None = None
) -> Tensor:
    """Random images that rotate with little interpolation error: smooth, and 0 outside the disc.

    Args:
        batch: Number of images.
        channels: Number of channels.
        size: Height and width.
        cutoff: The highest frequency, in cycles per pixel: no detail is finer than 1/cutoff pixels.
        generator: The source of randomness; None for torch's default.

    Returns:
        `(B, C, H, W)`.
    """
    noise = torch.randn(batch, channels, size, size, generator=generator, dtype=torch.float64)
    frequency = torch.fft.fftfreq(size, dtype=torch.float64)
    band = torch.exp(-(frequency[:, None].square() + frequency.square()) / (2 * (cutoff / 2) ** 2))
    smooth = torch.fft.ifft2(torch.fft.fft2(noise) * band).real
    line = (torch.arange(size, dtype=torch.float64) - (size - 1) / 2) / (size / 2)
    radius = (line[:, None].square() + line.square()).sqrt()
    mask = torch.cos(((radius - 0.4) / 0.45).clamp(0, 1) * (math.pi / 2)).square()
    smooth = smooth / smooth.std(dim=(1, 2, 3), keepdim=True) * mask
    return smooth.to(torch.get_default_dtype())


def _elements(group: Group, elements: Tensor | Sequence[float] | None, images: Tensor) -> Tensor:
    dtype = torch.promote_types(images.dtype, torch.float32)
    if elements is None:
        grid = group.grid(dtype=dtype, device=images.device)
        return grid[1:] if len(grid) > 1 else grid
    tried = torch.as_tensor(elements, dtype=dtype, device=images.device)
    tried = tried.unsqueeze(-1) if tried.dim() == 1 and len(group.axes) == 1 else torch.atleast_2d(tried)
    if tried.dim() != 2 or tried.shape[1] != len(group.axes):
        raise ValueError(f"elements of {group} must be E×{len(group.axes)}, got shape {tuple(tried.shape)}")
    return tried


def _one(
    model: Model, images: Tensor, group: Group, g: Tensor, plain: Tensor | GroupFeature
) -> tuple[Tensor, Tensor, Tensor]:
    moved = group.transform(images, g)
    back = group.transform(moved, group.inverse(g))
    there, again = output_of(model(moved)), output_of(model(back))
    expected = _move(plain, group, g)
    size = _norm(plain).clamp_min(torch.finfo(images.dtype).tiny)
    error = _norm(_minus(there, expected))
    return error, error / size, _norm(_minus(again, plain)) / size


def _move(output: Tensor | GroupFeature, group: Group, g: Tensor) -> Tensor | GroupFeature:
    """Apply L_g to an output: move elements along the group and positions in the plane; leave vectors alone."""
    if isinstance(output, GroupFeature):
        if output.moves_elements:
            raise ValueError(
                "elements that differ between images do not form a grid: pool over the group before measuring"
            )
        index = translate_index(group, g).to(output.device)
        values = output.values[:, :, index]
        if group.acts_on_plane:
            values = resample.move(values.flatten(1, 2), group.plane(g)).view_as(values)
        weights = None if output.weights is None else output.weights[:, index]
        return dataclasses.replace(output, values=values, weights=weights)
    if output.dim() == 4 and group.acts_on_plane:
        return resample.move(output, group.plane(g))
    return output


def flat(output: Tensor | GroupFeature) -> Tensor:
    """The numbers to compare, `(B, N)`: of a feature, the values of each element times its coverage."""
    if isinstance(output, Tensor):
        return output.flatten(1)
    share = output.coverage()
    values = output.values if share is None else output.values * share.to(output.dtype)[:, None, :, None, None]
    return values.flatten(1)


def _minus(one: Tensor | GroupFeature, two: Tensor | GroupFeature) -> Tensor:
    return flat(one) - flat(two)


def _norm(output: Tensor | GroupFeature) -> Tensor:
    return torch.linalg.vector_norm(flat(output), dim=1)
