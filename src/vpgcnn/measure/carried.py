"""Is the class carried by the place on a circle? Two tests without a network, for labelled images.

*With and without the place.* A kernel classifier predicts the class of held-out images, once with features that know
the place, and once with its kernel averaged over all moved copies. The average can express exactly the functions that
do not depend on the place. If it predicts as well, the place adds nothing to what the features know about the class.

*Taken for another class.* The first classifier is shown moved copies of held-out images. A copy is taken for a class
if the class is its prediction, as surely as for most images of that class. Copies that resemble no class at all are
counted separately: the images say nothing about them.

    >>> found = carried(moving_features(images, "rotation"), labels, folds_of(labels))
    >>> found.gain                              # what the place adds to the accuracy, and its standard error
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vpgcnn.errors import UserError
from vpgcnn.measure.moving import MovingFeatures
from vpgcnn.measure.scores import cautious
from vpgcnn.measure.spread import FEWEST

__all__ = ["Carried", "Twin", "carried"]

SHARES = (0.0, 0.5, 0.8)
"""Shares of the distance that come from what does not move."""
WIDTHS = (0.15, 0.5)
"""Squared widths of the kernel, in mean squared distances of two images."""
RIDGES = (0.03, 0.3)
SOME = 8
"""Classes with fewer images are not compared with others."""
KNOWN = 0.6
"""Share of a class that must be predicted right before it is compared with others."""
EXCHANGED = 0.25
"""Share of copies from which two classes count as twins."""
SURE = 3.0
"""Standard errors from which they do, because many pairs and places are compared."""
TYPICAL = 0.25
"""A prediction is as sure as most if it is at least this quantile of those for images of the class."""


@dataclass(frozen=True, eq=False)
class Carried:
    """Held-out predictions of N images and of their copies at K places.

    Args:
        labels: `(N,)`.
        aware: `(N,)` of 0 and 1: whether the classifier that knows the place is right.
        averaged: `(N,)` of 0 and 1: whether the classifier that does not is right.
        taken: `(N, K)`: the class that each copy is taken for; −1 if it resembles none. The first is the original.
        chance: Share of the largest class.
    """

    labels: Tensor
    aware: Tensor
    averaged: Tensor
    taken: Tensor
    chance: float

    @property
    def gain(self) -> tuple[float, float]:
        """What the place adds to the accuracy: mean and standard error, never 0 because a few images agree."""
        return cautious(self.aware - self.averaged)

    def gain_of(self, label: int) -> tuple[float, float]:
        """The same for the images of one class."""
        return cautious((self.aware - self.averaged)[self.labels == label])

    @property
    def share(self) -> float:
        """The share of the accuracy above chance that is lost without the place, in [0, 1]."""
        known = float(self.aware.mean()) - self.chance
        return min(1.0, max(0.0, self.gain[0] / known)) if known > 0 else 0.0

    @property
    def known(self) -> tuple[float, float]:
        """The accuracy of the better classifier, and its standard error."""
        better = max(self.aware, self.averaged, key=lambda right: float(right.mean()))
        mean = float(better.mean())
        return mean, math.sqrt((mean * (1 - mean) + 1 / len(better)) / len(better))

    def kept(self, label: int) -> Tensor:
        """`(K,)`: the share of the copies of a class, at each place, that are taken for that class."""
        return (self.taken[self.labels == label] == label).double().mean(dim=0)

    def twins(self) -> list[Twin]:
        """The pairs of classes that a move turns into each other, the surest first, one for each class at most.

        Copies of the first class are taken for the second one far more often than its originals are, and copies of the
        second class, moved back, for the first. Only classes that the classifier knows take part.
        """
        excess, error = self._excess()
        count = self.taken.shape[1]
        back = torch.tensor([(count - place) % count for place in range(count)])
        again, doubt = (each[:, back].permute(2, 1, 0) for each in (excess, error))  # by class, place, other class
        if count > 2:  # a step more or less, because the second class may stand a little differently
            near = torch.stack([again.roll(step, 1) for step in (-1, 0, 1)])
            again, which = near.max(dim=0)
            doubt = torch.stack([doubt.roll(step, 1) for step in (-1, 0, 1)]).gather(0, which[None])[0]
        share, error = torch.minimum(excess, again), torch.hypot(error, doubt) / 2
        known = self._known_classes()
        share[~known], share[:, :, ~known], share[:, 0] = 0, 0, 0
        found = []
        for label in known.nonzero()[:, 0].tolist():
            place, other = divmod(int(share[label].argmax()), share.shape[2])
            twin = Twin(label, other, place, float(share[label, place, other]), float(error[label, place, other]))
            if other != label and twin.share >= EXCHANGED and twin.share >= SURE * twin.error:
                found.append(twin)
        return sorted(found, key=lambda twin: -twin.share)

    def _known_classes(self) -> Tensor:
        classes = int(self.labels.max()) + 1
        counts = torch.bincount(self.labels, minlength=classes)
        right = torch.bincount(self.labels, self.aware, minlength=classes)
        return (counts >= SOME) & (right >= KNOWN * counts)

    def _excess(self) -> tuple[Tensor, Tensor]:
        """The share of each class whose copies at each place are taken for each class, beyond its originals.

        Returns:
            `(classes, K, classes)`, and standard errors.
        """
        classes = int(self.labels.max()) + 1
        mine = F.one_hot(self.labels, classes).double()
        taken = F.one_hot(self.taken + 1, classes + 1)[..., 1:].double()
        change = taken - taken[:, :1]
        counts = mine.sum(dim=0).clamp_min(1)[:, None, None]
        mean = torch.einsum("nc,nkd->ckd", mine, change) / counts
        square = (torch.einsum("nc,nkd->ckd", mine, change.square()) + 1) / (counts + 1)
        return mean, torch.sqrt(square / counts)


@dataclass(frozen=True)
class Twin:
    """Two classes that a move turns into each other.

    Args:
        label: The class that is moved.
        other: The class that its copies are taken for.
        place: How far it is moved, in steps.
        share: The share of copies taken for the other class beyond that of originals, in the worse of both directions.
        error: Its standard error.
    """

    label: int
    other: int
    place: int
    share: float
    error: float


@torch.no_grad()
def carried(features: MovingFeatures, labels: Tensor, folds: Tensor) -> Carried:
    """Predict the classes of images and of their copies from the images of the other folds.

    Args:
        features: Of at least `FEWEST` images.
        labels: `(N,)`, of at least two classes.
        folds: `(N,)`, from `folds_of`.
    """
    if len(features) < FEWEST or labels.shape != folds.shape or labels.shape != (len(features),):
        raise UserError(f"expected at least {FEWEST} images, their labels and folds, got {len(features)}")
    classes = int(labels.max()) + 1
    if len(labels.unique()) < 2:
        raise UserError("expected images of at least two classes, got one")
    truth = F.one_hot(labels, classes).double()
    prior = truth.mean(dim=0)
    best: dict[str, tuple[float, Tensor]] = {}
    chosen: tuple[Tensor, _Kernel] | None = None
    distances = _Distances(features)
    for kernel in distances.kernels():
        for name, products in (("aware", kernel.at(0)), ("averaged", kernel.averaged())):
            for ridge in RIDGES:
                inverse = torch.linalg.inv(products.double() + ridge * torch.eye(len(products)))
                held_out = _held_out(inverse, truth - prior, folds)
                loss = float((held_out - (truth - prior)).square().sum(dim=1).mean())
                if name not in best or loss < best[name][0]:
                    best[name] = loss, held_out + prior
                    if name == "aware":
                        chosen = inverse, kernel
    assert chosen is not None
    aware = best["aware"][1]
    sure = _sureness(aware, labels)
    taken = torch.stack([_taken(answers + prior, sure) for answers in _copies(*chosen, truth - prior, folds)], dim=1)
    right = {name: (answers.argmax(dim=1) == labels).double() for name, (_, answers) in best.items()}
    return Carried(labels, right["aware"], right["averaged"], taken, float(prior.max()))


@dataclass(frozen=True, eq=False)
class _Kernel:
    """A Gaussian kernel of two parts: what moves, and what does not."""

    distances: _Distances
    share: float
    width: float

    def at(self, place: int) -> Tensor:
        """`(N, N)`: between each image and the copies of all images at a place."""
        exponent = (1 - self.share) * self.distances.moving[place]
        if self.distances.still is not None:
            exponent = exponent + self.share * self.distances.still
        return torch.exp(exponent * (-0.5 / self.width))

    def averaged(self) -> Tensor:
        """The mean over all places, scaled to 1 between an image and itself."""
        total = self.at(0)
        for place in range(1, len(self.distances.moving)):
            total = total + self.at(place)
        size = total.diagonal().sqrt()
        products = total / size / size[:, None]
        return (products + products.t()) / 2


class _Distances:
    """Squared distances between images and copies, in units of their mean."""

    def __init__(self, features: MovingFeatures) -> None:
        first = features.copy(0)
        self.moving = [_squared(first, features.copy(place)) for place in range(features.count)]
        mean = torch.stack([each.mean() for each in self.moving]).mean().clamp_min(1e-12)
        self.moving = [each / mean for each in self.moving]
        self.still = None if features.still is None else _squared(features.still, features.still)
        if self.still is not None:
            self.still = self.still / self.still.mean().clamp_min(1e-12)

    def kernels(self) -> Iterator[_Kernel]:
        for share in SHARES if self.still is not None else (0.0,):
            for width in WIDTHS:
                yield _Kernel(self, share, width)


def _squared(one: Tensor, two: Tensor) -> Tensor:
    sizes = one.square().sum(dim=1)[:, None] + two.square().sum(dim=1)
    return (sizes - 2 * one @ two.t()).clamp_min(0)


def _held_out(inverse: Tensor, truth: Tensor, folds: Tensor) -> Tensor:
    """The predictions of kernel ridge regression for each fold, fitted without it, from one inverse."""
    weights = inverse @ truth
    answers = torch.zeros_like(truth)
    for fold in folds.unique():
        inside = (folds == fold).nonzero()[:, 0]
        answers[inside] = truth[inside] - torch.linalg.solve(inverse[inside][:, inside], weights[inside])
    return answers


def _copies(inverse: Tensor, kernel: _Kernel, truth: Tensor, folds: Tensor) -> list[Tensor]:
    """The predictions for the copies of each fold at each place, fitted without that fold."""
    weights = inverse @ truth
    without = {}
    for fold in folds.unique().tolist():
        inside = (folds == fold).nonzero()[:, 0]
        less = torch.linalg.solve(inverse[inside][:, inside], weights[inside])
        without[fold] = weights - inverse[:, inside] @ less  # 0 for the fold itself
    places = len(kernel.distances.moving)
    found = []
    for place in range(places):
        products = kernel.at((places - place) % places).double()  # moving one image forward moves the others back
        answers = torch.zeros_like(truth)
        for fold, fitted in without.items():
            inside = folds == fold
            answers[inside] = products[inside] @ fitted
        found.append(answers)
    return found


def _sureness(answers: Tensor, labels: Tensor) -> Tensor:
    """`(classes,)`: how high the prediction of a class must be to count."""
    level = torch.full((answers.shape[1],), math.inf, dtype=answers.dtype)
    for label in labels.unique().tolist():
        level[label] = answers[labels == label, label].quantile(TYPICAL)
    return level


def _taken(answers: Tensor, sure: Tensor) -> Tensor:
    """The class that each image is taken for, or −1."""
    score, guess = answers.max(dim=1)
    return torch.where(score >= sure[guess], guess, -1)
