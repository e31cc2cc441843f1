"""Saturation and luminance as circles: exact inside the double cone, in every layer and on every fast path."""

import math

import pytest
import torch
from torch import Tensor, nn

from support import SmallNet, name, set_theta, warm
from vpgcnn import (
    O2,
    SO2,
    Elbo,
    Fixed,
    Full,
    Group,
    GroupConv2d,
    Hue,
    LiftConv2d,
    Luminance,
    Product,
    Relaxed,
    ResidualPathway,
    Rotations,
    Saturation,
    Siren,
    Table,
    Variational,
    convert,
    equivariance_error,
    fold,
)
from vpgcnn.export import Deployed, exported, onnx_bytes
from vpgcnn.kernels import KernelSpec
from vpgcnn.levels import LevelSpec
from vpgcnn.nn import all_elements

COLORS: list[Group] = [
    *(Saturation(4), Luminance(4), Saturation(6)),
    *(Product(Saturation(4), Luminance(4)), Product(Hue(3), Saturation(4)), Product(Hue(6), Luminance(4))),
    Product(Hue(3), Product(Saturation(4), Luminance(4))),
    Product(Rotations(4), Saturation(4)),
]
every_group = pytest.mark.parametrize("group", COLORS, ids=name)
QUARTER = math.pi / 2
WARM, COOL = torch.tensor([2.0, -1.0, -1.0]).double() / 6**0.5, torch.tensor([0.0, 1.0, -1.0]).double() / 2**0.5


def colors(lightness: Tensor, saturation: Tensor, hue: Tensor) -> Tensor:
    """RGB `(…, 3, H, W)` from the mean of the channels, the share of the cone and the angle about the grey axis."""
    direction = torch.cos(hue).unsqueeze(-3) * WARM[:, None, None] + torch.sin(hue).unsqueeze(-3) * COOL[:, None, None]
    radius = math.sqrt(1.5) * torch.minimum(lightness, 1 - lightness) * saturation
    return lightness.unsqueeze(-3) + direction * radius.unsqueeze(-3)


def coordinates(low: float = 0.01, high: float = QUARTER / 2 - 0.01, batch: int = 3, size: int = 8) -> list[Tensor]:
    """Half the angles of luminance and saturation, in a range, and any hues: `(B, H, W)` each."""
    halves = [low + (high - low) * torch.rand(batch, size, size, dtype=torch.float64) for _ in range(2)]
    return [*halves, 2 * math.pi * torch.rand(batch, size, size, dtype=torch.float64)]


def pale_and_dark() -> Tensor:
    """Images whose colours stay in their intervals when they are shifted up by a quarter of the circle."""
    light, saturated, hue = coordinates()
    return colors(torch.sin(light), torch.sin(saturated), hue)


def upwards(group: Group) -> Tensor:
    """The elements that shift such images within their intervals: up, and by any rotation or hue."""
    moved = [place for place, axis in enumerate(group.axes) if axis.name in ("saturation", "luminance")]
    grid = group.grid(dtype=torch.float64)
    return grid[((grid[:, moved] >= 0) & (grid[:, moved] <= QUARTER + 1e-9)).all(dim=1)]


# ---------------------------------------------------------------- the action


def test_elements_shift_the_angles_of_colours_and_nothing_else() -> None:
    light, saturated, hue = coordinates()
    image = colors(torch.sin(light), torch.sin(saturated), hue)
    vivid = Saturation(4).transform(image, QUARTER)
    assert torch.allclose(vivid, colors(torch.sin(light), torch.sin(saturated + QUARTER / 2), hue), rtol=0, atol=1e-12)
    lighter = Luminance(4).transform(image, QUARTER)
    assert torch.allclose(
        lighter, colors(torch.sin(light + QUARTER / 2), torch.sin(saturated), hue), rtol=0, atol=1e-12
    )
    both = Product(Saturation(4), Luminance(4))
    assert torch.allclose(
        both.transform(image, torch.tensor([QUARTER, QUARTER], dtype=torch.float64)),
        colors(torch.sin(light + QUARTER / 2), torch.sin(saturated + QUARTER / 2), hue),
        rtol=0,
        atol=1e-12,
    )


