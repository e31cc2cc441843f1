"""A dataset: discs, and half discs that point up or down. A disc may be turned; a half disc turned by 180° is another.

    vpgcnn --use dataset.py train mnist67-180 --data.name halves

A dataset is a function from settings to images in three splits. The same settings must give the same images.
"""

from pathlib import Path

import torch
from torch import Tensor

from vpgcnn.lab.data import DataConfig, Dataset, DatasetEntry, Split, register

CLASSES = ("disc", "up", "down")


def draw(labels: Tensor, radii: Tensor) -> Tensor:
    """Bytes `(N, 1, 28, 28)`, white on black."""
    line = torch.arange(28) - 13.5
    y, x = torch.meshgrid(line, line, indexing="ij")
    inside = x**2 + y**2 < radii[:, None, None] ** 2
    half = torch.stack([y < 99, y < 0, y > 0])[labels]
    return (255 * (inside & half)).to(torch.uint8).unsqueeze(1)


def load_halves(config: DataConfig, _: Path) -> Dataset:
    """600 images of random size, split by the seed; nothing is read from disk."""
    generator = torch.Generator().manual_seed(config.seed)
    labels = torch.randint(3, (600,), generator=generator)
    images = draw(labels, 4 + 7 * torch.rand(600, generator=generator))
    train, validation, test = (Split(images, labels)[part] for part in (slice(400), slice(400, 500), slice(500, 600)))
    return Dataset("halves", CLASSES, train, validation, test, notes=("600 drawn discs and half discs",))


register("halves", DatasetEntry(load_halves, about="discs, and half discs that point up or down"))
