"""Learned augmentation: the baselines that move images instead of building the symmetry in.

    >>> model = augmented(build(ordinary(RESNET), 3, 10), AugmenterConfig("image", "rotation"), in_channels=3)
    >>> prediction = model(images)            # training: one moved copy of each image; evaluation: the mean of many

Augerino (Benton et al., 2020) learns one range for all images; InstaAug (Miao et al., 2022) predicts one for each.
Both are trained through the moved image: the angle is range · noise, and images move smoothly with it. AdaAug's
policy only changes training images and is not part of the network: see `vpgcnn.lab.networks.policy`. After Singhal et
al. (2023), a distribution of moves with several modes is predicted for each image: a mixture of two windows, in place
of their normalising flow.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import replace
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vpgcnn._ops.precision import full_precision, uniform
from vpgcnn.errors import UserError
from vpgcnn.features import Prediction, recorded
from vpgcnn.groups import SO2, Group, Hue
from vpgcnn.lab.networks.base import ImageNetwork
from vpgcnn.lab.networks.color import ColorCNN, ColorResNet
from vpgcnn.lab.networks.config import COLOR_RESNET, NO_GROUP, AugmenterConfig
from vpgcnn.levels.distributions import WindowDistribution
from vpgcnn.levels.families import bound
from vpgcnn.levels.level import Full, Level
from vpgcnn.levels.mixture import Mixture, MixtureDistribution

__all__ = [
    "Augmented",
    "AugmentedByMixture",
    "FixedRange",
    "ImageRange",
    "Range",
    "SharedRange",
    "augmented",
    "moved",
    "moving_group",
]


class Range(nn.Module, ABC):
    """How far each image may move: from images `(B, C, H, W)` to θ `(B, 1)` in (0, 1], a share of the circle."""

    learned = True

    @abstractmethod
    def forward(self, images: Tensor) -> Tensor: ...


class FixedRange(Range):
    """The same range for all images, not learned."""

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
    """A range for each image, predicted by a network.

    Args:
        body: Images to features `(B, width)`.
        width: Number of features.
        initial: Range at the start.
        floor: Smallest range.
    """

    def __init__(self, body: nn.Module, width: int, initial: float, floor: float) -> None:
        super().__init__()
        self.body, self.floor = body, floor
        self.head = nn.Linear(width, 1)
        nn.init.normal_(self.head.weight, std=0.05 * width**-0.5)
        nn.init.constant_(self.head.bias, initial)

    def forward(self, images: Tensor) -> Tensor:
        features = self.body(images)
        with full_precision(images.device):
            return bound(self.head(features.to(self.head.weight.dtype)), [self.floor], 1.0)


class _Headless(nn.Module):
    """The features of a network, `(B, width)`."""

    def __init__(self, network: ImageNetwork) -> None:
        super().__init__()
        network.head = nn.Identity()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        return self.network.features(images).values


def _predictor(config: AugmenterConfig, channels: int, network: nn.Module) -> ImageRange:
    """Three convolutions of stride 2 and a mean over space, or an ordinary ResNet18 of the network's width."""
    if config.predictor == "resnet":
        width = network.config.width if isinstance(network, ColorResNet) else COLOR_RESNET.width
        resnet = ColorResNet(replace(COLOR_RESNET, group=NO_GROUP, level=Full(), width=width), channels, 2)
        return ImageRange(_Headless(resnet), 8 * width, config.initial, config.floor)
    sizes = [channels, config.width, 2 * config.width, 2 * config.width]
    blocks = [
        nn.Sequential(nn.Conv2d(a, b, 3, 2, 1, bias=False), nn.BatchNorm2d(b), nn.SiLU()) for a, b in pairwise(sizes)
    ]
    body = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return ImageRange(body, sizes[-1], config.initial, config.floor)


