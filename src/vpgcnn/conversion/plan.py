"""What a conversion costs, and which convolutions are worth mixing at that price."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import nn

from vpgcnn.conversion.trying import Run
from vpgcnn.groups import Group

__all__ = ["Cost", "Mix", "Mixing", "planned"]

Mix = Literal["auto", "pointwise", "full", "none"]
"""How convolutions look at other views."""

SHARE = 0.25
"""Multiplications for mixing in one convolution at most, relative to its own, where `convert` chooses."""
LEAST = 4
"""Mixing through fewer channels than this is left out."""


@dataclass(frozen=True)
class Cost:
    """What a converted network computes: multiplications for one image, of convolutions and matrix products.

    Args:
        original: Of the original network.
        views: Of the original on all views, until they are pooled, and of what follows.
        mixing: Of the kernels that look at other views.
        mixed: How many convolutions look at other views.
        convolutions: How many convolutions the original has.
    """

    original: int
    views: int
    mixing: int
    mixed: int
    convolutions: int

    @property
    def ratio(self) -> float:
        """Multiplications of the converted network over those of the original."""
        return (self.views + self.mixing) / max(self.original, 1)

    def __str__(self) -> str:
        share = self.mixing / max(self.views + self.mixing, 1)
        return (
            f"{self.ratio:.1f} times the original's {self.original / 1e6:,.1f} million multiplications for an image; "
            f"{self.mixed} of {self.convolutions} convolutions mixed, with {share:.0%} of the multiplications"
        )


@dataclass(frozen=True)
class Mixing:
    """How one convolution looks at other views.

    Args:
        kind: Through 1×1 kernels ("pointwise"), kernels of its own size ("full"), a few channels ("low-rank"), or not.
        rank: The number of channels of low-rank mixing.
    """

    kind: Literal["pointwise", "full", "low-rank", "none"]
    rank: int = 0

    def cost(self, conv: nn.Conv2d, count: int) -> int:
        """Multiplications for one view of one image, at one position of the output.

        Args:
            conv: The original convolution.
            count: The number of views of each image.
        """
        if self.kind == "low-rank":
            return self.rank * (conv.in_channels + (count - 1) * conv.out_channels)
        area = {"pointwise": 1, "full": math.prod(conv.kernel_size), "none": 0}[self.kind]
        return (count - 1) * area * conv.in_channels * conv.out_channels // conv.groups


def planned(
    convs: dict[str, nn.Conv2d], chosen: Sequence[str], group: Group, mix: Mix, budget: float, run: Run
) -> tuple[dict[str, Mixing], Cost]:
    """Decide how each convolution mixes, before anything is converted.

    With mix="auto" the convolutions are asked from the last to the first, as long as the mixing of all costs at most
    `budget` times what the views cost: late maps are small and say most about the class. A convolution mixes through
    1×1 kernels if that costs little beside its own kernels, else through few channels. Depthwise convolutions are left
    out: they compute little, so that reading maps once more would cost more than the multiplications show.

    Args:
        convs: All convolutions by name.
        chosen: Those that may mix, in the order they run.
        group: The group.
        mix: "auto", or the same for all that are chosen.
        budget: See above.
        run: The first run of the original.

    Returns:
        The mixing of the chosen convolutions that have any, and the cost of the whole network.
    """
    count = group.count
    views = count * run.inside + run.whole - run.inside
    left = budget * views if mix == "auto" else math.inf
    found: dict[str, Mixing] = {}
    mixing = 0
    for name in reversed(chosen):
        positions = count * sum(height * width for height, width in run.maps[name])
        way = Mixing(mix) if mix != "auto" else _best(convs[name], group, run.maps[name], (left - mixing) / positions)
        if way.kind != "none":
            found[name] = way
            mixing += positions * way.cost(convs[name], count)
    return found, Cost(run.whole, views, mixing, len(found), len(convs))


def _best(conv: nn.Conv2d, group: Group, maps: Sequence[tuple[int, int]], most: float) -> Mixing:
    """The mixing of a convolution that costs at most SHARE of its own multiplications, and at most `most`."""
    if conv.groups == conv.in_channels > 1:
        return Mixing("none")
    own = SHARE * math.prod(conv.kernel_size) * conv.in_channels * conv.out_channels / conv.groups
    limit = min(own, most)
    if Mixing("pointwise").cost(conv, group.count) <= limit:
        return Mixing("pointwise")
    rank = int(limit / Mixing("low-rank", 1).cost(conv, group.count))
    # Few channels are moved at the resolution of the output, which may not be square.
    fits = not group.acts_on_plane or all(height == width for height, width in maps)
    return Mixing("low-rank", rank) if rank >= LEAST and fits else Mixing("none")
