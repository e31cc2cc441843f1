"""Conversion: the same answers at the start, exact equivariance at θ = 1, geometry and programs."""

from __future__ import annotations

import copy
import math
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from convert_support import (
    FEW,
    GROUPS,
    convert,
    images,
    network,
    seen_in_others,
    stirred,
    tail,
)
from support import vary_theta
from vpgcnn import Dihedral, Elbo, Full, Hue, Product, Rotations, Shared, Variational, Window
from vpgcnn.conversion import MixedConv2d
from vpgcnn.conversion.plan import Mixing
from vpgcnn.conversion.views import Record, Views, attach, record_of
from vpgcnn.errors import UserError
from vpgcnn.features import Prediction
from vpgcnn.groups import Group
from vpgcnn.levels import LevelSpec

# ---------------------------------------------------------------- the start, invariance, and in between


@pytest.mark.parametrize("mix", ["auto", "pointwise", "full", "none"])
@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_it_begins_as_what_it_was(group: Group, mix: str) -> None:
    plain = network()
    net = convert(plain, group, mix=mix, example=images()).eval()  # type: ignore[arg-type]
    with torch.no_grad():
        answer = net(images())
        assert torch.allclose(answer.logits, plain(images()), atol=1e-10)
    assert isinstance(answer, Prediction)
    assert type(answer.logits) is Tensor
    assert list(answer.trace) == ["4.conv2"]
    assert answer.kl.shape == (3,)
    assert float(answer.kl.min()) > 0
    assert not any(isinstance(part, MixedConv2d) for part in plain.modules())


@pytest.mark.parametrize("mix", ["pointwise", "full"])
@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_with_all_of_the_group_it_is_invariant(group: Group, mix: str) -> None:
    wide = Variational(Window(initial=1.0))
    net = stirred(convert(network(), group, level=Full(), mix=mix, example=images()).eval())  # type: ignore[arg-type]
    open_ = stirred(convert(network(), group, level=wide, mix=mix, example=images()).eval())  # type: ignore[arg-type]
    with torch.no_grad():
        expected = net(images()).logits
        assert torch.allclose(open_(images()).logits, expected, atol=1e-10)
        for u in group.grid(dtype=torch.float64):
            assert torch.allclose(net(group.transform(images(), u)).logits, expected, atol=1e-9)
        before = convert(network(), group, level=Full(), example=images()).eval()(images()).logits
    assert not torch.allclose(expected, before, atol=1e-3)  # the other views are seen


@pytest.mark.parametrize("group", FEW, ids=str)
def test_in_between_it_is_neither(group: Group) -> None:
    half = Shared(Window(initial=0.7))
    net = stirred(convert(network(), group, level=half, example=images()).eval())
    moved = group.transform(images(), group.grid(dtype=torch.float64)[1])
    with torch.no_grad():
        assert not torch.allclose(net(images()).logits, net(moved).logits, atol=1e-4)
        assert not torch.allclose(net(images()).logits, network()(images()), atol=1e-4)


@pytest.mark.parametrize("group", FEW, ids=str)
def test_a_hybrid_pools_views_on_the_way(group: Group) -> None:
    plain = network()
    net = convert(plain, group, until="3", example=images()).eval()
    with torch.no_grad():
        answer = net(images())
        assert torch.allclose(answer.logits, plain(images()), atol=1e-10)
    assert list(answer.trace) == ["3.conv2"]  # what was decided before the pool is not lost
    assert type(answer.logits) is Tensor
    assert isinstance(net.network.get_submodule("3.conv1"), MixedConv2d)
    assert type(net.network.get_submodule("4.conv1")) is nn.Conv2d
    whole = stirred(convert(network(), group, until="3", level=Full(), example=images()).eval())
    seen: list[Tensor] = []
    whole.network.get_submodule("4").register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    u = group.grid(dtype=torch.float64)[1]
    with torch.no_grad():
        whole(images())
        whole(group.transform(images(), u))
    assert seen[0].shape == (3, 8, 4, 4)
    first, second = (each.as_subclass(Tensor) for each in seen)
    expected = group.transform(first, u) if group.acts_on_plane else first
    assert torch.allclose(second, expected, atol=1e-9)  # a map that moves with the image