def moved(group: Group, images: Tensor, share: Tensor) -> Tensor:
    """Images rotated or shifted in hue, each by its share of 180°; uncovered corners are black.

    Args:
        group: Rotations or hues.
        images: `(B, C, H, W)` in [0, 1].
        share: `(B, 1)` in [−1, 1].
    """
    return group.transform(images, math.pi * share)


class Augmented(nn.Module):
    """A network behind random moves. Not equivariant by construction: it learns to be invariant.

    Training moves each image once, by π·θ·ε with ε uniform in [−1, 1]. Evaluation averages the probabilities of
    `samples` copies, evenly spread over the range; the logits are the logarithm of the average. A learned range is
    recorded in the trace as "ranges", with the KL −log θ. The levels of the network are those for the unmoved image.

    Args:
        network: Images in [0, 1] to a `Prediction`.
        ranges: How far images move.
        group: Rotations or hues.
        samples: Copies of each image that evaluation averages over.
        training: Whether training images move.
    """

    def __init__(self, network: nn.Module, ranges: Range, group: Group, *, samples: int, training: bool) -> None:
        super().__init__()
        if samples < 1:
            raise UserError(f"samples must be at least 1, got {samples}")
        self.network, self.ranges = network, ranges
        self.group, self.samples, self.moves_training = group, samples, training

    def forward(self, images: Tensor) -> Prediction:
        """Images `(B, C, H, W)` in [0, 1] to logits `(B, classes)` and the trace."""
        theta = self.ranges(self._seen(images))
        if self.training and self.moves_training:
            noise = uniform((len(images), 1), theta) * 2 - 1
            logits, trace = self.network(moved(self.group, images, theta * noise))
        elif self.training or self.samples == 1:
            logits, trace = self.network(images)
        else:
            logits = self._average(images, theta)
            trace = self.network(images).trace if any(isinstance(m, Level) for m in self.network.modules()) else {}
        if self.ranges.learned:
            shared = isinstance(self.ranges, SharedRange)
            q = WindowDistribution(self.group, theta, validate=False, shared=shared)
            trace = recorded(trace, "ranges", q)
        return Prediction(logits, trace)

    def _seen(self, images: Tensor) -> Tensor:
        """The input of the ranges: images as the network sees them, standardised."""
        return self.network.standardised(images) if isinstance(self.network, ImageNetwork) else images

    def _average(self, images: Tensor, theta: Tensor) -> Tensor:
        logs = []
        for place in range(self.samples):
            noise = (2 * place + 1) / self.samples - 1
            logits = self.network(moved(self.group, images, theta * noise)).logits
            logs.append(F.log_softmax(logits.float(), dim=1))
        return torch.stack(logs).logsumexp(dim=0) - math.log(self.samples)

    def extra_repr(self) -> str:
        return f"{self.group}, samples={self.samples}"


