"""Settings for a user's images, chosen by looking at the images, with the reasons."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Literal

import torch
from torch import Tensor

from vpgcnn.errors import UserError
from vpgcnn.groups import SO2, Hue, Product
from vpgcnn.lab.data import DataConfig, load
from vpgcnn.lab.data.folder import part_folders
from vpgcnn.lab.data.images import read_image
from vpgcnn.lab.data.stream import ImageFolder
from vpgcnn.lab.networks import ModelConfig, PlainConfig, SE2Config, symmetry
from vpgcnn.lab.networks.config import COLOR_RESNET_SMALL, PLAIN_RESNET_SMALL, RESNET_SMALL
from vpgcnn.lab.training.config import OptimiserConfig, TrainConfig
from vpgcnn.measure import Evidence, Kind, circle_picture, evidence

__all__ = ["Choice", "Suggestion", "suggest"]

Choice = Literal["auto", "hue", "rotation", "both", "none", "color"]
SIZES = (32, 64)
"""Smallest and largest side of the images in pixels, unless a size is given."""
SAMPLE = 600
"""Images from which the symmetry is chosen, at most."""
TAIL = 3.0
"""Ratio of the largest to the smallest class from which all classes count equally."""
FEW = 30
"""Number of held-out images below which there is a warning."""
STEPS, FEWEST, MOST = 1200, 10, 80
"""Steps to aim for, and the smallest and largest number of epochs."""
NETWORKS: dict[str, ModelConfig] = {
    "hue": COLOR_RESNET_SMALL,
    "rotation": RESNET_SMALL,
    "both": replace(RESNET_SMALL, group=Product(SO2(4), Hue(3))),
    "none": PLAIN_RESNET_SMALL,
}


@dataclass(frozen=True)
class Suggestion:
    """Settings for a user's images.

    Args:
        config: The run.
        messages: The reasons, in sentences.
        symmetry: The symmetry that was chosen.
    """

    config: TrainConfig
    messages: tuple[str, ...]
    symmetry: Choice


def suggest(
    path: Path, *, choice: Choice = "auto", network: ModelConfig | None = None, size: int | None = None, seed: int = 0
) -> Suggestion:
    """Choose the settings of a run on a user's images.

    Args:
        path: A folder (folder/class/*.png, perhaps inside train, validation and test) or an .npz file.
        choice: The symmetry to build in. auto: the one that says least about the class, judged from the images.
        network: A network to use instead of the one that fits the symmetry.
        size: Side of the images in pixels; by default their median, within `SIZES`.
        seed: Seed of the split and of the sample of images.
    """
    if not path.exists():
        raise UserError(f"there is no folder or file {path}")
    look = _look(path, size, seed)
    messages = [f"{look.count} images of {len(look.counts)} classes, {look.size} × {look.size} pixels"]
    found = {kind: evidence(circle_picture(look.images, kind), look.labels) for kind in look.kinds}
    messages += [_sentence(kind, witness) for kind, witness in found.items()]
    if network is not None:
        picked: Choice = symmetry(network)
    elif choice == "auto":
        least: Kind = min(found, key=lambda kind: found[kind].share)  # of equals the first: hue
        picked = least
        messages.append(_choice(least, found))
    else:
        picked = choice
    if picked in ("hue", "both") and "hue" not in look.kinds and network is None:
        raise UserError(f"the images of {path} are grey and have no hue: choose --group rotation or none")
    model = network or _fitted(NETWORKS[picked], look.size)
    ratio = max(look.counts) / min(look.counts)
    if ratio >= TAIL:
        messages.append(
            f"classes have {min(look.counts)} to {max(look.counts)} images: all classes count equally "
            "(--balance 0: by their number of images)"
        )
    held = round(look.count * look.share_out)
    if held < FEW:
        left = "image is" if held == 1 else "images are"
        messages.append(f"only {held} {left} left for validation and test: their scores will be rough")
    training = max(1, int(look.count * (1 - look.share_out)))
    batch = next(size for size in (64, 32, 16, 8, 4, 2, 1) if size <= max(1, training // 4))
    epochs = min(MOST, max(FEWEST, round(STEPS / max(1, training // batch))))
    augment: Literal["resized-crop", "shift"] = "resized-crop" if look.size >= 48 else "shift"
    config = TrainConfig(
        data=DataConfig(name=str(path.resolve()), size=look.size, seed=seed, augment=augment),
        model=model,
        balance=1.0 if ratio >= TAIL else 0.0,
        optimiser=OptimiserConfig("adam", 1e-3, 1e-5),
        batch_size=batch,
        epochs=epochs,
    )
    return Suggestion(config, tuple(messages), picked)


@dataclass(frozen=True, eq=False)
class _Look:
    """A first look at the data.

    Args:
        images: A sample, `(N, C, size, size)` in [0, 1].
        labels: Their labels, `(N,)`.
        counts: Number of images of each class, over all images.
        size: Side of the images in pixels.
        share_out: Share of the images that validation and test will take.
    """

    images: Tensor
    labels: Tensor
    counts: list[int]
    size: int
    share_out: float

    @property
    def count(self) -> int:
        return sum(self.counts)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        return ("hue", "rotation") if self.images.shape[1] == 3 else ("rotation",)


def _look(path: Path, size: int | None, seed: int) -> _Look:
    defaults = DataConfig()
    if not path.is_dir():
        whole = load(replace(defaults, name=str(path), seed=seed)).all()
        order = torch.randperm(len(whole), generator=torch.Generator().manual_seed(seed))[:SAMPLE]
        counts = [int(count) for count in torch.bincount(whole.labels) if count]
        share_out = 1 - (1 - defaults.test) * (1 - defaults.validation)
        return _Look(whole.images[order].float() / 255, whole.labels[order], counts, whole.images.shape[-1], share_out)
    parts = part_folders(path)
    has_parts = "train" in parts
    listed = ImageFolder.open(parts.get("train", path))
    counts = list(Counter(listed.labels).values())
    some = ImageFolder.open(listed.folder, limit=min(SAMPLE, len(listed)), seed=seed)
    sides = [side for name in some.paths[:: max(1, len(some) // 20)] if (side := _side(name))] or [SIZES[1]]
    side = size or min(SIZES[1], max(SIZES[0], 8 * math.ceil(median(sides) / 8)))  # pools halve it three times
    batches = list(some.batches(side, 1 if some.is_grey() else 3))
    if not batches:
        raise UserError(f"no image in {path} can be read")
    images, labels = torch.cat([each.images for each in batches]), torch.cat([each.labels for each in batches])
    share_out = defaults.validation if has_parts else 1 - (1 - defaults.test) * (1 - defaults.validation)
    return _Look(images, labels, counts, side, share_out)


def _side(path: Path) -> int | None:
    """The shorter side of an image in pixels; None if it cannot be read, which loading all images reports."""
    try:
        return min(read_image(path).shape[-2:])
    except UserError:
        return None


def _sentence(kind: Kind, found: Evidence) -> str:
    moved = "shifted in hue" if kind == "hue" else "rotated"
    verdict = {True: "matters for the class", False: "does not matter for the class", None: "unclear: too few images"}
    return (
        f"{kind}: {verdict[found.matters()]} (nearest neighbours predict {float(found.as_is.mean()):.0%} of the "
        f"labels, and {float(found.free.mean()):.0%} if each neighbour may be {moved} to fit)"
    )


def _choice(picked: Kind, found: dict[Kind, Evidence]) -> str:
    """The reason for this symmetry."""
    if len(found) == 1:
        return f"chosen symmetry: {picked}, because the images are grey (--group none: an ordinary network)"
    if all(witness.matters() is None for witness in found.values()):
        return f"chosen symmetry: {picked}, but there are too few images to be sure (--group chooses another)"
    lost = ", ".join(f"{kind} {witness.share:.0%}" for kind, witness in found.items())
    return (
        f"chosen symmetry: {picked}, because ignoring it costs the neighbours least of their accuracy above chance "
        f"({lost}; --group chooses another)"
    )


def _fitted(config: ModelConfig, size: int) -> ModelConfig:
    """The network with a stem that fits small images."""
    if isinstance(config, PlainConfig) and size < 48:
        return replace(config, stem="small")
    return replace(config, stem_pool=False) if isinstance(config, SE2Config) and size < 28 else config
