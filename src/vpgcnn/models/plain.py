"""The ResNet that everyone has, in plain PyTorch with the usual names of weights; ordinary, or converted to a group."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from vpgcnn.convert import Converted, convert
from vpgcnn.errors import UserError
from vpgcnn.features import Prediction
from vpgcnn.groups import Group
from vpgcnn.levels import Full, Learned, LevelFactory, Window
from vpgcnn.models.base import EXPANSION, Description, block_shapes, group_of
from vpgcnn.models.config import PlainConfig

__all__ = ["Block", "PlainNet", "ResNet"]


class Block(nn.Module):
    """Equivariant to nothing but shifts: convolutions with their norms, and a shortcut.

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
    """Equivariant to nothing but shifts: images `(B, C, H, W)` to logits `(B, classes)`.

    Depths (2, 2, 2, 2) and width 64 are ResNet18, (3, 4, 6, 3) ResNet34, with bottlenecks ResNet50; weights are
    called as in torchvision.
    """

    def __init__(self, config: PlainConfig, in_channels: int, classes: int) -> None:
        super().__init__()
        if not config.depths or min(config.depths) < 1 or config.width < 1:
            raise UserError(f"depths and width are at least 1, got {config.depths} and {config.width}")
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

    def describe(self, images: Tensor) -> Tensor:
        """What the last linear layer sees of images, `(B, width)`."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        for stage in range(self.stages):
            x = self.get_submodule(f"layer{stage + 1}")(x)
        seen: Tensor = self.avgpool(x).flatten(1)
        return seen

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.describe(images))
        return logits


class PlainNet(nn.Module):
    """Equivariant as far as its levels allow where it was converted to a group; else an ordinary ResNet.

    Images `(B, C, H, W)` to logits `(B, classes)` and the KL of the levels `(B,)`.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, config: PlainConfig, in_channels: int, classes: int) -> None:
        super().__init__()
        self.config = config
        group, points = group_of(config.group, config.elements, config.hues)
        if points is not None:
            raise UserError(f"a plain network is converted to a finite group, got {config.group}")
        self.group: Group = group
        for name in ("mean", "std"):
            given: tuple[float, ...] = getattr(config, name)
            if len(given) not in (1, in_channels) or (name == "std" and min(given) <= 0):
                raise UserError(f"{name} is one number or {in_channels}, and std more than 0, got {given}")
            self.register_buffer(name, torch.tensor(given).view(1, -1, 1, 1), persistent=False)
        self.network: nn.Module = ResNet(config, in_channels, classes)
        if config.ordinary:
            return
        self.network = self.converted(self.network)

    def converted(self, network: nn.Module) -> Converted:
        """Another network of this shape on the group, with its answers to begin with."""
        config = self.config
        level: LevelFactory | None = None
        if config.level == "full":
            level = Full
        elif config.level == "learned":
            level = partial(Learned, family=Window(initial=1 / (self.group.order or 1)))
        return convert(
            network, self.group, level=level, layers=config.layers or None, levels=config.levels or None,
            until=config.until or None, mix=config.mix, mean=self.mean.flatten().tolist(),
            std=self.std.flatten().tolist(),
        )  # fmt: skip

    @property
    def head(self) -> nn.Linear:
        """The last linear layer of an ordinary network."""
        return self._ordinary().fc

    def _ordinary(self) -> ResNet:
        if not isinstance(self.network, ResNet):
            raise UserError("a converted network does not say what its last layer sees: views are pooled after it")
        return self.network

    def describe(self, images: Tensor) -> Description:
        """What the last linear layer sees of images, of an ordinary network."""
        seen = self._ordinary().describe((images - self.mean) / self.std)
        return Description(seen, seen.new_zeros(seen.shape[0]))

    def forward(self, images: Tensor) -> Prediction:
        if isinstance(self.network, Converted):
            answer: Prediction = self.network(images)
            return answer
        logits = self.network((images - self.mean) / self.std)
        return Prediction(logits, logits.new_zeros(logits.shape[0]))
