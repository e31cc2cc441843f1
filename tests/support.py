"""What tests of the core share: groups, families of levels, small networks. Imports nothing outside the core.

A module and not a conftest, so that `from support import …` means the same in tests/, tests/core and tests/lab.
"""

from __future__ import annotations

import math
import os
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from vpgcnn import (
    O2,
    SO2,
    Dihedral,
    Full,
    Group,
    GroupBatchNorm,
    GroupConv2d,
    GroupFeature,
    GroupPool,
    GumbelSoftmax,
    Hue,
    LiftConv2d,
    Luminance,
    Mixture,
    Prediction,
    Product,
    RankedSoftmax,
    ReparametrizedWindow,
    Rotations,
    SampledWindow,
    Saturation,
    Shared,
    SpatialPool,
    Variational,
    name_layers,
)
from vpgcnn._ops import resample
from vpgcnn.groups import translate_index
from vpgcnn.kernels import KernelSpec
from vpgcnn.levels import Distribution, Family, InvariantEncoder, LevelSpec, VariationalLevel, Window
from vpgcnn.levels.costs import CALM, DEPTH, KNOTS, bowl
from vpgcnn.levels.encoder import GAIN
from vpgcnn.objective import Elbo

GROUPS: list[Group] = [
    SO2(8),
    O2(4),
    Rotations(1),
    Rotations(4),
    Rotations(6),
    Hue(3),
    Hue(6),
    Dihedral(1),
    Dihedral(4),
    Product(Rotations(4), Hue(3)),
    Product(O2(4), Hue(3)),
    Saturation(4),
    Product(Hue(3), Luminance(2)),
]
FINITE = [group for group in GROUPS if group.order]
TABLES = [Rotations(4), Hue(3), Hue(6), Dihedral(4), Product(Rotations(4), Hue(3))]

FAMILIES: dict[str, tuple[Group, LevelSpec]] = {
    "full": (Hue(3), Full()),
    "window-hue": (Hue(3), Variational()),
    "window-rotations": (Rotations(4), Variational()),
    "window-so2": (SO2(4), Variational()),
    "window-product": (Product(SO2(3), Hue(3)), Variational()),
    "shared-o2": (O2(3), Shared()),
    "sampled": (Hue(3), Variational(SampledWindow())),
    "sampled-product": (Product(Rotations(4), Hue(3)), Shared(SampledWindow())),
    "reparametrized": (SO2(4), Variational(ReparametrizedWindow())),
    "ranked": (Hue(3), Variational(RankedSoftmax())),
    "permuted": (Hue(6), Variational(RankedSoftmax(noise="permuted"))),
    "exchangeable": (Hue(3), Variational(RankedSoftmax(noise="exchangeable"))),
    "gumbel": (Hue(3), Variational(GumbelSoftmax())),
    "shared-gumbel": (Rotations(4), Shared(GumbelSoftmax())),
    "mixture": (SO2(4), Variational(Mixture(2))),
    "mixture-covariant": (Product(SO2(3), Hue(3)), Variational(Mixture(1, covariant=True))),
}


class SmallNet(nn.Module):
    """Lift and three group convolutions, each with a level; images `(B, C, H, W)` to a `Prediction` of 5 classes."""

    def __init__(
        self,
        group: Group,
        *,
        level: LevelSpec = Full(),  # noqa: B008 - a frozen value
        levels: list[LevelSpec] | None = None,
        kernel: KernelSpec | None = None,
        in_channels: int = 3,
        width: int = 6,
        size: int = 3,
        pool: bool = True,
        mode: str = "mean",
    ) -> None:
        super().__init__()
        chosen = levels or [level] * 4
        self.lift = LiftConv2d(in_channels, width, size, group, level=chosen[0], kernel=kernel, padding="same")
        self.convs = nn.ModuleList(
            GroupConv2d(width, width, size, group, level=q, kernel=kernel, padding="same") for q in chosen[1:]
        )
        self.norms = nn.ModuleList(GroupBatchNorm(width) for _ in range(4))
        self.pool = SpatialPool("avg", 2) if pool else None
        self.group_pool = GroupPool(mode)
        self.head = nn.Linear(width, 5)
        name_layers(self)

    def feature(self, images: Tensor) -> GroupFeature:
        feature = self.norms[0](self.lift(images)).map(torch.relu)
        for conv, norm in zip(self.convs, self.norms[1:], strict=True):
            feature = norm(conv(feature)).map(torch.relu)
        return feature if self.pool is None else self.pool(feature)

    def forward(self, images: Tensor) -> Prediction:
        feature = self.feature(images)
        return Prediction(self.head(self.group_pool(feature).mean(dim=(-2, -1))), feature.trace)


