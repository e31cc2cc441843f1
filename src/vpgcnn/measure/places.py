"""Accuracy at unseen places: of images that are moved by as much as their class allows.

>>> at_places(predict, images, labels, reach, "rotation")
Places(free=0.95, bound=0.77, moved=0.81)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from vpgcnn.errors import UserError
from vpgcnn.groups import SO2, Dihedral, Group, Hue, Luminance, Saturation

__all__ = ["Circle", "Places", "at_places"]

Circle = Literal["rotation", "hue", "mirror", "saturation", "luminance"]
"""What moves an image."""
INSIDE = 2 / 3
"""A bound image is moved within this share of its range: where the class changes, nobody knows the label."""


@dataclass(frozen=True)
class Places:
    """Accuracies at unseen places, in [0, 1]; None where there is no such image.

    Args:
        free: Of images that may be moved by any amount, at all places.
        bound: Of the others, inside their range.
        moved: Of all images at all places, as if all were free; the only one that needs no truth.
    """

    free: float | None
    bound: float | None
    moved: float | None


def _moves(circle: Circle) -> tuple[Group, list[Tensor], list[float]]:
    """The group, its elements other than the identity, and how far each is from it, as a share of the circle."""
    if circle == "mirror":
        return Dihedral(1), [torch.tensor([0.0, math.pi])], [1.0]
    kinds: dict[Circle, tuple[int, Group]] = {
        "rotation": (24, SO2()),
        "hue": (12, Hue(12)),
        "saturation": (12, Saturation(12)),
        "luminance": (12, Luminance(12)),
    }
    if circle not in kinds:
        raise UserError(f"an image moves by rotation, hue, mirror, saturation or luminance, got {circle!r}")
    count, group = kinds[circle]
    steps = [step if 2 * step <= count else step - count for step in range(1, count)]
    if group.recolors:  # by more than a quarter of the circle, most colours would come back from the other side
        steps = [step for step in steps if 4 * abs(step) <= count]
    elements = [torch.tensor([2 * math.pi * step / count]) for step in steps]
    return group, elements, [2 * abs(step) / count for step in steps]


@torch.no_grad()
def at_places(
    predict: Callable[[Tensor], Tensor],
    images: Tensor,
    labels: Tensor,
    reach: Tensor | None,
    circle: Circle,
    *,
    batch: int = 256,
    on_progress: Callable[[int], object] | None = None,
) -> Places:
    """Measure how many moved images get the right class.

    Images move by 23 rotations, 11 hue shifts, the mirror, or 6 shifts of saturation or luminance, up to a quarter of
    the circle.

    Args:
        predict: Images `(B, C, H, W)` in [0, 1] to logits.
        images: `(N, C, H, W)` in [0, 1].
        labels: `(N,)`.
        reach: `(N,)`, the share of the circle by which each image may be moved without a change of class, 1 for free
            images; None if it is not known.
        circle: What moves the images.
        batch: Images at a time.
        on_progress: Called with 1 after each place.

    Returns:
        The accuracies.
    """
    if reach is not None and reach.shape != labels.shape:
        raise UserError(f"expected one range for each of {len(labels)} images, got shape {tuple(reach.shape)}")
    group, elements, distances = _moves(circle)
    right, allowed = [], []
    for element, distance in zip(elements, distances, strict=True):
        answers = [
            predict(group.transform(part, element.to(part.device))).argmax(dim=1).cpu() for part in images.split(batch)
        ]
        right.append((torch.cat(answers) == labels.cpu()).double())
        if reach is not None:
            allowed.append(distance <= INSIDE * reach.cpu())
        if on_progress is not None:
            on_progress(1)
    hits = torch.stack(right)  # places × images
    if reach is None:
        return Places(None, None, float(hits.mean()))
    free, inside = reach.cpu() == 1, torch.stack(allowed)
    return Places(
        free=float(hits[:, free].mean()) if bool(free.any()) else None,
        bound=_mean(hits[:, ~free], inside[:, ~free]),
        moved=float(hits.mean()),
    )


def _mean(values: Tensor, chosen: Tensor) -> float | None:
    return float(values[chosen].mean()) if bool(chosen.any()) else None