@pytest.mark.parametrize("condition", ["input", "output"])
def test_a_level_sees_what_it_asks_for(condition: Any) -> None:
    net = convert(network(), Hue(3), level=Variational(condition=condition), levels="3.conv1", example=images())
    layer = net.network.get_submodule("3.conv1")
    channels = {"input": 6, "output": 8}[condition]
    assert layer.level.encoder.first.in_features == 3 * channels
    assert list(net(images()).trace) == ["3.conv1"]


def test_it_can_be_trained() -> None:
    net = convert(network().float(), Hue(3), example=images().float()).train()
    optimiser = torch.optim.Adam(net.parameters(), 1e-2)
    labels = torch.tensor([0, 1, 2, 3])
    pixels = images(4).float()
    losses = []
    for _ in range(60):
        loss = Elbo.of(net(pixels), labels).total(0.1)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.7 * losses[0]
    assert float(net.eval()(pixels).kl.mean().detach()) < 0.6 * math.log(3)  # the windows have opened
    assert any(float(part.weight.detach().abs().max()) > 1e-3 for part in net.network[0].cross)


@pytest.mark.parametrize("group", [Hue(3), Product(Rotations(4), Hue(3))], ids=str)
def test_every_new_parameter_gets_a_gradient(group: Group) -> None:
    """Layers before and after the level, mixing kernels that are 0 included."""
    level = Variational(Window(initial=0.6), explore=0.0)
    net = convert(network(), group, level=level, levels="3.conv2", example=images()).train()
    vary_theta(net, 0.1)
    Elbo.of(net(images()), torch.tensor([0, 1, 2])).total(0.1).backward()
    assert [name for name, each in net.named_parameters() if each.grad is None or not each.grad.any()] == []


def test_layers_levels_and_states() -> None:
    choice: dict[str, Any] = {"layers": ["3", "4.conv2"], "levels": ["3.conv1", "4"], "example": images()}
    net = convert(network(), Hue(3), **choice)
    mixed = {name for name, part in net.network.named_modules() if isinstance(part, MixedConv2d)}
    assert mixed == {"3.conv1", "3.conv2", "3.down", "4.conv2"}
    parts = [(n, part) for n, part in net.network.named_modules() if isinstance(part, MixedConv2d)]
    assert {n for n, part in parts if part.level is not None} == {"3.conv1", "4.conv2"}
    assert list(net(images()).trace) == ["3.conv1", "4.conv2"]
    again = convert(network(), Hue(3), **choice)
    again.load_state_dict(stirred(net).state_dict())
    with torch.no_grad():
        assert torch.equal(again.eval()(images()).logits, net.eval()(images()).logits)


def test_one_name_is_a_name() -> None:
    net = convert(network(), Hue(3), layers="3", levels="3.conv2", example=images())
    mixed = {name for name, part in net.network.named_modules() if isinstance(part, MixedConv2d)}
    assert mixed == {"3.conv1", "3.conv2", "3.down"}
    assert list(net(images()).trace) == ["3.conv2"]


def test_standardised_pixels() -> None:
    plain = network()
    net = convert(plain, Hue(3), mean=[0.4, 0.5, 0.6], std=[0.2, 0.2, 0.3], example=images()).eval()
    ready = (images() - torch.tensor([0.4, 0.5, 0.6]).view(3, 1, 1)) / torch.tensor([0.2, 0.2, 0.3]).view(3, 1, 1)
    with torch.no_grad():
        assert torch.allclose(net(images()).logits, plain(ready), atol=1e-6)


def test_the_encoder_of_the_default_level_is_narrow() -> None:
    plain = nn.Sequential(nn.Conv2d(3, 256, 3), *tail(256))
    net = convert(plain, Hue(3), example=torch.rand(2, 3, 8, 8))
    assert net.network[0].level.encoder.second.weight.shape == (32, 32)
    small = convert(nn.Sequential(nn.Conv2d(3, 4, 3), *tail()), Hue(3), example=torch.rand(2, 3, 8, 8))
    assert small.network[0].level.encoder.second.weight.shape == (4, 4)


def test_levels_can_be_left_out_for_a_while() -> None:
    """As every other network, a converted one can be looked at as if all of the group were in use."""
    from vpgcnn.measure import whole_group

    net = stirred(convert(network(), Hue(3), example=images()))
    with torch.no_grad():
        closed = net(images()).logits
        with whole_group(net):
            whole, turned = net(images()).logits, net(images().roll(1, dims=1)).logits
        assert torch.allclose(whole, turned, atol=1e-10)
        assert not torch.allclose(whole, closed, atol=1e-3)
        assert torch.equal(net(images()).logits, closed)


