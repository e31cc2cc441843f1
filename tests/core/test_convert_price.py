"""What a conversion costs: what is mixed by default, the report, and views that are not run in evaluation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from support import vary_theta
from vpgcnn import Dihedral, Fixed, Full, Hue, Product, Rotations, Shared, Variational, Window
from vpgcnn._ops.weighted_norm import batch_norm, batch_norm_by_first
from vpgcnn.conversion import Converted, Cost, MixedConv2d, convert
from vpgcnn.conversion.plan import Mixing
from vpgcnn.conversion.views import Record, attach, on_grid
from vpgcnn.errors import UserError
from vpgcnn.groups import Group
from vpgcnn.levels import set_dial

GROUPS = [Hue(3), Rotations(4), Dihedral(4), Product(Rotations(4), Hue(3))]


def inverted() -> nn.Module:
    """Mostly 1×1 and depthwise convolutions, as mobile networks have."""
    torch.manual_seed(0)

    def block(inner: int, outer: int, stride: int) -> list[nn.Module]:
        wide = 4 * inner
        return [
            nn.Conv2d(inner, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(inplace=True),
            nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(inplace=True),
            nn.Conv2d(wide, outer, 1, bias=False), nn.BatchNorm2d(outer),
        ]  # fmt: skip

    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU6(), *block(16, 24, 2), *block(24, 32, 1),
        nn.Conv2d(32, 48, 3, padding=1), nn.ReLU(), nn.Conv2d(48, 128, 1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 5),
    ).double().eval()  # fmt: skip


def pixels(count: int = 3) -> Tensor:
    return torch.rand(count, 3, 24, 24, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def stirred(net: Converted) -> Converted:
    torch.manual_seed(2)
    for part in net.modules():
        if isinstance(part, MixedConv2d):
            for cross in part.cross:
                nn.init.normal_(cross.weight, std=0.3)
    return net


def mixings(net: Converted) -> dict[str, Mixing]:
    parts = ((name, part) for name, part in net.network.named_modules() if isinstance(part, MixedConv2d))
    return {name: part.mixing for name, part in parts if part.mixing.kind != "none"}


# ---------------------------------------------------------------- what is mixed


@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_mixing_stays_within_its_budget(group: Group) -> None:
    plain = inverted()
    net = convert(plain, group, budget=0.2, example=pixels())
    found = mixings(net)
    assert found
    assert set(found) <= {"0", "3", "9", "11", "17", "19", "21"}  # not the depthwise ones
    assert 0 < net.cost.mixing <= 0.2 * net.cost.views
    small = convert(plain, group, example=pixels())
    assert small.cost.mixing <= 0.05 * net.cost.views
    assert group.count <= small.cost.ratio <= 1.05 * group.count
    assert set(mixings(small)) <= set(found)
    assert not mixings(convert(plain, group, budget=0.0, example=pixels()))
    with torch.no_grad():
        assert torch.allclose(net.eval()(pixels()).logits, plain(pixels()), atol=1e-10)


@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_mixing_through_few_channels_is_invariant(group: Group) -> None:
    net = stirred(convert(inverted(), group, level=Full(), budget=1.0, example=pixels()).eval())
    assert any(way.kind == "low-rank" for way in mixings(net).values())
    with torch.no_grad():
        expected = net(pixels()).logits
        for u in group.grid(dtype=torch.float64):
            assert torch.allclose(net(group.transform(pixels(), u)).logits, expected, atol=1e-9)
        none = convert(inverted(), group, level=Full(), mix="none", example=pixels()).eval()
        assert not torch.allclose(none(pixels()).logits, expected, atol=1e-5)


@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_few_channels_are_low_rank_kernels(group: Group) -> None:
    """At stride 1 the same as pointwise kernels that are products of two thin ones, with views that count by half."""
    torch.manual_seed(0)
    conv = nn.Conv2d(6, 7, 3, padding=1).double()
    few = MixedConv2d(conv, group, Mixing("low-rank", 2), None, "conv")
    whole = MixedConv2d(conv, group, Mixing("pointwise"), None, "conv")
    assert few.squeeze is not None
    for thin, wide in zip(few.cross, whole.cross, strict=True):
        nn.init.normal_(thin.weight)
        wide.weight.data.copy_(torch.einsum("orhw,rihw->oihw", thin.weight, few.squeeze.weight))
    views = torch.rand(2 * group.count, 6, 8, 8, dtype=torch.float64)
    weights = torch.rand(2, group.count).double()
    record = Record(group, few._moves, len(views), weights=weights / weights.sum(dim=1, keepdim=True))
    with torch.no_grad():
        one, two = (layer(attach(views.clone(), record)).as_subclass(Tensor) for layer in (few, whole))
    assert torch.allclose(one, two, atol=1e-12)


def test_every_new_parameter_learns_through_few_channels() -> None:
    net = stirred(convert(inverted(), Product(Rotations(4), Hue(3)), budget=1.0, example=pixels()).train())
    net(pixels()).logits.square().sum().backward()
    new = {name: each for name, each in net.named_parameters() if ".cross." in name or ".squeeze." in name}
    assert new
    assert [name for name, each in new.items() if each.grad is None or not each.grad.any()] == []


# ---------------------------------------------------------------- the report


def test_the_cost_is_known_before_anything_is_run() -> None:
    plain = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
    )  # fmt: skip
    example = torch.rand(2, 3, 10, 10)
    one, two, last = 100 * 3 * 8 * 9, 100 * 8 * 4, 4 * 2
    cost = convert(plain, Hue(3), mix="pointwise", example=example).cost
    mixing = 3 * 2 * 100 * (3 * 8 + 8 * 4)
    assert cost == Cost(one + two + last, 3 * (one + two + last), mixing, 2, 2)
    full = convert(plain, Rotations(4), mix="full", layers="1", example=example).cost
    assert full == Cost(one + two + last, 4 * (one + two + last), 4 * 3 * 100 * 8 * 4, 1, 2)
    hybrid = convert(plain, Hue(3), mix="none", until="0", example=example)
    assert hybrid.cost == Cost(one + two + last, 3 * one + two + last, 0, 0, 2)
    assert str(hybrid.cost).startswith("2.7 times the original's 0.0 million multiplications for an image; 0 of 2")
    assert hybrid.summary == (
        "mixes 0 of 2 convolutions over the views of Hue(m=3); 2.7 times the multiplications of the original"
    )


# ---------------------------------------------------------------- encoders


@pytest.mark.parametrize("level", [None, Variational(Window(initial=0.9)), Variational(condition="input")], ids=str)
def test_encoders_are_narrow_unless_their_width_is_chosen(level: Any) -> None:
    plain = nn.Sequential(nn.Conv2d(3, 200, 1), nn.Conv2d(200, 256, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    net = convert(plain, Hue(3), level=level, example=torch.rand(2, 3, 8, 8))
    assert net.network[1].level.encoder.second.weight.shape == (32, 32)
    wide = convert(plain, Hue(3), level=Variational(encoder_width=100), example=torch.rand(2, 3, 8, 8))
    assert wide.network[1].level.encoder.second.weight.shape == (100, 100)


# ---------------------------------------------------------------- views that are not run


def rows_of(net: Converted, images: Tensor) -> list[int]:
    """The batch sizes that the last linear layer sees."""
    seen: list[int] = []
    hook = net.network[-1].register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))
    try:
        net(images)
    finally:
        hook.remove()
    return seen


@pytest.mark.parametrize("group", GROUPS, ids=str)
@pytest.mark.parametrize("level", [None, Fixed(0.01), Shared(Window(initial=0.01))], ids=str)
def test_views_of_weight_0_are_not_run_in_evaluation(group: Group, level: Any) -> None:
    net = convert(inverted(), group, level=level, example=pixels()).eval()
    with torch.no_grad():
        assert rows_of(net, pixels()) == [3]
        answer = net(pixels())
        assert torch.allclose(answer.logits, inverted()(pixels()), atol=1e-10)
        whole = net._run(pixels(), net._record(pixels()))
        assert torch.allclose(answer.kl, whole.kl)
        assert list(answer.trace) == list(whole.trace)
        assert torch.equal(*(next(iter(each.theta.values())) for each in (answer, whole)))
    assert rows_of(net, pixels()) == [3 * group.count]  # with gradients, a window may want to open
    with torch.no_grad():
        assert rows_of(net.train(), pixels()) == [3 * group.count]


def test_views_that_mixing_looks_at_are_run() -> None:
    """Kernels before the level look at all views: only 0 of them is nothing."""
    net = stirred(convert(inverted(), Hue(3), example=pixels()).eval())
    with torch.no_grad():
        assert rows_of(net, pixels()) == [9]
        vary_theta(net, 0.1)
        assert rows_of(net, pixels()) == [9]


@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_a_level_that_decides_first_spares_the_views_it_leaves_out(group: Group) -> None:
    """Image by image, with mixing among the views that are left."""
    torch.manual_seed(0)
    level = Variational(Window(initial=0.3))
    net = stirred(convert(inverted(), group, level=level, levels="first", budget=0.5, example=pixels()).eval())
    assert net.decides_first
    assert mixings(net)
    assert "0" not in mixings(net)
    images = pixels(12) * torch.linspace(0.1, 1, 12).double().view(-1, 1, 1, 1)
    vary_theta(net, 8.0)
    with torch.no_grad():
        net.network[0].level.encoder.standardise.momentum = 1.0
        net.train()(images)
        net.eval()
        whole = net._run(images, net._record(images))
        counts = (on_grid(whole.trace["0"]) > 0).sum(dim=1)
        assert len(counts.unique()) > 1
        seen = rows_of(net, images)
        assert sum(seen) == int(counts.sum())
        answer = net(images)
        assert torch.allclose(answer.logits, whole.logits, atol=1e-10)
        assert torch.equal(answer.theta["0"], whole.theta["0"])
        set_dial(net, -1.0)
        assert rows_of(net, images) == [12]
        set_dial(net, 1.0)
        assert rows_of(net, images) == [12 * group.count]


def test_a_late_level_does_not_decide_first() -> None:
    assert not convert(inverted(), Hue(3), example=pixels()).decides_first
    assert not convert(
        nn.Sequential(nn.Conv2d(3, 4, 3)), Hue(3), levels="first", example=pixels().float()
    ).decides_first


class TwoStems(nn.Module):
    """The second stem mixes without the level of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(3, 8, 3, padding=1)
        self.wide, self.fc = nn.Linear(8, 4000), nn.Linear(4000, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(x) + self.two(x).relu()
        return self.fc(self.wide(x.permute(0, 2, 3, 1)).mean(dim=(1, 2)))


def test_views_that_another_branch_needs_are_run() -> None:
    torch.manual_seed(0)
    plain = TwoStems().double().eval()
    net = convert(plain, Hue(3), levels="first", mix="pointwise", example=pixels())
    net = stirred(net).eval()
    assert net.decides_first
    vary_theta(net, 1e-6)
    with torch.no_grad():
        expected = net._run(pixels(), net._record(pixels())).logits
        assert torch.allclose(net(pixels()).logits, expected, atol=1e-12)


# ---------------------------------------------------------------- batch norms


@pytest.mark.parametrize(("every", "parts"), [(3, 1), (4, 2)])
@pytest.mark.parametrize("affine", [True, False])
def test_norms_by_the_first_view_have_the_gradients_of_their_definition(every: int, parts: int, affine: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(2 * every * parts, 5, 3, 2, dtype=torch.float64, requires_grad=True)
    weight, bias = (torch.randn(5, dtype=torch.float64, requires_grad=True) if affine else None for _ in range(2))
    running = [torch.zeros(5).double(), torch.ones(5).double()], [torch.zeros(5).double(), torch.ones(5).double()]
    one = batch_norm_by_first(x, every, parts, *running[0], weight, bias, 0.1, 1e-5)
    rows = x.unflatten(0, (-1, every, parts))[:, 0].flatten(0, 1)
    two = batch_norm(x, rows, None, *running[1], weight, bias, 0.1, 1e-5)
    assert torch.allclose(one, two)
    assert all(torch.allclose(first, second) for first, second in zip(*running, strict=True))
    given = [each for each in (x, weight, bias) if each is not None]

    def norm(*parameters: Tensor) -> Tensor:
        rest = parameters[1:] if affine else (None, None)
        return batch_norm_by_first(parameters[0], every, parts, None, None, *rest, 0.1, 1e-5)

    assert torch.autograd.gradcheck(norm, given)
    assert torch.autograd.gradgradcheck(norm, given)


class Aside(nn.Module):
    """Its level is on a branch that the logits do not depend on."""

    returns: bool = False

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.fc = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor | dict[str, Tensor]:
        x = self.one(x).relu()
        logits, beside = self.fc(x.mean(dim=(2, 3))), self.two(x)
        return {"logits": logits, "map": beside} if self.returns else logits


def test_a_level_beside_the_logits_counts_for_all_outputs() -> None:
    """All are averaged under the window of the image, whichever branch the level is in."""
    torch.manual_seed(0)
    plain = Aside().double().eval()
    plain.returns = True
    net = convert(plain, Hue(3), level=Fixed(0.01), levels="two", example=pixels()).eval()
    assert net.pools_by_level
    with torch.no_grad():
        expected = net._run(pixels(), net._record(pixels())).logits
        assert torch.allclose(net(pixels()).logits, expected, atol=1e-12)
        assert torch.allclose(expected, plain(pixels())["logits"], atol=1e-12)


def test_a_level_that_no_output_depends_on_is_refused() -> None:
    with pytest.raises(UserError, match="the answer does not depend on two, whose level decides which views count"):
        convert(Aside().double(), Hue(3), level=Fixed(0.01), levels="two", example=pixels())


def test_maps_of_depthwise_networks_lie_pixel_by_pixel_on_a_cpu() -> None:
    """Their views then take less time. Weights keep their format, so that they can be saved, and so do other maps."""
    depthwise = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 4, 1))
    plain = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3))
    images = torch.rand(2, 3, 12, 12)
    for model, expected in ((depthwise, torch.channels_last), (plain, torch.contiguous_format)):
        level = Variational(Window(1 / 3), explore=0.0)
        net = convert(model, Hue(3), level=level, example=images)
        seen: list[Tensor] = []
        net.network[1].register_forward_pre_hook(lambda _, args, seen=seen: seen.append(args[0]))
        assert torch.allclose(net.train()(images).logits, model(images), atol=1e-6)
        assert seen[0].is_contiguous(memory_format=expected)
        assert all(each.is_contiguous() for each in net.parameters())
