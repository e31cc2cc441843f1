"""AdaAug: an augmentation policy that is searched for on images held out of training (Cheung and Yeung, 2022).

    >>> policy = Policy(network, Hue(360), classes=102, config=AugmenterConfig("policy"))
    >>> loss = cross_entropy(policy.mixed(images, labels, noise), labels)     # search: gradient to the policy
    >>> changed = policy(images, labels, draws)                               # use: other training images

From a classifier's features of an image, a policy advises how likely the image is to be moved, and how far.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from vpgcnn.groups import Group
from vpgcnn.lab.networks.augmented import moved
from vpgcnn.lab.networks.config import AugmenterConfig

__all__ = ["Advice", "Policy"]


class Advice(NamedTuple):
    """The advice of a policy on images.

    Args:
        chance: `(B, 1)`, probability that an image is moved.
        reach: `(B, 1)`, how far, as a share of ± 180°.
    """

    chance: Tensor
    reach: Tensor


class Policy(nn.Module):
    """Not equivariant: it advises how far images may move.

    Args:
        network: A classifier with `features` and `head`, whose features the policy reads. The policy never trains it.
        group: Rotations or hues.
        classes: Number of classes.
        config: The settings. depends "image": a linear layer on the features; "class": a table with a row per class.
    """

    def __init__(self, network: nn.Module, group: Group, classes: int, config: AugmenterConfig) -> None:
        super().__init__()
        self.network, self.group, self.config = network, group, config
        width: int = network.head.in_features  # type: ignore[assignment, union-attr]
        self.advice: nn.Module = nn.Linear(width, 2) if config.depends == "image" else nn.Embedding(classes, 2)
        for parameter in self.advice.parameters():  # at the start: probability ½, and half of 180°
            nn.init.zeros_(parameter)

    def train(self, mode: bool = True) -> Policy:
        """Set the mode. The classifier always stays in evaluation mode."""
        super().train(mode)
        self.network.eval()
        return self

    def advise(self, images: Tensor, labels: Tensor) -> Advice:
        """The advice on images `(B, C, H, W)` with labels `(B,)`."""
        if self.config.depends == "class":
            raw = self.advice(labels)
        else:
            with torch.no_grad():
                features = self.network.features(images).values  # type: ignore[operator]
            raw = self.advice(features.to(next(self.advice.parameters()).dtype))
        chance, reach = raw.sigmoid().split(1, dim=1)
        return Advice(chance, reach)

    def mixed(self, images: Tensor, labels: Tensor, draws: Tensor) -> Tensor:
        """Logits from a mixture of the features of the unmoved and of the moved image, weighted by the chance.

        Differentiable in the chance through the mixture, and in the reach through the moved image.

        Args:
            images: `(B, C, H, W)` in [0, 1].
            labels: `(B,)`.
            draws: `(B, 2)`, uniform in [0, 1): side and deviation.

        Returns:
            `(B, classes)`.
        """
        advice = self.advise(images, labels)
        there = self.network.features(self._moved(images, advice.reach, draws)).values  # type: ignore[operator]
        here = self.network.features(images).values  # type: ignore[operator]
        logits: Tensor = self.network.head(advice.chance * there + (1 - advice.chance) * here)  # type: ignore[operator]
        return logits

    @torch.no_grad()
    def forward(self, images: Tensor, labels: Tensor, draws: Tensor) -> Tensor:
        """Move each image, or leave it, at random.

        Args:
            images: `(B, C, H, W)` in [0, 1].
            labels: `(B,)`.
            draws: `(B, 3)`, uniform in [0, 1): whether, side, deviation.
        """
        advice = self.advise(images, labels)
        chosen = draws[:, :1] < advice.chance
        return torch.where(chosen[..., None, None], self._moved(images, advice.reach, draws[:, 1:]), images)

    def _moved(self, images: Tensor, reach: Tensor, draws: Tensor) -> Tensor:
        """Images moved to either side by the reach ± `deviation`."""
        side, other = draws.split(1, dim=1)
        share = (reach + self.config.deviation * (2 * other - 1)).clamp(0, 1)
        return moved(self.group, images, share * (1 - 2 * (side < 0.5).to(share.dtype)))

    def extra_repr(self) -> str:
        return f"{self.group}, depends={self.config.depends!r}"
