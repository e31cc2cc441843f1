"""The network on SE(2): the paper's ResNet, the small net for digits and the T(2) baseline are this one."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vpgcnn.conv import GroupConv2d, LiftConv2d
from vpgcnn.errors import UserError
from vpgcnn.features import GroupFeature
from vpgcnn.kernels import SirenKernel
from vpgcnn.models.base import Description, Placement, Prediction, group_of
from vpgcnn.models.config import SE2Config
from vpgcnn.norm import GroupBatchNorm
from vpgcnn.pool import GroupPool, SpatialPool, join

__all__ = ["SE2Net"]


class SE2Net(nn.Module):
    """Equivariant to rotations, and to hue shifts if wanted, as far as the levels allow; the logits are then invariant.

    lift → [stage → pool] × S → last (no padding) → pool over group and space → linear. With blocks
    "residual" and four widths this is the paper's SE(2) ResNet, with "plain" its small net for digits,
    with group "t2" the ordinary ResNet of the same size.

    All layers share the random grid of a training step, drawn by the lift: between layers only those
    relative angles occur that evaluation has, so that batch statistics fit. (Not with the pathwise
    family, whose elements are each image's own.)
    """

    blur: Tensor | None

    def __init__(self, config: SE2Config, in_channels: int, classes: int) -> None:
        super().__init__()
        if len(config.widths) < 2 or min(config.widths) < 1:
            raise UserError(f"widths are those of the lift, the stages and the last layer, got {config.widths}")
        if config.stem_stride not in (1, 2):
            raise UserError(f"stem_stride is 1 or 2, got {config.stem_stride}")
        if len(config.kernel_sizes) != 3 or min(config.kernel_sizes) < 1:
            raise UserError(f"kernel_sizes are three (lift, stages, last), got {config.kernel_sizes}")
        if any(size % 2 == 0 for size in (config.kernel_sizes[0] + config.stem_stride - 1, config.kernel_sizes[1])):
            raise UserError(
                f"kernels must be odd to stay centred (the lift's even with stem_stride 2), got {config.kernel_sizes}"
            )
        self.config = config
        self.group, points = group_of(config.group, config.elements, config.hues)
        place = Placement(
            config.level, config.where, config.elsewhere, config.family, config.initial,
            monotonic=config.monotonic, encoder=config.encoder, detached=config.detached,
        )  # fmt: skip
        kernel = partial(SirenKernel, hidden=config.hidden, omega=config.omega)
        lift_size, size, last_size = config.kernel_sizes
        wide, *stages, final = config.widths
        self.shared = shared = config.family == "window"

        def conv(inner: int, outer: int, name: str, kernel_size: int, padding: int) -> GroupConv2d:
            return GroupConv2d(
                inner, outer, kernel_size, self.group,
                points=points, level=place(name), kernel=kernel, sees=config.sees, padding=padding, bias=False,
            )  # fmt: skip

        self.lift = LiftConv2d(
            in_channels, wide, lift_size, self.group,
            points=points, level=place("lift"), kernel=kernel, stride=config.stem_stride,
            padding=(lift_size - config.stem_stride + 1) // 2, bias=False,
        )  # fmt: skip
        self.lift_norm = GroupBatchNorm(wide)
        self.stages = nn.ModuleList()
        for number, outer in enumerate(stages, start=1):
            name = f"stage{number}"
            first = conv(wide, outer, f"{name}.first", size, size // 2)
            if config.block == "residual":
                self.stages.append(ResidualStage(first, conv(outer, outer, f"{name}.second", size, size // 2), shared))
            else:
                self.stages.append(PlainStage(first, shared))
            wide = outer
        self.last = conv(wide, final, "last", last_size, 0)
        self.last_norm = GroupBatchNorm(final)
        place.check()
        self.pool = SpatialPool("max", 2, antialias=config.antialias)
        self.group_pool = GroupPool(config.group_pool)
        self.head = nn.Linear(final, classes)
        self.register_buffer("blur", _gaussian(config.smooth), persistent=False)

    def describe(self, images: Tensor) -> Description:
        """Images `(B, C, H, W)` to what the head sees of them `(B, width)`, and the KL of the levels `(B,)`."""
        if self.blur is not None:
            images = _blurred(images, self.blur)
        x = self.lift_norm(self.lift(images))
        x = self._down(x) if self.config.stem_pool else x.map(F.relu)
        for stage in self.stages:
            x = self._down(stage(x))
        x = self.last_norm(self.last(x, elements=x.elements if self.shared else None)).map(F.relu)
        pooled = self.group_pool(x)
        pooled = pooled.amax(dim=(-2, -1)) if self.config.space_pool == "max" else pooled.mean(dim=(-2, -1))
        return Description(pooled, x.divergence)

    def forward(self, images: Tensor) -> Prediction:
        """Images `(B, C, H, W)` to logits `(B, classes)` and the KL of the levels `(B,)`."""
        seen, divergence = self.describe(images)
        return Prediction(self.head(seen), divergence)

    def _down(self, x: GroupFeature) -> GroupFeature:
        """ReLU and pool. A maximum and a ReLU may change places, and the ReLU is quicker on the smaller map."""
        x = self.pool(x.map(F.relu)) if self.config.antialias else self.pool(x).map(F.relu)
        return x.map(_on_disc) if self.config.disc else x


class PlainStage(nn.Module):
    """Equivariant as far as its level allows: convolution and norm. The ReLU comes after."""

    def __init__(self, first: GroupConv2d, shared: bool) -> None:
        super().__init__()
        self.shared = shared
        self.first, self.first_norm = first, GroupBatchNorm(first.out_channels)

    def forward(self, x: GroupFeature) -> GroupFeature:
        out: GroupFeature = self.first_norm(self.first(x, elements=x.elements if self.shared else None))
        return out


class ResidualStage(nn.Module):
    """Equivariant as far as its levels allow: two convolutions, and a shortcut that acts at each point alone.

    The last ReLU comes after.
    """

    def __init__(self, first: GroupConv2d, second: GroupConv2d, shared: bool) -> None:
        super().__init__()
        self.shared = shared
        inner, outer = first.in_channels, second.out_channels
        self.first, self.first_norm = first, GroupBatchNorm(first.out_channels)
        self.second, self.second_norm = second, GroupBatchNorm(outer)
        self.shortcut = nn.Conv3d(inner, outer, 1, bias=False) if inner != outer else None
        self.shortcut_norm = GroupBatchNorm(outer) if inner != outer else None

    def forward(self, x: GroupFeature) -> GroupFeature:
        out = self.first_norm(self.first(x, elements=x.elements if self.shared else None)).map(F.relu)
        out = self.second_norm(self.second(out, elements=x.elements))  # where the shortcut is
        across = x if self.shortcut is None or self.shortcut_norm is None else self.shortcut_norm(x.map(self.shortcut))
        return join(out, across, origin=x)


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
        raise UserError(f"smooth is a standard deviation of 0 to 10 pixels, got {deviation}")
    if deviation == 0:
        return None
    reach = max(1, round(3 * deviation))
    line = torch.exp(-(torch.arange(-reach, reach + 1).float() / deviation).square() / 2)
    kernel = torch.outer(line, line)
    return (kernel / kernel.sum())[None, None]


def _blurred(images: Tensor, blur: Tensor) -> Tensor:
    channels, border = images.shape[1], blur.shape[-1] // 2
    return F.conv2d(images, blur.to(images.dtype).expand(channels, 1, -1, -1), padding=border, groups=channels)
