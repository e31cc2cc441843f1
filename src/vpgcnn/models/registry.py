"""Networks by name."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import nn

from vpgcnn.errors import UserError
from vpgcnn.models.color import ColorCNN, ColorResNet
from vpgcnn.models.config import (
    COLOR_CNN,
    COLOR_RESNET,
    COLOR_RESNET_SMALL,
    DIGITS,
    RESNET,
    RESNET_SMALL,
    ColorConfig,
    ModelConfig,
    SE2Config,
)
from vpgcnn.models.se2 import SE2Net

__all__ = ["MODELS", "Entry", "build", "count_parameters", "ordinary"]


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
    "color-cnn": Entry(COLOR_CNN, 3, 30, "the 7-layer colour CNN for ColorMNIST"),
    "color-resnet18": Entry(COLOR_RESNET, 3, 102, "the colour ResNet18 for Flowers102"),
    "color-resnet18-small": Entry(COLOR_RESNET_SMALL, 3, 102, "a narrow colour ResNet18, for two CPU cores"),
}


def build(config: ModelConfig, in_channels: int, classes: int) -> nn.Module:
    """A network with random weights: images `(B, in_channels, H, W)` → `Prediction`."""
    if in_channels < 1 or classes < 2:
        raise UserError(f"a network needs channels and at least 2 classes, got {in_channels} and {classes}")
    if isinstance(config, ColorConfig) and config.elements > 1 and in_channels != 3:
        raise UserError(
            f"hues need colour images, got {in_channels} channel: elements 1 with level full is the ordinary network"
        )
    try:
        if isinstance(config, SE2Config):
            return SE2Net(config, in_channels, classes)
        if isinstance(config, ColorConfig):
            return (ColorCNN if config.shape == "cnn" else ColorResNet)(config, in_channels, classes)
    except UserError:
        raise
    except (ValueError, RuntimeError, TypeError) as error:
        raise UserError(f"this network cannot be built: {error}") from error
    raise UserError(f"no network is configured by {config!r}")


def ordinary(config: ModelConfig) -> ModelConfig:
    """The same network without a group: the T(2) baseline."""
    if isinstance(config, SE2Config):
        return replace(config, group="t2", elements=1, level="full")
    return replace(config, elements=1, level="full")


def count_parameters(model: nn.Module) -> int:
    """How many numbers training adjusts."""
    return sum(parameter.numel() for parameter in model.parameters())
