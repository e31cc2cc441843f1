import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from support import TABLES, name
from vpgcnn import (
    O2,
    SO2,
    Group,
    GroupConv2d,
    GroupFeature,
    Harmonic,
    Hue,
    LiftConv2d,
    Product,
    Rotations,
    Siren,
    Table,
)
from vpgcnn.kernels import HarmonicKernel, SirenKernel, TableKernel, default_kernel
from vpgcnn.kernels.base import KernelSpec, tap_points


@pytest.mark.parametrize("size", [1, 3, 4, 5])
def test_table_turns_by_index(size: int) -> None:
    kernel = TableKernel(2, 3, size, Rotations(4), lift=True)
    grid = Rotations(4).grid()
    weight = kernel.expand(grid, None)[:, :, :, 0]
    for turns in range(4):
        assert torch.equal(weight[:, turns], torch.rot90(kernel.weight, turns, (-2, -1)))


def test_table_is_shifted_along_the_group() -> None:
    kernel = TableKernel(2, 3, 3, Hue(3), lift=False)
    weight = kernel.expand(Hue(3).grid(), Hue(3).grid())
    for u in range(3):
        for v in range(3):
            assert torch.equal(weight[:, u, :, v], kernel.weight[:, :, (u - v) % 3])


def test_lift_undoes_the_hue_of_the_taps() -> None:
    kernel = TableKernel(3, 2, 3, Hue(3), lift=True)
    weight = kernel.expand(Hue(3).grid(), None)[:, :, :, 0]
    # The filter that looks for u·(its colour): shifting red to green moves the red tap to green.
    assert torch.allclose(weight[:, 1], kernel.weight.roll(1, dims=1), atol=1e-6)


def test_separable_is_a_product_with_fewer_numbers() -> None:
    whole = TableKernel(5, 7, 3, Hue(6), lift=False)
    separable = TableKernel(5, 7, 3, Hue(6), lift=False, separable=True)
    assert sum(p.numel() for p in whole.parameters()) == 5 * 7 * 6 * 9
    assert sum(p.numel() for p in separable.parameters()) == 5 * 7 * (6 + 9)
    table = separable.table().flatten(3)
    for pair in table.flatten(0, 1):
        assert torch.linalg.matrix_rank(pair) == 1


@pytest.mark.parametrize(("size", "inside"), [(1, 1), (3, 5), (5, 13), (7, 29), (4, 12), (2, 4)])
def test_siren_evaluates_only_the_disc(size: int, inside: int) -> None:
    kernel = SirenKernel(2, 2, size, SO2(4), lift=True)
    assert kernel.basis(SO2(4).grid(), None).shape == (4, 1, inside, 33)  # and the constant
    weight = kernel.expand(SO2(4).grid(), None)
    assert int((weight[0, 0, 0, 0] != 0).sum()) == inside


def test_siren_of_a_group_that_stays_in_the_plane_has_the_whole_square() -> None:
    assert len(SirenKernel(3, 2, 5, Hue(3), lift=True).taps) == 25


def test_siren_expands_to_its_own_formula() -> None:
    kernel, group = SirenKernel(2, 3, 3, SO2(4), lift=False), SO2(4)
    u, v = group.grid(0.3), SO2(3).grid(0.1)
    weight = kernel.expand(u, v)
    point = tap_points(3)[5].float() @ group.plane(u[1])
    relative = u[1] - v[2]
    coordinates = F.linear(point, kernel.spatial.weight, kernel.phase)
    assert kernel.angular is not None
    coordinates = coordinates + kernel.angular(torch.cat([relative.cos(), relative.sin()]))
    hidden = torch.sin(kernel.omega * kernel.second(torch.sin(kernel.omega * coordinates)))
    value = (kernel.weight @ hidden + kernel.bias) / 3  # the average over three input elements
    assert torch.allclose(weight[:, 1, :, 2].flatten(2)[..., 5], value, atol=1e-5)


def test_siren_does_not_jump_on_the_circle() -> None:
    """The relative angle passes 0 and ±180° smoothly."""
    kernel = SirenKernel(1, 1, 3, SO2(), lift=False)
    zero = torch.zeros(1, 1)
    for angle in (0.0, math.pi, math.pi / 2):
        near = [kernel.expand(zero, torch.tensor([[angle + step]])) for step in (-1e-4, 1e-4)]
        assert (near[0] - near[1]).abs().max() < 0.02 * near[0].abs().max() + 1e-3


