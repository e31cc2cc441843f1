"""A look at a folder of images without a model: do orientation, hue and mirror matter in these pictures?

Two questions differ. *Are the pictures spread?* If an image cannot be told from its moved copies, the set already
contains them. *Is the class carried?* If the class can be predicted without the place as well as with it, the place may
be ignored. `look_words` turns the answers into sentences and into a command.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

import torch
from torch import Tensor

from vpgcnn.errors import UserError
from vpgcnn.lab.data import DataConfig, load
from vpgcnn.lab.data.base import seeded_generator
from vpgcnn.lab.data.folder import class_names, folders_in, image_files, part_folders, unreadable
from vpgcnn.lab.data.stream import ImageFolder, printable
from vpgcnn.lab.training.progress import Quiet
from vpgcnn.measure import Carried, Circle, Spread, Twin, carried, folds_of, moving_features, spread
from vpgcnn.measure.spread import FEWEST

__all__ = ["Finding", "Look", "ask", "look"]

LIMIT = 1000
SIZES = (16, 64)
"""Smallest and largest side of the images in pixels."""
SURE = 2.576
"""Standard errors on each side of a 99 % interval."""
GREY = 0.02
"""Mean difference of the largest and the smallest channel below which an image is grey."""
NOISE = 0.25
"""Agreement of two halves of the pixels below which images show nothing that could move."""
STILL = 0.1
"""Motion below which images look the same wherever they are moved."""
EVEN, ONE = 0.6, 0.8
"""Pictures are spread if originals are told in fewer pairs than `EVEN`, and all at one place from `ONE` on."""
SAME = 0.58
"""A place is one of the pictures' own if originals are told from copies there in fewer pairs than this."""
EXCEPTION = 3.0
"""Standard errors from which the place matters for a single class, because there are many classes."""
LOSS = 0.05
"""Accuracy that the place may add at most if it does not matter; a quarter of what is known if that is less."""
Spreading = Literal["spread", "partly", "one place", "unclear", "still", "noise", "grey", "few"]
Carrying = Literal["yes", "no", "unclear", "chance", "no classes", "few", "noise", "grey"]


@dataclass(frozen=True, eq=False)
class Finding:
    """The answers to both questions for one change.

    Args:
        change: "rotation", "hue" or "mirror".
        images: Index of each image that took part, `(N,)`; grey images have no hue.
        reliability: Agreement of two halves of the pixels.
        motion: The share of the features of an image that depends on the place.
        spread: Whether originals are told from copies; None if this cannot be asked.
        carried: Whether the place predicts the class; None if this cannot be asked.
        twins: Classes that the change turns into each other.
        spreading: The first answer.
        carrying: The second answer.
        needed: About how many images would settle what is unclear; None if nothing is, or no number would.
    """

    change: Circle
    images: Tensor
    reliability: float
    motion: float
    spread: Spread | None
    carried: Carried | None
    twins: tuple[Twin, ...]
    spreading: Spreading
    carrying: Carrying
    needed: int | None

    @property
    def own_places(self) -> list[float]:
        """Angles, other than 0°, at which copies cannot be told from originals, although others can."""
        if self.spread is None or self.change == "mirror" or self.spreading == "spread":
            return []
        at = self.spread.at_places
        return [360 * place / len(at) for place in range(1, len(at)) if float(at[place]) < SAME]

    @property
    def only_twins(self) -> bool:
        """Whether the place matters because some classes turn into each other, and not for the class on average."""
        if self.carrying != "yes" or self.carried is None:
            return False
        gain, error = self.carried.gain
        return gain <= SURE * error

    def matters_for(self, label: int) -> bool | None:
        """Whether the place carries one class; None if its images cannot show it."""
        if self.carried is None or self.carrying in ("chance", "no classes"):
            return None
        gain, error = self.carried.gain_of(label)
        if any(twin.label == label for twin in self.twins) or gain > max(EXCEPTION * error, LOSS):
            return True
        return False if gain + SURE * error < LOSS else None