@every_group
def test_shifts_add_up_and_stay_in_the_rgb_cube(group: Group) -> None:
    image = pale_and_dark()
    for u in upwards(group):
        moved = group.transform(image, u)
        assert float(moved.min()) >= -1e-12
        assert float(moved.max()) <= 1 + 1e-12
        for v in group.grid(dtype=torch.float64):
            twice = group.transform(moved, v)
            assert torch.allclose(twice, group.transform(image, group.compose(v, u)), rtol=0, atol=1e-10)


def test_beyond_its_interval_a_colour_comes_back() -> None:
    """The circle covers the interval twice: a full turn is the identity, and past the end the shift is undone."""
    image = pale_and_dark()
    for group in (Saturation(4), Luminance(4)):
        assert torch.allclose(group.transform(image, 2 * math.pi), image, rtol=0, atol=1e-12)
    light, saturated, hue = coordinates()
    over = Saturation(4).transform(colors(torch.sin(light), torch.sin(saturated), hue), math.pi)
    assert torch.allclose(over, colors(torch.sin(light), torch.cos(saturated), hue), rtol=0, atol=1e-12)


def test_what_has_no_saturation_or_is_outside_the_cone() -> None:
    grey = torch.rand(1, 1, 4, 4).expand(1, 3, 4, 4)
    assert torch.allclose(Saturation(3).transform(grey, 2.0), grey, rtol=0, atol=1e-6)
    outside = torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1)  # pure red
    for group in (Saturation(3), Luminance(3)):
        assert torch.equal(group.transform(outside, 0.0), outside)
    paler = Saturation(4).transform(outside, -QUARTER)
    assert torch.allclose(paler.mean(), outside.mean())
    assert float(paler.std()) == pytest.approx(float(outside.std()) * math.cos(QUARTER / 2), rel=1e-5)
    ends = torch.tensor([0.0, 1.0]).view(2, 1, 1, 1).expand(2, 3, 1, 1)  # black and white
    assert torch.allclose(Luminance(2).transform(ends, math.pi).flatten(1)[:, 0], torch.tensor([1.0, 0.0]), atol=1e-6)


def test_the_action_has_gradients_everywhere() -> None:
    corners = torch.cartesian_prod(*[torch.tensor([0.0, 0.5, 1.0])] * 3).T.reshape(1, 3, 27, 1)
    for group in (Saturation(4), Luminance(4)):
        image = corners.clone().requires_grad_()
        group.transform(image, 0.7).square().sum().backward()
        assert image.grad is not None
        assert bool(image.grad.isfinite().all())
    inside = pale_and_dark()[:1, :, :2, :2].clone().requires_grad_()
    angle = torch.tensor([0.3], dtype=torch.float64, requires_grad=True)
    for group in (Saturation(4), Luminance(4)):
        assert torch.autograd.gradcheck(group.transform, (inside, angle))


def test_products_are_of_different_properties() -> None:
    for one, two in ((Saturation(3), Saturation(4)), (Hue(3), Hue(3)), (Luminance(2), Luminance(2))):
        with pytest.raises(ValueError, match="both act on RGB"):
            Product(one, two)
    with pytest.raises(ValueError, match="both act on RGB"):
        Product(Product(Hue(3), Saturation(3)), Saturation(3))
    with pytest.raises(ValueError, match="at least 1, got 0"):
        Saturation(0)
    with pytest.raises(ValueError, match="expected 3 channels, got 1"):
        Luminance(3).transform(torch.rand(1, 1, 4, 4), 0.5)


# ---------------------------------------------------------------- layers


def chain(group: Group, kernel: KernelSpec | None = None) -> nn.Sequential:
    lift = LiftConv2d(3, 4, 3, group, kernel=kernel, padding=1)
    return nn.Sequential(lift, nn.ReLU(), GroupConv2d(4, 4, 3, group, kernel=kernel, padding=1)).double()


@every_group
def test_layers_are_exactly_equivariant(group: Group) -> None:
    error = equivariance_error(chain(group), pale_and_dark(), group, upwards(group))
    assert len(error.elements) > 1
    assert error.worst < 1e-10


@pytest.mark.parametrize("kernel", [Siren(hidden=8), Table(separable=True), Relaxed(), ResidualPathway()], ids=str)
def test_every_kernel_can_lift(kernel: KernelSpec) -> None:
    group = Product(Hue(3), Saturation(4))
    assert equivariance_error(chain(group, kernel), pale_and_dark(), group, upwards(group)).worst < 1e-10


