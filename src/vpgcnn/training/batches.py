"""Batches of training images, each a function of the seed and the step alone."""

from __future__ import annotations

import torch
from torch import Tensor

from vpgcnn.data import Split
from vpgcnn.data.augment import augmented
from vpgcnn.training.checkpoint import Card
from vpgcnn.training.config import TrainConfig
from vpgcnn.training.seeds import generator

__all__ = ["Batches"]


class Batches:
    """All images of a part in a new order each epoch, augmented as the configuration says.

    purpose: keeps the random choices of several of these apart. size: images of a batch, over all processes.
    """

    def __init__(self, split: Split, config: TrainConfig, card: Card, *, size: int, purpose: str = "") -> None:
        self.split, self.config, self.card, self.size, self.purpose = split, config, card, size, purpose
        self.per_epoch = len(split) // size
        self._order: tuple[int, Tensor] | None = None

    def at(self, step: int, device: torch.device, part: slice | None = None) -> tuple[Tensor, Tensor]:
        """Standardised images and labels of a step; part: of the batch, where several processes share it."""
        epoch, place = divmod(step, self.per_epoch)
        if self._order is None or self._order[0] != epoch:
            order = generator(self.config.seed, f"{self.purpose}order", epoch)
            self._order = epoch, torch.randperm(len(self.split), generator=order)
        part = slice(0, self.size) if part is None else part
        index = self._order[1][place * self.size : (place + 1) * self.size][part]
        chance = generator(self.config.seed, f"{self.purpose}augment", step)
        images = augmented(self.split.images[index], self.config.data, self.card.size, chance, part, self.size)
        return self.card.standardised(images.to(device)), self.split.labels[index].to(device)
