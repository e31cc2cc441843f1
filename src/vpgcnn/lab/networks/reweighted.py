"""MetaAugment: random moves whose losses have weights (Zhou et al., 2021).

    >>> weigher = Weigher(width=64)
    >>> weights = normalised(weigher(features, share))        # (B,), with a mean of 1
    >>> loss = (weights * losses).mean()

From a classifier's features of a moved image, and from the move, a small network predicts how much the loss of that
image counts. It learns from images held out of training: their loss after a virtual step of the classifier on the
weighted losses, `after_virtual_step`. Moves that have large weights are then drawn more often.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

__all__ = ["MOVES", "Weigher", "after_virtual_step", "normalised"]

MOVES = 16
"""Equal parts of the range of moves, each of which is drawn with a probability."""
HARMONICS = 4
"""Harmonics of the angle by which the network knows a move."""
HIDDEN = 100
"""Units that read the features, and units that read the move, as published."""
EXPLORED = 0.1
"""Share of the moves that are drawn uniformly, as published."""


class Weigher(nn.Module):
    """Not equivariant: it predicts how much moved images count. At the start all count alike.

    Args:
        width: Number of features.
        reach: The range of moves, as a share of ± 180°.
    """

    chances: Tensor
    sums: Tensor

    def __init__(self, width: int, reach: float = 1.0) -> None:
        super().__init__()
        self.reach = reach
        self.of_features, self.of_moves = nn.Linear(width, HIDDEN), nn.Linear(2 * HARMONICS, HIDDEN)
        self.out = nn.Linear(2 * HIDDEN, 1)
        for parameter in self.out.parameters():
            nn.init.zeros_(parameter)
        self.register_buffer("chances", torch.full((MOVES,), 1 / MOVES))
        self.register_buffer("sums", torch.zeros(2, MOVES))  # of the weights, and how many

    def forward(self, features: Tensor, share: Tensor) -> Tensor:
        """The weights, before they are normalised.

        Args:
            features: `(B, width)`, of the moved images.
            share: `(B, 1)`, their moves, as shares of ± 180°.

        Returns:
            `(B,)` in (0, 1).
        """
        angles = math.pi * share * torch.arange(1, HARMONICS + 1, device=share.device)
        move = torch.cat([angles.cos(), angles.sin()], dim=1)
        hidden = torch.cat([self.of_features(features), self.of_moves(move)], dim=1)
        weights: Tensor = self.out(hidden.relu())[:, 0].sigmoid()
        return weights

    def drawn(self, draws: Tensor) -> Tensor:
        """Moves `(B, 1)`, as shares of ± 180°, from uniform numbers `(B, 1)` in [0, 1)."""
        ends = self.chances.cumsum(0)
        part = torch.searchsorted(ends, draws, right=True).clamp_max(MOVES - 1)
        inside = (draws - (ends - self.chances)[part]) / self.chances[part]
        return self.reach * (2 * (part + inside) / MOVES - 1).clamp(-1, 1)

    @torch.no_grad()
    def note(self, share: Tensor, weights: Tensor) -> None:
        """Remember the normalised weights `(B,)` of moves `(B, 1)`."""
        part = ((share[:, 0] / self.reach + 1) / 2 * MOVES).long().clamp(0, MOVES - 1)
        self.sums.index_add_(1, part, torch.stack([weights, torch.ones_like(weights)]))

    @torch.no_grad()
    def redraw(self) -> None:
        """Draw moves in proportion to their mean weights since the last time, and a tenth of them uniformly."""
        weights, counts = self.sums
        means = torch.where(counts > 0, weights / counts.clamp_min(1), 1.0)
        self.chances.copy_(1 / MOVES + (1 - EXPLORED) * (means / means.sum() - 1 / MOVES))
        self.sums.zero_()

    def extra_repr(self) -> str:
        return f"reach={self.reach}"


def normalised(weights: Tensor) -> Tensor:
    """Weights `(B,)` divided by their mean."""
    return weights / weights.mean()


def after_virtual_step(
    parameters: dict[str, Tensor],
    weights: Tensor,
    losses: Callable[[dict[str, Tensor]], Tensor],
    held: Callable[[dict[str, Tensor]], Tensor],
    rate: float,
) -> Tensor:
    """The loss on held-out images after one virtual step of gradient descent on weighted losses.

    Its gradient to the weights is exact: it goes through the step, whose gradient is differentiated again.

    Args:
        parameters: Those of the classifier.
        weights: `(B,)`, normalised, with a gradient.
        losses: Parameters to the losses of the moved images, `(B,)`.
        held: Parameters to the loss of the held-out images, a scalar.
        rate: Learning rate of the step.

    Returns:
        A scalar.
    """
    loss = (weights * losses(parameters)).mean()
    slopes = torch.autograd.grad(loss, list(parameters.values()), create_graph=True, allow_unused=True)
    pairs = zip(parameters.items(), slopes, strict=True)
    return held({name: value if slope is None else value - rate * slope for (name, value), slope in pairs})