class AugmentedByMixture(nn.Module):
    """A network behind random moves from a mixture of windows, which another network predicts for each image.

    Training moves each image once for each window, by a sample from it, and averages the probabilities under the shares
    of the windows: so shares, means and widths all have exact gradients. Evaluation averages `samples` copies, evenly
    spread over the windows. The mixture is recorded in the trace as "ranges".

    Args:
        network: Images in [0, 1] to a `Prediction`.
        body: Images to features `(B, width)`.
        width: Number of features.
        group: Rotations or hues.
        family: The mixture.
        samples: Copies of each image that evaluation averages over.
    """

    def __init__(
        self, network: nn.Module, body: nn.Module, width: int, group: Group, family: Mixture, *, samples: int
    ) -> None:
        super().__init__()
        if samples < family.windows:
            raise UserError(f"a mixture of {family.windows} windows needs as many samples, got {samples}")
        self.network, self.group, self.family, self.samples = network, group, family, samples
        start = family.start(group)
        head = nn.Linear(width, len(start))
        nn.init.normal_(head.weight, std=0.05 * width**-0.5)
        head.bias.data.copy_(start)
        self.ranges = nn.Sequential(body, head)

    def moves(self, images: Tensor) -> MixtureDistribution:
        """The distribution of the moves of images `(B, C, H, W)` in [0, 1]."""
        seen = self.network.standardised(images) if isinstance(self.network, ImageNetwork) else images
        with full_precision(images.device):
            bounded = self.family.bounded(self.ranges(seen), self.group)
            return self.family.distribution(bounded, self.group, noisy=False, generator=None)

    def forward(self, images: Tensor) -> Prediction:
        """Images `(B, C, H, W)` in [0, 1] to logits `(B, classes)` and the trace."""
        q = self.moves(images)
        if self.training:
            noise = [uniform((len(images), 1), q.widths) * 2 - 1 for _ in range(self.family.windows)]
            logits = self._average(images, q, [[one] for one in noise])
            return Prediction(logits, recorded({}, "ranges", q))
        each = self.samples // self.family.windows
        even = [torch.full_like(q.widths[:, :, 0], (2 * place + 1) / each - 1) for place in range(each)]
        trace = self.network(images).trace if any(isinstance(m, Level) for m in self.network.modules()) else {}
        return Prediction(self._average(images, q, [even] * self.family.windows), recorded(trace, "ranges", q))

    def _average(self, images: Tensor, q: MixtureDistribution, noise: list[list[Tensor]]) -> Tensor:
        """The logarithm of the mean probabilities of copies, at the places `(B, 1)` in [−1, 1] of each window."""
        logs = []
        for window, places in enumerate(noise):
            share = q.shares[:, :, window].log() - math.log(len(places))
            for place in places:
                element = math.pi * (q.means[:, :, window] + q.widths[:, :, window] * place)
                logits = self.network(self.group.transform(images, element)).logits
                logs.append(F.log_softmax(logits.float(), dim=1) + share)
        return torch.stack(logs).logsumexp(dim=0)

    def extra_repr(self) -> str:
        return f"{self.group}, {self.family}, samples={self.samples}"


def augmented(network: nn.Module, config: AugmenterConfig, in_channels: int) -> nn.Module:
    """Put a network behind the augmentation of a configuration; it is returned as it is for kinds that only change
    training.

    Args:
        network: Images in [0, 1] to a `Prediction`.
        config: The settings of the augmentation.
        in_channels: Channels of the images.
    """
    if config.kind in ("none", "autoaugment"):
        return network
    if not 0 < config.floor <= config.initial <= 1:
        raise UserError(f"the augmenter needs 0 < floor ≤ initial ≤ 1, got {config.floor} and {config.initial}")
    if config.kind != "fixed" and not config.training:
        raise UserError("the augmenter learns its range from training images that move: augmenter.training must be on")
    group = moving_group(network, config, in_channels)
    if not config.in_network:
        return network
    if config.kind == "fixed":
        ranges: Range = FixedRange(config.initial)
    elif config.kind == "shared":
        ranges = SharedRange(config.initial, config.floor)
    else:
        predictor = _predictor(config, in_channels, network)
        if config.kind == "mixture":
            family, width = Mixture(2, initial=config.initial, floor=config.floor), predictor.head.in_features
            return AugmentedByMixture(network, predictor.body, width, group, family, samples=config.samples)
        ranges = predictor
    return Augmented(network, ranges, group, samples=config.samples, training=config.training)


def moving_group(network: nn.Module, config: AugmenterConfig, in_channels: int) -> Group:
    """The group that moves images before this network: hues for colour networks, unless the settings choose."""
    hue = config.transform == "hue" or (config.transform == "auto" and isinstance(network, ColorCNN | ColorResNet))
    if hue and in_channels != 3:
        raise UserError(
            f"the augmenter cannot shift the hue of images with {in_channels} channel: hues need colour images"
        )
    return Hue(360) if hue else SO2()  # hues act by any angle, linearly
