"""Harmonic kernels: what they are made of, and that they turn in closed form."""

import math

import pytest
import torch
from torch import Tensor

from support import name
from vpgcnn import O2, SO2, Dihedral, Group, GroupConv2d, Harmonic, Hue, LiftConv2d, Product, Rotations
from vpgcnn.kernels import HarmonicKernel, Kernel
from vpgcnn.kernels.base import tap_points
from vpgcnn.testing import equivariance_error


def on_all_angles(kernel: HarmonicKernel) -> Tensor:
    """The functions `(64, T, S)` at 64 angles."""
    return kernel.basis(SO2(64).grid(), None)[:, 0]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8])
@pytest.mark.parametrize("detail", [1.0, 2.0])
def test_functions_are_orthonormal_on_average_over_angles(double: None, size: int, detail: float) -> None:
    values = on_all_angles(HarmonicKernel(1, 1, size, SO2(), lift=True, detail=detail))
    gram = torch.einsum("uts,utr->sr", values, values) / len(values)
    assert torch.allclose(gram, torch.eye(len(gram)), atol=1e-10)


def test_each_function_has_one_frequency(double: None) -> None:
    """Turned by α, cos(mφ) and sin(mφ) turn into each other by mα: the span of the two does not change."""
    kernel = HarmonicKernel(1, 1, 5, SO2(), lift=True)
    still, turned = kernel.basis(torch.zeros(1, 1), None)[0, 0], kernel.basis(torch.tensor([[0.7]]), None)[0, 0]
    frequency = (torch.tensor(kernel.part) + 1) // 2
    for m in range(int(frequency.max()) + 1):
        one, two = still[:, frequency == m], turned[:, frequency == m]
        if m == 0:
            assert torch.allclose(one, two, atol=1e-12)
            continue
        cosine, sine = one.chunk(2, dim=1)
        angle = -0.7 * m
        expected = [
            math.cos(angle) * cosine - math.sin(angle) * sine,
            math.sin(angle) * cosine + math.cos(angle) * sine,
        ]
        assert torch.allclose(two, torch.cat(expected, dim=1), atol=1e-12)


@pytest.mark.parametrize(("size", "functions"), [(1, 1), (3, 6), (5, 15), (7, 28)])
def test_frequencies_grow_with_the_distance(size: int, functions: int) -> None:
    """With detail 2, a ring at r has frequencies up to 2r: 1 + 5 + 9 + 13 functions."""
    assert HarmonicKernel(2, 3, size, SO2(8), lift=True).weight.shape == (3, 2, functions)


@pytest.mark.parametrize(
    ("group", "around"),
    [
        (SO2(4), 3),
        (SO2(8), 5),
        (SO2(1), 1),
        (Rotations(2), 2),
        (Rotations(4), 4),
        (Hue(3), 3),
        (Dihedral(1), 2),
        (O2(8), 10),
        (Product(SO2(8), Hue(3)), 15),
    ],
    ids=name,
)
def test_functions_on_the_group_are_those_its_grid_can_tell_apart(double: None, group: Group, around: int) -> None:
    kernel = HarmonicKernel(1, 1, 1, group, lift=False)
    assert kernel.weight.shape[-1] == around
    values = kernel.basis(group.identity()[None], group.grid())[0, :, 0]
    assert torch.linalg.matrix_rank(values) == around


@pytest.mark.parametrize("size", [3, 4])
def test_the_centre_has_no_angle(double: None, size: int) -> None:
    """A function with an angle is 0 at the centre, so that turning the kernel leaves the centre alone."""
    kernel = HarmonicKernel(1, 1, size, SO2(), lift=True)
    centre = torch.linalg.vector_norm(tap_points(size)[kernel.taps], dim=1) == 0
    values = on_all_angles(kernel)[:, centre]
    assert torch.allclose(values, values[:1].expand_as(values), atol=1e-12)
    assert int(centre.sum()) == size % 2


def test_gradients_of_angles_are_finite_and_right(double: None) -> None:
    kernel = HarmonicKernel(2, 2, 3, SO2(4), lift=False)
    u, v = torch.rand(3, 1, requires_grad=True), torch.rand(2, 1, requires_grad=True)
    assert torch.autograd.gradcheck(kernel.expand, (u, v))


@pytest.mark.parametrize("group", [SO2(8), O2(4), Product(SO2(4), Hue(3))], ids=name)
@pytest.mark.parametrize("map_size", [5, 24])
def test_elements_of_each_image(double: None, group: Group, map_size: int) -> None:
    """The path that never builds a kernel, and the one that builds them one by one, against the definition."""
    conv = GroupConv2d(2, 3, 5, group, kernel=Harmonic())
    kernel, geometry = conv.kernel, conv.geometry
    values = torch.randn(3, 2, group.count, map_size, map_size)
    continuous = torch.tensor([axis.order is None for axis in group.axes])
    elements = group.compose(torch.rand(3, 1, len(group.axes)) * continuous, group.grid())
    expected = Kernel._convolve_each(kernel, values, None, elements, elements, geometry, None)
    assert torch.allclose(kernel.convolve(values, None, elements, elements, geometry), expected, atol=1e-10)


def test_a_blob_turned_between_the_pixels_is_seen_alike() -> None:
    """On smooth images the error at 22.5° is that of sampling, a few per cent, and smaller with less detail."""
    torch.manual_seed(0)
    line = torch.linspace(-1, 1, 33)
    y, x = torch.meshgrid(line, line, indexing="ij")
    image = torch.exp(-((x - 0.25) ** 2 + (1.5 * y) ** 2) / 0.05)[None, None]
    errors = []
    for detail in (1.0, 2.0, 6.0):
        torch.manual_seed(0)
        lift = LiftConv2d(1, 8, 5, SO2(16), padding="same", kernel=Harmonic(detail=detail)).eval()
        errors.append(float(equivariance_error(lift, image, SO2(16)).worst))
    assert errors[0] < errors[1] < errors[2]
    assert errors[1] < 0.2


def test_weights_depend_on_the_seed_alone() -> None:
    """Not on whether the start scale of an equal kernel is remembered, for which another kernel is built."""
    group = Product(SO2(6), Hue(3))  # on no other test's list
    drawn = []
    for _ in range(2):
        torch.manual_seed(0)
        drawn.append(HarmonicKernel(2, 2, 3, group, lift=False).weight)
    assert torch.equal(*drawn)


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="detail must be a number of at least 0, got -1"):
        Harmonic(detail=-1)
    with pytest.raises(ValueError, match="detail must be a number of at least 0, got nan"):
        Harmonic(detail=math.nan)
    with pytest.raises(ValueError, match=r"order must be a whole number of at least 0, got 1\.5"):
        Harmonic(order=1.5)  # type: ignore[arg-type]
    assert HarmonicKernel(1, 1, 3, SO2(8), lift=False, order=0).weight.shape == (1, 1, 6)
