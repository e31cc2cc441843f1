"""What the data say about a symmetry, without any network: does the place on the circle predict the class?

Each image is reduced to a small picture on the circle: for rotation, its brightness in polar coordinates; for hue, the
amount of each hue. Its class is then guessed from its nearest neighbours among the other images, once as they are, and
once with every neighbour moved along the circle to where it fits best. If the second guess is as good as the first,
the place on the circle does not help to predict the class, and a network loses nothing by ignoring it. If it is worse,
the place helps: either it is part of the label (a 6 upside down is a 9), or it narrows the choice (all images are
upright). A network that ignores it loses in both cases; only training tells how much.

    >>> found = evidence(torch.cat([circle_picture(part, "hue") for part in parts]), labels)
    >>> found.as_is.mean(), found.free.mean()
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vpgcnn.errors import UserError
from vpgcnn.measure.motion import Kind, check_images

__all__ = ["Evidence", "cautious", "circle_picture", "evidence"]

PLACES = 24
"""Places on the circle."""
RADII = 6
NEIGHBOURS = 5
SURE = 2.0
"""Standard errors from which a difference counts as one."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """Whether the neighbours of each of N images predict its class.

    Args:
        labels: `(N,)`.
        as_is: `(N,)` of 0 and 1: predicted by the neighbours as they are.
        free: `(N,)` of 0 and 1: predicted by neighbours that are moved along the circle to fit.
        chance: Share of the largest class.
    """

    labels: Tensor
    as_is: Tensor
    free: Tensor
    chance: float

    def gain(self, chosen: Tensor | None = None) -> tuple[float, float]:
        """How much the place on the circle adds to the accuracy: mean and standard error.

        Args:
            chosen: A mask `(N,)` of images; all by default.
        """
        difference = self.as_is - self.free
        return cautious(difference if chosen is None else difference[chosen])

    @property
    def share(self) -> float:
        """The share of the accuracy above chance that is lost when neighbours may be moved, in [0, 1]."""
        known = float(self.as_is.mean()) - self.chance
        return min(1.0, max(0.0, self.gain()[0] / known)) if known > 0 else 0.0

    def matters(self, chosen: Tensor | None = None) -> bool | None:
        """Whether the place on the circle predicts the class; None if these images cannot decide it.

        The answer is no if the gain plus twice its standard error is below 5 points, and None if neighbours do no
        better than chance.

        Args:
            chosen: A mask `(N,)` of images; all by default.
        """
        mean, error = self.gain(chosen)
        known, doubt = cautious(self.as_is if chosen is None else self.as_is[chosen])
        if known < self.chance + SURE * doubt:
            return None
        if mean > SURE * error and mean > 0.02:
            return True
        return False if mean + SURE * error < 0.05 else None


def cautious(values: Tensor) -> tuple[float, float]:
    """The mean of numbers in [−1, 1], and a standard error that stays above 0 when a few numbers agree.

    The error is that about 0, with one more number of size 1.
    """
    if not len(values):
        return 0.0, math.inf
    square = (float(values.square().sum()) + 1) / (len(values) + 1)
    return float(values.mean()), math.sqrt(square / len(values))


def circle_picture(images: Tensor, kind: Kind) -> Tensor:
    """Reduce images to pictures on the circle: moving an image rolls the last axis.

    Args:
        images: `(N, C, H, W)` in [0, 1].
        kind: "rotation" or "hue".

    Returns:
        `(N, R, K)`.
    """
    if not images.shape[0]:
        return images.new_zeros(0, RADII if kind == "rotation" else 2, PLACES)
    check_images(images, kind)
    return _polar(images) if kind == "rotation" else _hues(images)


def _polar(images: Tensor) -> Tensor:
    """Brightness less its mean at R radii and K angles, counter-clockwise, outer radii counting more; norm 1."""
    angle = torch.arange(PLACES, dtype=images.dtype, device=images.device) * (2 * math.pi / PLACES)
    radius = (torch.arange(RADII, dtype=images.dtype, device=images.device) + 0.5) / RADII
    x, y = radius[:, None] * torch.cos(angle), -radius[:, None] * torch.sin(angle)
    grid = torch.stack([x, y], dim=-1).expand(len(images), -1, -1, -1)
    small = F.adaptive_avg_pool2d(images.mean(dim=1, keepdim=True), 2 * RADII + 2)
    seen = F.grid_sample(small, grid, mode="bilinear", padding_mode="border", align_corners=False)[:, 0]
    seen = (seen - seen.mean(dim=(1, 2), keepdim=True)) * radius.sqrt()[:, None]
    return seen / torch.linalg.vector_norm(seen, dim=(1, 2), keepdim=True).clamp_min(1e-6)


def _hues(images: Tensor) -> Tensor:
    """The square root of the amount of each hue, in the centre of the image and around it; grey has none."""
    red, green, blue = images.unbind(dim=1)
    first = red - (green + blue) / 2
    second = math.sqrt(3) / 2 * (green - blue)
    chroma = torch.sqrt(first.square() + second.square())
    place = torch.remainder(torch.atan2(second, first) * (PLACES / (2 * math.pi)), PLACES)
    lower = place.floor()
    part = place - lower
    height, width = images.shape[-2:]
    y = torch.linspace(-1, 1, height, dtype=images.dtype, device=images.device)
    x = torch.linspace(-1, 1, width, dtype=images.dtype, device=images.device)
    middle = (y[:, None].square() + x.square() < 0.5).to(images.dtype)
    rings = []
    for mask in (middle, 1 - middle):
        counts = torch.zeros(len(images), PLACES, dtype=images.dtype, device=images.device)
        for index, share in ((lower, 1 - part), (lower + 1, part)):
            where = (index.long() % PLACES).flatten(1)
            counts.scatter_add_(1, where, (chroma * share * mask).flatten(1))
        rings.append(counts / mask.sum().clamp_min(1))
    return torch.stack(rings, dim=1).clamp_min(0).sqrt()


@torch.no_grad()
def evidence(pictures: Tensor, labels: Tensor, *, batch: int = 128) -> Evidence:
    """Predict the class of each picture from the others.

    Args:
        pictures: `(N, R, K)`, from `circle_picture`.
        labels: `(N,)`.
        batch: Pictures at a time.
    """
    if len(pictures) < 2 or labels.shape != (len(pictures),):
        raise UserError(f"expected pictures of at least 2 images and their labels, got {tuple(pictures.shape)}")
    labels = labels.cpu()
    flat = pictures.float().cpu()
    size = flat.flatten(1).square().sum(dim=1)
    rolled = [flat.roll(shift, 2).flatten(1) for shift in range(flat.shape[2])]
    right: dict[bool, list[Tensor]] = {False: [], True: []}
    for start in range(0, len(flat), batch):
        rows = slice(start, min(start + batch, len(flat)))
        mine = flat[rows].flatten(1)
        alike = mine @ rolled[0].t()
        best = alike.clone()
        for other in rolled[1:]:
            best = torch.maximum(best, mine @ other.t())
        for free, products in ((False, alike), (True, best)):
            distance = size[rows, None] + size - 2 * products
            distance[torch.arange(len(mine)), torch.arange(rows.start, rows.stop)] = math.inf
            right[free].append((_vote(distance, labels) == labels[rows]).double())
    chance = float(labels.bincount().max()) / len(labels)
    return Evidence(labels, torch.cat(right[False]), torch.cat(right[True]), chance)


def _vote(distance: Tensor, labels: Tensor) -> Tensor:
    """The class of the nearest neighbours, weighted by their rank."""
    count = min(NEIGHBOURS, distance.shape[1] - 1)
    near = labels[distance.topk(count, largest=False).indices]
    votes = torch.zeros(len(distance), int(labels.max()) + 1)
    votes.scatter_add_(1, near, (1 / torch.arange(1, count + 1)).expand(len(distance), -1))
    return votes.argmax(dim=1)