def test_continuous_rotations_may_take_part() -> None:
    group = Product(SO2(4), Luminance(4))
    assert equivariance_error(chain(group), pale_and_dark(), group, upwards(group)).worst < 1e-10


def test_elements_of_each_image() -> None:
    """Given elements, other for each image: one image at a time gives the same."""
    group = Product(O2(4), Saturation(4))
    lift = LiftConv2d(3, 4, 3, group).double().eval()
    image = pale_and_dark()
    own = torch.stack([group.grid(offset, dtype=torch.float64) for offset in (0.0, 0.2, 0.5)])
    together = lift(image, elements=own).values
    for place in range(3):
        assert torch.allclose(together[place], lift(image[place, None], elements=own[place]).values[0], atol=1e-12)


@pytest.mark.parametrize("group", [Saturation(4), Product(Hue(3), Luminance(4))], ids=name)
@torch.no_grad()
def test_a_network_with_full_windows_is_invariant_and_theta_always(group: Group) -> None:
    image = pale_and_dark()
    net = warm(SmallNet(group, level=Variational()).double(), image)
    theta = net(image).theta
    for u in upwards(group):
        for layer, moved in net(group.transform(image, u)).theta.items():
            if layer == "lift":  # later layers see the windows of earlier ones
                assert torch.allclose(moved, theta[layer], rtol=0, atol=1e-10)
    set_theta(net, 1.0)
    plain = net(image).logits
    for u in upwards(group):
        assert torch.allclose(net(group.transform(image, u)).logits, plain, rtol=0, atol=1e-10)
    set_theta(net, 0.3)
    plain = net(image).logits
    assert max(float((net(group.transform(image, u)).logits - plain).abs().max()) for u in upwards(group)) > 1e-4


@pytest.mark.parametrize("level", [Full(), Fixed(0.3), Variational()], ids=str)
def test_fast_paths_compute_the_same(level: Full | Fixed | Variational) -> None:
    """Folding, with an example or without, and leaving out elements."""
    group, image = Product(Saturation(4), Luminance(4)), pale_and_dark()
    net = warm(SmallNet(group, level=level).double(), image)
    set_theta(net, 0.3)
    with torch.no_grad(), all_elements():
        expected = net(image).logits
    with torch.no_grad():
        assert torch.allclose(net(image).logits, expected, rtol=0, atol=1e-12)
        assert torch.allclose(fold(net)(image).logits, expected, rtol=0, atol=1e-12)
        assert torch.allclose(fold(net, image)(image).logits, expected, rtol=0, atol=1e-12)


def test_every_parameter_learns() -> None:
    net = SmallNet(Product(Saturation(4), Luminance(4)), level=Variational())
    Elbo.of(net(pale_and_dark().float()), torch.tensor([0, 1, 2])).total().backward()
    assert all(part.grad is not None and float(part.grad.abs().sum()) > 0 for part in net.lift.parameters())


def test_it_compiles_and_exports() -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="there is no onnxruntime")
    pytest.importorskip("onnxscript", reason="there is no onnxscript")
    images = pale_and_dark().float()
    levels: list[LevelSpec] = [Full(), Variational(), Full(), Full()]
    net = warm(SmallNet(Product(Saturation(2), Luminance(2)), levels=levels, width=3), images)
    expected = net(images).logits.detach()
    program = exported(Deployed(net, example=images[:1]), 3, 8)
    assert torch.allclose(program.module()(images)[0], expected, atol=1e-5)
    session = onnxruntime.InferenceSession(onnx_bytes(program, {"classes": ["a"]}))
    answer = session.run(None, {"images": images.numpy()})[0]
    assert torch.allclose(torch.from_numpy(answer), expected, atol=1e-4)


def test_a_converted_network_starts_as_it_was_and_can_be_invariant() -> None:
    image = pale_and_dark()
    first, second = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)
    end = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    plain = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), *end).double().eval()
    for group in (Saturation(4), Product(Hue(3), Luminance(4))):
        started = convert(plain, group, example=image).double().eval()
        assert torch.allclose(started(image).logits, plain(image), rtol=0, atol=1e-6)
        whole = convert(plain, group, level=Full(), example=image).double().eval()
        for u in upwards(group):
            assert torch.allclose(whole(group.transform(image, u)).logits, whole(image).logits, rtol=0, atol=1e-6)
