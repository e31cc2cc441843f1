"""Networks by name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from torch import nn

from vpgcnn.errors import UserError
from vpgcnn.groups import Group, Product
from vpgcnn.kernels import KernelSpec
from vpgcnn.lab.networks.base import ImageNetwork
from vpgcnn.lab.networks.color import ColorCNN, ColorResNet
from vpgcnn.lab.networks.config import (
    COLOR_CNN,
    COLOR_RESNET,
    COLOR_RESNET50,
    COLOR_RESNET_SMALL,
    DIGITS,
    DIGITS_IN_COLOR,
    NO_GROUP,
    PLAIN_RESNET,
    PLAIN_RESNET50,
    PLAIN_RESNET_SMALL,
    RESNET,
    RESNET_SMALL,
    SIGNS_IN_COLOR,
    ColorConfig,
    ModelConfig,
    PlainConfig,
    SE2Config,
)
from vpgcnn.lab.networks.plain import PlainNet
from vpgcnn.lab.networks.se2 import SE2Net
from vpgcnn.lab.specs import text
from vpgcnn.levels import Full, LevelSpec, Shared, Variational

__all__ = ["MODELS", "Entry", "build", "count_parameters", "elements_of", "in_words", "ordinary", "symmetry"]


@dataclass(frozen=True)
class Entry:
    """A network that `vpgcnn models` lists.

    Args:
        config: Its configuration.
        in_channels: Channels of the images.
        classes: Number of classes.
        about: What it is for.
    """

    config: ModelConfig
    in_channels: int
    classes: int
    about: str


MODELS = {
    "se2-resnet": Entry(RESNET, 3, 10, "the paper's SE(2) ResNet for CIFAR"),
    "se2-resnet-small": Entry(
        RESNET_SMALL,
        3,
        10,
        "a narrow SE(2) ResNet with early pooling, for two CPU cores",
    ),
    "se2-net": Entry(DIGITS, 1, 3, "the small SE(2) net for MNIST67-180"),
    "se2-net-color": Entry(DIGITS_IN_COLOR, 3, 12, "the same on rotations × hues, for digits in colour"),
    "color-net": Entry(SIGNS_IN_COLOR, 3, 9, "the same on saturations × luminances, for traffic signs"),
    "color-cnn": Entry(COLOR_CNN, 3, 30, "the 7-layer colour CNN for ColorMNIST"),
    "resnet18": Entry(
        PLAIN_RESNET, 3, 102, "an ordinary ResNet18 in plain PyTorch, which `vpgcnn convert` can convert"
    ),
    "resnet18-small": Entry(PLAIN_RESNET_SMALL, 3, 102, "a narrow ordinary ResNet18, for two CPU cores"),
    "resnet50": Entry(PLAIN_RESNET50, 3, 102, "an ordinary ResNet50"),
    "color-resnet18": Entry(COLOR_RESNET, 3, 102, "the colour ResNet18 for Flowers102"),
    "color-resnet18-small": Entry(COLOR_RESNET_SMALL, 3, 102, "a narrow colour ResNet18, for two CPU cores"),
    "color-resnet50": Entry(COLOR_RESNET50, 3, 102, "a colour ResNet50"),
}


def build(
    config: ModelConfig,
    in_channels: int,
    classes: int,
    mean: Sequence[float] = (0.0,),
    std: Sequence[float] = (1.0,),
) -> ImageNetwork:
    """Build a network with random weights.

    Args:
        config: The network and its settings.
        in_channels: Channels of the images.
        classes: Number of classes.
        mean: Mean of the training images, one number or one for each channel.
        std: Their standard deviation.

    Returns:
        A module from images `(B, in_channels, H, W)` in [0, 1] to a `Prediction`.
    """
    _check_values(config)
    if in_channels < 1 or classes < 2:
        raise UserError(f"a network needs at least 1 channel and at least 2 classes, got {in_channels} and {classes}")
    if config.group.acts_on_rgb and in_channels != 3:
        raise UserError(
            f"{text(config.group)} needs colour images, got {in_channels} channel: choose another group, or none"
        )
    sizes = in_channels, classes, mean, std
    try:
        if isinstance(config, SE2Config):
            return SE2Net(config, *sizes)
        if isinstance(config, PlainConfig):
            return PlainNet(config, *sizes)
        if isinstance(config, ColorConfig):
            return (ColorCNN if config.shape == "cnn" else ColorResNet)(config, *sizes)
    except UserError:
        raise
    except (ValueError, RuntimeError, TypeError) as error:
        raise UserError(f"this network cannot be built: {error}") from error
    raise UserError(f"no network is configured by {config!r}")


def _check_values(config: ModelConfig) -> None:
    """Refuse text and classes where a configuration needs a group, a level or a kernel."""
    kinds = {"group": (Group, "SO2(8)"), "level": (LevelSpec, "Full()"), "kernel": (KernelSpec, "Siren()")}
    for name, (kind, example) in {**kinds, "elsewhere": kinds["level"]}.items():
        value = getattr(config, name, None)
        if value is not None and not isinstance(value, kind):
            raise UserError(f"{name} must be a value such as {example}, got {value!r}")


def ordinary(config: ModelConfig) -> ModelConfig:
    """The same network without a group: the T(2) baseline."""
    return replace(config, group=NO_GROUP, level=Full())


def symmetry(config: ModelConfig) -> Literal["none", "rotation", "hue", "both", "color"]:
    """The symmetry of a network other than translations; a colour network counts as "hue" even without a group.

    "color": saturation or luminance, whatever else there is.
    """
    if config.group.recolors:
        return "color"
    if isinstance(config, ColorConfig):
        return "hue"
    turns, hues = elements_of(config)
    return ("both" if turns > 1 else "hue") if hues > 1 else "rotation" if turns > 1 else "none"


def elements_of(config: ModelConfig) -> tuple[int, int]:
    """The numbers of rotations (or reflections) and of hues that a network computes; 1 for those it does not have."""
    parts = _factors(config.group)
    turns = math.prod(part.count for part in parts if part.acts_on_plane)
    hues = math.prod(part.count for part in parts if part.acts_on_rgb and not part.recolors)
    return turns, hues


def _factors(group: Group) -> list[Group]:
    """The groups that a product is made of."""
    return [*_factors(group.first), *_factors(group.second)] if isinstance(group, Product) else [group]


def in_words(config: ModelConfig) -> str:
    """A network in a few words: its shape, its symmetry, its level."""
    kind = {"se2": "SE(2) network", "plain": "ResNet in plain PyTorch"}.get(config.name, "")
    if isinstance(config, ColorConfig):
        kind = "colour ResNet" if config.shape == "resnet" else "colour CNN"
    if isinstance(config, PlainConfig) and config.factory:
        kind = config.factory
    if config.group.count == 1:
        return f"{kind} without a group"
    level = f"the level {text(config.level)}"
    if config.level.is_full:
        level = "the whole group for every image"
    elif isinstance(config.level, Shared):
        level = "one level for all images"
    elif isinstance(config.level, Variational):
        level = "a level for each image"
    return f"{kind} on {text(config.group)}, {level}"


def count_parameters(model: nn.Module) -> int:
    """The number of trainable numbers of a network."""
    return sum(parameter.numel() for parameter in model.parameters())
