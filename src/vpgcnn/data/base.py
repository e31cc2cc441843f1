"""What a dataset is once it is loaded: images in memory, in parts."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from vpgcnn.errors import UserError

__all__ = ["Dataset", "Split", "held_out", "held_out_of_each"]


@dataclass(frozen=True, eq=False)
class Split:
    """images: `(N, C, H, W)` of bytes, 0–255. labels: `(N,)` of whole numbers.

    reach: `(N,)`, where it is known, the share of all rotations by which an image may be turned, from 0 to 1; `(N, K)`
    for K circles, say rotations and hues.
    """

    images: Tensor
    labels: Tensor
    reach: Tensor | None = None

    def __post_init__(self) -> None:
        if self.images.dim() != 4 or self.images.dtype != torch.uint8:
            raise UserError(f"images are N×C×H×W bytes, got {self.images.dtype} {tuple(self.images.shape)}")
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
    """A dataset in three parts. Models are chosen on `validation`, `test` is for the report alone.

    classes: the name of each label. mean, std: one number each, over all channels (a mean for each
    channel would break equivariance to hue). Training images may be larger than the others. notes: what
    a user should know of where it came from.
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
                raise UserError(f"{self.name}: {part} labels must be in 0 … {len(self.classes) - 1}")
            shape, own = tuple(split.images.shape[1:]), tuple(self.train.images.shape[1:])
            if len(split) and (shape[0] != own[0] or shape[1] > own[1]):
                raise UserError(f"{self.name}: {part} images are {_times(shape)}, training images {_times(own)}")
            if len(split) and shape[1] != shape[2]:
                raise UserError(f"{self.name}: images must be square, got {_times(shape[1:])}")
        if len(self.validation) and len(self.test) and self.validation.images.shape[1:] != self.test.images.shape[1:]:
            shapes = (_times(tuple(split.images.shape[1:])) for split in (self.validation, self.test))
            raise UserError(f"{self.name}: validation images are {next(shapes)}, test images {next(shapes)}")
        if not len(self.train):
            raise UserError(f"{self.name}: no training image is left")
        if self.train.images.shape[-1] != self.train.images.shape[-2]:
            raise UserError(f"{self.name}: images must be square, got {_times(tuple(self.train.images.shape[-2:]))}")

    @property
    def channels(self) -> int:
        return self.train.images.shape[1]

    @property
    def size(self) -> int:
        """Pixels of a side of what a network sees; training images may be larger, for random parts of them."""
        held = [split for split in (self.validation, self.test) if len(split)]
        return (held[0] if held else self.train).images.shape[-1]

    def all(self) -> Split:
        """The three parts together, at the size that a network sees."""
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
        """A short hash of all images and labels: another one means other data."""
        digest = hashlib.blake2b(digest_size=8)
        for split in (self.train, self.validation, self.test):
            digest.update(f"{tuple(split.images.shape)}".encode())
            digest.update(split.labels.numpy().tobytes())
            digest.update(split.images.numpy().tobytes())
        return digest.hexdigest()

    def limited(self, count: int | None, seed: int) -> Dataset:
        """`count` training images, drawn by seed (all of them for None), and statistics measured on them."""
        if count is not None and count < 1:
            raise UserError(f"limit must be at least 1, got {count}")
        train = self.train
        if count is not None and count < len(train):
            train = train[torch.randperm(len(train), generator=seeded(seed))[:count]]
        mean, std = _statistics(train.images)
        return replace(self, train=train, mean=mean, std=max(std, 1e-3))


def _statistics(images: Tensor) -> tuple[float, float]:
    """Mean and standard deviation of bytes as pixels in [0, 1]: from how often each byte occurs, in little memory."""
    counts = sum((torch.bincount(part.flatten(), minlength=256) for part in images.split(64)), torch.zeros(256))
    counts, levels = counts.double(), torch.arange(256, dtype=torch.float64) / 255
    total = float(counts.sum())
    mean = float((counts * levels).sum()) / total
    return mean, math.sqrt(float((counts * (levels - mean).square()).sum()) / max(1.0, total - 1))


def held_out(count: int, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Indices of the part that stays and of the share that is held out, shuffled by seed."""
    if not 0 <= share < 1:
        raise UserError(f"the share that is held out must be in [0, 1), got {share}")
    order = torch.randperm(count, generator=seeded(seed))
    cut = count - round(share * count)
    return order[:cut], order[cut:]


def held_out_of_each(labels: Tensor, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """The same of images with these labels `(N,)`, in each class alike; of a class at least one image stays.

    Fractions are carried over to the next class, so that the share is kept over all of them too.
    """
    shuffled = torch.cat(held_out(len(labels), share, seed))
    stay, out, owed = [], [], 0.0
    for label in labels.unique():
        own = shuffled[labels[shuffled] == label]
        owed += share * len(own)
        cut = len(own) - min(len(own) - 1, round(owed))
        owed -= len(own) - cut
        stay.append(own[:cut])
        out.append(own[cut:])
    first, second, random = torch.cat(stay), torch.cat(out), seeded(seed)
    mixed = [part[torch.randperm(len(part), generator=random)] for part in (first, second)]
    return mixed[0], mixed[1]


def seeded(seed: int) -> torch.Generator:
    """A generator with this seed."""
    if not 0 <= seed < 2**63:
        raise UserError(f"a seed is a whole number from 0 to 2⁶³ − 1, got {seed}")
    return torch.Generator().manual_seed(seed)


def _times(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape))
