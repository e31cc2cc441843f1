"""Settings for a user's images, chosen by looking at the images, with the reasons."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Literal

import torch

from vpgcnn.errors import UserError
from vpgcnn.groups import SO2, Dihedral, Hue, Product
from vpgcnn.kernels import Table
from vpgcnn.lab.data import DataConfig, load
from vpgcnn.lab.data.folder import part_folders
from vpgcnn.lab.data.images import read_image
from vpgcnn.lab.data.stream import ImageFolder
from vpgcnn.lab.diagnosis.look import look
from vpgcnn.lab.diagnosis.look_words import verdict
from vpgcnn.lab.networks import ModelConfig, PlainConfig, SE2Config, symmetry
from vpgcnn.lab.networks.config import COLOR_RESNET_SMALL, PLAIN_RESNET_SMALL, RESNET_SMALL
from vpgcnn.lab.training.config import OptimiserConfig, TrainConfig
from vpgcnn.lab.training.progress import Quiet

__all__ = ["Choice", "Suggestion", "suggest"]

Choice = Literal["auto", "hue", "rotation", "both", "mirror", "none", "color"]
SIZES = (32, 64)
"""Smallest and largest side of the images in pixels, unless a size is given."""
SAMPLE = 20
"""Images from which the size is chosen."""
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
    "mirror": replace(RESNET_SMALL, group=Dihedral(1), kernel=Table()),
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
    path: Path,
    *,
    choice: Choice = "auto",
    network: ModelConfig | None = None,
    size: int | None = None,
    seed: int = 0,
    skip_damaged: bool = False,
    progress: Quiet | None = None,
) -> Suggestion:
    """Choose the settings of a run on a user's images.

    Args:
        path: A folder (folder/class/*.png, perhaps inside train, validation and test) or an .npz file.
        choice: The symmetry to build in. auto: the one that `vpgcnn look` begins with, judged from the images.
        network: A network to use instead of the one that fits the symmetry.
        size: Side of the images in pixels; by default their median, within `SIZES`.
        seed: Seed of the split.
        skip_damaged: Whether damaged images are left out. Otherwise they are refused as soon as they are met.
        progress: Shows a bar while the images are looked at.
    """
    if not path.exists():
        raise UserError(f"there is no folder or file {path}")
    survey = _survey(path, size, seed)
    messages = [f"{survey.count} images of {len(survey.counts)} classes, {survey.size} × {survey.size} pixels"]
    augment: Literal["resized-crop", "shift"] = "resized-crop" if survey.size >= 48 else "shift"
    if network is not None:
        picked: Choice = symmetry(network)
    elif choice == "auto":
        said = verdict(look(path, progress=progress, skip_damaged=skip_damaged))
        picked = said.group
        augment = "shift" if said.keeps_sides else augment
        messages += [f"{headline}." for headline in said.headlines.values()]
        shown = shlex.join(["vpgcnn", "look", str(path)])
        messages.append(f"{said.reason} (`{shown}` shows the numbers; --group chooses another)")
    else:
        picked = choice
    if picked in ("hue", "both") and survey.grey and network is None:
        raise UserError(f"the images of {path} are grey and have no hue: choose --group rotation or none")
    model = network or _fitted(NETWORKS[picked], survey.size)
    ratio = max(survey.counts) / min(survey.counts)
    if ratio >= TAIL:
        messages.append(
            f"classes have {min(survey.counts)} to {max(survey.counts)} images: all classes count equally "
            "(--balance 0: by their number of images)"
        )
    held = round(survey.count * survey.share_out)
    if held < FEW:
        left = "image is" if held == 1 else "images are"
        messages.append(f"only {held} {left} left for validation and test: their scores will be rough")
    training = max(1, int(survey.count * (1 - survey.share_out)))
    batch = next(size for size in (64, 32, 16, 8, 4, 2, 1) if size <= max(1, training // 4))
    epochs = min(MOST, max(FEWEST, round(STEPS / max(1, training // batch))))
    config = TrainConfig(
        data=DataConfig(name=str(path.resolve()), size=survey.size, seed=seed, augment=augment),
        model=model,
        balance=1.0 if ratio >= TAIL else 0.0,
        optimiser=OptimiserConfig("adam", 1e-3, 1e-5),
        batch_size=batch,
        epochs=epochs,
    )
    return Suggestion(config, tuple(messages), picked)


@dataclass(frozen=True)
class _Survey:
    """What can be known of the data without looking at all images.

    Args:
        counts: Number of images of each class.
        size: Side of the images in pixels.
        grey: Whether the images have one channel.
        share_out: Share of the images that validation and test will take.
    """

    counts: list[int]
    size: int
    grey: bool
    share_out: float

    @property
    def count(self) -> int:
        return sum(self.counts)


def _survey(path: Path, size: int | None, seed: int) -> _Survey:
    defaults = DataConfig()
    share_out = 1 - (1 - defaults.test) * (1 - defaults.validation)
    if not path.is_dir():
        whole = load(replace(defaults, name=str(path), seed=seed)).all()
        counts = [int(count) for count in torch.bincount(whole.labels) if count]
        return _Survey(counts, whole.images.shape[-1], whole.images.shape[1] == 1, share_out)
    parts = part_folders(path)
    listed = ImageFolder.open(parts.get("train", path))
    some = ImageFolder.open(listed.folder, limit=min(SAMPLE, len(listed)), seed=seed)
    sides = [side for name in some.paths if (side := _side(name))] or [SIZES[1]]
    side = size or min(SIZES[1], max(SIZES[0], 8 * math.ceil(median(sides) / 8)))  # pools halve it three times
    share_out = defaults.validation if "train" in parts else share_out
    return _Survey(list(Counter(listed.labels).values()), side, listed.is_grey(), share_out)


def _side(path: Path) -> int | None:
    """The shorter side of an image in pixels; None if it cannot be read, which loading all images reports."""
    try:
        return min(read_image(path).shape[-2:])
    except UserError:
        return None


def _fitted(config: ModelConfig, size: int) -> ModelConfig:
    """The network with a stem that fits small images."""
    if isinstance(config, PlainConfig) and size < 48:
        return replace(config, stem="small")
    return replace(config, stem_pool=False) if isinstance(config, SE2Config) and size < 28 else config