# ---------------------------------------------------------------- geometry


GEOMETRIES: dict[str, dict[str, Any]] = {
    "usual": {"kernel_size": 3, "padding": 1},
    "wide padding": {"kernel_size": 3, "padding": 3},
    "stride 2, wide padding": {"kernel_size": 3, "stride": 2, "padding": 3},
    "1×1 padded": {"kernel_size": 1, "padding": 1},
    "unpadded": {"kernel_size": 5},
    "stride 2": {"kernel_size": 3, "stride": 2, "padding": 1},
    "stride 3, unpadded": {"kernel_size": 5, "stride": 3},
    "dilated": {"kernel_size": 3, "dilation": 3, "padding": 2},
    "same": {"kernel_size": 5, "dilation": 2, "padding": "same"},
    "same, even": {"kernel_size": 4, "padding": "same"},
    "valid": {"kernel_size": 3, "padding": "valid"},
    "not square": {"kernel_size": (1, 3), "padding": (0, 1), "stride": (1, 2)},
    "not square, wide": {"kernel_size": (3, 5), "padding": (4, 0), "dilation": (1, 2)},
    "even": {"kernel_size": 4, "stride": 2, "padding": 1},
    "patches": {"kernel_size": 4, "stride": 4},
    "grouped": {"kernel_size": 3, "groups": 3, "stride": 2},
    "reflected": {"kernel_size": 3, "padding": 2, "padding_mode": "reflect"},
    "circular": {"kernel_size": 5, "padding": (2, 1), "padding_mode": "circular", "stride": 2},
    "replicated, same": {"kernel_size": 3, "padding": "same", "padding_mode": "replicate"},
}


@pytest.mark.parametrize("mix", ["pointwise", "full"])
@pytest.mark.parametrize("geometry", GEOMETRIES.values(), ids=GEOMETRIES.keys())
@pytest.mark.parametrize("group", FEW, ids=str)
def test_mixing_looks_where_the_convolution_looks(group: Group, geometry: dict[str, Any], mix: str) -> None:
    """A 1×1 kernel is what the original's kernel is with its middle alone, at every stride, padding and dilation."""
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 6, bias=False, **geometry).double()
    layer = MixedConv2d(conv, group, Mixing(mix), None, "conv")  # type: ignore[arg-type]
    for cross in layer.cross:
        nn.init.normal_(cross.weight)
    views = torch.rand(2 * group.count, 3, 12, 12, dtype=torch.float64)

    def own(x: Tensor, kernel: Tensor) -> Tensor:
        same = copy.deepcopy(conv)
        with torch.no_grad():
            if mix == "full":
                same.weight.copy_(kernel)
            else:
                same.padding_mode = "zeros"  # a 1×1 kernel sees nothing beyond the border
                row, column = ((size - 1) // 2 for size in conv.kernel_size)
                same.weight.zero_()[:, :, row, column] = kernel[:, :, 0, 0]
        return same(x)

    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch pads even kernels with a copy, and says so
        out = layer(attach(views.clone(), Record(group, layer._moves, len(views))))
        expected = conv(views) + seen_in_others(group, views, [part.weight for part in layer.cross], own)
    assert out.shape == expected.shape
    assert torch.allclose(out, expected, atol=1e-12)


@pytest.mark.parametrize("group", [Hue(3), Hue(6)], ids=str)
@pytest.mark.parametrize("mix", ["pointwise", "full"])
def test_all_views_at_once_are_the_same_as_by_turns(group: Group, mix: str) -> None:
    """Both ways to see the other views, with views that count more and less."""
    net = stirred(convert(network(), group, mix=mix, example=images()))  # type: ignore[arg-type]
    share = torch.rand(3, group.count).double()
    for part in net.modules():
        if isinstance(part, MixedConv2d):
            folded = torch.rand(3 * group.count, part.conv.in_channels, 9, 9).double()
            out = part.conv(folded)
            assert torch.allclose(part._at_once(folded, out, share), part._by_turns(folded, out, share), atol=1e-12)


@pytest.mark.parametrize("group", [Dihedral(1), Hue(3), Dihedral(2), Rotations(2)], ids=str)
def test_what_does_not_turn_takes_images_that_are_not_square(group: Group) -> None:
    plain = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3), *tail()).double()
    pixels = images(2, 10, 14)
    net = stirred(convert(plain, group, level=Full(), example=pixels))
    with torch.no_grad():
        closed = convert(plain, group, example=pixels).eval()
        assert torch.allclose(closed(pixels).logits, plain(pixels), atol=1e-10)
        expected = net(pixels).logits
        moved = {Hue(3): pixels.roll(1, 1), Dihedral(1): pixels.flip(-1)}.get(group, pixels.flip(-1, -2))  # type: ignore[call-overload]
        assert torch.allclose(net(moved).logits, expected, atol=1e-10)
    with pytest.raises(UserError, match="need square images and maps, got 10×14"):
        convert(plain, Rotations(4), example=pixels)


