"""Promises about a mean that hold at a stated confidence, from a finite sample of independent images.

>>> chosen = widest([0.0, 0.5, 1.0], costs, at_most=0.005, confidence=0.95)

`costs` holds, for each setting and each image, what the setting costs on that image. The promise: in at least 95 % of
all samples of images that one could have drawn, the mean cost of the chosen setting on new images is at most 0.005.
Nothing is assumed about the costs, but images have to be independent: thirty frames of one video count as one image.

Settings are tested one after the other, from the safest to the boldest, until one fails (Angelopoulos et al., "Learn
then test", 2021). Each test bets against the hypothesis that the setting costs more than is allowed; the bets adapt to
the variance (Waudby-Smith and Ramdas, 2020), so that a sample with few changed answers is enough for a small cost.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

import torch
from torch import Tensor

from vpgcnn.errors import UserError

__all__ = ["betting_p_value", "images_needed", "smallest_cost", "widest"]

SMALLEST_COST = 1e-4
"""A smaller mean cost would need more than 40,000 images."""
STEPS = 1000
"""`smallest_cost` is a multiple of 1/STEPS."""
LARGEST_BET = 0.75
"""The largest bet, as a share of the largest that cannot lose everything."""


def betting_p_value(costs: Tensor, at_most: float, confidence: float = 0.95) -> float:
    """A p-value for the hypothesis that the mean cost is above `at_most`, valid for any distribution on [−1, 1].

    A gambler bets on every cost, before seeing it, that it lies below `at_most`. If the hypothesis is true, the
    gambler's capital is not expected to grow: reaching 1/p has a probability of at most p (Ville's inequality).

    Args:
        costs: `(N,)` in [−1, 1], in random order.
        at_most: The allowed mean cost, in (0, 1).
        confidence: The confidence that the bets are tuned for; it does not affect validity.

    Returns:
        From 0 to 1.
    """
    if costs.dim() != 1 or not len(costs):
        raise UserError(f"expected one cost for each image, got shape {tuple(costs.shape)}")
    if not 0 < at_most < 1:
        raise UserError(f"the allowed cost must be between 0 and 1, got {at_most}")
    if not 0 < confidence < 1:
        raise UserError(f"the confidence must be between 0 and 1, got {confidence}")
    costs = costs.double()
    if not float(costs.abs().max()) <= 1:
        raise UserError(f"costs must lie in [−1, 1], got {float(costs.abs().max())}")
    count = torch.arange(1, len(costs) + 1, dtype=torch.float64)
    # Estimates from the costs before each one, with a prior of one image.
    mean = (at_most + costs.cumsum(0)) / (count + 1)
    variance = (0.25 + (costs - mean).square().cumsum(0)) / (count + 1)
    variance = torch.cat([torch.tensor([0.25], dtype=torch.float64), variance[:-1]])
    bets = (2 * math.log(1 / (1 - confidence)) / (variance * len(costs))).sqrt()
    bets = bets.clamp_max(LARGEST_BET / (1 - at_most))
    capital = torch.log1p(bets * (at_most - costs)).cumsum(0)
    return min(1.0, math.exp(-float(capital.max())))


def widest(settings: Sequence[float], costs: Tensor, *, at_most: float, confidence: float = 0.95) -> float | None:
    """The last setting that certainly costs at most so much, if all settings before it do.

    Args:
        settings: From the safest to the boldest.
        costs: `(settings, N)` in [−1, 1]: the cost of each setting on each image, in random order.
        at_most: The allowed mean cost, in (0, 1).
        confidence: Of the promise, in (0, 1).

    Returns:
        One of the settings; None if there are too few images, or the first setting costs too much.
    """
    if len(settings) != len(costs):
        raise UserError(f"expected costs for {len(settings)} settings, got {len(costs)}")
    chosen = None
    for setting, cost in zip(settings, costs, strict=True):
        if betting_p_value(cost, at_most, confidence) > 1 - confidence:
            break
        chosen = setting
    return chosen


def images_needed(at_most: float, confidence: float = 0.95) -> int:
    """The smallest number of images from which `widest` can promise that a setting without any effect costs nothing."""
    if at_most < SMALLEST_COST:
        raise UserError(f"the allowed cost must be at least {SMALLEST_COST:g}, got {at_most}")
    low, high = 1, 1
    while betting_p_value(torch.zeros(high), at_most, confidence) > 1 - confidence:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        enough = betting_p_value(torch.zeros(middle), at_most, confidence) <= 1 - confidence
        low, high = (low, middle) if enough else (middle, high)
    return high


def smallest_cost(images: int, confidence: float = 0.95) -> float | None:
    """The smallest cost, in steps of 0.1 %, that `widest` can promise from so many images; None if there is none."""
    costs = [step / STEPS for step in range(1, STEPS)]
    if images < 1:
        return None
    zeros = torch.zeros(images)
    place = bisect_left(costs, True, key=lambda cost: betting_p_value(zeros, cost, confidence) <= 1 - confidence)
    return costs[place] if place < len(costs) else None
