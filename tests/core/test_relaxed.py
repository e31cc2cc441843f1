"""Kernels that may break the symmetry: each has a limit in which it is exactly an equivariant one."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from support import SmallNet, name, random_feature, set_theta, warm
from vpgcnn import (
    O2,
    SO2,
    Dihedral,
    Fixed,
    Group,
    GroupConv2d,
    GroupFeature,
    Hue,
    LiftConv2d,
    Product,
    Relaxed,
    ReparametrizedWindow,
    Rotations,
    Shared,
    Siren,
    Table,
    Variational,
    equivariance_error,
    fold,
    folded,
)
from vpgcnn.export import Deployed, exported
from vpgcnn.kernels import Kernel, KernelSpec
from vpgcnn.kernels.absolute import at_elements
from vpgcnn.nn import all_elements

# Quarter turns are exact, so the grid of these groups is: no test needs a tolerance for interpolation.
EXACT: list[Group] = [
    *(Rotations(4), Hue(3), Hue(6), Dihedral(1), Dihedral(4), SO2(4), O2(4)),
    *(Product(Rotations(4), Hue(3)), Product(SO2(4), Hue(3)), Product(Dihedral(1), Hue(3))),
]
every_group = pytest.mark.parametrize("group", EXACT, ids=name)


def upset_weights(kernel: Kernel) -> None:
    """Let every output element mix the banks in its own way."""
    nn.init.normal_(kernel.weights)


BREAKERS: dict[str, tuple[KernelSpec, Callable[[Kernel], None]]] = {
    "relaxed": (Relaxed(), upset_weights),
    "relaxed-siren": (Relaxed(3, of=Siren(hidden=8)), upset_weights),
}
"""Kernels, and how to take each out of its equivariant limit, in which it starts."""
every_kernel = pytest.mark.parametrize("key", BREAKERS)


def chain(group: Group, kernel: KernelSpec | None, width: int = 4) -> nn.Sequential:
    lift = LiftConv2d(3, width, 3, group, kernel=kernel, padding=1)
    return nn.Sequential(lift, nn.Tanh(), GroupConv2d(width, 5, 3, group, kernel=kernel, padding=1))


def broken(model: nn.Module, key: str) -> nn.Module:
    """The model with all of its kernels out of their limit."""
    for part in list(model.modules()):
        if isinstance(part, LiftConv2d | GroupConv2d):
            BREAKERS[key][1](part.kernel)
    return model


def images(batch: int = 2, size: int = 8) -> Tensor:
    return torch.rand(batch, 3, size, size)


# ---------------------------------------------------------------- what all of them promise


@every_group
@every_kernel
def test_it_starts_exactly_equivariant_and_can_stop_to_be(double: None, key: str, group: Group) -> None:
    model = chain(group, BREAKERS[key][0])
    assert equivariance_error(model, images(), group).worst <= 1e-10
    for layer in (model[0], model[2]):
        before = {name: value.clone() for name, value in layer.state_dict().items()}
        BREAKERS[key][1](layer.kernel)
        assert equivariance_error(model, images(), group).worst > 1e-3
        layer.load_state_dict(before)


@every_kernel
def test_every_way_to_compute_it_agrees(double: None, key: str) -> None:
    """Folded, without elements of weight 0, for each image's own elements, and all at once."""
    for group in (Rotations(4), Hue(6), SO2(4)):
        net = broken(SmallNet(group, level=Variational(), kernel=BREAKERS[key][0]), key)
        warm(net, images()).requires_grad_(False)
        set_theta(net, 0.4)
        with all_elements():
            expected = net(given := images(3)).logits
        assert torch.allclose(net(given).logits, expected, atol=1e-10)
        with folded(net):
            assert torch.allclose(net(given).logits, expected, atol=1e-10)
    group = SO2(4)
    conv = broken(GroupConv2d(4, 5, 3, group, kernel=BREAKERS[key][0]), key)
    u = torch.stack([group.grid(0.3), group.grid(-0.2)])
    feature = random_feature(group)
    made = conv(GroupFeature(feature.values, u, None, group), elements=u)
    for image in range(2):
        one = GroupFeature(feature.values[image : image + 1], u[image], None, group)
        weight = conv.kernel.expand(u[image], u[image]).flatten(2, 3).flatten(0, 1)
        by_hand = nn.functional.conv2d(one.values.flatten(1, 2), weight).unflatten(1, (5, 4))
        assert torch.allclose(made.values[image : image + 1], by_hand, atol=1e-10)


@every_kernel
def test_it_works_behind_levels_that_move_elements(double: None, key: str) -> None:
    kernel = BREAKERS[key][0]
    lift = LiftConv2d(3, 4, 3, SO2(4), level=Shared(ReparametrizedWindow(initial=0.6)), kernel=kernel)
    conv = broken(nn.Sequential(lift, GroupConv2d(4, 5, 3, SO2(4), kernel=kernel)), key)
    conv(images()).values.square().sum().backward()
    assert all(torch.isfinite(p.grad).all() and p.grad.abs().sum() > 0 for p in lift.kernel.parameters())