class Counter(TorchDispatchMode):
    """Counts floating point operations. Torch's own counter looks at what modules return, and so at all values."""

    total = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        rule = flop_registry.get(function.overloadpacket)
        self.total += 0 if rule is None else rule(*args, **(kwargs or {}), out_val=out)
        return out


class ResidualBlock(nn.Module):
    """Adds in place, with strides, as residual networks do."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(outer), nn.BatchNorm2d(outer)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outer, outer, 3, padding=1, bias=False)
        self.down = nn.Conv2d(inner, outer, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += self.down(x)
        return self.relu(out)


class SameConv2d(nn.Conv2d):
    """Pads by the size of the input, as TensorFlow does, with a stride too."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        pads = []
        for axis in (1, 0):
            size, reach = input.shape[2 + axis], self.dilation[axis] * (self.kernel_size[axis] - 1) + 1
            total = max((math.ceil(size / self.stride[axis]) - 1) * self.stride[axis] + reach - size, 0)
            pads += [total // 2, total - total // 2]
        return F.conv2d(F.pad(input, pads), self.weight, self.bias, self.stride, 0, self.dilation, self.groups)


class InvertedBlock(nn.Module):
    """1×1, depthwise, 1×1, and a sum where shapes allow, as EfficientNet-Lite has."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        wide = 3 * inner
        self.adds = inner == outer and stride == 1
        self.expand, self.bn0 = SameConv2d(inner, wide, 1, bias=False), nn.BatchNorm2d(wide)
        self.depthwise = SameConv2d(wide, wide, 3, stride, groups=wide, bias=False)
        self.bn1, self.relu = nn.BatchNorm2d(wide), nn.ReLU6(inplace=True)
        self.project, self.bn2 = SameConv2d(wide, outer, 1, bias=False), nn.BatchNorm2d(outer)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn0(self.expand(x)))
        out = self.bn2(self.project(self.relu(self.bn1(self.depthwise(out)))))
        return out + x if self.adds else out


def resnet() -> nn.Sequential:
    """A small ResNet for images of 16 pixels or more."""
    return nn.Sequential(
        nn.Conv2d(3, 12, 5, stride=2), nn.BatchNorm2d(12), nn.ReLU(inplace=True),
        ResidualBlock(12, 16, 2), ResidualBlock(16, 16, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4),
    )  # fmt: skip


def lite0() -> nn.Sequential:
    """A small EfficientNet-Lite0: depthwise and 1×1 convolutions of a subclass that pads by the input, ReLU6."""
    return nn.Sequential(
        SameConv2d(3, 8, 3, 2, bias=False), nn.BatchNorm2d(8), nn.ReLU6(inplace=True),
        InvertedBlock(8, 8, 1), InvertedBlock(8, 64, 2),
        SameConv2d(64, 128, 1, bias=False), nn.BatchNorm2d(128), nn.ReLU6(inplace=True),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.0), nn.Linear(128, 4),
    )  # fmt: skip


def set_theta(model: nn.Module, value: float) -> None:
    """Make every variational level answer θ = value, for every image."""
    for module in model.modules():
        if isinstance(module, VariationalLevel):
            nn.init.zeros_(module.encoder.linear.weight)
            nn.init.zeros_(module.encoder.linear.bias)
            if module.prior is None:
                module.encoder.start.fill_(value)
            else:
                closed, whole = module.family.opened(torch.tensor([[0.0], [1.0]]), module.group)
                opening = torch.where(whole > closed, (value - closed) / (whole - closed), 1.0).clamp(0, 1)
                module.encoder.start.copy_(bowl(opening.to(module.encoder.start.dtype)))
                nn.init.zeros_(module.prior)


def vary_theta(model: nn.Module, std: float) -> None:
    """Make every encoder's answers differ between images, as by a plain linear layer with weights of this deviation."""
    for module in model.modules():
        if isinstance(module, InvariantEncoder):
            slopes = module.start.numel() % KNOTS == 0  # θ is where they are 0
            scale = DEPTH / CALM**0.5 if slopes else 1.0
            nn.init.normal_(module.linear.weight, std=scale * std * module.linear.in_features / GAIN)


def decided(level: LevelSpec) -> LevelSpec:
    """The same level without exploration: all windows are decided, in training too."""
    return replace(level, explore=0.0) if isinstance(level, Variational) else level


def warm(model: nn.Module, images: Tensor) -> nn.Module:
    """Give batch norms real statistics, then switch to evaluation."""
    model.train()
    with torch.no_grad():
        for _ in range(3):
            model(images)
    return model.eval()


def random_feature(group: Group, *, channels: int = 4, size: int = 7, batch: int = 2) -> GroupFeature:
    """Normal values on the group's grid, without weights."""
    grid = group.grid()
    return GroupFeature(torch.randn(batch, channels, len(grid), size, size), grid, None, group)


def moved(feature: GroupFeature, group: Group, g: Tensor) -> GroupFeature:
    """L_g of a feature whose group axis is the grid."""
    index = translate_index(group, g)
    values = feature.values[:, :, index]
    if group.acts_on_plane:
        values = resample.move(values.flatten(0, 1), group.plane(g)).view_as(values)
    weights = None if feature.weights is None else feature.weights[:, index]
    return replace(feature, values=values, weights=weights)


def channels_last(values: Tensor) -> Tensor:
    """Values `(B, C, G, H, W)` copied so that the channels and elements of one pixel are adjacent."""
    return values.permute(0, 3, 4, 1, 2).contiguous().permute(0, 3, 4, 1, 2)


WAITS: dict[Any, str] = {
    torch.tensor: "torch.tensor",
    torch.as_tensor: "torch.as_tensor",
    torch.from_numpy: "torch.from_numpy",
    torch.equal: "torch.equal",
    torch.allclose: "torch.allclose",
    torch.nonzero: "torch.nonzero",
} | {
    getattr(Tensor, method): method
    for method in ("new_tensor", "item", "tolist", "__bool__", "__float__", "__int__", "__index__", "nonzero", "cpu")
}  # fmt: skip
"""Calls for which the host waits for a GPU: it reads a number, or copies numbers of its own."""


class HostReads(TorchFunctionMode):
    """Notes the calls for which the host would wait for a GPU, and the functions of vpgcnn that make them."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        moves = function is Tensor.to and any(isinstance(each, str | torch.device) for each in args[1:])
        if function in WAITS or (moves and torch.device(args[1]) != args[0].device):
            frames = [frame for frame in traceback.extract_stack() if "/vpgcnn/" in frame.filename]
            self.found.append(f"{WAITS.get(function, 'to')} in {frames[-1].name}" if frames else "elsewhere")
        return function(*args, **(kwargs or {}))


def host_reads(model: nn.Module, images: Tensor) -> list[str]:
    """The calls of a training step for which the host would wait for a GPU, without those of the first step.

    The step runs on the meta device, where vpgcnn does what it does on a GPU: only checks on a CPU read numbers.
    """
    model, images = model.train().to("meta"), images.to("meta")
    labels = torch.zeros(len(images), dtype=torch.long, device="meta")
    for _ in range(2):
        with HostReads() as reads:
            Elbo.of(model(images), labels).total().backward()
    return reads.found


def name(value: object) -> str:
    """For `ids=`."""
    return repr(value)


def real_data(folder: str) -> Path:
    """The data directory, through the setting that users have, if it holds this folder; else the test is skipped."""
    from vpgcnn.lab.data.files import VARIABLE

    root = Path(os.environ.get(VARIABLE) or Path(__file__).parents[2] / "shared" / "data")
    if not (root / folder).is_dir():
        pytest.skip(f"no {folder} in {root}")
    return root


BOTH = Product(SO2(3), Hue(3))
"""Floors of windows differ: 0.03 on the first axis, 1/3 on the second."""


def built(group: Group = Hue(3), *, family: Family | None = None, **options: float) -> VariationalLevel:  # noqa: B008
    """A level for each image on a feature of four channels."""
    return Variational(family or Window(0.6), **options).build(group, 4)


def many(group: Group, count: int) -> GroupFeature:
    """Features of as many images, of one pixel each."""
    return random_feature(group, batch=count, size=1)


def explored_images(q: Distribution) -> Tensor:
    """`(B,)`: whether the window of each image was drawn."""
    assert q.explored is not None
    assert torch.equal(q.explored >= 0, (q.explored >= 0).all(dim=1, keepdim=True).expand_as(q.explored))
    return q.explored[:, 0] >= 0
