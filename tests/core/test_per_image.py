"""Levels that move elements: every image has its own kernel."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from support import SmallNet, set_theta
from vpgcnn import SO2, GroupConv2d, LiftConv2d, ReparametrizedWindow, Shared, Siren, Variational, Window
from vpgcnn._ops import per_image as own


@pytest.mark.parametrize("way", ["contract", "build"])
@pytest.mark.parametrize(("own_input", "own_output"), [(False, True), (True, False), (True, True)])
def test_kernels_of_each_image_give_the_same(
    double: None, monkeypatch: pytest.MonkeyPatch, way: str, own_input: bool, own_output: bool
) -> None:
    """Each image by itself, with its elements shared by a batch of one, is the oracle: values and gradients."""
    monkeypatch.setattr(own, "PAYS", math.inf if way == "contract" else 0)
    conv = GroupConv2d(3, 4, 5, SO2(4), padding=1, stride=2)
    values, weights = torch.randn(3, 3, 5, 9, 9, requires_grad=True), torch.rand(3, 5)
    weights = (weights / weights.sum(dim=1, keepdim=True)).requires_grad_()
    v = (torch.rand(3, 5, 1) if own_input else torch.rand(5, 1)) * 6 - 3
    u = (torch.rand(3, 4, 1) if own_output else torch.rand(4, 1)) * 6 - 3
    v.requires_grad_()
    u.requires_grad_()
    target = torch.randn(3, 4, 4, 4, 4)

    def grads(out: Tensor) -> list[Tensor]:
        parts = [values, weights, u, v, *conv.parameters()]
        return [out, *torch.autograd.grad((out * target).sum(), parts)]

    together = grads(conv._convolve(values, weights, v, u))
    single = [
        conv._convolve(values[b : b + 1], weights[b : b + 1], v[b] if own_input else v, u[b] if own_output else u)
        for b in range(3)
    ]
    for ours, oracle in zip(together, grads(torch.cat(single)), strict=True):
        assert torch.allclose(ours, oracle, atol=1e-10)


@pytest.mark.parametrize("way", ["contract", "build"])
def test_second_derivatives_through_kernels_of_each_image(
    double: None, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """A gradient penalty: all of its terms, in both ways to compute."""
    monkeypatch.setattr(own, "PAYS", math.inf if way == "contract" else 0)
    conv = GroupConv2d(2, 2, 3, SO2(3), padding=1, kernel=Siren(hidden=4))
    values, v, u = torch.randn(2, 2, 3, 5, 5, requires_grad=True), SO2(3).grid(), torch.rand(2, 3, 1) * 6 - 3
    parameters = [values, *list(conv.parameters())[1:]]

    def penalty(out: Tensor) -> tuple[Tensor, ...]:
        (slope,) = torch.autograd.grad((out**3).sum(), values, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), parameters, allow_unused=True)

    ours = penalty(conv._convolve(values, None, v, u.requires_grad_()))
    theirs = penalty(torch.cat([conv._convolve(values[b : b + 1], None, v, u[b]) for b in range(2)]))
    assert ours[0].abs().max() > 1e-6
    for found, expected in zip(ours, theirs, strict=True):
        assert torch.allclose(found, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("chunk", [1, 2**20])
def test_a_kernel_that_covers_the_map(double: None, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    """Patches are the map itself then; and some images at a time give what all together do."""
    monkeypatch.setattr(own, "CHUNK", chunk)
    conv = GroupConv2d(3, 4, 5, SO2(4))
    values, v, u = torch.randn(3, 3, 4, 5, 5), SO2(4).grid(), torch.rand(3, 4, 1) * 6 - 3
    wide = F.pad(values, (1, 1, 1, 1))
    both = [conv._convolve(values, None, v, u)[..., 0, 0], conv._convolve(wide, None, v, u)[..., 1, 1]]
    assert torch.allclose(*both, atol=1e-12)
    one, two = (
        torch.autograd.grad(out.square().sum(), list(conv.parameters())[:-1], retain_graph=True) for out in both
    )
    assert all(torch.allclose(a, b, atol=1e-10) for a, b in zip(one, two, strict=True))


def test_large_maps_build_kernels_and_small_ones_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """And both lifts and group convolutions find their way, with the same answer."""
    lift = LiftConv2d(1, 3, 5, SO2(4), level=Variational(ReparametrizedWindow())).eval()
    taken: list[int] = []
    build = own._build
    monkeypatch.setattr(own, "_build", lambda *args: taken.append(args[0].values.shape[-1]) or build(*args))
    for size in (9, 33):
        images = torch.rand(2, 1, size, size)
        usual = lift(images).values
        monkeypatch.setattr(own, "PAYS", 0 if size == 9 else math.inf)
        assert torch.allclose(lift(images).values, usual, atol=1e-6)
        monkeypatch.undo()
        monkeypatch.setattr(own, "_build", lambda *args: taken.append(args[0].values.shape[-1]) or build(*args))
    assert taken == [9, 33]


def test_reparametrized_and_weighted_windows_agree_as_elements_grow(double: None) -> None:
    """Both estimate the same integral over the window, so their difference falls with n."""
    gaps = []
    for n in (4, 12, 36):
        torch.manual_seed(3)
        model = SmallNet(SO2(n), in_channels=1, level=Variational(Window()), pool=False, width=3)
        torch.manual_seed(3)
        own = SmallNet(SO2(n), in_channels=1, level=Variational(ReparametrizedWindow()), pool=False, width=3)
        own.load_state_dict(model.state_dict())
        set_theta(model, 0.6)
        set_theta(own, 0.6)
        images = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            gaps.append(float((model.eval()(images)[0] - own.eval()(images)[0]).abs().max()))
    assert gaps[0] > 2 * gaps[1] > 4 * gaps[2]


def test_the_reparametrized_gradient_reaches_theta_through_the_kernels() -> None:
    lift = LiftConv2d(1, 3, 5, SO2(4), level=Shared(ReparametrizedWindow(initial=0.5)))
    lift(torch.rand(2, 1, 9, 9)).values.square().sum().backward()
    assert lift.level.raw.grad.abs().item() > 0
