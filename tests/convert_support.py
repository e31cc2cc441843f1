"""What the tests of `convert` share: a small network, images, and what must hold of any network."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from support import ResidualBlock
from vpgcnn import Dihedral, Full, Hue, Product, Rotations, conversion
from vpgcnn._ops import resample
from vpgcnn.conversion import Converted, MixedConv2d
from vpgcnn.groups import Group

convert = partial(conversion.convert, mix="pointwise")
"""Every convolution mixes here; what `convert` chooses by itself is in test_convert_price.py."""
GROUPS = [Hue(3), Hue(6), Rotations(4), Dihedral(4), Product(Rotations(4), Hue(3))]
FEW = [Hue(3), Rotations(4)]


def network(channels: int = 3) -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(channels, 6, 5, stride=2), nn.BatchNorm2d(6), nn.ReLU(inplace=True),
        ResidualBlock(6, 8, 2), ResidualBlock(8, 8, 1), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(8, 4),
    ).double()  # fmt: skip
    for part in net.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.normal_(part.running_mean)
            nn.init.uniform_(part.running_var, 0.5, 2)
    return net.eval()


def stirred(net: Converted) -> Converted:
    """As if it had been trained: convolutions look at other views, and levels at the image."""
    torch.manual_seed(1)
    for part in net.modules():
        if isinstance(part, MixedConv2d):
            for cross in part.cross:
                nn.init.normal_(cross.weight, std=0.3)
    return net


def images(count: int = 3, height: int = 17, width: int = 17) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.rand(count, 3, height, width, generator=generator, dtype=torch.float64)


def tail(channels: int = 4) -> list[nn.Module]:
    return [nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 3)]


def assert_same_and_invariant(plain: nn.Module, group: Group, pixels: Tensor, **options: Any) -> Converted:
    """The answers of the original at the start; with the whole group and mixing kernels, invariance."""
    net = convert(plain, group, example=pixels, **options).eval()
    whole = stirred(convert(plain, group, example=pixels, level=Full(), **options)).eval()
    with torch.no_grad():
        expected = plain.eval()(pixels)
        assert torch.allclose(net(pixels).logits, expected, atol=1e-10)
        answer = whole(pixels).logits
        for u in group.grid(dtype=torch.float64):
            moved = pixels
            if group.acts_on_rgb:
                moved = torch.einsum("ij,bjhw->bihw", group.rgb(u), moved)
            if group.acts_on_plane:
                flips = torch.equal(group.plane(u).double(), torch.diag(torch.tensor([-1.0, 1.0])).double())
                moved = moved.flip(-1) if flips else resample.move(moved, group.plane(u))
            assert torch.allclose(whole(moved).logits, answer, atol=1e-9)
        assert options.get("mix") == "none" or not torch.allclose(answer, expected, atol=1e-3)
    return net


def seen_in_others(
    group: Group, views: Tensor, kernels: list[Tensor], own: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """By the definition: view u gets, for each s, what view u·s shows, moved by s, under the kernel of s."""
    grid = group.grid(dtype=torch.float64)
    apart = views.unflatten(0, (-1, len(grid)))
    rows = []
    for u in grid:
        total: Any = 0
        for s, kernel in zip(grid[1:], kernels, strict=True):
            other = apart[:, int(group.index(group.compose(u, s)))]
            total = total + own(resample.move(other, group.plane(s)) if group.acts_on_plane else other, kernel)
        rows.append(total)
    return torch.stack(rows, dim=1).flatten(0, 1)
