"""Open or close the windows of a trained network as far as a stated loss of accuracy allows; see `vpgcnn tune`."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from vpgcnn.errors import UserError
from vpgcnn.lab.config_io import from_json
from vpgcnn.lab.data import Split
from vpgcnn.lab.networks import to_unit
from vpgcnn.lab.training.checkpoint import read_tensors
from vpgcnn.lab.training.progress import Quiet
from vpgcnn.levels import set_dial
from vpgcnn.measure import Circle, at_places, images_needed, read_levels, smallest_cost, widest

__all__ = ["DIALS", "Point", "Tuning", "read_tuning", "tune"]

DIALS = tuple(round(-1 + step / 10, 1) for step in range(21))
"""The dials that are tried, from closed to open."""
TUNED = "tuned.safetensors"
"""The file that `vpgcnn tune` writes next to the weights."""
MOVED = 200
"""How many images are moved, at most, to measure robustness."""


@dataclass(frozen=True)
class Point:
    """The network at one setting of its dial.

    Args:
        dial: From −1 (all windows closed) over 0 (as learned) to 1 (all open).
        theta: Mean θ over images and levels.
        accuracy: On the images as they are.
        cost: Accuracy that is lost against closed windows.
        moved: Accuracy of moved images, as if all of them might be moved: its growth with the dial is what the cost
            buys.
    """

    dial: float
    theta: float
    accuracy: float
    cost: float
    moved: float


@dataclass(frozen=True)
class Tuning:
    """What `tune` found.

    Args:
        dial: The chosen setting.
        at_most: The promise: on new images, windows cost at most this much accuracy against closed ones.
        confidence: Of the promise.
        images: The number of images that it rests on.
        points: The network at every setting.
    """

    dial: float
    at_most: float
    confidence: float
    images: int
    points: tuple[Point, ...]

    @property
    def warning(self) -> str:
        """A sentence if closed windows are worse than the learned ones: then the promise is worth little; or empty."""
        closed, learned = self.points[0].accuracy, next(point.accuracy for point in self.points if point.dial == 0)
        if closed >= learned - self.at_most:
            return ""
        return (
            f"closed windows ({closed:.1%}) are worse than the learned ones ({learned:.1%}): the network was not "
            "trained to answer at every width, so a cost against closed windows says little"
        )


@torch.no_grad()
def read_tuning(weights: Path) -> Tuning | None:
    """What `vpgcnn tune` found for these weights, from the file that it wrote; None if it did not run since.

    Args:
        weights: The weights of a run, with `tuned.safetensors` beside them, or a file that `vpgcnn tune` wrote.

    Raises:
        UserError: If a file is damaged.
    """
    tensors, description = read_tensors(weights)
    if "tuned" not in description:
        beside = weights.parent / TUNED
        if not beside.is_file():
            return None
        own, description = read_tensors(beside)
        if not _same_but_dials(tensors, own):
            return None  # trained again, or another epoch
    return from_json(Tuning, description["tuned"], str(weights)) if "tuned" in description else None


def _same_but_dials(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    return one.keys() == two.keys() and all(
        name.endswith(".dial") or torch.equal(values, two[name]) for name, values in one.items()
    )


def tune(
    model: nn.Module,
    split: Split,
    *,
    at_most: float,
    circle: Circle,
    confidence: float = 0.95,
    seed: int = 0,
    progress: Quiet | None = None,
) -> Tuning:
    """Choose the most open setting of a network's dial that certainly costs at most so much accuracy.

    The model is not changed; `set_dial` applies the result.

    Args:
        model: A network with a window for each image, trained to answer at every width (`Variational.explore`).
        split: Images that it was not trained on, with labels. The promise holds for images like these, if they are
            independent: frames of one video, or copies of one photograph, are not.
        at_most: The allowed loss of accuracy against closed windows, in (0, 1): 0.005 is half a point.
        circle: What moves the images to measure robustness.
        confidence: Of the promise, in (0, 1).
        seed: Of the order in which images are tested.
        progress: Counts the settings.

    Returns:
        The setting, and the network's accuracy and robustness at every setting.

    Raises:
        UserError: If there are too few images for such a promise.
    """
    if not 0 < at_most < 1:
        raise UserError(f"the allowed cost is a share of the images, between 0 and 1, got {at_most}")
    if not 0 < confidence < 1:
        raise UserError(f"the confidence must be between 0 and 1, got {confidence}")
    needed = images_needed(at_most, confidence)
    if len(split) < needed:
        least = smallest_cost(len(split), confidence)
        allowed = "" if least is None else f"allow a cost of {100 * least:g} % (--may-cost {100 * least:g}%), or "
        raise UserError(
            f"a cost of at most {100 * at_most:g} % at {100 * confidence:g} % confidence needs at least {needed} "
            f"images, got {len(split)}: {allowed}give more images"
        )
    progress = progress or Quiet()
    model = copy.deepcopy(model).eval()
    order = torch.randperm(len(split), generator=torch.Generator().manual_seed(seed))
    split = split[order]
    some = to_unit(split.images[:MOVED].to(next(model.parameters()).device))

    def predict(pixels: Tensor) -> Tensor:
        logits: Tensor = model(pixels)[0]
        return logits

    points, rights = [], []
    progress.begin("settings", len(DIALS))
    for dial in DIALS:
        set_dial(model, dial)
        reading = read_levels(model, split.images)
        rights.append((reading.logits.argmax(dim=1) == split.labels).double())
        theta = torch.stack([values.mean() for values in reading.per_image().theta.values()]).mean()
        moved = at_places(predict, some, split.labels[:MOVED], None, circle).moved
        right, cost = float(rights[-1].mean()), float((rights[0] - rights[-1]).mean())
        points.append(Point(dial, float(theta), right, cost, float(moved or 0.0)))
        progress.advance(1)
    costs = torch.stack([rights[0] - right for right in rights])
    chosen = widest(DIALS, costs, at_most=at_most, confidence=confidence)
    assert chosen is not None  # closed windows cost nothing against themselves
    return Tuning(chosen, at_most, confidence, len(split), tuple(points))
