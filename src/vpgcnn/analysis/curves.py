"""Confidence along the orbit of an image, and what can be read off it."""

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
    told: Callable[[int], None] = lambda _: None,
) -> Tensor:
    """The probability of `label` for every image turned by every angle: `(angles, N)`.

    predict: from images to logits `(B, classes)`. images: `(N, C, H, W)`, 0 is the background that
    turning uncovers. angles: in degrees, counter-clockwise. told: hears of each angle that is done.
    """
    rows = []
    for angle in angles:
        turned = SO2().transform(images, math.radians(angle), mode=mode)
        rows.append(torch.cat([predict(part).softmax(dim=1)[:, label] for part in turned.split(batch)]))
        told(1)
    return torch.stack(rows)


def crossings(angles: Sequence[float], curve: Sequence[float], level: float = 0.5) -> list[float]:
    """The angles at which a curve crosses a level, between its points by a straight line."""
    found = []
    for (one, low), (two, high) in pairwise(zip(angles, curve, strict=True)):
        if (low - level) * (high - level) < 0 or (low == level != high):
            found.append(one + (two - one) * (level - low) / (high - low))
    return found


def auroc(positive: Tensor, negative: Tensor) -> float:
    """The probability that a value of the first kind is above one of the second; equal ones count half."""
    both = torch.cat([positive, negative]).double()
    _, place, counts = both.unique(return_inverse=True, return_counts=True)
    ranks = counts.cumsum(0) - (counts - 1) / 2
    total = float(ranks[place[: len(positive)]].sum())
    return (total - len(positive) * (len(positive) + 1) / 2) / (len(positive) * len(negative))
