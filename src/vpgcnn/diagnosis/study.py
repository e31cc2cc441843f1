"""One classifier, one folder of images, one circle of moves: all that is measured, as plain data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from vpgcnn.analysis import (
    Evidence,
    LocalError,
    Moves,
    Orbit,
    circle_picture,
    evidence,
    follow,
    local_error,
    read_theta,
)
from vpgcnn.analysis.evidence import cautious
from vpgcnn.analysis.motion import Kind
from vpgcnn.data.stream import ImageFolder, readable
from vpgcnn.diagnosis.classifiers import Classifier
from vpgcnn.errors import UserError
from vpgcnn.training.progress import Quiet

__all__ = ["Study", "study"]

GREY = 3 / 255
"""An image whose channels differ by less everywhere has no hue."""
LOCAL = 32
"""Images of which the Lie derivative is taken, even over the folder."""
WITNESSES = 3000
"""Images that are compared with each other, at most."""
SENSITIVE = 0.05
"""A class is sensitive when it loses this much of its accuracy, and twice the standard error of what it loses."""


@dataclass(frozen=True, eq=False)
class Study:
    """What was found.

    orbit: of the images in `places` of the folder's list. kind: what moves. local: the Lie derivative, where the
    network can be looked into. theta: layer → `(N, K)` for our own networks. grey: images without a hue, left out.
    notes: what a reader should know besides.
    """

    classifier: Classifier
    folder: ImageFolder
    kind: Kind
    orbit: Orbit
    places: list[int]
    witness: Evidence
    local: LocalError | None = None
    theta: dict[str, Tensor] = field(default_factory=dict)
    grey: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def loses(self, chosen: Tensor) -> tuple[float, float]:
        """Accuracy that some images (a mask) lose over the circle, on average: mean and standard error."""
        return cautious((self.orbit.right[0] - self.orbit.right.mean(dim=0))[chosen])

    def sensitive(self, chosen: Tensor) -> bool:
        """Whether these images lose accuracy, beyond chance."""
        mean, error = self.loses(chosen)
        return mean >= SENSITIVE and mean >= 2 * error

    def classes(self) -> list[dict[str, Any]]:
        """A row for each class: accuracies, errors, whether it is sensitive, and what its place on the circle tells."""
        rows = self.orbit.by_class()
        known = dict(zip(self.orbit.classes, range(len(self.orbit.classes)), strict=True))
        for row in rows:
            own = self.orbit.labels == known[row["class"]]
            seen = self.witness.labels == known[row["class"]]
            row["sensitive"] = self.sensitive(own)
            row["neighbours"] = {
                "as it is": _mean(self.witness.as_is[seen]),
                "moved to fit": _mean(self.witness.free[seen]),
            }
            row["circle_tells"] = self.witness.matters(seen)
            row["theta"] = {layer: float(values[own, 0].mean()) for layer, values in self.theta.items()}
        return rows

    def ranked(self, count: int) -> tuple[list[int], list[int]]:
        """Of the images that are classified rightly as they are: those whose answer moves most, and least."""
        moved = self.orbit.distance[1:].mean(dim=0)
        right = self.orbit.right[0].bool().nonzero()[:, 0]
        chosen = right if len(right) else torch.arange(len(moved))
        order = chosen[moved[chosen].argsort(descending=True)].tolist()
        half = min(count, max(1, len(order) // 2)) if len(order) > 1 else len(order)
        return order[:half], order[len(order) - half :][::-1] if len(order) > 1 else []

    def path(self, image: int) -> str:
        """The file of the n-th image of the orbit."""
        return readable(self.folder.paths[self.places[image]])

    def images(self) -> list[dict[str, Any]]:
        """A row for each image, as JSON takes them."""
        orbit = self.orbit
        return [
            {
                "file": self.path(image),
                "class": orbit.classes[int(orbit.labels[image])],
                "guess": orbit.classes[int(orbit.guesses[0, image])],
                "confidence": [round(float(value), 4) for value in orbit.confidence[:, image]],
                "error": round(float(orbit.distance[1:, image].mean()), 5),
                "consistency": round(float(orbit.consistency[image]), 4),
                "theta": {layer: round(float(values[image, 0]), 4) for layer, values in self.theta.items()},
            }
            for image in range(len(orbit.labels))
        ]

    def as_json(self) -> dict[str, Any]:
        """Everything."""
        local = None
        if self.local is not None:
            local = {
                "images": len(self.local.relative),
                "relative": float(self.local.relative.mean()),
                "absolute": float(self.local.absolute.square().mean().sqrt()),
                "layers": {name.removeprefix("network."): value for name, value in self.local.by_layer().items()},
            }
        mean, error = self.witness.told()
        return {
            "classifier": self.classifier.name,
            "data": readable(self.folder.folder),
            "size": self.classifier.size,
            **self.orbit.summary(),
            "sensitive_classes": [row["class"] for row in self.classes() if row["sensitive"]],
            "neighbours": {
                "as it is": _mean(self.witness.as_is),
                "moved to fit": _mean(self.witness.free),
                "chance": self.witness.chance,
                "difference": mean,
                "standard_error": error if math.isfinite(error) else None,
            },
            "local": local,
            "classes": self.classes(),
            "images_each": self.images(),
            "skipped": self.folder.skipped,
            "grey": self.grey,
            "notes": self.notes,
        }


def _mean(values: Tensor) -> float | None:
    return float(values.double().mean()) if len(values) else None


def study(
    classifier: Classifier,
    folder: ImageFolder,
    moves: Moves,
    names: Sequence[str] | None = None,
    *,
    batch: int = 64,
    progress: Quiet | None = None,
) -> Study:
    """Show the classifier every image at every place, and measure.

    names: of the logits, in their order; otherwise those of the classifier, or the folder's own classes.
    """
    progress = progress or Quiet()
    classes = _classes(classifier, folder, names)
    if moves.colour and (classifier.channels != 3 or folder.grey()):
        what = f"{classifier.name} takes" if classifier.channels != 3 else f"the images in {folder.folder} are"
        raise UserError(f"{what} grey: a grey image has no hue that could be moved")
    kind: Kind = "hue" if moves.colour else "rotation"
    label_of = torch.tensor([classes.index(name) for name in folder.classes])
    places: list[int] = []
    grey: list[str] = []
    pictures: list[Tensor] = []
    theta: dict[str, list[Tensor]] = {}
    few: list[Tensor] = []
    asked = set(_even(len(folder), WITNESSES))
    looked = set(_even(len(folder), LOCAL))
    witnesses: list[int] = []

    def shown() -> Iterator[tuple[Tensor, Tensor]]:
        for part in folder.batches(classifier.size, classifier.channels, batch):
            kept = torch.ones(len(part.labels), dtype=torch.bool)
            if moves.colour:
                kept = (part.images.amax(dim=1) - part.images.amin(dim=1)).amax(dim=(1, 2)) > GREY
                grey.extend(readable(folder.paths[place]) for place in part.places[~kept].tolist())
            progress.advance(int((~kept).sum()))
            if not bool(kept.any()):
                continue
            images, own = part.images[kept], part.places[kept].tolist()
            chosen = [place in asked for place in own]
            witnesses.extend(len(places) + number for number, wanted in enumerate(chosen) if wanted)
            pictures.append(circle_picture(images[torch.tensor(chosen)], kind))
            few.append(images[torch.tensor([place in looked for place in own])])
            places.extend(own)
            for layer, values in _theta(classifier, images).items():
                theta.setdefault(layer, []).append(values)
            yield images, label_of[part.labels[kept]]

    progress.begin(f"{moves.name} of {len(folder)} images", len(folder))
    try:
        orbit = follow(classifier.predict, shown(), moves, classes, floor=not moves.exact, told=progress.advance)
    except UserError:
        if places:
            raise
        first = next(iter(folder.skipped.values()), "")
        why = f"all {len(grey)} images are grey" if grey else f"none of {len(folder)} images can be read: {first}"
        raise UserError(f"there is nothing to look at in {folder.folder}: {why}") from None
    if len(witnesses) < 2 or not sum(map(len, few)):
        raise UserError(f"{len(places)} images of {folder.folder} can be looked at: too few")
    local, notes = _local(classifier, torch.cat(few), kind)
    witness = evidence(torch.cat(pictures), orbit.labels[witnesses])
    levels = {layer: torch.cat(parts) for layer, parts in theta.items()}
    return Study(classifier, folder, kind, orbit, places, witness, local, levels, grey, notes)


def _even(count: int, wanted: int) -> list[int]:
    """Up to `wanted` places, even among `count`."""
    return [number * count // min(count, wanted) for number in range(min(count, wanted))]


def _classes(classifier: Classifier, folder: ImageFolder, names: Sequence[str] | None) -> tuple[str, ...]:
    """The names of the logits; every class of the folder is one of them."""
    count = classifier.check()
    classes = tuple(names) if names is not None else classifier.classes or folder.classes
    if len(classes) != count:
        hint = "" if names is not None else ": name them all with --classes, in the order of the logits"
        raise UserError(f"{classifier.name} knows {count} classes, but {len(classes)} names are there{hint}")
    if len(set(classes)) < len(classes):
        raise UserError("two classes have the same name")
    unknown = [name for name in folder.classes if name not in classes]
    if unknown:
        raise UserError(
            f"{folder.folder / unknown[0]} is a class that {classifier.name} does not know: it knows "
            f"{', '.join(classes[:5])}{', …' if len(classes) > 5 else ''}"
        )
    return classes


def _theta(classifier: Classifier, images: Tensor) -> dict[str, Tensor]:
    """θ of our own networks; of others nothing."""
    if classifier.card is None or classifier.module is None:
        return {}
    network = classifier.module.get_submodule("network")
    device = next(network.parameters()).device
    return read_theta(network, images.to(device), prepare=lambda part: classifier.card.standardised(255 * part))  # type: ignore[union-attr]


def _local(classifier: Classifier, images: Tensor, kind: Kind) -> tuple[LocalError | None, list[str]]:
    """The Lie derivative, where the network can be looked into."""
    if classifier.module is None:
        return None, ["layers cannot be looked at one by one in a network of this form"]
    device = next(iter(classifier.module.parameters()), torch.zeros(1)).device
    try:
        return local_error(classifier.module, images.to(device), kind), []
    except Exception as error:  # a network that is not ours may do anything
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return None, [f"its layers could not be looked at one by one: {reason}"]
