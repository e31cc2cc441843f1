"""Networks by name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from torch import nn

from vpgcnn.errors import UserError
from vpgcnn.models.color import ColorCNN, ColorResNet
from vpgcnn.models.config import (
    COLOR_CNN,
    COLOR_RESNET,
    COLOR_RESNET50,
    COLOR_RESNET_SMALL,
    DIGITS,
    DIGITS_IN_COLOR,
    PLAIN_RESNET,
    PLAIN_RESNET50,
    PLAIN_RESNET_SMALL,
    RESNET,
    RESNET_SMALL,
    ColorConfig,
    ModelConfig,
    PlainConfig,
    SE2Config,
)
from vpgcnn.models.plain import PlainNet
from vpgcnn.models.se2 import SE2Net

__all__ = ["MODELS", "Entry", "build", "count_parameters", "elements_of", "in_words", "ordinary", "symmetry"]


@dataclass(frozen=True)
class Entry:
    """A network that `vpgcnn models` lists: its configuration, and what it is for."""

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
    "color-cnn": Entry(COLOR_CNN, 3, 30, "the 7-layer colour CNN for ColorMNIST"),
    "resnet18": Entry(PLAIN_RESNET, 3, 102, "an ordinary ResNet18 in plain PyTorch, which `vpgcnn convert` takes"),
    "resnet18-small": Entry(PLAIN_RESNET_SMALL, 3, 102, "a narrow one, for two CPU cores"),
    "resnet50": Entry(PLAIN_RESNET50, 3, 102, "an ordinary ResNet50"),
    "color-resnet18": Entry(COLOR_RESNET, 3, 102, "the colour ResNet18 for Flowers102"),
    "color-resnet18-small": Entry(COLOR_RESNET_SMALL, 3, 102, "a narrow colour ResNet18, for two CPU cores"),
    "color-resnet50": Entry(COLOR_RESNET50, 3, 102, "a colour ResNet50"),
}


def build(config: ModelConfig, in_channels: int, classes: int) -> nn.Module:
    """A network with random weights: images `(B, in_channels, H, W)` → `Prediction`."""
    if in_channels < 1 or classes < 2:
        raise UserError(f"a network needs channels and at least 2 classes, got {in_channels} and {classes}")
    if elements_of(config)[1] > 1 and in_channels != 3:
        without = "elements 1 with level full is the ordinary network" if isinstance(config, ColorConfig) else "hues 1"
        raise UserError(f"hues need colour images, got {in_channels} channel: {without}")
    try:
        if isinstance(config, SE2Config):
            return SE2Net(config, in_channels, classes)
        if isinstance(config, PlainConfig):
            return PlainNet(config, in_channels, classes)
        if isinstance(config, ColorConfig):
            return (ColorCNN if config.shape == "cnn" else ColorResNet)(config, in_channels, classes)
    except UserError:
        raise
    except (ValueError, RuntimeError, TypeError) as error:
        raise UserError(f"this network cannot be built: {error}") from error
    raise UserError(f"no network is configured by {config!r}")


def ordinary(config: ModelConfig) -> ModelConfig:
    """The same network without a group: the T(2) baseline."""
    if isinstance(config, ColorConfig):
        return replace(config, elements=1, level="full")
    return replace(config, group="t2", elements=1, hues=1, level="full")


def symmetry(config: ModelConfig) -> Literal["none", "rotation", "hue", "both"]:
    """What a network can be equivariant to besides shifts; a colour network without hues counts as one of hues."""
    if isinstance(config, ColorConfig):
        return "hue"
    turns = config.group != "t2"
    return ("both" if turns else "hue") if config.hues > 1 else "rotation" if turns else "none"


def elements_of(config: ModelConfig) -> tuple[int, int]:
    """How many rotations and how many hues a network computes; 1 of what it does not have."""
    if isinstance(config, ColorConfig):
        return 1, config.elements
    return 1 if config.group == "t2" else config.elements, config.hues


def in_words(config: ModelConfig) -> str:
    """A network in a few words: its shape, its symmetry, its level."""
    turns, hues = elements_of(config)
    kind = {"se2": "SE(2) network", "plain": "ResNet in plain PyTorch"}.get(config.name, "")
    if isinstance(config, ColorConfig):
        kind = "colour ResNet" if config.shape == "resnet" else "colour CNN"
    parts = [f"{turns} rotations"] * (turns > 1) + [f"{hues} hues"] * (hues > 1)
    if not parts:
        return f"{kind} without a group"
    levels = {"full": "all of them for every image", "learned": "one level for all images"}
    return f"{kind} on {' × '.join(parts)}, {levels.get(config.level, 'a level for each image')}"


def count_parameters(model: nn.Module) -> int:
    """How many numbers training adjusts."""
    return sum(parameter.numel() for parameter in model.parameters())