def test_views_are_moved_as_the_group_moves_images() -> None:
    for group in (Rotations(4), Dihedral(4), Product(Dihedral(2), Hue(6))):
        net = convert(nn.Sequential(nn.Conv2d(3, 4, 3), *tail()).double(), group, example=images())
        views = net._views(images(), net._record(images())).as_subclass(Tensor).unflatten(0, (3, -1))
        for number, u in enumerate(group.inverse(group.grid(dtype=torch.float64))):
            assert torch.allclose(views[:, number], group.transform(images(), u), atol=1e-6)
        assert torch.equal(views[:, 0], images())


# ---------------------------------------------------------------- programs


@pytest.mark.parametrize(("group", "until"), [(Hue(3), None), (Rotations(4), "3")], ids=str)
def test_it_can_be_exported(group: Group, until: str | None) -> None:
    """For any number of images, with the levels' θ."""
    level: LevelSpec = Variational(Window(initial=0.6))
    pixels = images().float()
    net = convert(network().float(), group, level=level, levels=["0", "3.conv2"], until=until, example=pixels)
    net = stirred(net).eval()

    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            answer = self.net(x)
            return answer.logits, torch.cat(list(answer.theta.values()), dim=1)

    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batch = torch.export.Dim("batch", min=1, max=64)
        program = torch.export.export(Plain(), (pixels[:2],), dynamic_shapes=({0: batch},), strict=False).module()
        for count in (1, 5):
            shown = images(count).float()
            logits, theta = program(shown)
            assert torch.allclose(logits, net(shown).logits, atol=1e-6)
            assert theta.shape == (count, 2)
    assert type(net(pixels).logits) is Tensor


def test_compiled_it_runs_as_it_is() -> None:
    """torch.compile leaves a converted network alone: right, and no faster."""
    level = Variational(Window(initial=0.6), explore=0.0)
    net = stirred(convert(network(), Hue(3), level=level, example=images())).train()
    twin = copy.deepcopy(net)
    compiled = torch.compile(nn.Sequential(nn.Identity(), twin), backend="aot_eager")
    one, two = net(images()), compiled(images())
    assert torch.allclose(one.logits, two.logits, atol=1e-12)
    assert torch.allclose(one.kl, two.kl)
    for answer in (one, two):
        (answer.logits.square().sum() + answer.kl.sum()).backward()
    for first, second in zip(net.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(first.grad, second.grad, atol=1e-9)  # type: ignore[arg-type]


def test_mixed_precision() -> None:
    pixels = images(4).float()
    net = stirred(convert(network().float(), Rotations(4), level=Shared(Window(initial=0.7)), example=pixels)).train()
    expected = net(pixels).logits.detach()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        answer = net(pixels)
    assert answer.logits.dtype == torch.bfloat16
    assert float((answer.logits.detach() - expected).abs().max()) < 0.1 * float(expected.abs().max())
    answer.logits.float().sum().backward()
    assert all(torch.isfinite(each.grad).all() for each in net.parameters() if each.grad is not None)
    assert net.network[1].running_mean.dtype == torch.float32


def test_records_are_passed_on_and_nothing_else_gets_one() -> None:
    record = Record(Hue(3), (), 6)
    views = attach(torch.rand(6, 4, 2, 2), record)
    buffer = torch.ones(6, 4, 2, 2)
    for out in (views + 1, 2 * views, views[0], views.flatten(1), torch.cat([buffer, views]), views.max(dim=1).indices):
        assert isinstance(out, Views)
        assert record_of(out) is record
    assert buffer.to(views) is buffer
    assert type(buffer) is Tensor
    assert type(views.shape) is torch.Size
    assert views.contiguous() is views
    assert isinstance(views.detach(), Views)
    assert repr(views).startswith("Views(")
