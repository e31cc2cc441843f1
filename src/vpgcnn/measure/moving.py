"""Simple features of images that move exactly when the image moves, for tests that need no network.

The features of an image are functions on a circle of 24 places. Rotating the image rolls them, shifting its hue rolls
them, and mirroring the image reverses the circle and changes some signs. A copy of an image is therefore made by
permuting numbers, never by resampling pixels, and no test can tell a copy by the traces of resampling.

    >>> features = moving_features(images, "rotation")
    >>> features.copy(6)                        # of the images rotated by 90°
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vpgcnn.errors import UserError
from vpgcnn.measure.places import Circle

__all__ = ["MovingFeatures", "moving_features"]

CHANGES: tuple[Circle, ...] = ("rotation", "hue", "mirror")
PLACES = 24
"""Places on a circle."""
RADII = 6
SIDE = 32
"""Larger images are reduced to this many pixels before shapes are measured."""
REACH = 0.85
"""The outermost radius, as a share of half the side: further out, the border is nearer at 0° than at 45°."""
BLUR = 1 / 32
"""Standard deviation of the blur, as a share of the side. It hides the pixel grid, which has directions of its own."""
BATCH = 128


@dataclass(frozen=True, eq=False)
class MovingFeatures:
    """Features of N images, and how they move.

    Args:
        change: "rotation", "hue" or "mirror".
        values: `(N, C, K)` on K places of the circle.
        signs: `(C,)`: 1, or −1 for what changes its sign in a mirror.
        still: What does not move, such as colours for a rotation, `(N, D)`; None if there is nothing.
        reliability: How well the features of one half of the pixels agree with those of the other half, over the
            images: a correlation, 0 for noise.
        motion: The share of the features of an image that depends on the place: 0 if it looks the same everywhere.
    """

    change: Circle
    values: Tensor
    signs: Tensor
    still: Tensor | None
    reliability: float
    motion: float

    def __len__(self) -> int:
        return len(self.values)

    @property
    def count(self) -> int:
        """The number of copies of an image, itself included."""
        return 2 if self.change == "mirror" else self.values.shape[2]

    @property
    def degrees(self) -> list[float]:
        """How far each copy is moved; a mirrored copy by 180."""
        return [360 * place / self.count for place in range(self.count)]

    def copy(self, place: int) -> Tensor:
        """Return the features of the images moved by `place` of `count` steps, `(N, C · K)`."""
        if self.change != "mirror":
            return self.values.roll(place, 2).flatten(1)
        if not place:
            return self.values.flatten(1)
        places = self.values.shape[2]
        turned = (places // 2 - torch.arange(places)) % places
        return (self.values[:, :, turned] * self.signs[:, None]).flatten(1)


@torch.no_grad()
def moving_features(images: Tensor, change: Circle) -> MovingFeatures:
    """Measure shapes for rotations and mirrors, and colours for hues.

    Shapes are the brightness, colour and edges at 6 radii and 24 angles, and the directions of all edges. Colours are
    the amount of each hue in the centre and around it, in dark and in bright pixels.

    Args:
        images: `(N, C, H, W)` in [0, 1], square, at least 8 pixels wide, with 1 or 3 channels.
        change: "rotation", "hue" (as in HSV) or "mirror" (left and right).
    """
    if change not in CHANGES:
        raise UserError(f"change must be one of {', '.join(CHANGES)}, got {change!r}")
    shape = tuple(images.shape)
    if images.dim() != 4 or not len(images) or shape[1] not in (1, 3) or shape[2] != shape[3] or shape[2] < 8:
        raise UserError(f"images must be N×1×S×S or N×3×S×S with S of at least 8 pixels, got shape {shape}")
    if change == "hue" and shape[1] != 3:
        raise UserError("hue needs colour images, got 1 channel")
    values, signs, motion = _measured(images, change)
    still: Tensor | None = None
    if change == "hue":
        still = _measured(images.mean(dim=1, keepdim=True), "rotation")[0].flatten(1)
    elif shape[1] == 3:
        still = _measured(images, "hue")[0].flatten(1)
    one, two = (_measured(images[..., start::2, start::2], change)[0] for start in (0, 1))
    return MovingFeatures(change, values, signs, still, _agreement(one, two), motion)


def _measured(images: Tensor, change: Circle) -> tuple[Tensor, Tensor, float]:
    """Features `(N, C, K)` in which each kind of measurement counts the same, their signs, and how much they move."""
    measure = _colours if change == "hue" else _shapes
    parts = [measure(batch) for batch in images.float().split(BATCH)]
    blocks, motion = [], 0.0
    for number in range(len(parts[0])):
        block = torch.cat([part[number][0] for part in parts])
        level = block.mean(dim=2, keepdim=True)
        motion = max(motion, float((block - level).square().sum() / block.square().sum().clamp_min(1e-12)))
        fixed = (parts[0][number][1] > 0)[:, None]  # what changes its sign in a mirror has no mean that stays
        block = block - level.mean(dim=0) * fixed
        blocks.append(block / block.square().sum(dim=(1, 2)).mean().sqrt().clamp_min(1e-6))
    return torch.cat(blocks, dim=1) / math.sqrt(len(blocks)), torch.cat([signs for _, signs in parts[0]]), motion


def _agreement(one: Tensor, two: Tensor) -> float:
    """The correlation of what distinguishes the images, in two measurements of them."""
    first, second = (each - each.mean(dim=0) for each in (one, two))
    size = torch.linalg.vector_norm(first) * torch.linalg.vector_norm(second)
    return float((first * second).sum() / size) if size > 1e-6 else 0.0


def _shapes(images: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Brightness, colour, edges and their directions on the circle, each with its signs in a mirror."""
    images = F.interpolate(images, (SIDE, SIDE), mode="area") if images.shape[-1] > SIDE else images
    spread = max(0.5, BLUR * images.shape[-1])
    reach = math.ceil(3 * spread)
    place = torch.arange(-reach, reach + 1.0)
    blur = torch.exp(-place.square() / (2 * spread**2))
    blur = blur / blur.sum()
    slope = place / spread**2 * blur  # a derivative, for correlation
    grey = images.mean(dim=1, keepdim=True)
    angle = torch.arange(PLACES) * (2 * math.pi / PLACES)
    radius = REACH * (torch.arange(RADII) + 0.5) / RADII
    x, y = radius[:, None] * torch.cos(angle), -radius[:, None] * torch.sin(angle)
    grid = torch.stack([x, y], dim=-1).expand(len(images), -1, -1, -1)
    weight = radius.sqrt()[:, None]

    def at(maps: Tensor) -> Tensor:
        return F.grid_sample(maps, grid, mode="bicubic", padding_mode="border", align_corners=False)

    plus, minus = torch.ones(RADII), -torch.ones(RADII)
    bright = at(_filtered(grey, blur, blur))[:, 0]
    found = [(_unit((bright - bright.mean(dim=(1, 2), keepdim=True)) * weight), plus)]
    if images.shape[1] == 3:
        found.append(((at(_opponents(_filtered(images, blur, blur))) * weight).flatten(1, 2), plus.repeat(2)))
    across, up = at(_filtered(grey, slope, blur))[:, 0], -at(_filtered(grey, blur, slope))[:, 0]
    outward = across * torch.cos(angle) + up * torch.sin(angle)
    around = up * torch.cos(angle) - across * torch.sin(angle)
    size = torch.sqrt(outward.square() + around.square() + 1e-10)
    edges = [size, (outward.square() - around.square()) / size, 2 * outward * around / size]
    found.append((_unit(torch.cat([edge * weight for edge in edges], dim=1)), torch.cat([plus, plus, minus])))
    direction = torch.atan2(up, across) * (PLACES / (2 * math.pi))
    apart = torch.remainder(direction[..., None] - torch.arange(PLACES) + PLACES / 2, PLACES) - PLACES / 2
    votes = torch.exp(-apart.square() / 2) * (size * radius[:, None])[..., None]
    rings = torch.stack([ring.sum(dim=(1, 2)) for ring in votes.split(RADII // 2, dim=1)], dim=1)
    found.append((torch.sqrt(rings / rings.sum(dim=(1, 2), keepdim=True).clamp_min(1e-4)), torch.ones(2)))
    return found


def _colours(images: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The square root of the amount of each hue of HSV: centre and surround, dark and bright. Grey has none."""
    value, which = images.max(dim=1)
    chroma = value - images.amin(dim=1)
    red, green, blue = images.unbind(dim=1)
    over = torch.where(chroma > 0, chroma, 1)
    sixths = torch.where(which == 0, green - blue, torch.where(which == 1, blue - red, red - green)) / over
    place = torch.remainder((sixths + 2 * which) * (PLACES / 6), PLACES)
    lower = place.floor()
    height, width = images.shape[-2:]
    y, x = torch.linspace(-1, 1, height), torch.linspace(-1, 1, width)
    centre = y[:, None].square() + x.square() < 0.5
    counts = []
    for region in (centre, ~centre):
        for light in (value < 0.6, value >= 0.6):
            amount = torch.zeros(len(images), PLACES)
            for index, share in ((lower, 1 - (place - lower)), (lower + 1, place - lower)):
                amount.scatter_add_(1, (index.long() % PLACES).flatten(1), (chroma * share * region * light).flatten(1))
            counts.append(amount / region.sum())
    return [(torch.stack(counts, dim=1).clamp_min(0).sqrt(), torch.ones(4))]


def _opponents(images: Tensor) -> Tensor:
    red, green, blue = images.unbind(dim=1)
    return torch.stack([red - (green + blue) / 2, math.sqrt(3) / 2 * (green - blue)], dim=1)


def _unit(block: Tensor) -> Tensor:
    return block / torch.linalg.vector_norm(block, dim=(1, 2), keepdim=True).clamp_min(1e-3)


def _filtered(images: Tensor, across: Tensor, down: Tensor) -> Tensor:
    """Correlate the rows and the columns of images with one filter each; the border is repeated."""
    channels, reach = images.shape[1], len(across) // 2
    wide = F.pad(images, (reach, reach, reach, reach), mode="replicate")
    rows = F.conv2d(wide, across.view(1, 1, 1, -1).expand(channels, 1, 1, -1), groups=channels)
    return F.conv2d(rows, down.view(1, 1, -1, 1).expand(channels, 1, -1, 1), groups=channels)
