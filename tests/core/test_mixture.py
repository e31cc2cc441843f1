"""Mixtures of windows: exact weights and KL, one centred window as a limit, and means that turn with the image."""

import math

import pytest
import torch
from torch import Tensor

from support import SmallNet, moved, name, random_feature, vary_theta, warm
from vpgcnn import O2, SO2, Elbo, Group, Hue, Mixture, Product, Rotations, Shared, Variational
from vpgcnn.groups import translate_index, wrap
from vpgcnn.levels import VariationalLevel, WindowDistribution, set_dial
from vpgcnn.levels.mixture import MixtureDistribution

pytestmark = pytest.mark.usefixtures("double")
CIRCLES: list[Group] = [SO2(8), Rotations(4), Hue(3), Product(SO2(4), Hue(3))]
every_group = pytest.mark.parametrize("group", CIRCLES, ids=name)


def mixture(group: Group, batch: int = 5, windows: int = 3) -> MixtureDistribution:
    shape = (batch, len(group.axes), windows)
    widths = 0.1 + 0.8 * torch.rand(shape)
    return MixtureDistribution(group, 4 * torch.rand(shape) - 2, widths, torch.randn(shape).softmax(dim=-1))


def density(q: MixtureDistribution, angle: Tensor) -> Tensor:
    """The density of one axis at angles `(N,)`, written down as it is defined: `(B, N)`."""
    total = torch.zeros(len(q.means), len(angle))
    for component in range(q.means.shape[-1]):
        middle, half = math.pi * q.means[:, 0, component, None], math.pi * q.widths[:, 0, component, None]
        inside = wrap(angle - middle).abs() <= half
        total += q.shares[:, 0, component, None] * inside / (2 * half)
    return total


@every_group
def test_one_centred_window_is_a_window(group: Group) -> None:
    theta = torch.tensor([0.05, 0.34, 0.5, 0.77, 1.0]).unsqueeze(1).repeat(1, len(group.axes)).requires_grad_()
    one = MixtureDistribution(
        group, torch.zeros_like(theta)[..., None], theta[..., None], torch.ones_like(theta)[..., None]
    )
    window = WindowDistribution(group, theta)
    for offset in (0.0, 0.2) if group.order is None else (0.0,):
        grid = group.grid(offset, dtype=torch.float64)
        assert torch.allclose(one.weights(grid), window.weights(grid), rtol=0, atol=1e-12)
        seen = torch.randn(len(grid))
        slopes = [torch.autograd.grad((q.weights(grid) * seen).sum(), theta)[0] for q in (one, window)]
        assert torch.allclose(*slopes, rtol=0, atol=1e-10)
    assert torch.allclose(one.kl(), window.kl(), rtol=0, atol=1e-10)
    assert torch.allclose(one.unused(), window.unused(), rtol=0, atol=1e-10)
    assert torch.allclose(one.theta, window.theta, rtol=0, atol=1e-10)


@pytest.mark.parametrize("group", [SO2(8), Rotations(4), Hue(3)], ids=name)
def test_weights_and_kl_are_the_integrals(group: Group) -> None:
    q, count = mixture(group), 300_000
    angles = math.pi * (2 * (torch.arange(count) + 0.5) / count - 1)
    found = density(q, angles)
    assert torch.allclose(found.mean(dim=1) * 2 * math.pi, torch.ones(5), atol=1e-4)
    relative = 2 * math.pi * found
    assert torch.allclose(q.kl(), torch.xlogy(relative, relative).mean(dim=1), atol=1e-3)
    grid = group.grid(dtype=torch.float64)
    cell = wrap(angles[:, None] - grid[:, 0]).abs().argmin(dim=1)
    shares = torch.zeros(5, len(grid)).index_add(1, cell, found) * (2 * math.pi / count)
    assert torch.allclose(q.weights(grid), shares, atol=1e-3)
    assert torch.allclose(q.weights(grid).sum(dim=1), torch.ones(5), rtol=0, atol=1e-12)


def test_the_kl_in_closed_form() -> None:
    """Apart, two equal windows count as one of both widths; on top of each other, as one; anywhere on the circle."""
    for middle in (0.0, 0.4, 0.97):
        for apart, theta in ((1.0, 0.4), (0.0, 0.2), (0.1, 0.25)):
            means = torch.tensor([[[middle, middle + apart]]])
            q = MixtureDistribution(SO2(8), means, torch.full((1, 1, 2), 0.2), torch.full((1, 1, 2), 0.5))
            # 0.1 apart (in units of π), [0.1, 0.3] of π is covered twice: half of the mass at density 2/(2·0.2)
            expected = -math.log(theta) if apart != 0.1 else 0.25 * math.log(2.5) + 0.75 * math.log(5)
            assert float(q.kl()) == pytest.approx(expected, abs=1e-12)
            assert float(q.theta) == pytest.approx(math.exp(-expected), abs=1e-12)


