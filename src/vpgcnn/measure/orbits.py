"""How a classifier answers when its images move: error, accuracy, consistency, and the loss due to broken symmetry.

    >>> orbit = follow(predict, [(images, labels)], rotations(12), classes)
    >>> orbit.summary()["accuracy"]["mean"]
    >>> orbit.by_class()[0]

Batches are processed one by one; for each image and place a few numbers are kept (300 bytes for 12 places).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vpgcnn.errors import UserError
from vpgcnn.measure.layers import still
from vpgcnn.measure.moves import Moves
from vpgcnn.measure.scores import Predict, gap, probabilities, reliability_of

__all__ = ["Orbit", "follow"]


@dataclass(frozen=True, eq=False)
class Orbit:
    """The answers of a classifier for N images at each of M places.

    Args:
        moves: The circle.
        classes: Names of the classes.
        labels: `(N,)`.
        guesses: `(M, N)`.
        confidence: `(M, N)`, probability of the label.
        certainty: `(M, N)`, probability of the guess.
        brier: `(M, N)`, Σ over classes of (p − 1[label])².
        distance: `(M, N)`, the invariance error: total variation distance, in [0, 1], between the probabilities at
            this place and those of the image as it is.
        floor: `(M, N)`, the same for the image moved there and back: what resampling alone does.
        averaged: `(N,)`, probability of the label in the mean prediction over all places.
        averaged_guess: `(N,)`.
    """

    moves: Moves
    classes: tuple[str, ...]
    labels: Tensor
    guesses: Tensor
    confidence: Tensor
    certainty: Tensor
    brier: Tensor
    distance: Tensor
    floor: Tensor
    averaged: Tensor
    averaged_guess: Tensor

    @property
    def right(self) -> Tensor:
        """1 where the guess is the label, `(M, N)`."""
        return (self.guesses == self.labels).double()

    @property
    def losses(self) -> Tensor:
        """−log of the confidence, `(M, N)`, in nats."""
        return -self.confidence.clamp_min(1e-300).log()

    @property
    def consistency(self) -> Tensor:
        """For each image, the share of the other places with the same guess as at the first: `(N,)`."""
        return (self.guesses[1:] == self.guesses[0]).double().mean(dim=0)

    @property
    def broken(self) -> float:
        """The share of the loss that is due to broken symmetry, from 0 to 1.

        The mean loss over all places, minus that of the mean prediction, over the former. It is 0 for an invariant
        classifier, and never negative, as −log is convex.
        """
        whole = float(self.losses.mean())
        invariant = float(-self.averaged.clamp_min(1e-300).log().mean())
        return max(0.0, 1 - invariant / whole) if whole > 0 else 0.0

    def calibration(self, place: int | None = None) -> dict[str, Any]:
        """NLL (nats), Brier score, calibration error and bins of `reliability`, at one place or over all."""
        at = slice(None) if place is None else place
        right, sure = self.right[at].flatten(), self.certainty[at].flatten()
        bins = reliability_of(sure, right)
        return {
            "nll": float(self.losses[at].mean()),
            "brier": float(self.brier[at].mean()),
            "ece": gap(bins),
            "reliability": bins.tolist(),
        }

    def errors(self, chosen: Tensor | None = None) -> dict[str, float]:
        """The invariance error: mean and largest over images and places, and the mean floor.

        Args:
            chosen: A mask `(N,)` of images; all by default.
        """
        inside = slice(None) if chosen is None else chosen
        moved, floor = self.distance[1:, inside], self.floor[1:, inside]
        if moved.numel() == 0:
            return {"mean": math.nan, "largest": math.nan, "floor": math.nan}
        return {"mean": float(moved.mean()), "largest": float(moved.max()), "floor": float(floor.mean())}

    def partial(self, subset: Tensor) -> dict[str, float]:
        """The paper's (S, ε, G)-partial equivariance: the largest error on the subset S, and ε outside it.

        Args:
            subset: A mask `(N,)`.
        """
        return {"on": self.errors(subset)["largest"], "epsilon": self.errors(~subset)["largest"]}

    def curve(self, chosen: Tensor, *, low: float = 0.1, high: float = 0.9) -> dict[str, list[float]]:
        """The confidence at each place: mean, and a band between two quantiles.

        Args:
            chosen: A mask `(N,)` of images.
            low: The lower quantile.
            high: The upper quantile.
        """
        confidence = self.confidence[:, chosen]
        ends = torch.quantile(confidence, torch.tensor([low, high], dtype=confidence.dtype), dim=1)
        return {"mean": confidence.mean(dim=1).tolist(), "low": ends[0].tolist(), "high": ends[1].tolist()}

    def by_class(self) -> list[dict[str, Any]]:
        """For each class with images: accuracy as it is, over the circle and at the worst place; error; consistency."""
        found = []
        right, same = self.right, self.consistency
        for label, name in enumerate(self.classes):
            members = self.labels == label
            if not bool(members.any()):
                continue
            accuracy = right[:, members].mean(dim=1)
            errors = self.errors(members)
            found.append({
                "class": name,
                "images": int(members.sum()),
                "accuracy": float(accuracy[0]),
                "mean": float(accuracy.mean()),
                "lowest": float(accuracy.min()),
                "lowest_at": self.moves.places[int(accuracy.argmin())],
                "consistency": float(same[members].mean()),
                "error": errors["mean"],
                "largest_error": errors["largest"],
                "floor": errors["floor"],
            })  # fmt: skip
        return found

    def summary(self) -> dict[str, Any]:
        """The numbers for all images together, ready for JSON."""
        accuracy = self.right.mean(dim=1)
        classes = self.by_class()
        worst = min(classes, key=lambda row: row["mean"] - row["accuracy"])
        averaged = float((self.averaged_guess == self.labels).double().mean())
        return {
            "moves": self.moves.name,
            "unit": self.moves.unit,
            "places": list(self.moves.places),
            "images": len(self.labels),
            "accuracy": {
                "as it is": float(accuracy[0]),
                "mean": float(accuracy.mean()),
                "lowest": float(accuracy.min()),
                "at": [float(value) for value in accuracy],
                "of the mean prediction": averaged,
            },
            "worst_class": worst["class"],
            "confidence": self.curve(self.labels >= 0),
            "consistency": float(self.consistency.mean()),
            "error": {
                **self.errors(),
                "at": self.distance.mean(dim=1).tolist(),
                "floor_at": self.floor.mean(dim=1).tolist(),
            },
            "calibration": {"as it is": self.calibration(0), "over all": self.calibration()},
            "loss": {
                "as it is": float(self.losses[0].mean()),
                "mean": float(self.losses.mean()),
                "broken": self.broken,
            },
        }


@torch.no_grad()
def follow(
    predict: Predict,
    batches: Iterable[tuple[Tensor, Tensor]],
    moves: Moves,
    classes: Sequence[str],
    *,
    floor: bool = True,
    on_progress: Callable[[int], None] = lambda _: None,
) -> Orbit:
    """Show a classifier every image at every place.

    Args:
        predict: Images `(B, C, H, W)` in [0, 1] to logits `(B, classes)`, or to anything that `as_logits` accepts. A
            module is in evaluation mode meanwhile.
        batches: Pairs of images and labels `(B,)`.
        moves: The circle.
        classes: Names of the classes.
        floor: Whether to show each image moved there and back too, which doubles the cost.
        on_progress: Called with the number of images after each batch.
    """
    parts: list[dict[str, Tensor]] = []
    with still(predict) if isinstance(predict, nn.Module) else nullcontext():
        for images, labels in batches:
            parts.append(_look(predict, images, labels.cpu(), moves, len(classes), floor))
            on_progress(len(labels))
    if not parts:
        raise UserError("there are no images to show")
    whole = {name: torch.cat([part[name] for part in parts], dim=-1) for name in parts[0]}
    return Orbit(moves=moves, classes=tuple(classes), **whole)


def _look(
    predict: Predict, images: Tensor, labels: Tensor, moves: Moves, classes: int, floor: bool
) -> dict[str, Tensor]:
    """One batch at every place."""
    first = probabilities(predict, images)
    _check(images, labels, first, classes)
    total = torch.zeros_like(first)
    rows: dict[str, list[Tensor]] = {}
    for place in moves.places:
        chances = first if place == 0 else probabilities(predict, moves(images, place))
        total += chances
        sure, guess = chances.max(dim=1)
        confidence = chances.gather(1, labels[:, None])[:, 0]
        returned = floor and place != 0
        again = probabilities(predict, moves.there_and_back(images, place)) if returned else first
        found = {
            "guesses": guess,
            "certainty": sure,
            "confidence": confidence,
            "brier": chances.square().sum(dim=1) - 2 * confidence + 1,
            "distance": _distance(chances, first),
            "floor": _distance(again, first),
        }
        for name, values in found.items():
            rows.setdefault(name, []).append(values)
    mean = total / len(moves.places)
    return {
        **{name: torch.stack(values) for name, values in rows.items()},
        "labels": labels,
        "averaged": mean.gather(1, labels[:, None])[:, 0],
        "averaged_guess": mean.argmax(dim=1),
    }


def _check(images: Tensor, labels: Tensor, chances: Tensor, classes: int) -> None:
    """Refuse what does not fit, before it becomes a number."""
    if chances.shape[1] != classes:
        raise UserError(f"the classifier has {chances.shape[1]} classes, but got names for {classes}")
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise UserError(f"labels must be in 0 … {classes - 1}, got {int(labels.min())} … {int(labels.max())}")
    if float(images.max()) > 1.5:
        raise UserError(f"images must be numbers in [0, 1], got up to {float(images.max()):g}")
    unsound = (~chances.isfinite()).any(dim=1)
    if bool(unsound.any()):
        raise UserError(f"the classifier answers {int(unsound.sum())} of {len(labels)} images with NaN or infinity")


def _distance(one: Tensor, two: Tensor) -> Tensor:
    """The total variation distance of rows, in [0, 1]."""
    return (one - two).abs().sum(dim=1) / 2