@every_kernel
@pytest.mark.parametrize("group", [Rotations(4), Product(SO2(4), Hue(3))], ids=name)
def test_it_is_exported(key: str, group: Group) -> None:
    net = broken(SmallNet(group, level=Variational(), kernel=BREAKERS[key][0]), key)
    deployed = Deployed(warm(net, images()), example=images(1))
    program = exported(deployed, channels=3, size=8)
    more = images(5)
    for one, two in zip(program.module()(more), deployed(more), strict=True):
        assert torch.allclose(one, two, atol=1e-5)


@every_kernel
def test_closed_levels_make_it_an_ordinary_convolution(double: None, key: str) -> None:
    """`fold(model, example)` keeps the identity alone."""
    net = broken(SmallNet(Rotations(4), level=Fixed(0.1), kernel=BREAKERS[key][0]), key)
    warm(net, images()).requires_grad_(False)
    given = images(3)
    expected = net(given).logits
    fold(net, given)
    assert net.convs[0].only.shape == (6, 6, 3, 3)
    assert torch.allclose(net(given).logits, expected, atol=1e-10)


# ---------------------------------------------------------------- functions of the absolute element


@pytest.mark.parametrize("group", [SO2(1), SO2(4), SO2(5), O2(3), Product(SO2(4), Hue(3))], ids=name)
def test_functions_on_a_continuous_group_go_through_their_values(double: None, group: Group) -> None:
    values = torch.randn(2, group.count, 3)
    assert torch.allclose(at_elements(values, group, group.grid(), dim=1), values, atol=1e-13)
    constant = torch.full((group.count,), 0.7)
    assert torch.allclose(at_elements(constant, group, group.grid(0.3)), constant, atol=1e-13)


def test_functions_between_grid_points_are_trigonometric(double: None) -> None:
    """A function that the grid can tell apart from others is found exactly."""
    group, u = Product(SO2(5), Hue(3)), Product(SO2(5), Hue(3)).grid(0.37)

    def function(u: Tensor) -> Tensor:
        return 1 + torch.sin(2 * u[:, 0]) * torch.cos(u[:, 1]) - 3 * torch.cos(u[:, 0])

    assert torch.allclose(at_elements(function(group.grid()), group, u), function(u), atol=1e-12)


def test_a_finite_group_has_one_grid() -> None:
    with pytest.raises(ValueError, match=r"expected the 4 elements of Rotations\(n=4\), got 3"):
        at_elements(torch.zeros(4), Rotations(4), Rotations(3).grid())


# ---------------------------------------------------------------- relaxed (Wang et al., 2022)


@pytest.mark.parametrize("lift", [True, False], ids=["lift", "group"])
@pytest.mark.parametrize("group", [Rotations(4), Hue(6), Dihedral(4), Product(Rotations(4), Hue(3))], ids=name)
def test_relaxed_with_weights_that_are_equal_is_the_summed_kernel(double: None, group: Group, lift: bool) -> None:
    """Equal over u; the banks may have different weights. 17 channels of hues take the cyclic path in the G-CNN."""
    kind, inputs = (LiftConv2d, 3) if lift else (GroupConv2d, 17)
    relaxed = kind(inputs, 17, 3, group, kernel=Relaxed(3), padding=1)
    plain = kind(inputs, 17, 3, group, kernel=Table(), padding=1)
    factors = torch.tensor([0.3, -1.2, 0.8])
    with torch.no_grad():
        relaxed.kernel.weights.copy_(factors[:, None].expand(3, group.count))
        banks = torch.stack([bank.weight for bank in relaxed.kernel.banks])
        plain.kernel.weight.copy_(torch.tensordot(factors, banks, dims=1))
    given = images() if lift else random_feature(group, channels=17, size=29)
    made, expected = relaxed(given).values, plain(given).values
    assert (made - expected).abs().max() <= 1e-10
    with torch.no_grad():
        relaxed.kernel.weights[0, 1] += 0.1
    changed = (relaxed(given).values - expected).abs().amax(dim=(0, 1, 3, 4)) > 1e-6
    assert changed.tolist() == [element == 1 for element in range(group.count)]  # only the output at that element


def test_relaxed_keeps_the_scale_of_one_bank() -> None:
    feature = random_feature(Rotations(4), channels=32, size=12)
    one = GroupConv2d(32, 32, 3, Rotations(4))(feature).values.std()
    many = GroupConv2d(32, 32, 3, Rotations(4), kernel=Relaxed(8))(feature).values.std()
    assert 0.9 < many / one < 1.1


def test_relaxed_refuses_what_it_cannot_do() -> None:
    with pytest.raises(ValueError, match="banks must be a whole number of at least 1, got 0"):
        Relaxed(banks=0)
    with pytest.raises(ValueError, match=r"SO2\(n=8\) does not move the taps"):
        GroupConv2d(3, 4, 3, SO2(), kernel=Relaxed(of=Table()))