def test_gradients_are_derivatives() -> None:
    parts = [getattr(mixture(SO2(5), batch=3, windows=2), key).clone().requires_grad_() for key in ("means", "widths")]
    shares = torch.rand(3, 1, 2).softmax(dim=-1).requires_grad_()
    grid = SO2(5).grid(0.1, dtype=torch.float64)

    def weights(means: Tensor, widths: Tensor, shares: Tensor) -> Tensor:
        return MixtureDistribution(SO2(5), means, widths, shares).weights(grid)

    def kl(means: Tensor, widths: Tensor, shares: Tensor) -> Tensor:
        return MixtureDistribution(SO2(5), means, widths, shares).kl()

    assert torch.autograd.gradcheck(weights, (*parts, shares))
    assert torch.autograd.gradcheck(kl, (*parts, shares))


# ---------------------------------------------------------------- levels


def level_of(group: Group, family: Mixture) -> VariationalLevel:
    level = Variational(family).build(group, 4)
    vary_theta(level, 1.0)
    return level.eval()


@every_group
@torch.no_grad()
def test_covariant_means_turn_with_the_image_and_invariant_ones_do_not(group: Group) -> None:
    """q(u|L_g f) = q(g⁻¹u|f) for covariant means, q(u|L_g f) = q(u|f) for invariant ones."""
    feature, grid = random_feature(group, size=6), group.grid(dtype=torch.float64)
    turning, fixed = level_of(group, Mixture(2, covariant=True)), level_of(group, Mixture(2))
    one, two = turning(feature), fixed(feature)
    assert float(one.theta.std()) > 1e-6  # it looks at the image
    before = one.weights(grid), two.weights(grid)
    for g in grid:
        if not bool((group.plane(g) == group.plane(g).round()).all()):
            continue
        there = moved(feature, group, g)
        index = translate_index(group, g)
        assert torch.allclose(turning(there).weights(grid), before[0][:, index], rtol=0, atol=1e-10)
        assert torch.allclose(turning(there).theta, one.theta, rtol=0, atol=1e-10)
        assert torch.allclose(fixed(there).weights(grid), before[1], rtol=0, atol=1e-10)
    assert not torch.allclose(before[0][:, translate_index(group, grid[1])], before[0], atol=1e-3)


@pytest.mark.parametrize("group", [Rotations(4), Hue(3), Product(Rotations(4), Hue(3))], ids=name)
@torch.no_grad()
def test_a_network_with_covariant_means_is_equivariant_at_every_width(group: Group) -> None:
    images = torch.rand(3, 3, 8, 8)
    for covariant in (True, False):
        net = warm(SmallNet(group, level=Variational(Mixture(1, covariant=covariant, initial=0.4))), images)
        plain = net(images)
        assert float(next(iter(plain.theta.values())).max()) < 0.95  # windows are not full
        errors = [float((net(group.transform(images, g)).logits - plain.logits).abs().max()) for g in group.grid()]
        assert max(errors) < 1e-10 if covariant else max(errors) > 1e-4


def test_windows_can_be_anywhere_and_several() -> None:
    level = Variational(Mixture(2)).build(SO2(8), 4).eval()
    torch.nn.init.zeros_(level.encoder.linear.weight)
    level.encoder.start.copy_(torch.tensor([0.125, 0.125, 0.0, 0.0, 0.5, 1.0]))  # at 90° and at 180°
    weights = level(random_feature(SO2(8), size=6)).weights(SO2(8).grid(dtype=torch.float64))
    expected = torch.zeros(8)
    expected[2] = expected[4] = 0.5
    assert torch.allclose(weights, expected.expand_as(weights), rtol=0, atol=1e-12)


def test_every_parameter_learns_and_the_dial_opens() -> None:
    for covariant in (False, True):
        net = SmallNet(Hue(3), level=Variational(Mixture(2, covariant=covariant), detach_features=False))
        images = torch.rand(4, 3, 8, 8)
        Elbo.of(net(images), torch.tensor([0, 1, 2, 3])).total().backward()
        encoder = net.convs[0].level.encoder
        assert all(part.grad is not None and float(part.grad.abs().sum()) > 0 for part in encoder.linear.parameters())
        if covariant:
            assert float(encoder.compass.weight.grad.abs().sum()) > 0
        warm(net, images)
        set_dial(net, 1.0)
        assert all(torch.allclose(theta, torch.ones_like(theta)) for theta in net(images).theta.values())


def test_what_has_no_meaning_is_refused() -> None:
    with pytest.raises(ValueError, match="has a mirror"):
        Variational(Mixture(2)).build(O2(4), 4)
    with pytest.raises(ValueError, match="a shared level sees none"):
        Shared(Mixture(2, covariant=True)).build(SO2(4))
    with pytest.raises(ValueError, match="at least 1, got 0"):
        Mixture(0)
    with pytest.raises(ValueError, match="cannot draw windows"):
        Variational(Mixture(2), explore=0.2).build(SO2(4), 4)
    assert Shared(Mixture(2)).build(SO2(4)).raw.numel() == 6
