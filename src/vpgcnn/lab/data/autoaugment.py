"""AutoAugment: the policy that Cubuk et al. (2019) found for CIFAR-10, as a fixed augmentation.

    >>> changed = autoaugmented(images, torch.Generator().manual_seed(0))

A policy is a list of 25 pairs of operations. Each image draws one pair, and each operation of the pair is applied with
its probability and magnitude. Operations act on pixels of 0 to 255 and round as Pillow does, which was used for the
search.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["CIFAR10", "OPERATIONS", "Operation", "Use", "autoaugmented"]

LEVELS = 9
"""The largest magnitude: there are ten, from 0."""
FINE = 1 << 16
"""Parts of a pixel that positions are rounded to."""
GREY = (19595, 38470, 7471)
"""The shares of red, green and blue in a grey pixel, in 65,536ths."""


class Use(NamedTuple):
    """An operation in a policy.

    Args:
        name: Which of `OPERATIONS`.
        chance: Probability that it is applied.
        level: Its magnitude, a whole number from 0 to 9.
    """

    name: str
    chance: float
    level: int


class Operation(NamedTuple):
    """A change of images, and what its magnitudes mean.

    Args:
        change: Images `(B, C, H, W)`, whole numbers from 0 to 255, and a strength `(B,)` to changed images.
        first: The strength at magnitude 0.
        last: The strength at magnitude 9.
        signed: Whether the strength is negated for half of the images.
    """

    change: Callable[[Tensor, Tensor], Tensor]
    first: float = 0.0
    last: float = 0.0
    signed: bool = False

    def strength(self, level: Tensor) -> Tensor:
        """The strength of each magnitude."""
        return self.first + (self.last - self.first) * level / LEVELS


def autoaugmented(
    images: Tensor, generator: torch.Generator, part: slice | None = None, whole: int | None = None
) -> Tensor:
    """Apply the policy for CIFAR-10 to this process's part of a batch.

    Random numbers are drawn for the whole batch, so the result does not depend on the number of processes.

    Args:
        images: `(B, C, H, W)` in [0, 1], grey or RGB; they are rounded to 256 shades.
        generator: The source of all random numbers, on the CPU, in the same state in every process.
        part: The position of `images` within the whole batch; all of it by default.
        whole: The number of images in the batch over all processes; those of `images` by default.

    Returns:
        Changed images, likewise.
    """
    draws = torch.rand(len(images) if whole is None else whole, 5, generator=generator)
    draws = draws if part is None else draws[part]
    chosen = (draws[:, 0] * len(CIFAR10)).long()
    pixels = (images.float() * 255).round()
    for place in range(2):
        uses = [pair[place] for pair in CIFAR10]
        chance = torch.tensor([use.chance for use in uses])[chosen]
        level = torch.tensor([use.level for use in uses])[chosen]
        applied = draws[:, 1 + place] < chance
        side = torch.where(draws[:, 3 + place] < 0.5, -1.0, 1.0)
        for name, operation in OPERATIONS.items():
            having = torch.tensor([use.name == name for use in uses])[chosen]
            index = (applied & having).nonzero()[:, 0]
            if not len(index):
                continue
            strength = operation.strength(level[index].float())
            strength = (strength * side[index] if operation.signed else strength).to(pixels.device)
            index = index.to(pixels.device)
            pixels = pixels.index_copy(0, index, operation.change(pixels[index], strength))
    return (pixels / 255).to(images.dtype)


# ------------------------------------------------------------ operations that move pixels


def _affine(images: Tensor, matrix: Tensor) -> Tensor:
    """The pixel of the input at `matrix` `(B, 2, 3)` times the centre of each output pixel; black outside.

    Positions are whole numbers of 65,536ths of a pixel, as in Pillow: they decide at the edges between two pixels.
    """
    batch, channels, height, width = images.shape
    slopes = matrix[:, :, :2]
    first = matrix[:, :, 2] + slopes.sum(dim=2) / 2  # where the centre of the first pixel comes from
    slopes, first = ((part * FINE + 0.5).floor().long() for part in (slopes, first))
    x, y = torch.arange(width, device=images.device), torch.arange(height, device=images.device)[:, None]
    places = first[..., None, None] + slopes[..., :1, None] * x + slopes[..., 1:, None] * y
    column, row = places.flatten(2).div(FINE, rounding_mode="floor").unbind(1)
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    index = torch.where(inside, row * width + column, 0)
    found = images.flatten(2).gather(2, index[:, None].expand(-1, channels, -1))
    return (found * inside[:, None]).view(batch, channels, height, width)


def _matrix(strength: Tensor, rows: tuple[tuple[float, float, float], tuple[float, float, float]]) -> Tensor:
    """The same matrix for each image, in double precision."""
    return torch.tensor(rows, dtype=torch.float64, device=strength.device).repeat(len(strength), 1, 1)


STILL = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0))


def _shear_x(images: Tensor, strength: Tensor) -> Tensor:
    matrix = _matrix(strength, STILL)
    matrix[:, 0, 1] = strength
    return _affine(images, matrix)


def _shear_y(images: Tensor, strength: Tensor) -> Tensor:
    matrix = _matrix(strength, STILL)
    matrix[:, 1, 0] = strength
    return _affine(images, matrix)


def _translate_x(images: Tensor, strength: Tensor) -> Tensor:
    matrix = _matrix(strength, STILL)
    matrix[:, 0, 2] = (strength * images.shape[-1]).round()
    return _affine(images, matrix)


def _translate_y(images: Tensor, strength: Tensor) -> Tensor:
    matrix = _matrix(strength, STILL)
    matrix[:, 1, 2] = (strength * images.shape[-2]).round()
    return _affine(images, matrix)


def _rotate(images: Tensor, strength: Tensor) -> Tensor:
    """Rotate about the centre, anticlockwise, by degrees."""
    angle = strength.double() * (math.pi / 180)
    middle = torch.tensor([images.shape[-1] / 2, images.shape[-2] / 2], dtype=torch.float64, device=images.device)
    matrix = _matrix(strength, STILL)
    matrix[:, 0, 0], matrix[:, 0, 1] = angle.cos(), -angle.sin()
    matrix[:, 1, 0], matrix[:, 1, 1] = angle.sin(), angle.cos()
    matrix[:, :, 2] = middle - matrix[:, :, :2] @ middle
    return _affine(images, matrix)


# ------------------------------------------------------------ operations on the shades of a pixel


def _autocontrast(images: Tensor, _: Tensor) -> Tensor:
    """Stretch the shades of each channel to 0 … 255."""
    shades = images.double()
    low, high = shades.amin(dim=(-2, -1), keepdim=True), shades.amax(dim=(-2, -1), keepdim=True)
    scale = 255 / (high - low).clamp_min(1)
    stretched = (shades * scale - low * scale).trunc().clamp(0, 255)
    return torch.where(high > low, stretched, shades).to(images.dtype)


def _invert(images: Tensor, _: Tensor) -> Tensor:
    return 255 - images


def _equalize(images: Tensor, _: Tensor) -> Tensor:
    """Make the shades of each channel equally frequent, as far as whole numbers can."""
    shades = images.flatten(2).long()
    counts = torch.zeros(*shades.shape[:2], 256, dtype=torch.long, device=images.device)
    counts.scatter_add_(2, shades, torch.ones_like(shades))
    of_brightest = counts.gather(2, shades.amax(dim=2, keepdim=True))
    step = (shades.shape[2] - of_brightest) // 255
    darker = counts.cumsum(dim=2) - counts
    table = ((step // 2 + darker) // step.clamp_min(1)).clamp_max(255)
    return torch.where(step > 0, table.gather(2, shades), shades).view_as(images).to(images.dtype)


def _solarize(images: Tensor, strength: Tensor) -> Tensor:
    """Invert the shades from a threshold on."""
    return torch.where(images < strength.view(-1, 1, 1, 1), images, 255 - images)


def _posterize(images: Tensor, strength: Tensor) -> Tensor:
    """Keep the highest bits of each shade."""
    unit = 2 ** (8 - strength.round().view(-1, 1, 1, 1))
    return (images / unit).floor() * unit


# ------------------------------------------------------------ operations that blend with a degenerate image


def _blended(degenerate: Tensor, images: Tensor, strength: Tensor) -> Tensor:
    """The degenerate image at strength 0, the image itself at 1, and beyond it above 1."""
    share = strength.view(-1, 1, 1, 1)
    return (degenerate + share * (images - degenerate)).clamp(0, 255).trunc()


def _grey(images: Tensor) -> Tensor:
    """`(B, 1, H, W)`: how bright each pixel is."""
    if images.shape[1] != 3:
        return images
    shares = torch.tensor(GREY, device=images.device).view(1, 3, 1, 1)
    return ((images.long() * shares).sum(dim=1, keepdim=True).add(1 << 15) >> 16).to(images.dtype)


def _contrast(images: Tensor, strength: Tensor) -> Tensor:
    mean = (_grey(images).double().mean(dim=(1, 2, 3), keepdim=True) + 0.5).floor()
    return _blended(mean.to(images.dtype), images, strength)


def _color(images: Tensor, strength: Tensor) -> Tensor:
    return _blended(_grey(images), images, strength)


def _brightness(images: Tensor, strength: Tensor) -> Tensor:
    return _blended(torch.zeros_like(images), images, strength)


def _sharpness(images: Tensor, strength: Tensor) -> Tensor:
    """Blend with a blur; the outermost pixels are not blurred."""
    kernel = torch.ones(1, 1, 3, 3, dtype=torch.float64, device=images.device)
    kernel[..., 1, 1] = 5
    inner = F.conv2d(images.double().flatten(0, 1)[:, None], kernel)[:, 0].unflatten(0, images.shape[:2])
    blurred = images.clone()
    blurred[..., 1:-1, 1:-1] = (inner / 13 + 0.5).floor().to(images.dtype)
    return _blended(blurred, images, strength)


OPERATIONS = {
    "shear-x": Operation(_shear_x, 0, 0.3, signed=True),
    "shear-y": Operation(_shear_y, 0, 0.3, signed=True),
    "translate-x": Operation(_translate_x, 0, 150 / 331, signed=True),
    "translate-y": Operation(_translate_y, 0, 150 / 331, signed=True),
    "rotate": Operation(_rotate, 0, 30, signed=True),
    "autocontrast": Operation(_autocontrast),
    "invert": Operation(_invert),
    "equalize": Operation(_equalize),
    "solarize": Operation(_solarize, 256, 0),
    "posterize": Operation(_posterize, 8, 4),
    "contrast": Operation(_contrast, 0.1, 1.9),
    "color": Operation(_color, 0.1, 1.9),
    "brightness": Operation(_brightness, 0.1, 1.9),
    "sharpness": Operation(_sharpness, 0.1, 1.9),
}
"""Strengths at the lowest and highest magnitude, from the paper's table of operations. Shears are about the upper left
corner, translations in shares of the side (the paper: 150 of 331 pixels), rotations in degrees, posterize in bits."""

CIFAR10 = (
    (Use("invert", 0.1, 7), Use("contrast", 0.2, 6)),
    (Use("rotate", 0.7, 2), Use("translate-x", 0.3, 9)),
    (Use("sharpness", 0.8, 1), Use("sharpness", 0.9, 3)),
    (Use("shear-y", 0.5, 8), Use("translate-y", 0.7, 9)),
    (Use("autocontrast", 0.5, 8), Use("equalize", 0.9, 2)),
    (Use("shear-y", 0.2, 7), Use("posterize", 0.3, 7)),
    (Use("color", 0.4, 3), Use("brightness", 0.6, 7)),
    (Use("sharpness", 0.3, 9), Use("brightness", 0.7, 9)),
    (Use("equalize", 0.6, 5), Use("equalize", 0.5, 1)),
    (Use("contrast", 0.6, 7), Use("sharpness", 0.6, 5)),
    (Use("color", 0.7, 7), Use("translate-x", 0.5, 8)),
    (Use("equalize", 0.3, 7), Use("autocontrast", 0.4, 8)),
    (Use("translate-y", 0.4, 3), Use("sharpness", 0.2, 6)),
    (Use("brightness", 0.9, 6), Use("color", 0.2, 8)),
    (Use("solarize", 0.5, 2), Use("invert", 0.0, 3)),
    (Use("equalize", 0.2, 0), Use("autocontrast", 0.6, 0)),
    (Use("equalize", 0.2, 8), Use("equalize", 0.6, 4)),
    (Use("color", 0.9, 9), Use("equalize", 0.6, 6)),
    (Use("autocontrast", 0.8, 4), Use("solarize", 0.2, 8)),
    (Use("brightness", 0.1, 3), Use("color", 0.7, 0)),
    (Use("solarize", 0.4, 5), Use("autocontrast", 0.9, 3)),
    (Use("translate-y", 0.9, 9), Use("translate-y", 0.7, 9)),
    (Use("autocontrast", 0.9, 2), Use("solarize", 0.8, 3)),
    (Use("equalize", 0.8, 8), Use("invert", 0.1, 3)),
    (Use("translate-y", 0.7, 9), Use("autocontrast", 0.9, 1)),
)
"""The 25 pairs that the paper's appendix lists for CIFAR-10."""
