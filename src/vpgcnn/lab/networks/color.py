"""Networks on hue shifts: the 7-layer CNN of ColorMNIST and ResNets, each with its ordinary twin."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from vpgcnn._ops.memory_format import prefer_channels_last
from vpgcnn.errors import UserError
from vpgcnn.features import GroupFeature
from vpgcnn.kernels import Table
from vpgcnn.lab.networks.base import EXPANSION, Features, ImageNetwork, Placement, block_shapes, seeded_separately
from vpgcnn.lab.networks.config import NO_GROUP, ColorConfig
from vpgcnn.lab.specs import text
from vpgcnn.levels import Full
from vpgcnn.nn import GroupBatchNorm, GroupConv2d, GroupPool, LiftConv2d, ReluDropout, SpatialPool, name_layers

__all__ = ["ColorCNN", "ColorResNet"]


class _Maker:
    """Makes the convolutions of one network, which share the group, the kind of kernel and the placement of levels."""

    def __init__(self, config: ColorConfig) -> None:
        if config.width < 1:
            raise UserError(f"width must be at least 1, got {config.width}")
        if (config.group.acts_on_plane and config.group != NO_GROUP) or config.group.order is None:
            raise UserError(
                f"the group of a colour network must be finite and act on colours, or none, got {text(config.group)}"
            )
        if config.group.order == 1 and not config.level.is_full:
            raise UserError(
                f"without a group there is nothing to choose: the level must be Full(), got {text(config.level)}"
            )
        self.config, self.group = config, config.group
        self.bottleneck = config.block == "bottleneck"
        self.place = Placement(config)

    def lift(self, inner: int, outer: int, name: str, size: int, stride: int = 1, padding: int = 0) -> LiftConv2d:
        level = seeded_separately(self.place(name))
        return LiftConv2d(inner, outer, size, self.group, level=level, stride=stride, padding=padding, bias=False)

    def conv(
        self, inner: int, outer: int, name: str, size: int, stride: int = 1, padding: int = 0, *, plain: bool = False
    ) -> GroupConv2d:
        """A convolution. plain: without a group, after the hues are pooled away."""
        group = NO_GROUP if plain else self.group
        level = Full() if plain else seeded_separately(self.place(name))
        # A 1×1 table has m numbers for each pair of channels; a separable one would have m + 1.
        separable = self.config.separable and group.order != 1 and (size > 1 or not self.bottleneck)
        return GroupConv2d(
            inner, outer, size, group, level=level, kernel=Table(separable=separable), stride=stride,
            padding=padding, bias=False,
        )  # fmt: skip


class ColorCNN(ImageNetwork):
    """Equivariant to hue shifts as far as the levels allow; with mean or max pooling the logits are then invariant.

    Six 3×3 convolutions and one 4×4, none padded, halved after the second: images of 28×28. Layers are called
    conv1 … conv7. Without a group it is an ordinary CNN.

    Args:
        config: Sizes, group and levels.
        in_channels: Channels of the images.
        classes: Number of classes.
        mean: Mean of the training images.
        std: Their standard deviation.
    """

    def __init__(
        self,
        config: ColorConfig,
        in_channels: int,
        classes: int,
        mean: Sequence[float] = (0.0,),
        std: Sequence[float] = (1.0,),
    ) -> None:
        super().__init__(mean, std)
        if config.equivariant != 4:
            raise UserError(f"the cnn has no stages, so equivariant must stay 4, got {config.equivariant}")
        self.config = config
        make, width = _Maker(config), config.width
        self.group = make.group
        self.conv1 = make.lift(in_channels, width, "conv1", 3)
        for number in range(2, 8):
            self.add_module(f"conv{number}", make.conv(width, width, f"conv{number}", 4 if number == 7 else 3))
        make.place.check()
        self.norms = nn.ModuleList(GroupBatchNorm(width) for _ in range(7))
        self.relu = ReluDropout(config.dropout)
        self.pool = SpatialPool("max", 2)
        self.group_pool = GroupPool(config.group_pool)
        self.head: nn.Module = nn.Linear(width * (self.group.count if config.group_pool == "flatten" else 1), classes)
        name_layers(self)

    def features(self, images: Tensor) -> Features:
        """The input of the head, for images `(B, C, H, W)` in [0, 1]."""
        x: GroupFeature = self.norms[0](self.conv1(prefer_channels_last(self.input_on(self.group, images))))
        for number, norm in enumerate(self.norms[1:], start=2):
            x = norm(self.get_submodule(f"conv{number}")(self.relu(x)))
            x = self.pool(x) if number == 2 else x
        x = x.map(F.relu)
        return Features(self.group_pool(x).mean(dim=(-2, -1)), x.trace)


class ColorResNet(ImageNetwork):
    """Equivariant to hue shifts as far as the levels allow; with mean or max pooling the logits are then invariant.

    A 7×7 lift of stride 2, a pool, four stages of residual blocks, pools over hues and space, linear. Layers are
    called lift and stage1.0.first, stage1.0.second, stage2.0.shortcut, …. In a hybrid the hues are pooled away
    after `equivariant` stages, and the rest is an ordinary ResNet. Without a group all of it is ordinary.

    Args:
        config: Sizes, group and levels.
        in_channels: Channels of the images.
        classes: Number of classes.
        mean: Mean of the training images.
        std: Their standard deviation.
    """

    def __init__(
        self,
        config: ColorConfig,
        in_channels: int,
        classes: int,
        mean: Sequence[float] = (0.0,),
        std: Sequence[float] = (1.0,),
    ) -> None:
        super().__init__(mean, std)
        if len(config.depths) != 4 or min(config.depths) < 1:
            raise UserError(f"depths are the numbers of blocks of four stages, got {config.depths}")
        if not 0 <= config.equivariant <= 4:
            raise UserError(f"equivariant is a number of stages from 0 to 4, got {config.equivariant}")
        beyond = [name for name in config.where if re.match(r"stage[1-4]", name) and int(name[5]) > config.equivariant]
        if beyond and not config.level.is_full:
            raise UserError(
                f"{beyond[0]} is not on hues, as only {config.equivariant} stages are (equivariant): "
                "remove it from where"
            )
        self.config = config
        make = _Maker(config)
        self.group = make.group
        inner = _width(config, 0, plain=False)
        self.lift = make.lift(in_channels, inner, "lift", 7, 2, 3)
        self.lift_norm = GroupBatchNorm(inner)
        self.pool = SpatialPool("max", 3, stride=2, padding=1)
        for stage, depth in enumerate(config.depths):
            plain = stage >= config.equivariant
            outer, blocks = _width(config, stage, plain=plain), []
            for block in range(depth):
                name, stride = f"stage{stage + 1}.{block}", 2 if stage and not block else 1
                blocks.append(Block(make, inner, outer, name, stride, plain=plain))
                inner = outer * EXPANSION if make.bottleneck else outer
            self.add_module(f"stage{stage + 1}", nn.Sequential(*blocks))
        make.place.check()
        self.middle_pool = GroupPool("max")
        self.group_pool = GroupPool(config.group_pool)
        flat = config.group_pool == "flatten" and config.equivariant == 4
        self.head: nn.Module = nn.Linear(inner * (self.group.count if flat else 1), classes)
        name_layers(self)

    def features(self, images: Tensor) -> Features:
        """The input of the head, for images `(B, C, H, W)` in [0, 1]."""
        x: GroupFeature = self.pool(self.lift_norm(self.lift(self.input_on(self.group, images)))).map(F.relu)
        for number in range(4):
            if number == self.config.equivariant:
                x = _without_group(x, self.middle_pool)
            x = self.get_submodule(f"stage{number + 1}")(x)
        return Features(self.group_pool(x).mean(dim=(-2, -1)), x.trace)


class Block(nn.Module):
    """Equivariant as far as its levels allow: convolutions with their norms, and a shortcut.

    From `inner` channels to `outer`; a bottleneck to four times `outer`.
    """

    def __init__(self, make: _Maker, inner: int, outer: int, name: str, stride: int, *, plain: bool) -> None:
        super().__init__()
        shapes = block_shapes(inner, outer, stride, bottleneck=make.bottleneck)
        self.parts = ("first", "second", "third")[: len(shapes)]
        for part, (before, after, size, step) in zip(self.parts, shapes, strict=True):
            self.add_module(part, make.conv(before, after, f"{name}.{part}", size, step, size // 2, plain=plain))
            self.add_module(f"{part}_norm", GroupBatchNorm(after))
        same = inner == after and stride == 1
        self.shortcut = None if same else make.conv(inner, after, f"{name}.shortcut", 1, stride, plain=plain)
        self.shortcut_norm = None if same else GroupBatchNorm(after)

    def forward(self, x: GroupFeature) -> GroupFeature:
        out = x
        for part in self.parts:
            out = self.get_submodule(f"{part}_norm")(self.get_submodule(part)(out))
            out = out if part == self.parts[-1] else out.map(F.relu)
        across = x if self.shortcut is None or self.shortcut_norm is None else self.shortcut_norm(self.shortcut(x))
        return (out + across).map(F.relu)


def _width(config: ColorConfig, stage: int, *, plain: bool) -> int:
    """Channels of a stage, so that all networks of the same `width` have about the same number of parameters.

    A 3×3 table on m elements has 9m numbers for each pair of channels, a separable one 9 + m, an ordinary one 9. A
    bottleneck also has two 1×1 tables of m numbers for four times as many pairs.
    """
    whole = config.width * 2**stage
    if plain or config.group.count == 1:
        return whole
    pointwise = 2 * EXPANSION if config.block == "bottleneck" else 0
    spatial = 9 + config.group.count if config.separable else 9 * config.group.count
    share = (pointwise + 9) / (pointwise * config.group.count + spatial)
    return max(1, int(whole * math.sqrt(share)))


def _without_group(x: GroupFeature, pool: GroupPool) -> GroupFeature:
    """The feature with its hues pooled away, on the trivial group."""
    grid = NO_GROUP.grid(dtype=x.elements.dtype, device=x.device)
    return GroupFeature(pool(x).unsqueeze(2), grid, None, NO_GROUP, x.trace)
