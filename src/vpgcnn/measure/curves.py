"""Confidence along the orbit of an image: curves, where they cross a level, and AUROC."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from vpgcnn.groups import SO2

__all__ = ["auroc", "confidence_curve", "crossings"]


@torch.no_grad()
def confidence_curve(
    predict: Callable[[Tensor], Tensor],
    images: Tensor,
    label: int,
    angles: Sequence[float],
    *,
    mode: str = "bilinear",
    batch: int = 512,
    on_progress: Callable[[int], None] = lambda _: None,
) -> Tensor:
    """The probability of one label for every image, rotated by every angle.

    Args:
        predict: From images to logits `(B, classes)`.
        images: `(N, C, H, W)`; corners that a rotation uncovers become 0.
        label: The class.
        angles: In degrees, counter-clockwise.
        mode: Interpolation.
        batch: Images at a time.
        on_progress: Called with 1 after each angle.

    Returns:
        `(angles, N)`.
    """
    rows = []
    for angle in angles:
        turned = SO2().transform(images, math.radians(angle), mode=mode)
        rows.append(torch.cat([predict(part).softmax(dim=1)[:, label] for part in turned.split(batch)]))
        on_progress(1)
    return torch.stack(rows)


def crossings(angles: Sequence[float], curve: Sequence[float], level: float = 0.5) -> list[float]:
    """The angles at which a curve crosses a level, by linear interpolation between its points."""
    found = []
    for (one, low), (two, high) in pairwise(zip(angles, curve, strict=True)):
        if (low - level) * (high - level) < 0 or (low == level != high):
            found.append(one + (two - one) * (level - low) / (high - low))
    return found


def auroc(positive: Tensor, negative: Tensor) -> float:
    """The probability that a positive value is above a negative one; ties count half."""
    both = torch.cat([positive, negative]).double()
    _, place, counts = both.unique(return_inverse=True, return_counts=True)
    ranks = counts.cumsum(0) - (counts - 1) / 2
    total = float(ranks[place[: len(positive)]].sum())
    return (total - len(positive) * (len(positive) + 1) / 2) / (len(positive) * len(negative))
