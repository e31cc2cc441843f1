"""What the data themselves say of a symmetry, without any network: does the place on the circle tell the class?

Each image is reduced to a small picture on the circle: of rotation, its brightness in polar coordinates; of hue, how
much of each hue it has. Its class is then guessed from those of its nearest neighbours among the other images, once
as they are, and once with every neighbour moved along the circle to where it fits best. If the second guess is as good
as the first, the place on the circle does not help to tell the class, and a network loses nothing by ignoring it. If it
is worse, it helps: either because it is a part of the label (a 6 upside down is a 9), or because it narrows the choice
(all images are upright, and what is looked for need not be looked for in all directions). A network that ignores it
loses in both cases, how much only a training tells.

    >>> found = evidence(torch.cat([circle_picture(part, "hue") for part in parts]), labels)
    >>> found.as_is.mean(), found.free.mean()
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vpgcnn.analysis.motion import Kind, check_images
from vpgcnn.errors import UserError

__all__ = ["Evidence", "cautious", "circle_picture", "evidence"]

PLACES = 24
"""On the circle."""
RADII = 6
NEIGHBOURS = 5
SURE = 2.0
"""Standard errors that a difference has to have before it is called one."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """Whether the class of each of N images is guessed rightly: `(N,)` of 0 and 1.

    as_is: from its neighbours as they are. free: with each of them moved along the circle to fit. chance: the share
    of the largest class.
    """

    labels: Tensor
    as_is: Tensor
    free: Tensor
    chance: float

    def told(self, chosen: Tensor | None = None) -> tuple[float, float]:
        """What the place on the circle adds to the accuracy, of some images (a mask) or all: mean, standard error."""
        difference = self.as_is - self.free
        return cautious(difference if chosen is None else difference[chosen])

    @property
    def share(self) -> float:
        """Of what neighbours know beyond chance, the share that is lost when they may be moved: from 0 to 1."""
        known = float(self.as_is.mean()) - self.chance
        return min(1.0, max(0.0, self.told()[0] / known)) if known > 0 else 0.0

    def matters(self, chosen: Tensor | None = None) -> bool | None:
        """Whether the place on the circle tells the class: yes, no, or None where these images cannot say.

        No: with twice its error it adds less than 5 points. Where neighbours do no better than chance, none is said.
        """
        mean, error = self.told(chosen)
        known, doubt = cautious(self.as_is if chosen is None else self.as_is[chosen])
        if known < self.chance + SURE * doubt:
            return None
        if mean > SURE * error and mean > 0.02:
            return True
        return False if mean + SURE * error < 0.05 else None


def cautious(values: Tensor) -> tuple[float, float]:
    """The mean of numbers in [−1, 1], and a standard error that is not 0 where a few happen to agree.

    It is that about 0, with one more number, of size 1.
    """
    if not len(values):
        return 0.0, math.inf
    square = (float(values.square().sum()) + 1) / (len(values) + 1)
    return float(values.mean()), math.sqrt(square / len(values))


def circle_picture(images: Tensor, kind: Kind) -> Tensor:
    """Images `(N, C, H, W)` in [0, 1] to pictures on the circle `(N, R, K)`: moving an image rolls the last axis."""
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
    """The root of how much there is of each hue, in the middle of the image and around it; grey counts as none."""
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
    """Guess the class of each picture `(N, R, K)` from the others."""
    if len(pictures) < 2 or labels.shape != (len(pictures),):
        raise UserError(f"expected pictures of at least 2 images and their labels, got {tuple(pictures.shape)}")
    labels = labels.cpu()
    flat = pictures.float().cpu()
    size = flat.flatten(1).square().sum(dim=1)
    rolled = [flat.roll(shift, 2).flatten(1) for shift in range(flat.shape[2])]
    right: dict[bool, list[Tensor]] = {False: [], True: []}
    for start in range(0, len(flat), batch):
        own = slice(start, min(start + batch, len(flat)))
        mine = flat[own].flatten(1)
        alike = mine @ rolled[0].t()
        best = alike.clone()
        for other in rolled[1:]:
            best = torch.maximum(best, mine @ other.t())
        for free, products in ((False, alike), (True, best)):
            distance = size[own, None] + size - 2 * products
            distance[torch.arange(len(mine)), torch.arange(own.start, own.stop)] = math.inf
            right[free].append((_vote(distance, labels) == labels[own]).double())
    chance = float(labels.bincount().max()) / len(labels)
    return Evidence(labels, torch.cat(right[False]), torch.cat(right[True]), chance)


def _vote(distance: Tensor, labels: Tensor) -> Tensor:
    """The class that the nearest say, the nearer the louder."""
    count = min(NEIGHBOURS, distance.shape[1] - 1)
    near = labels[distance.topk(count, largest=False).indices]
    votes = torch.zeros(len(distance), int(labels.max()) + 1)
    votes.scatter_add_(1, near, (1 / torch.arange(1, count + 1)).expand(len(distance), -1))
    return votes.argmax(dim=1)
