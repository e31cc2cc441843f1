"""AdaAug: a policy of augmentation that is searched for on images held out of training (Cheung and Yeung, 2022).

    >>> policy = Policy(network, Hue(360), classes=102, config=AugmenterConfig("policy"))
    >>> loss = cross_entropy(policy.mixed(images, labels, noise), labels)     # search: gradient to the policy
    >>> changed = policy(images, labels, draws)                               # use: other training images

A policy says of each image, from a classifier's view of it, how likely it is to be moved and how far.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from vpgcnn.groups import Group
from vpgcnn.models.augmented import moved
from vpgcnn.models.config import AugmenterConfig

__all__ = ["Advice", "Policy"]


class Advice(NamedTuple):
    """What a policy says of images. chance: `(B, 1)` that an image is moved. reach: `(B, 1)`, a share of ± 180°."""

    chance: Tensor
    reach: Tensor


class Policy(nn.Module):
    """Not equivariant: it advises on how far images may move.

    network: a classifier with `describe` and `head`, whose view of an image the policy reads. It is evaluated, never
    trained, by the policy. config.depends: "image" for advice from a linear layer on that view, "class" for a
    table of one line for each class. background: the value that comes in at the corners of a turned image.
    """

    def __init__(
        self, network: nn.Module, group: Group, classes: int, config: AugmenterConfig, background: float = 0.0
    ) -> None:
        super().__init__()
        self.network, self.group, self.config, self.background = network, group, config, background
        width: int = network.head.in_features  # type: ignore[assignment, union-attr]
        self.advice: nn.Module = nn.Linear(width, 2) if config.depends == "image" else nn.Embedding(classes, 2)
        for parameter in self.advice.parameters():  # at first every image is as likely to move as not, halfway
            nn.init.zeros_(parameter)

    def train(self, mode: bool = True) -> Policy:
        """Set the mode. The classifier is only ever looked through, so it stays as evaluation has it."""
        super().train(mode)
        self.network.eval()
        return self

    def advise(self, images: Tensor, labels: Tensor) -> Advice:
        """What to do with images `(B, C, H, W)` of these classes `(B,)`."""
        if self.config.depends == "class":
            raw = self.advice(labels)
        else:
            with torch.no_grad():
                seen = self.network.describe(images).values  # type: ignore[operator]
            raw = self.advice(seen.to(next(self.advice.parameters()).dtype))
        chance, reach = raw.sigmoid().split(1, dim=1)
        return Advice(chance, reach)

    def mixed(self, images: Tensor, labels: Tensor, draws: Tensor) -> Tensor:
        """Logits `(B, classes)` from the views of an image as it is and moved, mixed as likely as the policy says.

        Differentiable in the chance by the mixture, and in the reach by the moved image. draws: `(B, 2)` uniform in
        [0, 1), for the side and the deviation.
        """
        advice = self.advise(images, labels)
        there = self.network.describe(self._moved(images, advice.reach, draws)).values  # type: ignore[operator]
        here = self.network.describe(images).values  # type: ignore[operator]
        logits: Tensor = self.network.head(advice.chance * there + (1 - advice.chance) * here)  # type: ignore[operator]
        return logits

    @torch.no_grad()
    def forward(self, images: Tensor, labels: Tensor, draws: Tensor) -> Tensor:
        """Each image `(B, C, H, W)` as it is or moved. draws: `(B, 3)` uniform in [0, 1): whether, side, deviation."""
        advice = self.advise(images, labels)
        chosen = draws[:, :1] < advice.chance
        return torch.where(chosen[..., None, None], self._moved(images, advice.reach, draws[:, 1:]), images)

    def _moved(self, images: Tensor, reach: Tensor, draws: Tensor) -> Tensor:
        """Moved to either side by the reach, give or take `deviation`."""
        side, other = draws.split(1, dim=1)
        share = (reach + self.config.deviation * (2 * other - 1)).clamp(0, 1)
        return moved(self.group, images, share * (1 - 2 * (side < 0.5).to(share.dtype)), self.background)

    def extra_repr(self) -> str:
        return f"{self.group}, depends={self.config.depends!r}"
