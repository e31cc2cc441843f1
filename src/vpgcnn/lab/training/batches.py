"""Batches of training images, each a function of the seed and the step only."""

from __future__ import annotations

import torch
from torch import Tensor

from vpgcnn.lab.data import Split
from vpgcnn.lab.data.augment import augment_batch
from vpgcnn.lab.networks import to_unit
from vpgcnn.lab.training.checkpoint import Card
from vpgcnn.lab.training.config import TrainConfig
from vpgcnn.lab.training.seeds import generator

__all__ = ["Batches"]


class Batches:
    """All images of a split in a new order each epoch, augmented.

    Args:
        split: Images and labels.
        config: The seed and the augmentation.
        card: The size of the images.
        size: Images of a batch, over all processes.
        purpose: Part of the seed, so that several objects make different random choices.
    """

    def __init__(self, split: Split, config: TrainConfig, card: Card, *, size: int, purpose: str = "") -> None:
        self.split, self.config, self.card, self.size, self.purpose = split, config, card, size, purpose
        self.per_epoch = len(split) // size
        self._order: tuple[int, Tensor] | None = None

    def at(self, step: int, device: torch.device, part: slice | None = None) -> tuple[Tensor, Tensor]:
        """The batch of a step.

        Args:
            step: Number of the step, from 0.
            device: Where to put it.
            part: Part of the batch, if several processes share it; all by default.

        Returns:
            Images in [0, 1] and labels.
        """
        epoch, place = divmod(step, self.per_epoch)
        if self._order is None or self._order[0] != epoch:
            order = generator(self.config.seed, f"{self.purpose}order", epoch)
            self._order = epoch, torch.randperm(len(self.split), generator=order)
        part = slice(0, self.size) if part is None else part
        index = self._order[1][place * self.size : (place + 1) * self.size][part]
        chance = generator(self.config.seed, f"{self.purpose}augment", step)
        images = augment_batch(self.split.images[index], self.config.data, self.card.size, chance, part, self.size)
        return to_unit(images.to(device)), self.split.labels[index].to(device)
