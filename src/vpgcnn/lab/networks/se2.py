"""The network on SE(2): the paper's ResNet, the small net for digits, and the T(2) baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vpgcnn.errors import UserError
from vpgcnn.features import GroupFeature
from vpgcnn.lab.networks.base import Features, ImageNetwork, Placement
from vpgcnn.lab.networks.config import SE2Config
from vpgcnn.lab.specs import text
from vpgcnn.levels import LevelSpec, Shared, Variational
from vpgcnn.nn import GroupBatchNorm, GroupConv2d, GroupPool, LiftConv2d, SpatialPool, name_layers

__all__ = ["SE2Net"]


class SE2Net(ImageNetwork):
    """Equivariant to rotations (and hue shifts, if the group has them) as far as the levels allow; invariant logits.

    lift → [stage → pool] × S → last (no padding) → pool over group and space → linear. With blocks
    "residual" and four widths this is the paper's SE(2) ResNet, with "plain" its small net for digits,
    without a group the ordinary ResNet of the same size.

    Args:
        config: Sizes, group, kernel and levels.
        in_channels: Channels of the images.
        classes: Number of classes.
        mean: Mean of the training images.
        std: Their standard deviation.
    """

    blur: Tensor | None

    def __init__(
        self,
        config: SE2Config,
        in_channels: int,
        classes: int,
        mean: Sequence[float] = (0.0,),
        std: Sequence[float] = (1.0,),
    ) -> None:
        super().__init__(mean, std)
        if len(config.widths) < 2 or min(config.widths) < 1:
            raise UserError(f"widths must be those of the lift, the stages and the last layer, got {config.widths}")
        if config.stem_stride not in (1, 2):
            raise UserError(f"stem_stride must be 1 or 2, got {config.stem_stride}")
        if len(config.kernel_sizes) != 3 or min(config.kernel_sizes) < 1:
            raise UserError(f"kernel_sizes must be three (lift, stages, last), got {config.kernel_sizes}")
        if any(size % 2 == 0 for size in (config.kernel_sizes[0] + config.stem_stride - 1, config.kernel_sizes[1])):
            raise UserError(
                f"kernels must be odd to stay centred (the lift's even with stem_stride 2), got {config.kernel_sizes}"
            )
        if config.group.recolors and config.smooth > 0:
            raise UserError(
                f"a blurred image has other saturations and luminances: with {text(config.group)}, smooth must be 0, "
                f"got {config.smooth}"
            )
        if config.group.count == 1 and not config.level.is_full:
            raise UserError(f"without a group there is nothing to choose: the level must be Full(), got {config.level}")
        self.config = config
        self.group = config.group
        place = Placement(config, everywhere=(Shared,))
        lift_size, size, last_size = config.kernel_sizes
        wide, *stages, final = config.widths

        def conv(inner: int, outer: int, name: str, kernel_size: int, padding: int) -> GroupConv2d:
            shape = inner, outer, kernel_size, self.group
            return GroupConv2d(*shape, level=place(name), kernel=config.kernel, padding=padding, bias=False)

        self.lift = LiftConv2d(
            in_channels, wide, lift_size, self.group, level=_on_output(place("lift")), kernel=config.kernel,
            stride=config.stem_stride, padding=(lift_size - config.stem_stride + 1) // 2, bias=False,
        )  # fmt: skip
        self.lift_norm = GroupBatchNorm(wide)
        self.stages: list[str] = []
        for number, outer in enumerate(stages, start=1):
            name = f"stage{number}"
            first = conv(wide, outer, f"{name}.first", size, size // 2)
            if config.block == "residual":
                self.add_module(name, ResidualStage(first, conv(outer, outer, f"{name}.second", size, size // 2)))
            else:
                self.add_module(name, PlainStage(first))
            self.stages.append(name)
            wide = outer
        self.last = conv(wide, final, "last", last_size, 0)
        self.last_norm = GroupBatchNorm(final)
        place.check()
        self.pool = SpatialPool("max", 2, antialias=config.antialias)
        self.group_pool = GroupPool(config.group_pool)
        self.head = nn.Linear(final, classes)
        self.register_buffer("blur", _gaussian(config.smooth), persistent=False)
        name_layers(self)

    def features(self, images: Tensor) -> Features:
        """The input of the head, for images `(B, C, H, W)` in [0, 1]."""
        images = self.input_on(self.group, images)
        if self.blur is not None:
            images = _blurred(images, self.blur)
        x = self.lift_norm(self.lift(images))
        x = self._down(x) if self.config.stem_pool else x.map(F.relu)
        for stage in self.stages:
            x = self._down(self.get_submodule(stage)(x))
        x = self.last_norm(self.last(x)).map(F.relu)
        pooled = self.group_pool(x)
        pooled = pooled.amax(dim=(-2, -1)) if self.config.space_pool == "max" else pooled.mean(dim=(-2, -1))
        return Features(pooled, x.trace)

    def _down(self, x: GroupFeature) -> GroupFeature:
        """ReLU and pool. A maximum and a ReLU commute, and the ReLU is faster on the smaller map."""
        x = self.pool(x.map(F.relu)) if self.config.antialias else self.pool(x).map(F.relu)
        return x.each(_on_disc) if self.config.disc else x


class PlainStage(nn.Module):
    """Equivariant as far as its level allows: convolution and norm. The ReLU comes after."""

    def __init__(self, first: GroupConv2d) -> None:
        super().__init__()
        self.first, self.first_norm = first, GroupBatchNorm(first.out_channels)

    def forward(self, x: GroupFeature) -> GroupFeature:
        out: GroupFeature = self.first_norm(self.first(x))
        return out


class ResidualStage(nn.Module):
    """Equivariant as far as its levels allow: two convolutions, and a pointwise shortcut.

    The last ReLU comes after.
    """

    def __init__(self, first: GroupConv2d, second: GroupConv2d) -> None:
        super().__init__()
        inner, outer = first.in_channels, second.out_channels
        self.first, self.first_norm = first, GroupBatchNorm(first.out_channels)
        self.second, self.second_norm = second, GroupBatchNorm(outer)
        self.shortcut = nn.Conv3d(inner, outer, 1, bias=False) if inner != outer else None
        self.shortcut_norm = GroupBatchNorm(outer) if inner != outer else None

    def forward(self, x: GroupFeature) -> GroupFeature:
        out = self.first_norm(self.first(x)).map(F.relu)
        out = self.second_norm(self.second(out, elements=x))  # a level that moves elements must not move these
        across = x if self.shortcut is None or self.shortcut_norm is None else self.shortcut_norm(x.map(self.shortcut))
        return out + across


def _on_output(level: LevelSpec) -> LevelSpec:
    """The level of the lift, which always sees the output."""
    return replace(level, condition=None) if isinstance(level, Variational) else level


def _on_disc(values: Tensor) -> Tensor:
    """Values `(..., H, W)` where the pixel's centre is in the largest disc, 0 elsewhere."""
    height, width = values.shape[-2:]
    y, x = (
        (torch.arange(size, device=values.device) - (size - 1) / 2) / (min(height, width) / 2)
        for size in (height, width)
    )
    return values * (y[:, None].square() + x.square() <= 1).to(values.dtype)


def _gaussian(deviation: float) -> Tensor | None:
    if not 0 <= deviation <= 10:
        raise UserError(f"smooth must be a standard deviation of 0 to 10 pixels, got {deviation}")
    if deviation == 0:
        return None
    reach = max(1, round(3 * deviation))
    line = torch.exp(-(torch.arange(-reach, reach + 1).float() / deviation).square() / 2)
    kernel = torch.outer(line, line)
    return (kernel / kernel.sum())[None, None]


def _blurred(images: Tensor, blur: Tensor) -> Tensor:
    channels, border = images.shape[1], blur.shape[-1] // 2
    return F.conv2d(images, blur.to(images.dtype).expand(channels, 1, -1, -1), padding=border, groups=channels)
