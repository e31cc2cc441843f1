"""How a classifier answers when its images move: error, accuracy, consistency, and the loss that moving costs.

    >>> orbit = follow(predict, [(images, labels)], rotations(12), classes)
    >>> orbit.summary()["accuracy"]["mean"]
    >>> orbit.by_class()[0]

Batches are looked at one by one, and of each image a few numbers are kept for each place (300 bytes for 12 of them).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vpgcnn.analysis.layers import still as quiet
from vpgcnn.analysis.moves import Moves
from vpgcnn.analysis.scores import Predict, gap, probabilities, reliability_of
from vpgcnn.errors import UserError

__all__ = ["Orbit", "follow"]


@dataclass(frozen=True, eq=False)
class Orbit:
    """What a classifier says of N images at each of M places.

    labels: `(N,)`. guesses: `(M, N)`. confidence: `(M, N)`, in the label; certainty: `(M, N)`, in the guess; brier:
    `(M, N)`, Σ over classes of (p − 1[label])². distance: `(M, N)`, how far the
    probabilities are from those of the image as it is (total variation, 0 to 1): the invariance error. floor:
    `(M, N)`, the same for the image moved there and back, which is what resampling alone does. averaged: `(N,)`, the
    confidence in the label of the mean prediction over all places; averaged_guess: `(N,)`.
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
        """Whether the label is guessed, `(M, N)`, as numbers."""
        return (self.guesses == self.labels).double()

    @property
    def losses(self) -> Tensor:
        """−log of the confidence in the label, `(M, N)`, in nats."""
        return -self.confidence.clamp_min(1e-300).log()

    @property
    def consistency(self) -> Tensor:
        """For each image, the share of the moved places at which the guess is that of the image as it is: `(N,)`."""
        return (self.guesses[1:] == self.guesses[0]).double().mean(dim=0)

    @property
    def broken(self) -> float:
        """The share of the loss that is due to broken symmetry, from 0 to 1.

        The mean loss over all places, less that of the mean prediction, over the former. It is 0 for an invariant
        classifier, and never negative: −log is convex.
        """
        whole = float(self.losses.mean())
        invariant = float(-self.averaged.clamp_min(1e-300).log().mean())
        return max(0.0, 1 - invariant / whole) if whole > 0 else 0.0

    def calibration(self, place: int | None = None) -> dict[str, Any]:
        """NLL (nats), Brier score and calibration error per image at one place, or over all; bins of `reliability`."""
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
        """The invariance error of images (a mask `(N,)`; all): mean, and largest over images and places; the floor."""
        inside = slice(None) if chosen is None else chosen
        moved, still = self.distance[1:, inside], self.floor[1:, inside]
        if moved.numel() == 0:
            return {"mean": math.nan, "largest": math.nan, "floor": math.nan}
        return {"mean": float(moved.mean()), "largest": float(moved.max()), "floor": float(still.mean())}

    def partial(self, subset: Tensor) -> dict[str, float]:
        """The paper's (S, ε, G)-partial equivariance: the largest error on the subset S `(N,)`, and ε outside it."""
        return {"on": self.errors(subset)["largest"], "epsilon": self.errors(~subset)["largest"]}

    def curve(self, chosen: Tensor, *, low: float = 0.1, high: float = 0.9) -> dict[str, list[float]]:
        """Confidence in the label of some images (a mask), place by place: mean, and a band between two quantiles."""
        own = self.confidence[:, chosen]
        ends = torch.quantile(own, torch.tensor([low, high], dtype=own.dtype), dim=1)
        return {"mean": own.mean(dim=1).tolist(), "low": ends[0].tolist(), "high": ends[1].tolist()}

    def by_class(self) -> list[dict[str, Any]]:
        """Of each class that has images: accuracy as it is, over the circle, at the worst place; error; consistency."""
        found = []
        right, same = self.right, self.consistency
        for label, name in enumerate(self.classes):
            own = self.labels == label
            if not bool(own.any()):
                continue
            accuracy = right[:, own].mean(dim=1)
            said = self.errors(own)
            found.append({
                "class": name,
                "images": int(own.sum()),
                "accuracy": float(accuracy[0]),
                "mean": float(accuracy.mean()),
                "lowest": float(accuracy.min()),
                "lowest_at": self.moves.places[int(accuracy.argmin())],
                "consistency": float(same[own].mean()),
                "error": said["mean"],
                "largest_error": said["largest"],
                "floor": said["floor"],
            })  # fmt: skip
        return found

    def summary(self) -> dict[str, Any]:
        """Numbers for all images together, as JSON takes them."""
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
    told: Callable[[int], None] = lambda _: None,
) -> Orbit:
    """Show a classifier every image at every place.

    predict: images `(B, C, H, W)` in [0, 1] to logits `(B, classes)`, or to what `as_logits` finds them in; a module is
    in evaluation mode meanwhile. batches: of such images and their labels `(B,)`. classes: the names of the logits.
    floor: also show each moved there and back, which costs as much again. told: hears of every image that is done.
    """
    seen: list[dict[str, Tensor]] = []
    with quiet(predict) if isinstance(predict, nn.Module) else nullcontext():
        for images, labels in batches:
            seen.append(_look(predict, images, labels.cpu(), moves, len(classes), floor))
            told(len(labels))
    if not seen:
        raise UserError("there is no image to look at")
    whole = {name: torch.cat([part[name] for part in seen], dim=-1) for name in seen[0]}
    return Orbit(moves=moves, classes=tuple(classes), **whole)


def _look(
    predict: Predict, images: Tensor, labels: Tensor, moves: Moves, classes: int, floor: bool
) -> dict[str, Tensor]:
    """One batch at every place."""
    still = probabilities(predict, images)
    _check(images, labels, still, classes)
    total = torch.zeros_like(still)
    rows: dict[str, list[Tensor]] = {}
    for place in moves.places:
        chances = still if place == 0 else probabilities(predict, moves(images, place))
        total += chances
        sure, guess = chances.max(dim=1)
        own = chances.gather(1, labels[:, None])[:, 0]
        returned = floor and place != 0
        again = probabilities(predict, moves.there_and_back(images, place)) if returned else still
        found = {
            "guesses": guess,
            "certainty": sure,
            "confidence": own,
            "brier": chances.square().sum(dim=1) - 2 * own + 1,
            "distance": _apart(chances, still),
            "floor": _apart(again, still),
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
    """Say what does not fit, before it becomes a number."""
    if chances.shape[1] != classes:
        raise UserError(f"the classifier knows {chances.shape[1]} classes, but {classes} have names")
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise UserError(f"labels are in 0 … {classes - 1}, got {int(labels.min())} … {int(labels.max())}")
    if float(images.max()) > 1.5:
        raise UserError(f"images are numbers in [0, 1], got up to {float(images.max()):g}")
    unsound = (~chances.isfinite()).any(dim=1)
    if bool(unsound.any()):
        raise UserError(f"the classifier answers {int(unsound.sum())} of {len(labels)} images with no number (NaN)")


def _apart(one: Tensor, two: Tensor) -> Tensor:
    """The distance of total variation of rows, 0 to 1."""
    return (one - two).abs().sum(dim=1) / 2
