"""The classes `Dataset` and `Split`: images in memory, split into training, validation and test."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from vpgcnn.errors import UserError

__all__ = ["Dataset", "Split", "holdout_split", "seeded_generator", "stratified_holdout_split"]


@dataclass(frozen=True, eq=False)
class Split:
    """Images with their labels.

    Args:
        images: Bytes, 0 to 255, `(N, C, H, W)`.
        labels: Integers, `(N,)`.
        reach: The true range of each image where it is known, as a share of the circle from 0 to 1; `(N,)` for one
            circle, `(N, K)` for K circles (such as rotations and hues).

    Raises:
        UserError: If the images are not bytes or the shapes do not match.
    """

    images: Tensor
    labels: Tensor
    reach: Tensor | None = None

    def __post_init__(self) -> None:
        if self.images.dim() != 4 or self.images.dtype != torch.uint8:
            raise UserError(f"images must be N×C×H×W bytes, got {self.images.dtype} {tuple(self.images.shape)}")
        if self.labels.shape != (len(self.images),):
            raise UserError(f"{len(self.images)} images, but labels of shape {tuple(self.labels.shape)}")
        if self.reach is not None and self.reach.shape[:1] != self.labels.shape:
            raise UserError(f"{len(self.images)} images, but ranges of shape {tuple(self.reach.shape)}")

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: Tensor | slice) -> Split:
        return Split(self.images[index], self.labels[index], None if self.reach is None else self.reach[index])


@dataclass(frozen=True, eq=False)
class Dataset:
    """A dataset in three splits: fit on `train`, select models on `validation`, report `test` only.

    Args:
        name: The name of the dataset, or the path that it was read from.
        classes: The name of each label.
        train: The training images; they may be larger than the others, for random crops.
        validation: May be empty.
        test: May be empty.
        notes: Where the data come from, and what a user should know about them. Programs compare the first note with
            that of earlier runs, up to the word "from"; where the data were read from belongs behind it.
        mean: The mean of the training pixels in [0, 1], over all channels. A mean for each channel would break
            equivariance to hue.
        std: The standard deviation of the training pixels, over all channels.

    Raises:
        UserError: If there is no training image, a label is out of range, or the images are not square or differ in
            size or channels.
    """

    name: str
    classes: tuple[str, ...]
    train: Split
    validation: Split
    test: Split
    notes: tuple[str, ...] = field(default=())
    mean: float = 0.0
    std: float = 1.0

    def __post_init__(self) -> None:
        for part in ("train", "validation", "test"):
            split: Split = getattr(self, part)
            if len(split) and not 0 <= int(split.labels.min()) <= int(split.labels.max()) < len(self.classes):
                found = f"{int(split.labels.min())} … {int(split.labels.max())}"
                raise UserError(f"{self.name}: {part} labels must be in 0 … {len(self.classes) - 1}, got {found}")
            shape, train_shape = tuple(split.images.shape[1:]), tuple(self.train.images.shape[1:])
            if len(split) and (shape[0] != train_shape[0] or shape[1] > train_shape[1]):
                raise UserError(
                    f"{self.name}: {part} images are {_format_shape(shape)}, "
                    f"training images {_format_shape(train_shape)}"
                )
            if len(split) and shape[1] != shape[2]:
                raise UserError(f"{self.name}: images must be square, got {_format_shape(shape[1:])}")
        if len(self.validation) and len(self.test) and self.validation.images.shape[1:] != self.test.images.shape[1:]:
            shapes = (_format_shape(tuple(split.images.shape[1:])) for split in (self.validation, self.test))
            raise UserError(f"{self.name}: validation images are {next(shapes)}, test images {next(shapes)}")
        if not len(self.train):
            raise UserError(f"{self.name}: no training image is left")
        if self.train.images.shape[-1] != self.train.images.shape[-2]:
            shape = tuple(self.train.images.shape[-2:])
            raise UserError(f"{self.name}: images must be square, got {_format_shape(shape)}")

    @property
    def channels(self) -> int:
        """The number of colour channels: 1 or 3."""
        return self.train.images.shape[1]

    @property
    def size(self) -> int:
        """Height and width of the network's input in pixels. Training images may be larger, for random crops."""
        held_out = [split for split in (self.validation, self.test) if len(split)]
        return (held_out[0] if held_out else self.train).images.shape[-1]

    def all(self) -> Split:
        """Return all three splits together, at the size of the network's input."""
        train = self.train
        if train.images.shape[-1] != self.size:
            pixels = F.interpolate(train.images.float(), (self.size, self.size), mode="bilinear", antialias=True)
            train = replace(train, images=pixels.round().to(torch.uint8))
        parts = train, self.validation, self.test
        known = [part.reach for part in parts if part.reach is not None]
        return Split(
            torch.cat([part.images for part in parts]),
            torch.cat([part.labels for part in parts]),
            torch.cat(known) if len(known) == len(parts) else None,
        )

    def fingerprint(self) -> str:
        """Return a short hash of all images and labels. Different data have different fingerprints."""
        digest = hashlib.blake2b(digest_size=8)
        for split in (self.train, self.validation, self.test):
            digest.update(f"{tuple(split.images.shape)}".encode())
            digest.update(split.labels.numpy().tobytes())
            digest.update(split.images.numpy().tobytes())
        return digest.hexdigest()

    def subsample(self, count: int | None, seed: int) -> Dataset:
        """Draw training images at random, and measure `mean` and `std` on them.

        Args:
            count: The number of training images to keep; None keeps all.
            seed: The seed of the draw.

        Returns:
            A copy with these training images; validation and test are unchanged.

        Raises:
            UserError: If `count` is less than 1.
        """
        if count is not None and count < 1:
            raise UserError(f"limit must be at least 1, got {count}")
        train = self.train
        if count is not None and count < len(train):
            train = train[torch.randperm(len(train), generator=seeded_generator(seed))[:count]]
        mean, std = _mean_and_std(train.images)
        return replace(self, train=train, mean=mean, std=max(std, 1e-3))


