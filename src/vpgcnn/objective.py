"""The objective: classify well, and use as much of the group as that allows.

    >>> elbo = Elbo.of(net(images), labels)
    >>> elbo.total().backward()                   # nll + PRICE · unused
    >>> elbo.total(weight=0.05).backward()        # nll + λ · kl, as in the paper

By default there is no λ to find. An image that uses the identity alone pays `PRICE` nats for each circle, one that uses
more pays for what it leaves out: at the best θ, windows cost it at most that much classification loss. Levels explore
(see `Variational`), so that the network answers at every width and the loss tells what a width costs.

With the paper's KL, λ has to be found. It follows a schedule (`KlSchedule`: held, then raised, then constant or lowered
again) or reacts to the training (`DualWeight` to the nll, `Band` to the kl). All rules are immutable values with the
same interface:

    >>> rule = DualWeight(tolerance=0.04)
    >>> loss = rule.loss(elbo, progress)
    >>> rule = rule.after(nll=float(elbo.nll), kl=float(elbo.kl))
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vpgcnn.errors import UserError
from vpgcnn.features import Prediction
from vpgcnn.kernels import Kernel, ProjectedKernel
from vpgcnn.kernels.projected import adjust_strengths
from vpgcnn.levels import Level

__all__ = [
    "PRICE",
    "Band",
    "DualWeight",
    "Elbo",
    "KlSchedule",
    "KlWeight",
    "Price",
    "dual_step",
    "log_shares",
    "parameter_groups",
    "penalty",
]

IGNORED = -100
"""The label of pixels that do not count, as in torch."""
PRICE = 0.05
"""What a whole circle of the group is worth to an image, in nats of classification loss. All levels share it."""


@dataclass(frozen=True, eq=False)
class Elbo:
    """The two terms of the negative evidence lower bound, each the mean over images, in nats.

    Args:
        nll: −log p(label | image), a scalar.
        kl: KL(q‖uniform), summed over the layers that have a level, a scalar. Windows that were drawn at random
            (`Variational.explore`) count as 0, so in training it is lower than in evaluation.
        unused: How much of the group is not in use, the mean over these layers, a scalar: 1 for the identity alone
            (on each axis); likewise.
    """

    nll: Tensor
    kl: Tensor
    unused: Tensor | float = 0.0

    @classmethod
    def of(
        cls, prediction: Prediction, labels: Tensor, prior: Tensor | None = None, weights: Tensor | None = None
    ) -> Elbo:
        """Compute both terms from a network's prediction.

        Args:
            prediction: Logits `(B, classes)`, or maps `(B, classes, H, W)`, and what the levels decided.
            labels: Class indices `(B,)`, or `(B, H, W)` for maps; the nll is then the mean over pixels. Pixels of class
                −100 do not count.
            prior: `(classes,)`, added to the logits before the loss; see `log_shares`.
            weights: `(B,)`, with a mean of 1: how much each image counts in the nll; all alike if None.

        Returns:
            The two terms.
        """
        if not isinstance(prediction, Prediction):
            raise TypeError(f"Elbo.of takes a Prediction, got {type(prediction).__name__}")
        logits, places = prediction.logits.float(), prediction.logits.dim() - 2
        if places > 0 and labels.shape != (len(logits), *logits.shape[2:]):
            raise ValueError(
                f"logits {tuple(logits.shape)} are one for each class and pixel, so labels are {len(logits)} maps "
                f"{'×'.join(map(str, logits.shape[2:]))}, got shape {tuple(labels.shape)}: resize one of them"
            )
        if places == 0 and labels.shape not in (logits.shape[:1], logits.shape):
            raise ValueError(
                f"expected one label for each of {len(logits)} images, got labels of shape {tuple(labels.shape)}"
            )
        if prior is not None:
            logits = logits + prior.view(-1, *[1] * places)
        if weights is None:
            return cls.around(_cross_entropy(logits, labels, "mean"), prediction)
        losses = weights.view(-1, *[1] * places) * _cross_entropy(logits, labels, "none")
        return cls.around(losses.sum() / (labels != IGNORED).sum() if places > 0 else losses.mean(), prediction)

    @classmethod
    def around(cls, loss: Tensor, prediction: Prediction) -> Elbo:
        """Put a loss of your own in the place of the nll: for boxes, masks, or several heads.

            >>> answer = net(images)
            >>> Elbo.around(detection_loss(answer.outputs, targets), answer).total().backward()

        Args:
            loss: A scalar, the mean over images. What windows may cost is counted in its units.
            prediction: What the levels decided is read from it.

        Returns:
            The terms.
        """
        if not isinstance(prediction, Prediction):
            raise TypeError(f"Elbo.around takes a Prediction, got {type(prediction).__name__}")
        levels = sum(q.regularised for q in prediction.trace.values())
        unused = prediction.unused.float().mean() / max(1, levels)
        return cls(loss, prediction.kl.float().mean(), unused)

    def total(self, weight: float | None = None) -> Tensor:
        """The training loss.

        Args:
            weight: λ, for nll + λ·kl. None: nll + `PRICE` · unused.

        Returns:
            A scalar.
        """
        return self.nll + (PRICE * self.unused if weight is None else weight * self.kl)


def log_shares(labels: Tensor, classes: int) -> Tensor:
    """The log frequency of each class; a class without images counts as one image.

    Logit adjustment (Menon et al., 2021): added to the logits in training, it accounts for the class frequencies
    of the training set, so that the network does not learn them. The bare logits then predict as if all classes
    were equally frequent.

    Args:
        labels: Class indices `(N,)`.
        classes: Number of classes.

    Returns:
        `(classes,)`.
    """
    counts = torch.bincount(labels, minlength=classes).clamp_min(1)
    return (counts / counts.sum()).log()


class KlWeight(ABC):
    """What windows cost in the loss. An immutable value: each training step makes the next one."""

    @abstractmethod
    def at(self, progress: float) -> float:
        """λ, the weight of the kl, in the next step; the price for `Price`.

        Args:
            progress: How far training has come, from 0 to 1.
        """

    @abstractmethod
    def after(self, *, nll: float, kl: float) -> Self:
        """The rule after a training step.

        Args:
            nll: Classification loss of that step, in nats.
            kl: Mean kl of that step, in nats.
        """

    def loss(self, elbo: Elbo, progress: float) -> Tensor:
        """The training loss of the next step, a scalar.

        Args:
            elbo: Its terms.
            progress: How far training has come, from 0 to 1.
        """
        return elbo.total(self.at(progress))


@dataclass(frozen=True)
class Price(KlWeight):
    """A constant price for the share of the group that is not in use: nll + nats · unused. The default.

    At the best θ, the classification loss of an image exceeds that with closed windows by at most `nats`. The price is
    the same for every image, so an easy image cannot pay for a hard one.
    """

    nats: float = PRICE
    """What the whole group is worth to an image, in nats of classification loss."""
    name: Literal["price"] = "price"
    """Which rule this configures."""

    def __post_init__(self) -> None:
        if not self.nats >= 0:
            raise UserError(f"a price must not be negative, got {self.nats}")

    def at(self, progress: float) -> float:
        return self.nats

    def loss(self, elbo: Elbo, progress: float) -> Tensor:
        return elbo.nll + self.nats * elbo.unused

    def after(self, *, nll: float = 0.0, kl: float = 0.0) -> Self:
        return self


@dataclass(frozen=True)
class KlSchedule(KlWeight):
    """λ as a function of the progress of training, in straight lines.

    λ is `start` for the share `hold` of the training, rises to `peak` over the share `ramp`, stays there for the
    share `stay`, changes to `end` over the share `fall`, and then stays. A small λ at first lets the classifier find
    what it needs; a larger one opens the windows that cost nothing; a smaller one at the end lets the classifier
    sharpen. With stay = 1 (the default) λ is held, raised, then constant.
    """

    start: float = 0.01
    """λ at the start."""
    peak: float = 0.11
    """λ after the ramp."""
    hold: float = 0.5
    """Share of the training before the ramp."""
    ramp: float = 0.5
    """Share of the training that the ramp takes."""
    stay: float = 1.0
    """Share of the training for which λ stays at its peak."""
    fall: float = 0.0
    """Share of the training in which λ then changes to its final value."""
    end: float = 0.0
    """The final value of λ, if there is a fall."""
    name: Literal["schedule"] = "schedule"
    """Which rule this configures."""

    def __post_init__(self) -> None:
        if min(self.start, self.peak, self.end) < 0:
            raise UserError(
                f"start, peak and end are values of λ and must not be negative, got {self.start}, {self.peak} and "
                f"{self.end}"
            )
        shares = (self.hold, self.ramp, self.stay, self.fall)
        if not all(0 <= share <= 1 for share in shares) or self.hold + self.ramp > 1 + 1e-9:
            raise UserError(
                "hold, ramp, stay and fall are shares of the training, in [0, 1], with hold + ramp at most 1, got "
                f"{', '.join(map(str, shares))}"
            )

    def at(self, progress: float) -> float:
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

    def after(self, *, nll: float = 0.0, kl: float = 0.0) -> Self:
        return self


@dataclass(frozen=True)
class DualWeight(KlWeight):
    """λ as a dual variable: open the windows as far as the classification loss allows.

    Solves min kl subject to nll ≤ tolerance. Each step multiplies λ by exp(rate) while the running nll is below the
    tolerance, and divides it by exp(rate) while it is above.
    """

    tolerance: float = 0.04
    """Classification loss, in nats, up to which windows open."""
    rate: float = 0.03
    """Each step multiplies or divides λ by exp(rate)."""
    low: float = 1e-4
    """Smallest λ."""
    high: float = 1.0
    """Largest λ."""
    memory: float = 0.95
    """Weight of the past in the running nll, from 0 to 1."""
    weight: float = 0.01
    """λ now: at the start, if it is a setting."""
    running: float | None = None
    """The running nll; None before the first step."""
    name: Literal["dual"] = "dual"
    """Which rule this configures."""

    def __post_init__(self) -> None:
        if not (self.tolerance > 0 and self.rate > 0 and 0 < self.low <= self.weight <= self.high):
            raise UserError(
                "a dual weight needs tolerance > 0, rate > 0 and 0 < low ≤ weight ≤ high, got tolerance "
                f"{self.tolerance}, rate {self.rate}, low {self.low}, weight {self.weight} and high {self.high}"
            )
        _check_memory(self.memory)

    def at(self, progress: float) -> float:
        return self.weight

    def after(self, *, nll: float, kl: float = 0.0) -> Self:
        running = _running(self.running, nll, self.memory)
        factor = math.exp(self.rate if running < self.tolerance else -self.rate)
        return replace(self, weight=min(self.high, max(self.low, self.weight * factor)), running=running)


@dataclass(frozen=True)
class Band(KlWeight):
    """λ that keeps the mean kl between two bounds, as InstaAug keeps its entropy.

    Each step adds `rate` to λ while the running kl is above `high` (windows too narrow), subtracts it while the kl is
    below `low` (windows too wide; λ may become negative), and moves λ towards 0 in between. InstaAug multiplies and
    divides λ instead, and leaves it alone in between. A kl of −log θ is an entropy of log θ, up to a constant.
    """

    low: float = 0.2
    """Smallest mean kl, in nats: below it λ falls, and may become negative."""
    high: float = 1.5
    """Largest mean kl, in nats: above it λ grows."""
    rate: float = 0.03
    """How far λ moves in a step."""
    most: float = 1.0
    """Largest λ, and −λ."""
    memory: float = 0.95
    """Weight of the past in the running kl, from 0 to 1."""
    weight: float = 0.0
    """λ now: at the start, if it is a setting."""
    running: float | None = None
    """The running kl; None before the first step."""
    name: Literal["band"] = "band"
    """Which rule this configures."""

    def __post_init__(self) -> None:
        if not (0 <= self.low < self.high and self.rate > 0 and abs(self.weight) <= self.most):
            raise UserError(
                "a band needs 0 ≤ low < high, rate > 0 and weight within ± most, got "
                f"low {self.low}, high {self.high}, rate {self.rate}, weight {self.weight} and most {self.most}"
            )
        _check_memory(self.memory)

    def at(self, progress: float) -> float:
        return self.weight

    def after(self, *, kl: float, nll: float = 0.0) -> Self:
        running = _running(self.running, kl, self.memory)
        if self.low <= running <= self.high:
            weight = math.copysign(max(0.0, abs(self.weight) - self.rate), self.weight) + 0.0  # no −0
        else:
            weight = self.weight + (self.rate if running > self.high else -self.rate)
        return replace(self, weight=min(self.most, max(-self.most, weight)), running=running)


def _cross_entropy(logits: Tensor, labels: Tensor, reduction: str) -> Tensor:
    """The cross-entropy; a label that is no class is named, where torch notices it without a cost (on the CPU)."""
    try:
        return F.cross_entropy(logits, labels, reduction=reduction)
    except IndexError as error:
        wrong = labels[(labels != IGNORED) & ((labels < 0) | (labels >= logits.shape[1]))]
        raise ValueError(
            f"labels are numbers of classes, from 0 to {logits.shape[1] - 1} for these logits, got {int(wrong[0])}"
        ) from error


def _running(before: float | None, value: float, memory: float) -> float:
    """The running mean after one more value."""
    return value if before is None else memory * before + (1 - memory) * value


def _check_memory(memory: float) -> None:
    if not 0 <= memory < 1:
        raise UserError(f"memory is the weight of the past, from 0 to below 1, got {memory}")


def penalty(model: nn.Module) -> Tensor:
    """What the priors of a network's kernels add to the loss; 0 for kernels without one, as `Table()` and `Harmonic()`.

        >>> loss = Elbo.of(net(images), labels).total() + penalty(net)

    Priors are counted once for each training step, whatever the number of images.

    Args:
        model: Any network with layers of this package inside.

    Returns:
        A scalar.
    """
    parts = [part.penalty() for part in model.modules() if isinstance(part, Kernel)]
    return sum((part for part in parts if part is not None), torch.zeros(()))


def dual_step(model: nn.Module) -> None:
    """Move the multipliers of kernels with a constraint (`Constrained`), and adjust those of `Projected` ones when due.

    Nothing happens for other kernels.

        >>> optimiser.step()
        >>> dual_step(net)

    Args:
        model: Any network with layers of this package inside.
    """
    kernels = [part for part in model.modules() if isinstance(part, Kernel)]
    for kernel in kernels:
        kernel.dual_step()
    adjust_strengths([kernel for kernel in kernels if isinstance(kernel, ProjectedKernel)])


def parameter_groups(
    model: nn.Module, lr: float, *, level_lr: float | None = None, weight_decay: float = 1e-3
) -> list[dict[str, Any]]:
    """Parameter groups for an optimiser: the weights of a network, and its levels without weight decay.

        >>> optimiser = torch.optim.AdamW(parameter_groups(net, lr=1e-3))

    Args:
        model: Any network with layers of this package inside.
        lr: Learning rate of the weights.
        level_lr: Learning rate of the levels; that of the weights if None.
        weight_decay: Of the weights.

    Returns:
        One group, or two where there are levels to learn.
    """
    own = {id(parameter) for part in model.modules() if isinstance(part, Level) for parameter in part.parameters()}
    weights = [parameter for parameter in model.parameters() if id(parameter) not in own]
    levels = [parameter for parameter in model.parameters() if id(parameter) in own]
    groups: list[dict[str, Any]] = [{"params": weights, "lr": lr, "weight_decay": weight_decay}]
    if levels:
        groups.append({"params": levels, "lr": lr if level_lr is None else level_lr, "weight_decay": 0.0})
    return groups