@dataclass(frozen=True, eq=False)
class Look:
    """What was looked at, and what was found.

    Args:
        folder: The folder or file.
        classes: Names of the classes; empty without classes.
        total: Number of images there.
        pixels: Images that were looked at, `(N, C, S, S)` in [0, 1].
        labels: `(N,)`; zeros without classes.
        names: The file of each image.
        skipped: Images that cannot be read, path → reason.
        findings: One for each change.
    """

    folder: Path
    classes: tuple[str, ...]
    total: int
    pixels: Tensor
    labels: Tensor
    names: tuple[str, ...]
    skipped: dict[str, str]
    findings: tuple[Finding, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the numbers as plain data."""
        return {
            "folder": printable(self.folder), "images": len(self.labels), "of": self.total,
            "classes": list(self.classes), "skipped": self.skipped,
            "changes": {finding.change: _plain(finding, self.classes) for finding in self.findings},
        }  # fmt: skip


def look(
    folder: Path,
    *,
    limit: int = LIMIT,
    seed: int = 0,
    progress: Quiet | None = None,
    changes: Sequence[Circle] = ("rotation", "hue", "mirror"),
    skip_damaged: bool = True,
) -> Look:
    """Look at the images of a folder.

    Args:
        folder: With one folder per class (perhaps inside train, validation and test: the training images are looked
            at), with images and no classes, or an .npz file.
        limit: Look at this many images at most, drawn at random.
        seed: Seed of that draw.
        progress: Shows a bar.
        changes: What to ask about; of grey images, hue is left out.
        skip_damaged: Whether images that cannot be read are left out, and named in the answer.

    Raises:
        UserError: If there are no images, or none can be read, or one cannot and `skip_damaged` is off.
    """
    if limit < 1:
        raise UserError(f"limit must be at least 1, got {limit}")
    progress = progress or Quiet()
    found = _arrays(folder, limit, seed) if folder.is_file() else _files(folder, limit, seed, progress)
    classes, total, pixels, labels, names, skipped = found
    if skipped and not skip_damaged:
        damaged = {os.path.relpath(path, folder): reason for path, reason in skipped.items()}
        raise unreadable(folder, damaged, len(names) + len(skipped))
    asked = [change for change in changes if change != "hue" or pixels.shape[1] == 3]
    progress.begin("asking", 2 * len(asked))
    findings = tuple(ask(change, pixels, labels if classes else None, progress) for change in asked)
    return Look(folder, classes, total, pixels, labels, names, skipped, findings)


Found = tuple[tuple[str, ...], int, Tensor, Tensor, tuple[str, ...], dict[str, str]]


def _arrays(path: Path, limit: int, seed: int) -> Found:
    whole = load(DataConfig(name=str(path), seed=seed))
    split = whole.all()
    order = torch.randperm(len(split), generator=seeded_generator(seed))[:limit].sort().values
    side = int(split.images.shape[-1])
    pixels = split.images[order].float() / 255
    if side != pixels.shape[-2] or side > SIZES[1] or side < SIZES[0]:
        size = min(SIZES[1], max(SIZES[0], side))
        pixels = torch.nn.functional.interpolate(pixels, (size, size), mode="bilinear", antialias=True)
    return whole.classes, len(split), pixels, split.labels[order], tuple(f"image {int(i)}" for i in order), {}


def _files(folder: Path, limit: int, seed: int, progress: Quiet) -> Found:
    listed = _listed(folder)
    total = len(listed)
    if limit < total:
        order = torch.randperm(total, generator=seeded_generator(seed))[:limit].sort().values.tolist()
        paths, labels = [listed.paths[index] for index in order], [listed.labels[index] for index in order]
        listed = ImageFolder(listed.folder, listed.classes, paths, labels)
    size, channels = _form(listed.paths[:: max(1, len(listed) // 50)])
    progress.begin("reading images", len(listed))
    batches = []
    for batch in listed.batches(size, channels, quick=True):
        batches.append(batch)
        progress.advance(len(batch.images))
    if not batches:
        raise UserError(f"no image in {folder} can be read")
    pixels, labels_ = torch.cat([each.images for each in batches]), torch.cat([each.labels for each in batches])
    indices = torch.cat([each.indices for each in batches]).tolist()
    names = tuple(printable(listed.paths[index].relative_to(listed.folder)) for index in indices)
    return listed.classes, total, pixels, labels_, names, dict(listed.skipped)


def _listed(folder: Path) -> ImageFolder:
    """The images of a folder by class; without classes, those directly inside."""
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}")
    where = part_folders(folder).get("train", folder)
    try:
        classes = class_names(where)
    except UserError:
        inner = [path for path in folders_in(where) if image_files(path) or any(map(image_files, folders_in(path)))]
        loose = image_files(where) or (image_files(inner[0]) if len(inner) == 1 else [])
        if not loose:  # or which images are meant is not clear
            raise
        return ImageFolder(where, (), loose, [0] * len(loose))
    pairs = [(path, label) for label, name in enumerate(classes) for path in image_files(where / name)]
    return ImageFolder(where, classes, [path for path, _ in pairs], [label for _, label in pairs])


def _form(paths: Sequence[Path]) -> tuple[int, int]:
    """The side and the number of channels at which to read images, from the headers of some of them."""
    from PIL import Image, UnidentifiedImageError

    sides, colour = [], False
    for path in paths:
        try:
            with Image.open(path) as image:
                sides.append(min(image.size))
                colour = colour or (image.mode not in ("1", "L", "I", "F", "LA") and not image.mode.startswith("I;16"))
        except (OSError, UnidentifiedImageError, ValueError, SyntaxError, Image.DecompressionBombError):
            continue  # reading all images reports it
    side = round(median(sides)) if sides else SIZES[1]
    return min(SIZES[1], max(SIZES[0], side)), 3 if colour or not sides else 1


def ask(change: Circle, pixels: Tensor, labels: Tensor | None, progress: Quiet) -> Finding:
    """Ask both questions about one change.

    Args:
        change: "rotation", "hue" or "mirror".
        pixels: `(N, C, S, S)` in [0, 1].
        labels: `(N,)`; None without classes.
        progress: Advances by 2.
    """
    chosen = torch.arange(len(pixels))
    if change == "hue":
        chosen = chosen[(pixels.amax(dim=1) - pixels.amin(dim=1)).mean(dim=(1, 2)) >= GREY]
    features = moving_features(pixels[chosen], change) if len(chosen) else None
    if features is None or len(chosen) < FEWEST:
        progress.advance(2)
        if change == "hue" and len(pixels) >= FEWEST:
            return Finding(change, chosen, 0.0, 0.0, None, None, (), "grey", "grey", None)
        needed = _enough(math.sqrt(1 / 12), LOSS)
        return Finding(change, chosen, 0.0, 0.0, None, None, (), "few", "few", needed)
    reliability, motion = features.reliability, features.motion
    if reliability < NOISE:
        progress.advance(2)
        return Finding(change, chosen, reliability, motion, None, None, (), "noise", "noise", None)
    mine = None if labels is None else labels[chosen]
    folds = folds_of(len(chosen) if mine is None else mine)
    told = spread(features, folds)
    progress.advance(1)
    class_of = None if mine is None or len(mine.unique()) < 2 else carried(features, mine, folds)
    progress.advance(1)
    spreading, some = _spreading(told, motion)
    carrying, more = _carrying(class_of)
    twins = () if class_of is None or carrying == "chance" else tuple(class_of.twins())
    carrying = "yes" if twins else carrying
    enough = max(some or 0, more or 0) or None
    return Finding(change, chosen, reliability, motion, told, class_of, twins, spreading, carrying, enough)


def _spreading(found: Spread, motion: float) -> tuple[Spreading, int | None]:
    if motion < STILL:
        return "still", None
    low, high = found.told - SURE * found.error, found.told + SURE * found.error
    if high < EVEN:
        return "spread", None
    if low > ONE:
        own = found.at_places[1:] < SAME
        return ("partly" if len(own) > 1 and bool(own.any()) else "one place"), None
    if high - low < 2 * LOSS or low > EVEN:
        return "partly", None
    return "unclear", _enough(found.error * math.sqrt(len(found.scores)), LOSS)


def _carrying(found: Carried | None) -> tuple[Carrying, int | None]:
    if found is None:
        return "no classes", None
    known, doubt = found.known
    if known < found.chance + SURE * doubt:
        return "chance", None
    gain, error = found.gain
    limit = min(LOSS, (known - found.chance) / 4)
    least = 0.4 * limit
    if gain > SURE * error and gain >= least:
        return "yes", None
    if gain + SURE * error < limit:
        return "no", None
    room = max(gain if gain >= least else 0.0, limit - gain)
    return "unclear", _enough(error * math.sqrt(len(found.labels)), room)


def _enough(deviation: float, room: float) -> int:
    """The number of images, rounded up to two digits, at which an interval is as wide as `room` on each side."""
    count = math.ceil((SURE * deviation / room) ** 2)
    step = 10 ** max(0, len(str(count)) - 2)
    return math.ceil(count / step) * step


def _plain(finding: Finding, classes: Sequence[str]) -> dict[str, Any]:
    told, found = finding.spread, finding.carried
    return {
        "images": len(finding.images),
        "spread": finding.spreading,
        "class_carried": finding.carrying,
        "images_needed": finding.needed,
        "reliability": finding.reliability,
        "motion": finding.motion,
        "told": None if told is None else {"share": told.told, "error": told.error, "at": told.at_places.tolist()},
        "accuracy": None
        if found is None
        else {
            "with": float(found.aware.mean()), "without": float(found.averaged.mean()), "chance": found.chance,
            "gain": found.gain[0], "error": found.gain[1],
        },
        "twins": [
            {
                "class": classes[twin.label], "taken_for": classes[twin.other], "share": twin.share,
                "degrees": None if finding.change == "mirror" or found is None
                else 360 * twin.place / found.taken.shape[1],
            }
            for twin in finding.twins
        ],
    }  # fmt: skip
