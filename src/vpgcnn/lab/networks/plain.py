"""The usual ResNet in plain PyTorch, with torchvision's names of weights; ordinary, or converted to a group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from vpgcnn.conversion import Converted, convert
from vpgcnn.conversion.network import convolutions
from vpgcnn.errors import UserError
from vpgcnn.features import Prediction, output_of
from vpgcnn.lab.networks.base import EXPANSION, Features, ImageNetwork, block_shapes
from vpgcnn.lab.networks.config import PlainConfig
from vpgcnn.lab.plugins import trusted_network
from vpgcnn.lab.specs import text
from vpgcnn.levels import LevelSpec, Shared, Variational, Window

__all__ = ["Block", "PlainNet", "ResNet"]


class Block(nn.Module):
    """Equivariant to translations only: convolutions with their norms, and a shortcut.

    From `inner` channels to `outer`; a bottleneck to four times `outer`.
    """

    def __init__(self, inner: int, outer: int, stride: int, *, bottleneck: bool = False) -> None:
        super().__init__()
        self.convolutions = 3 if bottleneck else 2
        for number, shape in enumerate(block_shapes(inner, outer, stride, bottleneck=bottleneck), start=1):
            before, after, size, step = shape
            self.add_module(f"conv{number}", nn.Conv2d(before, after, size, step, size // 2, bias=False))
            self.add_module(f"bn{number}", nn.BatchNorm2d(after))
        self.relu = nn.ReLU()
        self.downsample: nn.Module | None = None
        if stride != 1 or inner != after:
            self.downsample = nn.Sequential(nn.Conv2d(inner, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        out = x
        for number in range(1, self.convolutions + 1):
            out = self.get_submodule(f"bn{number}")(self.get_submodule(f"conv{number}")(out))
            out = out if number == self.convolutions else self.relu(out)
        out = out + (x if self.downsample is None else self.downsample(x))
        after: Tensor = self.relu(out)
        return after


class ResNet(nn.Module):
    """Equivariant to translations only: images `(B, C, H, W)` to logits `(B, classes)`.

    Depths (2, 2, 2, 2) and width 64 are ResNet18, (3, 4, 6, 3) ResNet34, with bottlenecks ResNet50. Weights have
    torchvision's names.
    """

    def __init__(self, config: PlainConfig, in_channels: int, classes: int) -> None:
        super().__init__()
        if not config.depths or min(config.depths) < 1 or config.width < 1:
            raise UserError(f"depths and width must be at least 1, got {config.depths} and {config.width}")
        large = config.stem == "large"
        self.conv1 = nn.Conv2d(
            in_channels, config.width, 7 if large else 3, 2 if large else 1, 3 if large else 1, bias=False
        )
        self.bn1, self.relu = nn.BatchNorm2d(config.width), nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, 2, 1) if large else nn.Identity()
        inner = config.width
        self.stages, bottleneck = len(config.depths), config.block == "bottleneck"
        for stage, depth in enumerate(config.depths):
            outer, blocks = config.width * 2**stage, []
            for number in range(depth):
                blocks.append(Block(inner, outer, 2 if stage and not number else 1, bottleneck=bottleneck))
                inner = outer * EXPANSION if bottleneck else outer
            self.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inner, classes)

    def features(self, images: Tensor) -> Tensor:
        """The input of the last linear layer, `(B, width)`."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        for stage in range(self.stages):
            x = self.get_submodule(f"layer{stage + 1}")(x)
        pooled: Tensor = self.avgpool(x).flatten(1)
        return pooled

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.features(images))
        return logits


class PlainNet(ImageNetwork):
    """An ordinary ResNet, or one converted to a group: then equivariant as far as its levels allow.

    Args:
        config: Sizes, and the group to convert to.
        in_channels: Channels of the images.
        classes: Number of classes.
        mean: Mean of the training images.
        std: Their standard deviation. A converted network moves images before it standardises them.
    """

    def __init__(
        self,
        config: PlainConfig,
        in_channels: int,
        classes: int,
        mean: Sequence[float] = (0.0,),
        std: Sequence[float] = (1.0,),
    ) -> None:
        super().__init__(mean, std)
        self.config, self.group = config, config.group
        if self.group.order is None:
            raise UserError(f"a plain network can only be converted to a finite group, got {text(self.group)}")
        self.network: nn.Module
        if config.factory:
            self.network = trusted_network(config.factory)
            self._check_classes(in_channels, classes)
        else:
            self.network = ResNet(config, in_channels, classes)
        if self.group.order > 1:
            self.network = self.converted(self.network)

    def _check_classes(self, in_channels: int, classes: int) -> None:
        """Refuse a network with another number of classes than the images have."""
        shape = (2, in_channels, self.config.example, self.config.example)
        try:
            with torch.no_grad():
                logits = output_of(self.network.eval()(torch.full(shape, 0.5)))
        except Exception as error:
            reason = str(error).strip().splitlines() or [type(error).__name__]
            raise UserError(f"{self.config.factory} does not accept images {shape}: {reason[-1]}") from error
        finally:
            self.network.train()
        if logits.shape != (2, classes):
            raise UserError(
                f"{self.config.factory} answers {tuple(logits.shape)} for 2 images, but there are {classes} classes: "
                "let the function give its network a last layer for these"
            )

    def converted(self, network: nn.Module) -> Converted:
        """Convert another network of this shape to the group; it starts with that network's answers."""
        config = self.config
        first = next(iter(convolutions(network).values()))
        example = torch.rand(1, first.in_channels, config.example, config.example)
        return convert(
            network, self.group, level=self._closed(config.level), layers=config.layers or None,
            levels=config.levels or None, until=config.until or None, mix=config.mix, budget=config.budget,
            mean=self.mean.flatten().tolist(), std=self.std.flatten().tolist(), example=example,
        )  # fmt: skip

    def _closed(self, level: LevelSpec) -> LevelSpec | None:
        """The level with a window that starts at the identity, unless its start was chosen."""
        closed = Window(initial=1 / (self.group.order or 1))
        if isinstance(level, Shared | Variational) and level.family == Window():
            return None if level == Variational() else replace(level, family=closed)
        return level

    @property
    def head(self) -> nn.Module:  # type: ignore[override]
        """The last linear layer of an ordinary network."""
        return self._ordinary().fc

    def _ordinary(self) -> ResNet:
        if not isinstance(self.network, ResNet):
            raise UserError(
                "the features of this network cannot be read: it is converted (views are pooled last), or no ResNet"
            )
        return self.network

    def features(self, images: Tensor) -> Features:
        """The input of an ordinary network's last linear layer, for images `(B, C, H, W)` in [0, 1]."""
        return Features(self._ordinary().features(self.standardised(images)), {})

    def forward(self, images: Tensor) -> Prediction:
        if isinstance(self.network, Converted):
            answer: Prediction = self.network(images)
            return answer
        if self.config.factory:
            logits = output_of(self.network(self.standardised(images)))
            assert isinstance(logits, Tensor)
            return Prediction(logits, {})
        return super().forward(images)
