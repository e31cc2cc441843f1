"""Conversion: the same answers to begin with, exact equivariance at θ = 1, whatever the network does inside."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from vpgcnn import Dihedral, Full, Hue, Learned, Product, Rotations, Variational, Window
from vpgcnn.convert import Converted, MixedConv2d, convert
from vpgcnn.errors import UserError
from vpgcnn.groups import SO2, Group

GROUPS = [Hue(3), Hue(6), Rotations(4), Dihedral(4), Product(Rotations(4), Hue(3))]


class Block(nn.Module):
    """Adds in place, with strides, as residual networks do."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(outer), nn.BatchNorm2d(outer)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outer, outer, 3, padding=1, bias=False)
        self.down = nn.Conv2d(inner, outer, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += self.down(x)
        return self.relu(out)


def network(channels: int = 3) -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(channels, 6, 5, stride=2), nn.BatchNorm2d(6), nn.ReLU(inplace=True), Block(6, 8, 2), Block(8, 8, 1),
        nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(8, 4),
    ).double()  # fmt: skip
    for part in net.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.normal_(part.running_mean)
            nn.init.uniform_(part.running_var, 0.5, 2)
    return net.eval()


def stirred(net: Converted) -> Converted:
    """As if it had been trained: convolutions look at other views."""
    torch.manual_seed(1)
    for part in net.modules():
        if isinstance(part, MixedConv2d):
            for cross in part.cross:
                nn.init.normal_(cross.weight, std=0.3)
    return net


