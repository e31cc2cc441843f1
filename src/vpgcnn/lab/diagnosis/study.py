"""Everything that is measured for one classifier, one folder of images and one circle of moves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vpgcnn.errors import UserError
from vpgcnn.lab.data.stream import ImageFolder, printable
from vpgcnn.lab.diagnosis.classifiers import Classifier, Standardised
from vpgcnn.lab.diagnosis.look import Finding, Look, look
from vpgcnn.lab.training.progress import Quiet
from vpgcnn.levels import Level
from vpgcnn.measure import (
    LevelReading,
    LocalError,
    Moves,
    Orbit,
    follow,
    idle_levels,
    local_error,
    read_levels,
)
from vpgcnn.measure.motion import Kind
from vpgcnn.measure.scores import cautious

__all__ = ["Study", "study"]

GREY = 3 / 255
"""An image is grey if its channels differ by less than this at every pixel."""
LOCAL = 32
"""The Lie derivative is measured on this many images, spread evenly over the folder."""
SENSITIVE = 0.05
"""A class is sensitive if it loses at least this much accuracy, and at least twice the standard error of the loss."""


@dataclass(frozen=True, eq=False)
class Study:
    """The measurements.

    Args:
        classifier: What was measured.
        folder: The images.
        kind: What moves.
        orbit: Answers for the N images at all places of the circle.
        places: Index of each of these images in the folder.
        seen: What `vpgcnn look` finds in the folder about what moves.
        local: The Lie derivative, if the layers are accessible.
        theta: Layer → θ, `(N, K)`, for networks of vpgcnn.
        grey: Grey images, which were skipped because they have no hue.
        notes: Remarks for the reader.
    """

    classifier: Classifier
    folder: ImageFolder
    kind: Kind
    orbit: Orbit
    places: list[int]
    seen: Look
    local: LocalError | None = None
    theta: dict[str, Tensor] = field(default_factory=dict)
    grey: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def finding(self) -> Finding:
        """What the images alone say."""
        return self.seen.findings[0]

    def loses(self, chosen: Tensor) -> tuple[float, float]:
        """Mean loss of accuracy over the circle for the chosen images (a mask `(N,)`), and its standard error."""
        return cautious((self.orbit.right[0] - self.orbit.right.mean(dim=0))[chosen])

    def sensitive(self, chosen: Tensor) -> bool:
        """Whether the chosen images (a mask `(N,)`) lose more accuracy than chance explains."""
        mean, error = self.loses(chosen)
        return mean >= SENSITIVE and mean >= 2 * error

    def classes(self) -> list[dict[str, Any]]:
        """A row for each class: accuracy, changes, sensitivity, and whether the place carries the class."""
        rows = self.orbit.by_class()
        known = dict(zip(self.orbit.classes, range(len(self.orbit.classes)), strict=True))
        seen = {name: label for label, name in enumerate(self.seen.classes)}
        for row in rows:
            own = self.orbit.labels == known[row["class"]]
            row["sensitive"] = self.sensitive(own)
            row["matters"] = self.finding.matters_for(seen[row["class"]]) if row["class"] in seen else None
            row["theta"] = {layer: float(values[own, 0].mean()) for layer, values in self.theta.items()}
        return rows

    def ranked(self, count: int) -> tuple[list[int], list[int]]:
        """The correctly classified images whose answers change most, and those whose answers change least."""
        moved = self.orbit.distance[1:].mean(dim=0)
        right = self.orbit.right[0].bool().nonzero()[:, 0]
        chosen = right if len(right) else torch.arange(len(moved))
        order = chosen[moved[chosen].argsort(descending=True)].tolist()
        half = min(count, max(1, len(order) // 2)) if len(order) > 1 else len(order)
        return order[:half], order[len(order) - half :][::-1] if len(order) > 1 else []

    def path(self, image: int) -> str:
        """The path of an image of the orbit."""
        return printable(self.folder.paths[self.places[image]])

    def images(self) -> list[dict[str, Any]]:
        """A row for each image, as plain data."""
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
        """All measurements as plain data."""
        local = None
        if self.local is not None:
            local = {
                "images": len(self.local.relative),
                "relative": float(self.local.relative.mean()),
                "absolute": float(self.local.absolute.square().mean().sqrt()),
                "layers": {name.removeprefix("network."): value for name, value in self.local.by_layer().items()},
            }
        return {
            "classifier": self.classifier.name,
            "data": printable(self.folder.folder),
            "size": self.classifier.size,
            **self.orbit.summary(),
            "sensitive_classes": [row["class"] for row in self.classes() if row["sensitive"]],
            "look": self.seen.as_json()["changes"][self.kind],
            "local": local,
            "classes": self.classes(),
            "images_each": self.images(),
            "skipped": self.folder.skipped,
            "grey": self.grey,
            "notes": self.notes,
        }


def study(
    classifier: Classifier,
    folder: ImageFolder,
    moves: Moves,
    names: Sequence[str] | None = None,
    *,
    batch: int = 64,
    look_at: Path | None = None,
    progress: Quiet | None = None,
) -> Study:
    """Show the classifier every image at every place, measure its answers, and look at the images.

    Args:
        classifier: Any classifier.
        folder: Labelled images.
        moves: The places of the circle.
        names: Names of the logits, in order. None: those of the classifier, or the classes of the folder.
        batch: Images at a time.
        look_at: The folder that `look` is asked about; that of the images by default.
        progress: Shows how far it is.
    """
    progress = progress or Quiet()
    classes = _classes(classifier, folder, names)
    if moves.colour and (classifier.channels != 3 or folder.is_grey()):
        what = f"{classifier.name} takes grey images" if classifier.channels != 3 else f"{folder.folder} is all grey"
        raise UserError(f"{what}, and a grey image has no hue to shift: choose --group rotation")
    kind: Kind = "hue" if moves.colour else "rotation"
    label_of = torch.tensor([classes.index(name) for name in folder.classes])
    places: list[int] = []
    grey: list[str] = []
    readings: list[LevelReading] = []
    few: list[Tensor] = []
    looked = set(_even(len(folder), LOCAL))

    def shown() -> Iterator[tuple[Tensor, Tensor]]:
        for part in folder.batches(classifier.size, classifier.channels, batch):
            kept = torch.ones(len(part.labels), dtype=torch.bool)
            if moves.colour:
                kept = (part.images.amax(dim=1) - part.images.amin(dim=1)).amax(dim=(1, 2)) > GREY
                grey.extend(printable(folder.paths[place]) for place in part.indices[~kept].tolist())
            progress.advance(int((~kept).sum()))
            if not bool(kept.any()):
                continue
            images, own = part.images[kept], part.indices[kept].tolist()
            few.append(images[torch.tensor([place in looked for place in own])])
            places.extend(own)
            found = _levels(classifier, images)
            if found is not None:
                readings.append(found)
            yield images, label_of[part.labels[kept]]

    progress.begin(f"{moves.name} of {len(folder)} images", len(folder))
    try:
        orbit = follow(classifier.predict, shown(), moves, classes, floor=not moves.exact, on_progress=progress.advance)
    except UserError:
        if places:
            raise
        first = next(iter(folder.skipped.values()), "")
        why = "all images are grey" if grey else f"none of its {len(folder)} files can be read: {first}"
        raise UserError(f"no usable images in {folder.folder}: {why}") from None
    if len(places) < 2 or not sum(map(len, few)):
        raise UserError(f"too few usable images in {folder.folder}: {len(places)}")
    local, notes = _local(classifier, torch.cat(few), kind)
    seen = look(look_at or folder.folder, progress=progress, changes=[kind])
    theta: dict[str, Tensor] = {}
    if readings:
        theta = {layer: torch.cat([each.theta[layer] for each in readings]) for layer in readings[0].theta}
        notes += idle_levels(replace(readings[0], theta=theta))
    return Study(classifier, folder, kind, orbit, places, seen, local, theta, grey, notes)


def _even(count: int, wanted: int) -> list[int]:
    """Up to `wanted` numbers, spread evenly over 0 … count − 1."""
    return [number * count // min(count, wanted) for number in range(min(count, wanted))]


def _classes(classifier: Classifier, folder: ImageFolder, names: Sequence[str] | None) -> tuple[str, ...]:
    """The names of the logits. Every class of the folder must be one of them."""
    count = classifier.check()
    classes = tuple(names) if names is not None else classifier.classes or folder.classes
    if len(classes) != count:
        hint = "" if names is not None else ": list them with --classes, in the order of the logits"
        raise UserError(f"{classifier.name} has {count} classes, but got names for {len(classes)}{hint}")
    if len(set(classes)) < len(classes):
        raise UserError("two classes have the same name: class names must differ")
    unknown = [name for name in folder.classes if name not in classes]
    if unknown:
        raise UserError(
            f"{folder.folder / unknown[0]} is not a class of {classifier.name}, which has "
            f"{', '.join(classes[:5])}{', …' if len(classes) > 5 else ''}"
        )
    return classes


def _levels(classifier: Classifier, images: Tensor) -> LevelReading | None:
    """What the levels for each image decide in networks of vpgcnn and converted ones; None for others."""
    if not isinstance(classifier.module, Standardised):
        return None
    if not any(isinstance(part, Level) for part in classifier.module.modules()):
        return None
    ready = classifier.module.standardised(images)
    return read_levels(classifier.module.get_submodule("network"), ready).per_image()


def _local(classifier: Classifier, images: Tensor, kind: Kind) -> tuple[LocalError | None, list[str]]:
    """The Lie derivative if the layers are accessible, otherwise a note."""
    if classifier.module is None:
        return None, ["layers were not measured: a classifier in this format does not give access to them"]
    device = next(iter(classifier.module.parameters()), torch.zeros(1)).device
    try:
        return local_error(classifier.module, images.to(device), kind), []
    except Exception as error:  # a foreign network may raise anything
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return None, [f"layers were not measured: {reason}"]