@pytest.mark.parametrize("group", [SO2(4), O2(4), Product(SO2(4), Hue(3))], ids=name)
@pytest.mark.parametrize("spec", [Siren(), Harmonic()], ids=name)
def test_continuous_kernels_turn_with_the_group(double: None, group: Group, spec: KernelSpec) -> None:
    """k(R_u⁻¹x, v⁻¹u) depends on (u, v) only up to a common rotation: turning both turns the taps."""
    kernel = spec.build(3, 2, 5, group, lift=False)
    grid = group.grid()
    quarter = torch.zeros(len(group.axes))
    quarter[0] = math.pi / 2
    both = kernel.expand(group.compose(quarter, grid), group.compose(quarter, grid))
    assert torch.allclose(both, torch.rot90(kernel.expand(grid, grid), 1, (-2, -1)), atol=1e-12)


@pytest.mark.parametrize(
    ("group", "kernel", "size"),
    [
        (Hue(3), None, 3),
        (Hue(6), Table(separable=True), 3),
        (Rotations(4), None, 5),
        (SO2(8), Siren(omega=10.0), 7),
        (SO2(8), Siren(omega=4.0), 5),
        (SO2(4), Siren(omega=2.0), 3),
        (O2(4), Siren(hidden=16), 5),
        (SO2(8), Harmonic(), 3),
        (SO2(8), Harmonic(), 7),
        (O2(4), Harmonic(detail=1), 5),
        (Product(SO2(4), Hue(3)), Harmonic(), 3),
    ],
    ids=name,
)
def test_activations_keep_unit_scale_in_a_deep_net(group, kernel, size) -> None:
    """Ten layers without any normalisation: the scale of pre-activations neither dies nor explodes."""
    width, scales = 24, []
    for seed in range(4):
        torch.manual_seed(seed)
        x = torch.randn(2, 3, 20, 20)
        common = {"kernel": kernel, "padding": "same", "resample": True}
        with torch.no_grad():
            feature: GroupFeature = LiftConv2d(3, width, size, group, **common)(x)
            first = feature.values.std()
            for _ in range(9):
                feature = GroupConv2d(width, width, size, group, **common)(feature.map(torch.relu))
            scales.append(float(feature.values.square().mean().sqrt()))
        assert 0.5 < first < 2
    assert 0.2 < torch.tensor(scales).log().mean().exp() < 5


@pytest.mark.parametrize("group", [SO2(), O2(), Rotations(6)], ids=name)
@pytest.mark.parametrize("channels", [1, 4])
def test_no_seed_gives_a_wild_kernel(group: Group, channels: int) -> None:
    """The scale is a property of the kernel's shape; it varies little between draws and is never 0 or infinite."""
    scales = []
    for seed in range(12):
        torch.manual_seed(seed)
        scales.append(
            float(SirenKernel(channels, 8, 3 + 2 * (seed % 3), group, lift=False, hidden=16).weight.detach().std())
        )
    assert all(0.01 < scale < 3 for scale in scales)


def test_default_kernels() -> None:
    for group in TABLES:
        assert default_kernel(group) == Table()
    for group in (SO2(), O2(), Rotations(6), Product(SO2(), Hue(3))):
        assert default_kernel(group) == Harmonic()


def test_kernels_refuse_what_they_cannot_do() -> None:
    with pytest.raises(ValueError, match=r"Rotations\(n=6\) does not move the taps"):
        TableKernel(1, 1, 3, Rotations(6), lift=True)
    with pytest.raises(ValueError, match="kernel_size must be a whole number of at least 1, got 0"):
        SirenKernel(1, 1, 0, SO2(), lift=True)
    with pytest.raises(ValueError, match="omega=-1"):
        SirenKernel(1, 1, 3, SO2(), lift=True, omega=-1)
    with pytest.raises(ValueError, match=r"the input of a table kernel has the 3 elements of Hue\(m=3\), got \(2, 1\)"):
        TableKernel(1, 1, 3, Hue(3), lift=False).expand(Hue(3).grid(), Hue(2).grid())


def test_state_has_no_buffers() -> None:
    kernels = [kind(1, 2, 3, SO2(), lift=False) for kind in (SirenKernel, HarmonicKernel)]
    for kernel in (*kernels, TableKernel(1, 2, 3, Hue(3), lift=False)):
        assert isinstance(kernel, nn.Module)
        assert set(kernel.state_dict()) == {key for key, _ in kernel.named_parameters()}
