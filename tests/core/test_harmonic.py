"""Harmonic kernels: turned in closed form, checked against pictures that are rotated."""

import math

import pytest
import torch
from torch import Tensor, nn

from support import SmallNet, name, random_feature, warm
from vpgcnn import (
    O2,
    SO2,
    Dihedral,
    Elbo,
    Full,
    Group,
    GroupConv2d,
    Harmonic,
    Hue,
    LiftConv2d,
    Product,
    Relaxed,
    ReparametrizedWindow,
    Rotations,
    Saturation,
    Siren,
    Variational,
    equivariance_error,
    fold,
)
from vpgcnn._ops import resample
from vpgcnn.export import Deployed, exported, onnx_bytes
from vpgcnn.kernels import HarmonicKernel
from vpgcnn.testing import smooth_images

EXACT: list[Group] = [Rotations(4), Dihedral(4), SO2(4), O2(4), Hue(3), Product(SO2(4), Hue(3)), Saturation(2)]


def chain(group: Group, kernel: Harmonic | Siren = Harmonic(), size: int = 5) -> nn.Sequential:  # noqa: B008
    lift = LiftConv2d(3, 4, size, group, kernel=kernel, padding=size // 2)
    return nn.Sequential(lift, nn.Tanh(), GroupConv2d(4, 4, size, group, kernel=kernel, padding=size // 2))


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("size", [1, 3, 4, 5])
def test_quarter_turns_are_exact(size: int) -> None:
    kernel = HarmonicKernel(2, 3, size, SO2(4), lift=True, spec=Harmonic())
    weight = kernel.expand(SO2(4).grid(), None)[:, :, :, 0]
    for turns in range(4):
        assert torch.allclose(weight[:, turns], weight[:, 0].rot90(turns, (-2, -1)), rtol=0, atol=1e-12)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("angle", [0.3, -1.1, 2.0])
def test_a_turn_is_that_of_a_finely_sampled_picture(angle: float) -> None:
    """The taps at u are those of the kernel's own picture, drawn with 16 points to a pixel and rotated by u."""
    kernel = HarmonicKernel(1, 1, 5, SO2(8), lift=True, spec=Harmonic())
    fine, step = 161, 16
    line = (torch.arange(fine) - fine // 2) / step
    y, x = torch.meshgrid(-line, line, indexing="ij")
    radius, phi = torch.hypot(x, y), torch.atan2(y, x)
    picture = torch.zeros(fine, fine)
    place = 0
    for ring, m in kernel.waves:
        shape = torch.exp(-(radius - ring).square() / (2 * 0.6**2))
        for wave in (torch.cos(m * phi), torch.sin(m * phi))[: 2 if m else 1]:
            picture += kernel.weight.detach()[0, 0, place, 0] * shape * wave
            place += 1
    turned = resample.move(picture[None, None], SO2().plane(torch.tensor([angle])), "bicubic")[0, 0]
    middle = fine // 2
    expected = turned[
        middle - 2 * step : middle + 2 * step + 1 : step, middle - 2 * step : middle + 2 * step + 1 : step
    ]
    found = kernel.expand(torch.tensor([[angle]]), None)[0, 0, 0, 0].detach()
    inside = torch.hypot(*torch.meshgrid(torch.arange(5.0) - 2, torch.arange(5.0) - 2, indexing="ij")) <= 2.5
    inside[2, 2] = False  # where a picture of waves has no value
    assert torch.allclose(found[inside], expected[inside], rtol=0, atol=0.02 * float(picture.abs().max()))
    assert bool((found[torch.hypot(*torch.meshgrid(*[torch.arange(5.0) - 2] * 2, indexing="ij")) > 2.5] == 0).all())


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("group", EXACT, ids=name)
def test_layers_are_exactly_equivariant(group: Group) -> None:
    images = 0.2 + 0.1 * torch.rand(2, 3, 8, 8)
    elements = group.grid()[:1] if group == Saturation(2) else None  # a half turn leaves the interval
    assert equivariance_error(chain(group), images, group, elements).worst < 1e-10


def test_rotations_between_the_pixels_are_as_good_as_with_a_siren() -> None:
    images = smooth_images(4, 3, 33)
    errors = [
        equivariance_error(chain(SO2(8), kernel), images, SO2(8), [math.pi / 4]).mean
        for kernel in (Harmonic(), Siren(omega=10))
    ]
    assert errors[0] < 0.1
    assert errors[0] < errors[1] + 0.02


@torch.no_grad()
def test_weights_start_at_unit_scale_for_white_input() -> None:
    for lift in (True, False):
        conv = (LiftConv2d if lift else GroupConv2d)(3, 200, 5, SO2(8), kernel=Harmonic(), bias=False)
        given = torch.randn(4, 3, 16, 16) if lift else random_feature(SO2(8), batch=4, channels=3, size=16)
        square = conv(given).values.square().mean()
        assert float(square) == pytest.approx(1.0 if lift else 2.0, rel=0.15)  # a ReLU halves it


@pytest.mark.usefixtures("double")
def test_every_way_to_compute_it_agrees() -> None:
    """Folded, without elements of weight 0, and with elements of each image's own."""
    images = torch.rand(3, 3, 8, 8)
    net = warm(SmallNet(SO2(4), level=Variational(), kernel=Harmonic()), images).requires_grad_(False)
    expected = net(images).logits
    assert torch.allclose(fold(net)(images).logits, expected, rtol=0, atol=1e-12)
    conv = GroupConv2d(4, 5, 3, SO2(4), kernel=Harmonic(), level=Variational(ReparametrizedWindow())).eval()
    feature = random_feature(SO2(4), size=7)
    together = conv(feature)
    for image in range(2):
        alone = conv(feature[image : image + 1]).values
        assert torch.allclose(together.values[image : image + 1], alone, rtol=0, atol=1e-12)


def test_it_learns_is_relaxed_and_exported() -> None:
    images = torch.rand(2, 3, 8, 8)
    net = SmallNet(SO2(4), kernel=Relaxed(2, of=Harmonic(frequency=1, around=1)), level=Full())
    Elbo.of(net(images), torch.tensor([0, 1])).total().backward()
    assert all(float(part.grad.abs().sum()) > 0 for part in net.lift.kernel.parameters())
    plain = warm(SmallNet(SO2(4), kernel=Harmonic(around=1), levels=[Full(), Variational(), Full(), Full()]), images)
    deployed = Deployed(plain, example=images[:1])
    with torch.no_grad():
        expected = deployed(images)
    onnxruntime = pytest.importorskip("onnxruntime", reason="there is no onnxruntime")
    pytest.importorskip("onnxscript", reason="there is no onnxscript")
    program = exported(deployed, channels=3, size=8)
    session = onnxruntime.InferenceSession(onnx_bytes(program, {"classes": ["a"]}))
    for one, two, three in zip(
        program.module()(images), session.run(None, {"images": images.numpy()}), expected, strict=True
    ):
        assert torch.allclose(one, three, atol=1e-5)
        assert torch.allclose(torch.from_numpy(two), three, atol=1e-4)


def test_fewer_frequencies_have_fewer_numbers() -> None:
    def count(kernel: Harmonic, group: Group, *, lift: bool = False) -> int:
        made: Tensor = kernel.build(2, 3, 5, group, lift=lift).weight
        return made.numel() // 6

    assert count(Harmonic(), SO2(8), lift=True) == 1 + 5 + 9
    assert count(Harmonic(), SO2(8)) == 15 * 5
    assert count(Harmonic(frequency=0, around=0), SO2(8)) == 3
    assert count(Harmonic(around=9), Rotations(4)) == 15 * 4  # all functions on four elements
    assert count(Harmonic(around=1), Product(SO2(8), Hue(3))) == 15 * 9
    for wrong in ({"frequency": -1}, {"around": 0.5}):
        with pytest.raises(ValueError, match="must be a whole number"):
            Harmonic(**wrong)
