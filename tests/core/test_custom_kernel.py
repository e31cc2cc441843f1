"""Kernels written outside the package: only `expand` is theirs, and every path must compute what it says."""

from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from support import channels_last, name, random_feature, set_theta
from vpgcnn import (
    SO2,
    Group,
    GroupConv2d,
    GroupFeature,
    Harmonic,
    Hue,
    LiftConv2d,
    ReparametrizedWindow,
    Rotations,
    Shared,
    Siren,
    Table,
    Variational,
    fold,
)
from vpgcnn.kernels import Kernel, KernelSpec, SirenKernel, TableKernel


class Waves(Kernel):
    """The smallest kernel there is: a sum of three functions of distance and relative angle."""

    def __init__(self, in_channels: int, out_channels: int, size: int, group: Group, *, lift: bool) -> None:
        super().__init__(in_channels, out_channels, size, group, lift=lift)
        self.mix = nn.Parameter(torch.randn(out_channels, in_channels, 3))

    def expand(self, u: Tensor, v: Tensor | None) -> Tensor:
        line = torch.arange(self.size, dtype=u.dtype) - (self.size - 1) / 2
        radius = (line[:, None] ** 2 + line**2).sqrt()
        relative = torch.zeros_like(u[:, None]) if v is None else self.group.relative(u[:, None], v[None])
        angle = relative.cos().sum(dim=-1)[..., None, None]
        functions = torch.stack([torch.ones_like(radius * angle), radius + 0 * angle, radius * angle])  # 3 U V k k
        weight = torch.einsum("ocf,fuvxy->oucvxy", self.mix.to(u.dtype), functions) / angle.shape[1]
        return self.undo_colors(weight, u)


class Louder(TableKernel):
    """A table whose expansion is scaled by a number that is learned."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.gain = nn.Parameter(torch.tensor(3.0))

    def expand(self, u: Tensor, v: Tensor | None) -> Tensor:
        return super().expand(u, v) * self.gain


class Wider(SirenKernel):
    """A SIREN that does the same."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.gain = nn.Parameter(torch.tensor(3.0))

    def expand(self, u: Tensor, v: Tensor | None) -> Tensor:
        return super().expand(u, v) * self.gain


@dataclass(frozen=True)
class Own(KernelSpec):
    """Any of these, as a value."""

    kind: type[Kernel]

    def build(self, in_channels: int, out_channels: int, size: int, group: Group, *, lift: bool) -> Kernel:
        return self.kind(in_channels, out_channels, size, group, lift=lift)


def own_parameter(layer: GroupConv2d | LiftConv2d) -> nn.Parameter:
    return layer.kernel.mix if isinstance(layer.kernel, Waves) else layer.kernel.gain


def reference(conv: GroupConv2d, feature: GroupFeature) -> Tensor:
    """Image by image: expand at its elements, weigh the input elements, `F.conv2d`."""
    out = []
    for image in range(len(feature)):
        one = feature[image]
        elements = one.elements[0] if one.moves_elements else one.elements
        weight = conv.kernel.expand(elements, elements)  # O U C V k k
        if one.weights is not None:
            weight = weight * (one.weights[0] * one.shape[2])[:, None, None]
        made = F.conv2d(
            one.values.flatten(1, 2),
            weight.flatten(2, 3).flatten(0, 1),
            conv.bias.repeat_interleave(len(elements)),
            conv.stride,
            conv.padding,
            conv.dilation,
        )
        out.append(made.unflatten(1, (conv.out_channels, len(elements))))
    return torch.cat(out)


GEOMETRIES = {"plain": {}, "stride": {"stride": 2, "padding": 1}, "dilation": {"padding": 2, "dilation": 2}}
TABLES = [(Waves, Hue(3)), (Waves, Hue(6)), (Louder, Hue(3)), (Louder, Hue(6))]


