"""Settings for a user's own images: looked up in the images, and said."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Literal

import torch
from torch import Tensor

from vpgcnn.analysis import Evidence, Kind, circle_picture, evidence
from vpgcnn.data import DataConfig, load
from vpgcnn.data.own import part_folders, read_image
from vpgcnn.data.stream import ImageFolder
from vpgcnn.errors import UserError
from vpgcnn.models import ModelConfig, PlainConfig, SE2Config, symmetry
from vpgcnn.models.config import COLOR_RESNET_SMALL, PLAIN_RESNET_SMALL, RESNET_SMALL
from vpgcnn.training.config import ObjectiveConfig, OptimiserConfig, TrainConfig

__all__ = ["Choice", "Suggestion", "suggest"]

Choice = Literal["auto", "hue", "rotation", "both", "none"]
SIZES = (28, 64)
"""Pixels of a side, at least and at most, unless a size is given."""
LOOKED_AT = 600
"""Images that are asked what they say of hue and rotation."""
TAIL = 3.0
"""From this ratio of the largest to the smallest class on, small classes count as much as large ones."""
FEW = 30
"""Images held out, below which a warning is given."""
STEPS, FEWEST, MOST = 1200, 10, 80
"""Steps of a training, and epochs at least and at most."""
NETWORKS: dict[str, ModelConfig] = {
    "hue": COLOR_RESNET_SMALL,
    "rotation": RESNET_SMALL,
    "both": replace(RESNET_SMALL, hues=3),
    "none": PLAIN_RESNET_SMALL,
}


@dataclass(frozen=True)
class Suggestion:
    """config: of a run on these data. said: why, in sentences. symmetry: which was chosen."""

    config: TrainConfig
    said: tuple[str, ...]
    symmetry: Choice


def suggest(
    path: Path, *, choice: Choice = "auto", network: ModelConfig | None = None, size: int | None = None, seed: int = 0
) -> Suggestion:
    """Settings for images of a folder (folder/class/*.png, perhaps in parts) or an .npz file.

    choice: the symmetry to build in, or auto: the one that, as the images themselves say, tells least of the class.
    network: one that is given instead. size: of the images, else that of most of them, within bounds.
    """
    if not path.exists():
        raise UserError(f"there is no folder or file {path}")
    look = _look(path, size, seed)
    said = [f"{look.count} images of {len(look.counts)} classes, {look.size} × {look.size} pixels"]
    found = {kind: evidence(circle_picture(look.images, kind), look.labels) for kind in look.kinds}
    said += [_sentence(kind, witness) for kind, witness in found.items()]
    if network is not None:
        picked: Choice = symmetry(network)
    elif choice == "auto":
        least: Kind = min(found, key=lambda kind: found[kind].share)  # hue before rotation where they are alike
        picked = least
        said.append(_choice(least, found))
    else:
        picked = choice
    if picked in ("hue", "both") and "hue" not in look.kinds and network is None:
        raise UserError(f"the images of {path} are grey: there is no hue, choose --group rotation or none")
    model = network or _fitted(NETWORKS[picked], look.size)
    ratio = max(look.counts) / min(look.counts)
    if ratio >= TAIL:
        said.append(
            f"classes have {min(look.counts)} to {max(look.counts)} images: small ones count as much as large ones "
            "(--objective.balance 0: as they are)"
        )
    held = round(look.count * look.share_out)
    if held < FEW:
        said.append(f"only {held} images are left for validation and test: what they say is rough")
    training = max(1, int(look.count * (1 - look.share_out)))
    batch = next(size for size in (64, 32, 16, 8, 4, 2, 1) if size <= max(1, training // 4))
    epochs = min(MOST, max(FEWEST, round(STEPS / max(1, training // batch))))
    augment: Literal["resized-crop", "shift"] = "resized-crop" if look.size >= 48 else "shift"
    config = TrainConfig(
        data=DataConfig(name=str(path.resolve()), size=look.size, seed=seed, augment=augment),
        model=model,
        objective=ObjectiveConfig(start=0.01, peak=0.01, balance=1.0 if ratio >= TAIL else 0.0),
        network=OptimiserConfig("adam", 1e-3, 1e-5),
        levels=OptimiserConfig("adam", 1e-3, 0.0),
        batch_size=batch,
        epochs=epochs,
    )
    return Suggestion(config, tuple(said), picked)


@dataclass(frozen=True, eq=False)
class _Look:
    """What is seen of the data at a first look. images: some, in [0, 1]. counts: of each class in all."""

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
        order = torch.randperm(len(whole), generator=torch.Generator().manual_seed(seed))[:LOOKED_AT]
        counts = [int(count) for count in torch.bincount(whole.labels) if count]
        share_out = 1 - (1 - defaults.test) * (1 - defaults.validation)
        return _Look(whole.images[order].float() / 255, whole.labels[order], counts, whole.images.shape[-1], share_out)
    parts = part_folders(path)
    parted = "train" in parts
    listed = ImageFolder.open(parts.get("train", path))
    counts = list(Counter(listed.labels).values())
    some = ImageFolder.open(listed.folder, limit=min(LOOKED_AT, len(listed)), seed=seed)
    sides = [min(read_image(name).shape[-2:]) for name in some.paths[:: max(1, len(some) // 20)]]
    side = size or min(SIZES[1], max(SIZES[0], int(median(sides))))
    batches = list(some.batches(side, 1 if some.grey() else 3))
    if not batches:
        raise UserError(f"no image of {path} can be read")
    images, labels = torch.cat([each.images for each in batches]), torch.cat([each.labels for each in batches])
    share_out = defaults.validation if parted else 1 - (1 - defaults.test) * (1 - defaults.validation)
    return _Look(images, labels, counts, side, share_out)


def _sentence(kind: Kind, found: Evidence) -> str:
    moved = "shifted in hue" if kind == "hue" else "turned"
    verdict = {True: "it tells something of the class", False: "it tells nothing of the class", None: "too few to say"}
    return (
        f"{kind}: neighbours tell the class of {float(found.as_is.mean()):.0%}, of {float(found.free.mean()):.0%} when "
        f"each may be {moved} to fit: {verdict[found.matters()]}"
    )


def _choice(picked: Kind, found: dict[Kind, Evidence]) -> str:
    """Why this symmetry."""
    if len(found) == 1:
        return f"chosen: {picked}, as there are no colours (--group none: an ordinary network)"
    if all(witness.matters() is None for witness in found.values()):
        return f"chosen: {picked}, but there are too few images to say (--group takes another)"
    lost = ", ".join(f"{kind} {witness.share:.0%}" for kind, witness in found.items())
    return (
        f"chosen: {picked}, without which neighbours lose least of what they know beyond chance ({lost}; see --group)"
    )


def _fitted(config: ModelConfig, size: int) -> ModelConfig:
    """The network as small images need it: less is taken away at the beginning."""
    if isinstance(config, PlainConfig) and size < 48:
        return replace(config, stem="small")
    return replace(config, stem_pool=False) if isinstance(config, SE2Config) and size < 28 else config