def _mean_and_std(images: Tensor) -> tuple[float, float]:
    """Return mean and standard deviation of bytes scaled to [0, 1], from a histogram, which needs little memory."""
    counts = sum((torch.bincount(part.flatten(), minlength=256) for part in images.split(64)), torch.zeros(256))
    counts, levels = counts.double(), torch.arange(256, dtype=torch.float64) / 255
    total = float(counts.sum())
    mean = float((counts * levels).sum()) / total
    return mean, math.sqrt(float((counts * (levels - mean).square()).sum()) / max(1.0, total - 1))


def holdout_split(count: int, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Shuffle the indices 0 … count − 1 and hold out a share of them.

    Args:
        count: The number of images.
        share: The share to hold out, in [0, 1).
        seed: The seed of the shuffle.

    Returns:
        The indices that stay, and those that are held out.

    Raises:
        UserError: If `share` is out of range.
    """
    if not 0 <= share < 1:
        raise UserError(f"the held-out share must be in [0, 1), got {share}")
    order = torch.randperm(count, generator=seeded_generator(seed))
    cut = count - round(share * count)
    return order[:cut], order[cut:]


def stratified_holdout_split(labels: Tensor, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Hold out the same share of every class; at least one image of each class stays.

    Fractions of an image carry over to the next class, so the share also holds over all classes together.

    Args:
        labels: `(N,)`.
        share: The share to hold out, in [0, 1).
        seed: The seed of the shuffle.

    Returns:
        The indices that stay, and those that are held out, each in random order.

    Raises:
        UserError: If `share` is out of range.
    """
    shuffled = torch.cat(holdout_split(len(labels), share, seed))
    stay, out, owed = [], [], 0.0
    for label in labels.unique():
        members = shuffled[labels[shuffled] == label]
        owed += share * len(members)
        cut = len(members) - min(len(members) - 1, round(owed))
        owed -= len(members) - cut
        stay.append(members[:cut])
        out.append(members[cut:])
    first, second, generator = torch.cat(stay), torch.cat(out), seeded_generator(seed)
    mixed = [part[torch.randperm(len(part), generator=generator)] for part in (first, second)]
    return mixed[0], mixed[1]


def seeded_generator(seed: int) -> torch.Generator:
    """Return a new random generator.

    Args:
        seed: From 0 to 2⁶³ − 1.

    Raises:
        UserError: If the seed is out of range.
    """
    if not 0 <= seed < 2**63:
        raise UserError(f"a seed must be an integer from 0 to 2⁶³ − 1, got {seed}")
    return torch.Generator().manual_seed(seed)


def _format_shape(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape))
