"""Relaxed weights of each image: w_l(u|f) from an invariant encoder."""

import pytest
import torch
from torch import Tensor, nn

from support import SmallNet, moved, name, random_feature, vary_theta
from vpgcnn import (
    SO2,
    Elbo,
    Group,
    GroupConv2d,
    Hue,
    LiftConv2d,
    Product,
    Relaxed,
    ReparametrizedWindow,
    ResidualPathway,
    Rotations,
    Saturation,
    Siren,
    Variational,
    equivariance_error,
    fold,
)
from vpgcnn.kernels.relaxed import RelaxedPerImageKernel

pytestmark = pytest.mark.usefixtures("double")
KERNEL = Relaxed(3, per_image=True)
every_group = pytest.mark.parametrize("group", [Rotations(4), Hue(3), SO2(4), Product(SO2(4), Hue(3))], ids=name)


def layer(group: Group, *, lift: bool = False, kernel: Relaxed = KERNEL) -> nn.Module:
    made = LiftConv2d(3, 4, 3, group, kernel=kernel) if lift else GroupConv2d(4, 4, 3, group, kernel=kernel)
    return made.eval()


def shares(conv: nn.Module, feature: object) -> Tensor:
    """The weights `(B, L, U)` that the kernel of a layer gives to images."""
    found: list[Tensor] = []
    kernel = conv.kernel
    assert isinstance(kernel, RelaxedPerImageKernel)
    whole = kernel.image_weights
    kernel.image_weights = lambda parts, u: found.append(whole(parts, u)) or found[-1]  # type: ignore[method-assign]
    conv(feature)
    del kernel.image_weights
    return found[0].detach()


@every_group
def test_weights_differ_between_images_and_not_between_their_poses(group: Group) -> None:
    conv, feature = layer(group), random_feature(group, size=7)
    assert float(shares(conv, feature).std()) < 1e-12  # they start equal
    vary_theta(conv, 1.0)
    before = shares(conv, feature)
    assert float((before[0] - before[1]).abs().max()) > 1e-4
    assert float(before.std(dim=2).max()) > 1e-4  # and over elements
    for g in group.grid():
        assert torch.allclose(shares(conv, moved(feature, group, g)), before, rtol=0, atol=1e-10)


@every_group
@pytest.mark.parametrize("lift", [True, False], ids=["lift", "group"])
def test_weights_that_are_equal_over_elements_keep_the_symmetry(group: Group, lift: bool) -> None:
    """Each image may mix the banks in its own way: while w_l(u|f) does not depend on u, that is exactly equivariant."""
    conv = layer(group, lift=lift)
    vary_theta(conv, 1.0)
    linear = conv.kernel.encoder.linear
    with torch.no_grad():
        rows = linear.weight.unflatten(0, conv.kernel.weights.shape)
        rows.copy_(rows[:, :1].expand_as(rows).clone())
    net = conv if lift else nn.Sequential(LiftConv2d(3, 4, 3, group), nn.ReLU(), conv)
    images = torch.rand(3, 3, 8, 8)
    assert equivariance_error(net, images, group).worst < 1e-10
    seen = images if lift else net[1](net[0](images))
    found = shares(conv, seen)
    assert float((found[0] - found[1]).abs().max()) > 1e-4
    vary_theta(conv, 1.0)
    assert equivariance_error(net, images, group).worst > 1e-4


def test_without_an_encoder_it_is_the_relaxed_kernel() -> None:
    conv, plain = layer(Rotations(4)), GroupConv2d(4, 4, 3, Rotations(4), kernel=Relaxed(3)).eval()
    missing, extra = plain.load_state_dict(conv.state_dict(), strict=False)
    assert not missing
    assert all(key.startswith("kernel.encoder.") for key in extra)
    feature = random_feature(Rotations(4), size=7)
    assert torch.allclose(conv(feature).values, plain(feature).values, rtol=0, atol=1e-12)


@pytest.mark.parametrize("group", [Hue(6), Product(Hue(3), Saturation(2))], ids=name)
def test_folded_and_unfolded_agree(group: Group) -> None:
    net = SmallNet(group, level=Variational(), kernel=KERNEL).eval()
    vary_theta(net, 1.0)
    images = torch.rand(3, 3, 8, 8)
    with torch.no_grad():
        expected = net(images).logits
        assert torch.allclose(fold(net)(images).logits, expected, rtol=0, atol=1e-10)
        assert torch.allclose(fold(net, images)(images).logits, expected, rtol=0, atol=1e-10)


def test_every_parameter_learns() -> None:
    net = SmallNet(SO2(4), kernel=Relaxed(2, of=Siren(hidden=8), per_image=True))
    vary_theta(net, 0.5)
    Elbo.of(net(torch.rand(4, 3, 8, 8)), torch.tensor([0, 1, 2, 3])).total().backward()
    for part in (net.lift, net.convs[1]):
        assert all(p.grad is not None and float(p.grad.abs().sum()) > 0 for p in part.kernel.parameters())


def test_what_it_cannot_do_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be a part of another kernel"):
        GroupConv2d(4, 4, 3, Hue(3), kernel=ResidualPathway(KERNEL))(random_feature(Hue(3), size=7))
    lift = LiftConv2d(3, 4, 3, SO2(4), level=Variational(ReparametrizedWindow()), kernel=KERNEL)
    with pytest.raises(ValueError, match="need a grid that images share"):
        lift(torch.rand(2, 3, 8, 8))
