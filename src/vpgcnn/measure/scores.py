"""Scores of class probabilities, and probabilities under transformations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from vpgcnn.errors import UserError
from vpgcnn.features import output_of

__all__ = [
    "as_logits",
    "brier",
    "calibration_error",
    "cautious",
    "gap",
    "nll",
    "orbit_probabilities",
    "probabilities",
    "reliability",
    "reliability_of",
]

Predict = Callable[[Tensor], object]
"""From images `(B, C, H, W)` to logits `(B, classes)`, or to anything that `as_logits` accepts."""


def as_logits(output: object) -> Tensor:
    """The logits in a classifier's answer; rows that are probabilities become their logarithms.

    Args:
        output: A tensor, or a tuple, mapping or dataclass whose first tensor is taken.

    Returns:
        `(N, classes)`.
    """
    logits = output_of(output)
    if not isinstance(logits, Tensor) or logits.dim() != 2:
        shape = f" of shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else ""
        raise UserError(f"a classifier must answer with logits, images × classes; got a {type(logits).__name__}{shape}")
    if bool((logits >= 0).all()):
        sums = logits.detach().sum(dim=1)
        if torch.allclose(sums, torch.ones_like(sums), atol=1e-3):
            return logits.clamp_min(torch.finfo(logits.dtype).tiny).log()
    return logits


@torch.no_grad()
def probabilities(predict: Predict, images: Tensor, *, batch: int = 256) -> Tensor:
    """Class probabilities `(N, classes)` of images `(N, C, H, W)`, on the CPU in double precision."""
    return torch.cat([as_logits(predict(part)).double().softmax(dim=1).cpu() for part in images.split(batch)])


def orbit_probabilities(
    predict: Predict,
    images: Tensor,
    moves: Sequence[Callable[[Tensor], Tensor]],
    *,
    batch: int = 256,
    on_progress: Callable[[int], None] = lambda _: None,
) -> Tensor:
    """Class probabilities of all images under each of M transformations.

    Args:
        predict: The classifier.
        images: `(N, C, H, W)`.
        moves: The transformations.
        batch: Images at a time.
        on_progress: Called with 1 after each transformation.

    Returns:
        `(M, N, classes)`.
    """
    rows = []
    for move in moves:
        rows.append(probabilities(lambda part, move=move: predict(move(part)), images, batch=batch))  # type: ignore[misc]
        on_progress(1)
    return torch.stack(rows)


def nll(chances: Tensor, labels: Tensor) -> float:
    """Mean of −log p(label) per image, in nats."""
    return float(-chances.gather(1, labels[:, None]).clamp_min(1e-300).log().mean())


def brier(chances: Tensor, labels: Tensor) -> float:
    """Mean per image of Σ over classes of (p − 1[label])², from 0 to 2."""
    truth = torch.nn.functional.one_hot(labels, chances.shape[1])
    return float((chances - truth).square().sum(dim=1).mean())


def calibration_error(chances: Tensor, labels: Tensor, bins: int = 15) -> float:
    """Expected calibration error, in [0, 1]: |confidence − accuracy| over bins of equal width."""
    return gap(reliability(chances, labels, bins))


def gap(bins: Tensor) -> float:
    """The mean |confidence − accuracy| of bins from `reliability`."""
    confidence, accuracy, share = bins.unbind(1)
    return float((share * (confidence - accuracy).abs()).sum())


def reliability(chances: Tensor, labels: Tensor, bins: int = 15) -> Tensor:
    """Mean confidence, accuracy and share of the images in each of `bins` bins of equal width.

    Args:
        chances: `(N, classes)`.
        labels: `(N,)`.
        bins: How many.

    Returns:
        `(bins, 3)`; a bin without images is 0 everywhere.
    """
    confidence, guess = chances.max(dim=1)
    return reliability_of(confidence, (guess == labels).to(chances.dtype), bins)


def reliability_of(confidence: Tensor, right: Tensor, bins: int = 15) -> Tensor:
    """The same from the confidence of each guess and 1 where it is right, both `(N,)`."""
    place = (confidence * bins).long().clamp(0, bins - 1)
    each = torch.stack([confidence, right, torch.ones_like(right)], dim=1)
    sums = torch.zeros(bins, 3, dtype=confidence.dtype).index_add(0, place, each)
    counts = sums[:, 2:].clamp_min(1)
    return torch.cat([sums[:, :2] / counts, sums[:, 2:] / len(right)], dim=1)


def cautious(values: Tensor) -> tuple[float, float]:
    """The mean of numbers in [−1, 1], and a standard error that stays above 0 when a few numbers agree.

    The error is that about 0, with one more number of size 1.
    """
    if not len(values):
        return 0.0, math.inf
    square = (float(values.square().sum()) + 1) / (len(values) + 1)
    return float(values.mean()), math.sqrt(square / len(values))
