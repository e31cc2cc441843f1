"""The objective: classify well, and use as much of the group as that allows.

    >>> elbo = Elbo.of(model(images), labels)
    >>> elbo.total(weight=0.05).backward()        # nll + λ · kl

λ follows a schedule (`KlSchedule`: held, then raised, then constant) or is itself learned (`DualWeight`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from vpgcnn.errors import UserError

__all__ = ["DualWeight", "Elbo", "KlSchedule"]


@dataclass(frozen=True, eq=False)
class Elbo:
    """The negative evidence lower bound in its two terms, each the mean over images, in nats.

    nll: −log p(label | image). kl: KL(q‖uniform), summed over the layers that have a level.
    """

    nll: Tensor
    kl: Tensor

    @classmethod
    def of(cls, prediction: tuple[Tensor, Tensor], labels: Tensor) -> Elbo:
        """From a network's (logits `(B, classes)`, divergence `(B,)`) and labels `(B,)`."""
        logits, divergence = prediction
        return cls(F.cross_entropy(logits.float(), labels), divergence.float().mean())

    def total(self, weight: float = 1.0) -> Tensor:
        """nll + λ·kl: what training makes small."""
        return self.nll + weight * self.kl


@dataclass(frozen=True)
class KlSchedule:
    """λ as a function of how far training is: `start` for the share `hold`, then a line to `end` over the share `ramp`.

    After the ramp λ stays at `end`. Small at first lets the classifier find what it needs; larger once
    it works opens the windows that cost nothing.
    """

    start: float = 0.01
    end: float = 0.11
    hold: float = 0.5
    ramp: float = 0.5

    def __post_init__(self) -> None:
        if min(self.start, self.end) < 0:
            raise UserError(f"λ must not be negative, got {self.start} and {self.end}")
        if not (0 <= self.hold <= 1 and 0 <= self.ramp <= 1 - self.hold + 1e-9):
            raise UserError(f"hold and ramp are shares of the training, at most 1 together: {self.hold}, {self.ramp}")

    def at(self, progress: float) -> float:
        """λ at a progress in [0, 1]."""
        if progress <= self.hold:
            return self.start
        reached = 1.0 if self.ramp == 0 else min(1.0, (progress - self.hold) / self.ramp)
        return self.start + (self.end - self.start) * reached


@dataclass(frozen=True)
class DualWeight:
    """λ as a dual variable: open the windows as far as the classification loss allows.

    Solves min kl subject to nll ≤ tolerance. Each step λ is multiplied by exp(rate) while the running
    nll is below the tolerance (in nats) and divided by it while it is above. An immutable value:
    `after(nll)` is the next one.
    """

    tolerance: float = 0.04
    rate: float = 0.03
    low: float = 1e-4
    high: float = 1.0
    memory: float = 0.95
    weight: float = 0.01
    running: float | None = None

    def __post_init__(self) -> None:
        if not (self.tolerance > 0 and self.rate > 0 and 0 < self.low <= self.weight <= self.high):
            raise UserError(f"a dual weight needs tolerance, rate > 0 and 0 < low ≤ weight ≤ high, got {self}")

    def after(self, nll: float) -> DualWeight:
        """The weight after a step whose classification loss was `nll`."""
        running = nll if self.running is None else self.memory * self.running + (1 - self.memory) * nll
        factor = math.exp(self.rate if running < self.tolerance else -self.rate)
        weight = min(self.high, max(self.low, self.weight * factor))
        return DualWeight(self.tolerance, self.rate, self.low, self.high, self.memory, weight, running)
