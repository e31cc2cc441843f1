"""The objective: classify well, and use as much of the group as that allows.

    >>> elbo = Elbo.of(model(images), labels)
    >>> elbo.total(weight=0.05).backward()        # nll + λ · kl

λ follows a schedule (`KlSchedule`: held, then raised, then constant or lowered again) or is itself
learned (`DualWeight`, `Band`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from vpgcnn.errors import UserError

__all__ = ["Band", "DualWeight", "Elbo", "KlSchedule", "log_shares"]


@dataclass(frozen=True, eq=False)
class Elbo:
    """The negative evidence lower bound in its two terms, each the mean over images, in nats.

    nll: −log p(label | image). kl: KL(q‖uniform), summed over the layers that have a level.
    """

    nll: Tensor
    kl: Tensor

    @classmethod
    def of(cls, prediction: tuple[Tensor, Tensor], labels: Tensor, prior: Tensor | None = None) -> Elbo:
        """From a network's (logits `(B, classes)`, divergence `(B,)`) and labels `(B,)`.

        prior: `(classes,)`, added to the logits before the loss, see `log_shares`.
        """
        logits, divergence = prediction
        logits = logits.float() if prior is None else logits.float() + prior
        return cls(F.cross_entropy(logits, labels), divergence.float().mean())

    def total(self, weight: float = 1.0) -> Tensor:
        """nll + λ·kl: what training makes small."""
        return self.nll + weight * self.kl


def log_shares(labels: Tensor, classes: int) -> Tensor:
    """The log share of each class among labels `(N,)`, `(classes,)`; a class without any counts as one image.

    Added to the logits in training, it stands for how frequent the classes are there, so that the network need not
    learn that: without it, predictions are then those for classes that are equally frequent (Menon et al., 2021).
    """
    counts = torch.bincount(labels, minlength=classes).clamp_min(1)
    return (counts / counts.sum()).log()


@dataclass(frozen=True)
class KlSchedule:
    """λ as a function of how far training is, in straight lines between four shares of it.

    `start` for the share `hold`; up to `peak` over the share `ramp`; there for the share `stay`; to `end`
    over the share `fall`, and there to the end. Small at first lets the classifier find what it needs;
    larger once it works opens the windows that cost nothing; smaller again lets it sharpen with the
    windows it has. With stay = 1 it is held, ramped, then constant, as λ mostly is.
    """

    start: float = 0.01
    peak: float = 0.11
    hold: float = 0.5
    ramp: float = 0.5
    stay: float = 1.0
    fall: float = 0.0
    end: float = 0.0

    def __post_init__(self) -> None:
        if min(self.start, self.peak, self.end) < 0:
            raise UserError(f"λ must not be negative, got {self.start}, {self.peak} and {self.end}")
        shares = (self.hold, self.ramp, self.stay, self.fall)
        if not all(0 <= share <= 1 for share in shares) or self.hold + self.ramp > 1 + 1e-9:
            raise UserError(f"hold, ramp, stay and fall are shares of the training, in [0, 1], got {shares}")

    def at(self, progress: float) -> float:
        """λ at a progress in [0, 1]."""
        left = progress - self.hold
        if left < 0 or (left == 0 and self.ramp > 0):
            return self.start
        if left < self.ramp:
            return self.start + (self.peak - self.start) * left / self.ramp
        left -= self.ramp + self.stay
        if left <= 0:
            return self.peak
        if left < self.fall:
            return self.peak + (self.end - self.peak) * left / self.fall
        return self.end


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


@dataclass(frozen=True)
class Band:
    """λ that keeps the mean kl between two bounds, in nats, as InstaAug keeps its entropy (there λ is multiplied or
    divided, and rests in between).

    Each step λ grows by `rate` while the running kl is above `high` (ranges too narrow), falls by it while it is
    below `low` (ranges too wide; λ may become negative), and goes back towards 0 in between. A kl of −log θ is an
    entropy of log θ, up to a constant. An immutable value: `after(kl)` is the next one.
    """

    low: float = 0.2
    high: float = 1.5
    rate: float = 0.03
    most: float = 1.0
    memory: float = 0.95
    weight: float = 0.0
    running: float | None = None

    def __post_init__(self) -> None:
        if not (0 <= self.low < self.high and self.rate > 0 and abs(self.weight) <= self.most):
            got = f"low {self.low}, high {self.high}, speed {self.rate} and λ {self.weight}"
            raise UserError(f"a band needs 0 ≤ low < high, speed > 0 and λ within ± {self.most:g}, got {got}")

    def after(self, kl: float) -> Band:
        """The weight after a step whose mean kl was `kl`."""
        running = kl if self.running is None else self.memory * self.running + (1 - self.memory) * kl
        if self.low <= running <= self.high:
            weight = math.copysign(max(0.0, abs(self.weight) - self.rate), self.weight) + 0.0  # no −0
        else:
            weight = self.weight + (self.rate if running > self.high else -self.rate)
        return replace(self, weight=min(self.most, max(-self.most, weight)), running=running)
