"""Learned augmentation: the baselines that move images instead of building the symmetry in.

    >>> model = augmented(build(ordinary(RESNET), 3, 10), AugmenterConfig("image", "rotation"), in_channels=3)
    >>> logits, kl = model(images)            # training: one moved copy of each image; evaluation: the mean of many

Augerino (Benton et al., 2020) learns one range for all images, InstaAug (Miao et al., 2022) predicts one for each.
Both are trained through the moved image: the angle is range · noise, and images move smoothly with it. AdaAug's
policy changes training images only and is no part of the network: see `vpgcnn.models.policy`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import replace
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vpgcnn.errors import UserError
from vpgcnn.groups import SO2, Group, Hue
from vpgcnn.levels import bound
from vpgcnn.models.base import Prediction
from vpgcnn.models.color import ColorCNN, ColorResNet
from vpgcnn.models.config import COLOR_RESNET, AugmenterConfig
from vpgcnn.precision import full_precision, uniform

__all__ = ["Augmented", "FixedRange", "ImageRange", "Range", "SharedRange", "augmented", "moved", "moving_group"]


class Range(nn.Module, ABC):
    """How far each image may move: images `(B, C, H, W)` to θ `(B, 1)` in (0, 1], a share of the circle."""

    learned = True

    @abstractmethod
    def forward(self, images: Tensor) -> Tensor: ...


class FixedRange(Range):
    """The same for ever."""

    learned = False

    def __init__(self, theta: float) -> None:
        super().__init__()
        self.theta = theta

    def forward(self, images: Tensor) -> Tensor:
        return images.new_full((len(images), 1), self.theta)

    def extra_repr(self) -> str:
        return f"{self.theta}"


class SharedRange(Range):
    """One learned number for all images."""

    def __init__(self, initial: float, floor: float) -> None:
        super().__init__()
        self.floor = floor
        self.raw = nn.Parameter(torch.full((1, 1), initial))

    def forward(self, images: Tensor) -> Tensor:
        return bound(self.raw, [self.floor], 1.0).expand(len(images), 1)


class ImageRange(Range):
    """A number for each image: what a body sees of it `(B, width)`, and one linear layer."""

    def __init__(self, body: nn.Module, width: int, initial: float, floor: float) -> None:
        super().__init__()
        self.body, self.floor = body, floor
        self.head = nn.Linear(width, 1)
        nn.init.normal_(self.head.weight, std=0.05 * width**-0.5)
        nn.init.constant_(self.head.bias, initial)

    def forward(self, images: Tensor) -> Tensor:
        seen = self.body(images)
        with full_precision(images.device):
            return bound(self.head(seen.to(self.head.weight.dtype)), [self.floor], 1.0)


class _Described(nn.Module):
    """What a network's head would see, `(B, width)`."""

    def __init__(self, network: ColorResNet) -> None:
        super().__init__()
        network.head = nn.Identity()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        return self.network.describe(images).values


def _predictor(config: AugmenterConfig, channels: int, network: nn.Module) -> ImageRange:
    """Three convolutions of stride 2 and a mean over space, or an ordinary ResNet18 as wide as the network."""
    if config.predictor == "resnet":
        width = network.config.width if isinstance(network, ColorResNet) else COLOR_RESNET.width
        resnet = ColorResNet(replace(COLOR_RESNET, elements=1, level="full", width=width), channels, 2)
        return ImageRange(_Described(resnet), 8 * width, config.initial, config.floor)
    sizes = [channels, config.width, 2 * config.width, 2 * config.width]
    blocks = [
        nn.Sequential(nn.Conv2d(a, b, 3, 2, 1, bias=False), nn.BatchNorm2d(b), nn.SiLU()) for a, b in pairwise(sizes)
    ]
    body = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return ImageRange(body, sizes[-1], config.initial, config.floor)


def moved(group: Group, images: Tensor, share: Tensor, background: float) -> Tensor:
    """Images `(B, C, H, W)` turned, or shifted in hue, by their shares `(B, 1)` of 180°, in [−1, 1]."""
    return group.transform(images - background, math.pi * share) + background


class Augmented(nn.Module):
    """A network behind random moves.

    In training each image is moved once, by π·θ·ε with ε uniform in [−1, 1]. In evaluation the probabilities of
    `samples` copies, evenly spread over the range, are averaged, and the logits are the log of that. The
    divergence is −log θ, the KL to all of the circle (0 where the range is fixed), plus the network's own.
    background: the value that comes in at the corners of a turned image.
    Not equivariant by itself: that is what it learns.
    """

    def __init__(
        self, network: nn.Module, ranges: Range, group: Group, *, samples: int, training: bool, background: float = 0.0
    ) -> None:
        super().__init__()
        if samples < 1:
            raise UserError(f"samples must be at least 1, got {samples}")
        self.network, self.ranges = network, ranges
        self.group, self.samples, self.moves_training, self.background = group, samples, training, background

    def forward(self, images: Tensor) -> Prediction:
        """Images `(B, C, H, W)` to logits `(B, classes)` and divergence `(B,)`."""
        theta = self.ranges(images)
        if self.training and self.moves_training:
            noise = uniform((len(images), 1), theta) * 2 - 1
            logits, divergence = self.network(moved(self.group, images, theta * noise, self.background))
        elif self.training or self.samples == 1:
            logits, divergence = self.network(images)
        else:
            logits, divergence = self._average(images, theta)
        if self.ranges.learned:
            divergence = divergence - theta[:, 0].log().to(divergence.dtype)
        return Prediction(logits, divergence)

    def _average(self, images: Tensor, theta: Tensor) -> tuple[Tensor, Tensor]:
        logs, divergences = [], []
        for place in range(self.samples):
            noise = (2 * place + 1) / self.samples - 1
            logits, divergence = self.network(moved(self.group, images, theta * noise, self.background))
            logs.append(F.log_softmax(logits.float(), dim=1))
            divergences.append(divergence)
        return torch.stack(logs).logsumexp(dim=0) - math.log(self.samples), torch.stack(divergences).mean(dim=0)

    def extra_repr(self) -> str:
        return f"{self.group}, samples={self.samples}"


def augmented(network: nn.Module, config: AugmenterConfig, in_channels: int, background: float = 0.0) -> nn.Module:
    """The network behind the augmentation that is configured; the network itself for "none" and "policy".

    background: black, as the network sees it.
    """
    if config.kind == "none":
        return network
    if not 0 < config.floor <= config.initial <= 1:
        raise UserError(f"augmenter: 0 < floor ≤ initial ≤ 1 is needed, got {config.floor} and {config.initial}")
    if config.kind != "fixed" and not config.training:
        raise UserError("augmenter: a range is learned from training images that move, so training must be on")
    group = moving_group(network, config, in_channels)
    if config.kind == "policy":
        return network
    if config.kind == "fixed":
        ranges: Range = FixedRange(config.initial)
    elif config.kind == "shared":
        ranges = SharedRange(config.initial, config.floor)
    else:
        ranges = _predictor(config, in_channels, network)
    return Augmented(network, ranges, group, samples=config.samples, training=config.training, background=background)


def moving_group(network: nn.Module, config: AugmenterConfig, in_channels: int) -> Group:
    """What moves images before this network."""
    hue = config.transform == "hue" or (config.transform == "auto" and isinstance(network, ColorCNN | ColorResNet))
    if hue and in_channels != 3:
        raise UserError(f"augmenter: hues need colour images, got {in_channels} channel")
    return Hue(360) if hue else SO2()  # hues act by any angle, linearly