def images(count: int = 3) -> Tensor:
    return torch.rand(count, 3, 17, 17, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


@pytest.mark.parametrize("mix", ["pointwise", "full", "none"])
@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_it_begins_as_what_it_was(group: Group, mix: str) -> None:
    plain = network()
    net = convert(plain, group, mix=mix).eval()  # type: ignore[arg-type]
    with torch.no_grad():
        logits, kl = net(images())
        assert torch.allclose(logits, plain(images()), atol=1e-10)
    assert kl.shape == (3,)
    assert float(kl.min()) > 0
    assert not any(isinstance(part, MixedConv2d) for part in plain.modules())


@pytest.mark.parametrize("mix", ["pointwise", "full"])
@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_with_all_of_the_group_it_is_invariant(group: Group, mix: str) -> None:
    net = stirred(convert(network(), group, level=Full, mix=mix).eval())  # type: ignore[arg-type]
    wide = stirred(convert(network(), group, level=partial(Variational, family=Window(initial=1.0)), mix=mix).eval())  # type: ignore[arg-type]
    with torch.no_grad():
        expected = net(images())[0]
        assert torch.allclose(wide(images())[0], expected, atol=1e-10)
        for u in group.grid(dtype=torch.float64):
            assert torch.allclose(net(group.transform(images(), u))[0], expected, atol=1e-9)
        before = convert(network(), group, level=Full).eval()(images())[0]
    assert not torch.allclose(expected, before, atol=1e-3)  # the other views are seen


@pytest.mark.parametrize("group", [Hue(3), Rotations(4)], ids=str)
def test_in_between_it_is_neither(group: Group) -> None:
    half = partial(Learned, family=Window(initial=0.7))
    net = stirred(convert(network(), group, level=half).eval())
    moved = group.transform(images(), group.grid(dtype=torch.float64)[1])
    with torch.no_grad():
        assert not torch.allclose(net(images())[0], net(moved)[0], atol=1e-4)
        assert not torch.allclose(net(images())[0], network()(images()), atol=1e-4)


@pytest.mark.parametrize("group", [Hue(3), Rotations(4)], ids=str)
def test_a_hybrid_pools_views_on_the_way(group: Group) -> None:
    plain = network()
    net = convert(plain, group, until="3").eval()
    with torch.no_grad():
        assert torch.allclose(net(images())[0], plain(images()), atol=1e-10)
    assert isinstance(net.network.get_submodule("3.conv1"), MixedConv2d)
    assert type(net.network.get_submodule("4.conv1")) is nn.Conv2d
    whole = stirred(convert(network(), group, until="3", level=Full).eval())
    seen: list[Tensor] = []
    whole.network.get_submodule("4").register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    u = group.grid(dtype=torch.float64)[1]
    with torch.no_grad():
        whole(images())
        whole(group.transform(images(), u))
    assert seen[0].shape == (3, 8, 4, 4)
    expected = group.transform(seen[0], u) if group.acts_on_plane else seen[0]
    assert torch.allclose(seen[1], expected, atol=1e-9)  # a map that moves with the image


def test_a_copy_stands_by_itself() -> None:
    """What is known of a batch on its way is the copy's own, in a hybrid too."""
    for until in (None, "3"):
        net = convert(network(), Hue(3), until=until).eval()
        twin = copy.deepcopy(net)
        with torch.no_grad():
            assert torch.allclose(twin(images(2))[0], network()(images(2)), atol=1e-10)
            assert torch.allclose(net(images(3))[0], network()(images(3)), atol=1e-10)


def test_it_can_be_trained() -> None:
    net = convert(network().float(), Hue(3)).train()
    optimiser = torch.optim.Adam(net.parameters(), 1e-2)
    labels = torch.tensor([0, 1, 2, 3])
    pixels = images(4).float()
    losses = []
    for _ in range(30):
        logits, kl = net(pixels)
        loss = nn.functional.cross_entropy(logits, labels) + 0.1 * kl.mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.7 * losses[0]
    assert float(net(pixels)[1].mean().detach()) < 0.9 * torch.log(torch.tensor(3.0))  # the windows have opened
    assert any(float(part.weight.detach().abs().max()) > 1e-3 for part in net.network[0].cross)


def test_layers_levels_and_states() -> None:
    net = convert(network(), Hue(3), layers=["3", "4.conv2"], levels=["3.conv1", "4"])
    mixed = {name for name, part in net.network.named_modules() if isinstance(part, MixedConv2d)}
    assert mixed == {"3.conv1", "3.conv2", "3.down", "4.conv2"}
    levelled = {
        n for n, part in net.network.named_modules() if isinstance(part, MixedConv2d) and part.level is not None
    }
    assert levelled == {"3.conv1", "4.conv2"}
    again = convert(network(), Hue(3), layers=["3", "4.conv2"], levels=["3.conv1", "4"])
    again.load_state_dict(stirred(net).state_dict())
    with torch.no_grad():
        assert torch.equal(again.eval()(images())[0], net.eval()(images())[0])


def test_standardised_pixels() -> None:
    plain = network()
    net = convert(plain, Hue(3), mean=[0.4, 0.5, 0.6], std=[0.2, 0.2, 0.3]).eval()
    ready = (images() - torch.tensor([0.4, 0.5, 0.6]).view(3, 1, 1)) / torch.tensor([0.2, 0.2, 0.3]).view(3, 1, 1)
    with torch.no_grad():
        assert torch.allclose(net(images())[0], plain(ready), atol=1e-6)


@pytest.mark.parametrize(
    ("group", "more", "words"),
    [
        (SO2(), {}, "finite group"),
        (Rotations(8), {}, "between the grid"),
        (Hue(3), {"layers": ["5"]}, "there is no convolution '5'"),
        (Hue(3), {"until": "9"}, "there is no module '9'"),
        (Hue(3), {"until": "6"}, "6 holds no convolution"),
        (Hue(3), {"mix": "half"}, "pointwise, full or none, got 'half'"),
    ],
)
def test_what_cannot_be_is_named(group: Group, more: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        convert(network(), group, **more)  # type: ignore[arg-type]


def test_modules_that_do_not_fit_are_named() -> None:
    with pytest.raises(UserError, match=r"cannot convert 1 \(LSTM\)"):
        convert(nn.Sequential(nn.Conv2d(3, 4, 3), nn.LSTM(4, 4)), Hue(3))
    with pytest.raises(UserError, match="no convolution"):
        convert(nn.Sequential(nn.Flatten(), nn.Linear(3, 4)), Hue(3))


@pytest.mark.parametrize("group", [Hue(3), Hue(6)], ids=str)
@pytest.mark.parametrize("mix", ["pointwise", "full"])
def test_all_views_at_once_are_the_same_as_by_turns(group: Group, mix: str) -> None:
    """Both ways to see the other views, with views that count more and less."""
    net = stirred(convert(network(), group, mix=mix))  # type: ignore[arg-type]
    views = net._views[0]
    views.begin(images().double())
    weights = torch.rand(3, views.count).double()
    views.weights = weights / weights.sum(dim=1, keepdim=True)
    for part in net.modules():
        if isinstance(part, MixedConv2d):
            folded = torch.rand(3 * views.count, part.conv.in_channels, 9, 9).double()
            assert torch.allclose(part._at_once(views, folded), part._by_turns(views, folded), atol=1e-12)


def test_levels_can_be_left_out_for_a_while() -> None:
    """As every other network, a converted one can be looked at as if all of the group were in use."""
    from vpgcnn.analysis import all_of_the_group

    net = stirred(convert(network(), Hue(3)))
    shown = images().double()
    with torch.no_grad():
        closed = net(shown)[0]
        with all_of_the_group(net):
            whole, turned = net(shown)[0], net(shown.roll(1, dims=1))[0]
        assert torch.allclose(whole, turned, atol=1e-10)
        assert not torch.allclose(whole, closed, atol=1e-3)
        assert torch.equal(net(shown)[0], closed)