@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels-last"])
@pytest.mark.parametrize("width", [8, 17, 64])
@pytest.mark.parametrize(("kind", "group"), TABLES, ids=str)
def test_every_path_computes_what_expand_says(
    double: None, kind: type[Kernel], group: Group, width: int, last: bool
) -> None:
    """17 and 64 channels of hues take the cyclic path, of which an own `expand` knows nothing."""
    geometry = GEOMETRIES["plain" if width == 8 else "stride" if width == 17 else "dilation"]
    conv = GroupConv2d(width, width, 3, group, kernel=Own(kind), **geometry)
    nn.init.normal_(conv.bias)
    feature = random_feature(group, channels=width, size={8: 15, 17: 29, 64: 9}[width])
    feature = replace(feature, weights=torch.rand(2, group.count).softmax(dim=1))
    feature = feature.with_values(channels_last(feature.values)) if last else feature
    usual = TableKernel(width, width, 3, group, lift=False)
    narrow = last and group == Hue(3)  # for which channels last is faster still
    assert usual._map_pays(feature.values, conv.geometry) == (width == 64 or (width == 17 and not narrow))
    expected = reference(conv, feature)
    made = conv(feature).values
    assert torch.allclose(made, expected, atol=1e-9)
    target = torch.randn_like(expected)
    parameters = [own_parameter(conv), conv.bias]
    found = torch.autograd.grad((made * target).sum(), parameters)
    for one, two in zip(found, torch.autograd.grad((expected * target).sum(), parameters), strict=True):
        assert torch.allclose(one, two, rtol=1e-8, atol=1e-8)
    assert found[0].abs().sum() > 0
    with torch.no_grad():
        assert torch.allclose(fold(conv.eval())(feature).values, expected, atol=1e-9)


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("kind", [Waves, Wider], ids=name)
def test_elements_of_each_image(double: None, kind: type[Kernel], geometry: str) -> None:
    """Behind a level that moves elements, every image has a kernel of its own."""
    group = SO2(4)
    lift = LiftConv2d(1, 3, 3, group, level=Shared(ReparametrizedWindow(initial=0.6)), kernel=Own(kind))
    conv = GroupConv2d(3, 3, 3, group, kernel=Own(kind), **GEOMETRIES[geometry])
    image = torch.rand(2, 1, 9, 9)
    feature = lift(image)
    assert feature.moves_elements
    weight = lift.kernel.expand(feature.elements[1], None)[:, :, :, 0]  # O U C k k
    by_hand = F.conv2d(image[1:], weight.flatten(0, 1), lift.bias.repeat_interleave(4)).unflatten(1, (3, 4))
    assert torch.allclose(feature.values[1:], by_hand, atol=1e-10)
    made, expected = conv(feature).values, reference(conv, feature)
    assert torch.allclose(made, expected, atol=1e-10)
    parameters = [own_parameter(conv), own_parameter(lift), lift.level.raw]
    found = torch.autograd.grad(made.square().sum(), parameters, retain_graph=True)
    for one, two in zip(found, torch.autograd.grad(expected.square().sum(), parameters), strict=True):
        assert torch.allclose(one, two, rtol=1e-8)
        assert one.abs().sum() > 0


@pytest.mark.parametrize("kind", [Waves, Wider], ids=name)
def test_a_continuous_group_with_levels_and_folding(double: None, kind: type[Kernel]) -> None:
    conv = GroupConv2d(4, 5, 5, SO2(4), level=Variational(), kernel=Own(kind), padding="same").eval()
    set_theta(conv, 0.5)
    feature = random_feature(SO2(4), size=12)
    expected = reference(conv, feature)
    assert torch.allclose(conv(feature).values, expected, atol=1e-10)
    with torch.no_grad():
        assert torch.allclose(fold(conv)(feature).values, expected, atol=1e-10)


def test_a_lift_undoes_colours_for_any_kernel(double: None) -> None:
    lift, image = LiftConv2d(3, 4, 3, Hue(3), kernel=Own(Waves)), torch.rand(2, 3, 8, 8)
    moved = Hue(3).transform(image, Hue(3).grid()[1])
    assert torch.allclose(lift(moved).values, lift(image).values.roll(1, dims=2), atol=1e-10)


@pytest.mark.parametrize(
    ("base", "override"),
    [
        (Table(), "expand"),
        (Table(), "table"),
        (Siren(), "expand"),
        (Siren(), "basis"),
        (Harmonic(), "expand"),
        (Harmonic(), "basis"),
    ],
)
def test_an_instance_may_be_patched_too(double: None, base: KernelSpec, override: str) -> None:
    """Fast paths look at the instance as well: a method that was replaced on it is used, or the path is not taken."""
    group = Hue(3) if isinstance(base, Table) else SO2(4)
    conv = GroupConv2d(20, 20, 3, group, kernel=base)
    feature = random_feature(group, channels=20, size=20 if group.order else 7)
    if not group.order:
        feature = replace(feature, elements=torch.rand(2, 4, 1))  # elements of each image
    plain, original = conv(feature).values, getattr(conv.kernel, override)
    setattr(conv.kernel, override, lambda *args: 0 * original(*args))
    expected = reference(conv, feature)
    assert torch.allclose(conv(feature).values, expected, atol=1e-10)
    assert not torch.allclose(expected, plain, atol=1e-3)


def test_a_kernel_for_another_group_is_refused() -> None:
    @dataclass(frozen=True)
    class Elsewhere(KernelSpec):
        def build(self, in_channels: int, out_channels: int, size: int, group: Group, *, lift: bool) -> Kernel:
            return TableKernel(in_channels, out_channels, size, Rotations(4), lift=lift)

    with pytest.raises(ValueError, match=r"built a kernel on Rotations\(n=4\), but the layer is on Hue\(m=4\)"):
        GroupConv2d(3, 4, 3, Hue(4), kernel=Elsewhere())
