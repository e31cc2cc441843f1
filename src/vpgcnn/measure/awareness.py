"""How much levels depend on the image, and how close they are to the truth where it is known.

>>> theta = read_levels(model, images).theta["last"][:, 0]
>>> awareness(theta, labels)["between_classes"]
>>> against_truth(theta, ranges)["rank_correlation"]
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vpgcnn.errors import UserError

__all__ = ["against_truth", "awareness", "mutual_information", "rank_correlation"]

ACTIVE = 0.01
"""A level whose θ has a smaller standard deviation over images is as good as one for all images."""


def awareness(theta: Tensor, labels: Tensor) -> dict[str, float]:
    """How θ of a layer differs between images.

    Args:
        theta: `(N,)`.
        labels: `(N,)`.

    Returns:
        mean, std, lowest, highest: of θ.
        within: standard deviation of θ inside a class.
        between_classes: share of the variance that is between classes.
        information: mutual information of θ and the label, in nats.
        certain: the same as a share of the label's entropy.
        kl: mean of −log θ.
        active: whether θ differs between images at all.
    """
    _check(theta, labels)
    theta = theta.double()
    variance = float(theta.var(correction=0))
    between = 0.0
    for label in labels.unique():
        members = theta[labels == label]
        between += len(members) / len(theta) * float((members.mean() - theta.mean()).square())
    information = mutual_information(theta, labels)
    shares = labels.unique(return_counts=True)[1].double() / len(labels)
    entropy = float(-(shares * shares.log()).sum())
    return {
        "mean": float(theta.mean()),
        "std": math.sqrt(variance),
        "lowest": float(theta.min()),
        "highest": float(theta.max()),
        "within": math.sqrt(max(0.0, variance - between)),
        "between_classes": between / variance if variance > 1e-12 else 0.0,
        "information": information,
        "certain": information / entropy if entropy > 0 else 0.0,
        "kl": float(-theta.clamp_min(1e-12).log().mean()),
        "active": math.sqrt(variance) > ACTIVE,
    }


def mutual_information(values: Tensor, labels: Tensor, bins: int | None = None) -> float:
    """The mutual information of numbers and labels, in nats, at least 0.

    The bias (bins − 1)(classes − 1) / 2N is subtracted (Miller and Madow).

    Args:
        values: `(N,)`.
        labels: `(N,)`.
        bins: Number of bins of about equal size into which the numbers are sorted; N^⅓ by default.
    """
    _check(values, labels)
    bins = max(2, round(len(values) ** (1 / 3))) if bins is None else bins
    edges = torch.quantile(values.double(), torch.linspace(0, 1, bins + 1, dtype=torch.float64)[1:-1]).unique()
    place = torch.bucketize(values.double(), edges)
    _, columns = labels.unique(return_inverse=True)
    table = torch.zeros(int(place.max()) + 1, int(columns.max()) + 1, dtype=torch.float64)
    table.index_put_((place, columns), torch.ones(len(values), dtype=torch.float64), accumulate=True)
    table = table[table.sum(dim=1) > 0] / len(values)
    independent = table.sum(dim=1, keepdim=True) * table.sum(dim=0, keepdim=True)
    whole = float(torch.where(table > 0, table * (table / independent).log(), 0.0).sum())
    chance = (table.shape[0] - 1) * (table.shape[1] - 1) / (2 * len(values))
    return max(0.0, whole - chance)


def rank_correlation(one: Tensor, two: Tensor) -> float:
    """Spearman's rank correlation of two `(N,)`; equal values share a rank. 0 if one of them does not vary."""
    first, second = (_ranks(values) for values in (one, two))
    first, second = first - first.mean(), second - second.mean()
    scale = float(first.norm() * second.norm())
    return float(first @ second) / scale if scale > 0 else 0.0


def against_truth(theta: Tensor, truth: Tensor) -> dict[str, float]:
    """Compare θ with the share of the circle by which each image may move.

    Args:
        theta: `(N,)` in [0, 1].
        truth: `(N,)` in [0, 1].

    Returns:
        error: mean |θ − truth|.
        overlap: intersection over union of the window [−πθ, πθ] and the true one, the mean over images.
        rank_correlation: Spearman's.
    """
    _check(theta, truth)
    if float(truth.min()) < 0 or float(truth.max()) > 1:
        raise UserError(
            f"a true range is a share of the circle and lies in [0, 1], got {float(truth.min())} … {float(truth.max())}"
        )
    theta, truth = theta.double(), truth.double()
    larger = torch.maximum(theta, truth)
    overlap = torch.where(larger > 0, torch.minimum(theta, truth) / larger.clamp_min(1e-12), 1.0)
    return {
        "error": float((theta - truth).abs().mean()),
        "overlap": float(overlap.mean()),
        "rank_correlation": rank_correlation(theta, truth),
    }


def _ranks(values: Tensor) -> Tensor:
    """Ranks from 1; equal values share their mean rank."""
    _, place, counts = values.double().unique(return_inverse=True, return_counts=True)
    return (counts.cumsum(0) - (counts - 1) / 2)[place].double()


def _check(one: Tensor, two: Tensor) -> None:
    if one.dim() != 1 or one.shape != two.shape or not len(one):
        raise UserError(
            f"expected one number for each image in both tensors, got {tuple(one.shape)}, {tuple(two.shape)}"
        )
