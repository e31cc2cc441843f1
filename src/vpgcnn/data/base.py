"""What a dataset is once it is loaded: images in memory, in parts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from vpgcnn.errors import UserError

__all__ = ["Dataset", "Split", "held_out"]


@dataclass(frozen=True, eq=False)
class Split:
    """images: `(N, C, H, W)` of bytes, 0–255. labels: `(N,)` of whole numbers."""

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.images.dim() != 4 or self.images.dtype != torch.uint8:
            raise UserError(f"images are N×C×H×W bytes, got {self.images.dtype} {tuple(self.images.shape)}")
        if self.labels.shape != (len(self.images),):
            raise UserError(f"{len(self.images)} images, but labels of shape {tuple(self.labels.shape)}")

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: Tensor | slice) -> Split:
        return Split(self.images[index], self.labels[index])


@dataclass(frozen=True, eq=False)
class Dataset:
    """A dataset in three parts. Models are chosen on `validation`, `test` is for the report alone.

    classes: the name of each label. mean, std: one number each, over all channels (a mean for each
    channel would break equivariance to hue). notes: what a user should know of where it came from.
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
        if not len(self.train):
            raise UserError(f"{self.name}: no training image is left")

    @property
    def channels(self) -> int:
        return self.train.images.shape[1]

    @property
    def size(self) -> int:
        return self.train.images.shape[-1]

    def limited(self, count: int | None) -> Dataset:
        """The first `count` training images, and statistics measured on them."""
        if count is not None and count < 1:
            raise UserError(f"limit must be at least 1, got {count}")
        train = self.train if count is None else self.train[:count]
        pixels = train.images.to(torch.float64) / 255
        return replace(self, train=train, mean=float(pixels.mean()), std=max(float(pixels.std()), 1e-3))


def held_out(count: int, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Indices of the part that stays and of the share that is held out, shuffled by seed."""
    if not 0 <= share < 1:
        raise UserError(f"the share that is held out must be in [0, 1), got {share}")
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    cut = count - round(share * count)
    return order[:cut], order[cut:]
