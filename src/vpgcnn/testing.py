"""Measuring equivariance: of our layers, of a user's model, of anything that maps images.

    >>> equivariance_error(model, images, Rotations(4))
    EquivarianceError(relative=2.1e-07, absolute=4.0e-07, floor=0.0e+00, 3 elements)
    >>> assert_equivariant(model, images, Hue(3), tolerance=1e-5)

What "equivariant" means is read off the output. A `GroupFeature` must move with the image: its
elements by the group, its positions by the plane. A map `(B, C, H, W)` must move in the plane. A
vector `(B, N)`, say logits, must not change. Of a tuple or dataclass the first tensor counts.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vpgcnn import resample
from vpgcnn.features import GroupFeature
from vpgcnn.groups import Group, translate_index

__all__ = ["EquivarianceError", "assert_equivariant", "equivariance_error", "smooth_images"]

Model = Callable[[Tensor], object]


@dataclass(frozen=True)
class EquivarianceError:
    """How far a model is from equivariance on some images, for each group element that was tried.

    elements: `(E, K)`. absolute, relative, floor: `(E, B)`, for each element and image.
    absolute: ‖Φ(L_g x) − L_g Φ(x)‖. relative: the same over ‖Φ(x)‖.
    floor: ‖Φ(L_g⁻¹ L_g x) − Φ(x)‖ / ‖Φ(x)‖, the model's answer to an image that was moved there and
    back: what resampling alone does. 0 where the group permutes pixels.
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
    """The error of a model or layer, from images `(B, C, H, W)`, under elements of the group.

    elements: `(E, K)`, or angles for a one-axis group; None for all but the identity (of a grid of 8
    where the group is continuous). Modules are put into evaluation mode for it, and each back into its own.
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
    """Raise AssertionError when a relative error is above tolerance + floors × its interpolation floor."""
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
    """Random images `(B, C, H, W)` that rotate well: no detail finer than 1/cutoff pixels, 0 off the disc."""
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
        grid = group.grid(None if group.order else 8, dtype=dtype, device=images.device)
        return grid[1:] if len(grid) > 1 else grid
    tried = torch.as_tensor(elements, dtype=dtype, device=images.device)
    tried = tried.unsqueeze(-1) if tried.dim() == 1 and len(group.axes) == 1 else torch.atleast_2d(tried)
    if tried.dim() != 2 or tried.shape[1] != len(group.axes):
        raise ValueError(f"elements of {group} are E×{len(group.axes)}, got shape {tuple(tried.shape)}")
    return tried


def output_of(result: object) -> Tensor | GroupFeature:
    """The part of a model's answer that is measured."""
    while not isinstance(result, Tensor | GroupFeature):
        if dataclasses.is_dataclass(result):
            result = getattr(result, dataclasses.fields(result)[0].name)
        elif isinstance(result, Mapping):
            result = next(iter(result.values()))
        elif isinstance(result, Sequence) and not isinstance(result, str) and result:
            result = result[0]
        else:
            raise TypeError(f"expected tensors or a GroupFeature from the model, got {type(result).__name__}")
    return result


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
    """L_g on an output: elements by the group, positions by the plane, vectors not at all."""
    if isinstance(output, GroupFeature):
        if output.per_image:
            raise ValueError("elements of each image's own do not form a grid: pool over the group before measuring")
        index = translate_index(group, g, group.points_of(output.shape[2])).to(output.device)
        values = output.values[:, :, index]
        if group.acts_on_plane:
            values = resample.move(values.flatten(1, 2), group.plane(g)).view_as(values)
        weights = None if output.weights is None else output.weights[:, index]
        return dataclasses.replace(output, values=values, weights=weights)
    if output.dim() == 4 and group.acts_on_plane:
        return resample.move(output, group.plane(g))
    return output


def flat(output: Tensor | GroupFeature) -> Tensor:
    """What is compared: of a feature on the group, each element's values times its share."""
    if isinstance(output, Tensor):
        return output.flatten(1)
    share = output.coverage()
    values = output.values if share is None else output.values * share.to(output.dtype)[:, None, :, None, None]
    return values.flatten(1)


def _minus(one: Tensor | GroupFeature, two: Tensor | GroupFeature) -> Tensor:
    return flat(one) - flat(two)


def _norm(output: Tensor | GroupFeature) -> Tensor:
    return torch.linalg.vector_norm(flat(output), dim=1)
