"""Are images spread along a circle? A cross-validated test of whether an image can be told from its moved copies.

If the images are spread evenly (as many upside down as upright), then an image and its copies are equally likely, and
no classifier can tell which of them is the original. The test fits a linear score on the other images, and asks how
often the original has a higher score than its copy. That share is 50 % for spread images, whatever the classifier, and
100 % if the place can always be told. The fits of different folds share images, so their errors are not independent:
how far the share strays by chance is measured on sets in which every image is replaced by a random copy of itself.

    >>> found = spread(moving_features(images, "rotation"), folds_of(len(images)))
    >>> found.told, found.error                 # 0.95, 0.003 for upright digits
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from vpgcnn.errors import UserError
from vpgcnn.measure.moving import MovingFeatures

__all__ = ["FEWEST", "Spread", "folds_of", "spread"]

FOLDS = 10
FEWEST = 20
"""Images without which nothing is fitted."""
HARMONICS = 8
CHANCES = 101
"""The number of sets that are tried: the images themselves, and sets of random copies."""
RIDGE = 0.1
"""Added to the variances of the features, as a share of their mean."""


@dataclass(frozen=True, eq=False)
class Spread:
    """How well the original can be told from its copies.

    Args:
        scores: `(N, K)` of each image and its copies; the first is the original. Each from a fit without that image.
        by_chance: `told` for sets of random copies, which are spread.
    """

    scores: Tensor
    by_chance: Tensor

    @property
    def of_images(self) -> Tensor:
        """`(N,)`: the share of its copies from which each original is told; a tie counts half."""
        return self._wins().mean(dim=1)

    @property
    def at_places(self) -> Tensor:
        """`(K,)`: the share of originals that are told from their copy at each place; 0.5 at the first."""
        return torch.cat([torch.tensor([0.5], dtype=torch.float64), self._wins().mean(dim=0)])

    @property
    def told(self) -> float:
        """The share of pairs of an original and a copy in which the original is told: 0.5 if images are spread."""
        return float(self.of_images.mean())

    @property
    def error(self) -> float:
        """The standard error of `told`, from its spread over images and from how far it strays by chance."""
        images = self.of_images
        guess = 0.5 if self.scores.shape[1] == 2 else math.sqrt(1 / 12)
        deviation = float((images - images.mean()).square().mean().sqrt())
        strays = float((self.by_chance - 0.5).square().mean().sqrt())
        inflation = max(1.0, strays / (guess / math.sqrt(len(images))))
        return inflation * max(deviation, guess / math.sqrt(len(images))) / math.sqrt(len(images))

    def _wins(self) -> Tensor:
        first, others = self.scores[:, :1], self.scores[:, 1:]
        return (first > others).double() + 0.5 * (first == others).double()


def folds_of(labels: Tensor | int, count: int = FOLDS) -> Tensor:
    """Divide images into folds of neighbours, class by class.

    Files of one burst, video or session have neighbouring names: in one fold, they do not predict each other. Folds
    take the same part of every class, so that copies of an image in two classes tend to stay together.

    Args:
        labels: `(N,)`, in the order of the file names; or N, if there are no classes.
        count: The number of folds.

    Returns:
        The number of the fold of each image, `(N,)`.
    """
    labels = torch.zeros(labels, dtype=torch.long) if isinstance(labels, int) else labels
    folds = torch.zeros(len(labels), dtype=torch.long)
    for label in labels.unique().tolist():
        members = (labels == label).nonzero()[:, 0]
        first = label if len(members) < count else 0  # else small classes would all be in the same few folds
        folds[members] = (torch.arange(len(members)) * count // len(members) + first) % count
    return folds


@torch.no_grad()
def spread(features: MovingFeatures, folds: Tensor) -> Spread:
    """Score every image and its copies by a fit on the images of the other folds.

    Args:
        features: Of at least `FEWEST` images.
        folds: `(N,)`, from `folds_of`.
    """
    if len(features) < FEWEST or folds.shape != (len(features),):
        raise UserError(f"expected at least {FEWEST} images and the fold of each, got {len(features)}")
    count, waves = features.count, _waves(features)
    frequency = torch.arange(1, waves.shape[2] + 1, dtype=torch.float64)
    turns = torch.exp(-2j * math.pi / count * torch.outer(torch.arange(count, dtype=torch.float64), frequency))
    turns = turns if waves.is_complex() else turns.real
    moved = torch.randint(count, (len(features), CHANCES), generator=torch.Generator().manual_seed(0))
    moved[:, 0] = 0  # the images themselves
    scores = torch.zeros(len(features), count, dtype=torch.float64)
    wins = torch.zeros(len(features), CHANCES, dtype=torch.float64)
    for fold in folds.unique():
        inside = folds == fold
        alike = _discriminant(waves[inside], waves[~inside])
        along = alike @ turns[moved[~inside]].conj().permute(2, 0, 1)  # frequency, image of the fold, set
        around = torch.einsum("mnb,km->nkb", along, turns).real  # copies at all places
        first = around.gather(1, moved[inside][:, None])
        rank = (first > around).double().sum(dim=1) + 0.5 * ((first == around).double().sum(dim=1) - 1)
        scores[inside], wins[inside] = around[:, :, 0], rank / (count - 1)
    return Spread(scores, wins[:, 1:].mean(dim=0))


def _waves(features: MovingFeatures) -> Tensor:
    """`(N, C, M)`: what a move multiplies by a phase: frequencies, or for the mirror what changes its sign."""
    if features.change == "mirror":
        odd = (features.copy(0) - features.copy(1)).double().view_as(features.values) / 2
        place = torch.arange(odd.shape[2])
        once = place <= (odd.shape[2] // 2 - place) % odd.shape[2]  # the other places hold the same numbers
        return odd[:, :, once].flatten(1)[:, :, None]
    return torch.fft.rfft(features.values.double(), dim=2)[:, :, 1 : HARMONICS + 1]


def _discriminant(some: Tensor, rest: Tensor) -> Tensor:
    """`(M, n, N)`: linear discriminants of the rest, as products of some images with each of the rest.

    Frequencies are fitted one by one: over all copies of all images, they are uncorrelated. Moves change only phases,
    and not the variances, so one fit serves all sets of copies.
    """
    products = torch.einsum("ncm,ndm->mcd", rest, rest.conj()) / len(rest)
    sizes = products.diagonal(dim1=1, dim2=2).abs()
    ridge = RIDGE * sizes.mean().clamp_min(1e-12) * torch.eye(products.shape[1], dtype=products.dtype)
    weights = torch.linalg.solve(products + ridge, rest.permute(2, 1, 0))  # M, C, N
    return torch.einsum("mcj,ncm->mnj", weights.conj(), some)
