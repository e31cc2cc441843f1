"""Conversion: the same answers at the start, exact equivariance at θ = 1, whatever the network does inside."""

from __future__ import annotations

import copy
import io
import math
import sys
import threading
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from support import ResidualBlock, SameConv2d, vary_theta
from vpgcnn import Dihedral, Elbo, Full, Hue, Product, Rotations, SampledWindow, Shared, Variational, Window, conversion
from vpgcnn._ops import resample
from vpgcnn.conversion import Converted, MixedConv2d
from vpgcnn.conversion.plan import Mixing
from vpgcnn.conversion.views import Record, Views, attach, record_of
from vpgcnn.errors import UserError
from vpgcnn.features import Prediction
from vpgcnn.groups import SO2, Group
from vpgcnn.levels import LevelSpec

convert = partial(conversion.convert, mix="pointwise")
"""Every convolution mixes here; what `convert` chooses by itself is in test_convert_price.py."""
GROUPS = [Hue(3), Hue(6), Rotations(4), Dihedral(4), Product(Rotations(4), Hue(3))]
FEW = [Hue(3), Rotations(4)]


def network(channels: int = 3) -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(channels, 6, 5, stride=2), nn.BatchNorm2d(6), nn.ReLU(inplace=True),
        ResidualBlock(6, 8, 2), ResidualBlock(8, 8, 1), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(8, 4),
    ).double()  # fmt: skip
    for part in net.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.normal_(part.running_mean)
            nn.init.uniform_(part.running_var, 0.5, 2)
    return net.eval()


def stirred(net: Converted) -> Converted:
    """As if it had been trained: convolutions look at other views, and levels at the image."""
    torch.manual_seed(1)
    for part in net.modules():
        if isinstance(part, MixedConv2d):
            for cross in part.cross:
                nn.init.normal_(cross.weight, std=0.3)
    return net


def images(count: int = 3, height: int = 17, width: int = 17) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.rand(count, 3, height, width, generator=generator, dtype=torch.float64)


def tail(channels: int = 4) -> list[nn.Module]:
    return [nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 3)]


def assert_same_and_invariant(plain: nn.Module, group: Group, pixels: Tensor, **options: Any) -> Converted:
    """The answers of the original at the start; with the whole group and mixing kernels, invariance."""
    net = convert(plain, group, example=pixels, **options).eval()
    whole = stirred(convert(plain, group, example=pixels, level=Full(), **options)).eval()
    with torch.no_grad():
        expected = plain.eval()(pixels)
        assert torch.allclose(net(pixels).logits, expected, atol=1e-10)
        answer = whole(pixels).logits
        for u in group.grid(dtype=torch.float64):
            moved = pixels
            if group.acts_on_rgb:
                moved = torch.einsum("ij,bjhw->bihw", group.rgb(u), moved)
            if group.acts_on_plane:
                flips = torch.equal(group.plane(u).double(), torch.diag(torch.tensor([-1.0, 1.0])).double())
                moved = moved.flip(-1) if flips else resample.move(moved, group.plane(u))
            assert torch.allclose(whole(moved).logits, answer, atol=1e-9)
        assert options.get("mix") == "none" or not torch.allclose(answer, expected, atol=1e-3)
    return net


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


# ---------------------------------------------------------------- no shared state


def test_a_copy_stands_by_itself() -> None:
    """What is known of a batch on its way is the copy's own, in a hybrid too."""
    for until in (None, "3"):
        net = convert(network(), Hue(3), until=until, example=images()).eval()
        twin = copy.deepcopy(net)
        with torch.no_grad():
            assert torch.allclose(twin(images(2)).logits, network()(images(2)), atol=1e-10)
            assert torch.allclose(net(images(3)).logits, network()(images(3)), atol=1e-10)


def test_it_can_be_saved_whole() -> None:
    net = stirred(convert(network(), Rotations(4), until="3", example=images()))
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    again = torch.load(file, weights_only=False)
    with torch.no_grad():
        assert torch.equal(again(images()).logits, net(images()).logits)
        assert again.summary == net.summary


@pytest.mark.parametrize("until", [None, "3"])
def test_two_threads_with_other_batch_sizes(until: str | None) -> None:
    level = Shared(Window(initial=0.6))
    net = stirred(
        convert(network(), Hue(3), level=level, levels=["0", "3.conv2"], until=until, example=images()).eval()
    )
    batches = {count: images(count) for count in (2, 4)}
    with torch.no_grad():
        expected = {count: net(batch).logits for count, batch in batches.items()}
    wrong: list[object] = []
    start = threading.Barrier(2)

    def use(count: int) -> None:
        start.wait()
        with torch.no_grad():
            for _ in range(40):
                try:
                    if not torch.allclose(net(batches[count]).logits, expected[count], atol=1e-12):
                        wrong.append(count)
                except Exception as error:
                    wrong.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=use, args=(count,)) for count in batches]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert wrong == []


class Checkpointed(nn.Module):
    """Blocks of which some are recomputed in the backward pass."""

    mode: bool = True
    which: str = ""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (self.block(*sizes) for sizes in ((3, 4), (4, 5), (5, 6)))
        self.fc = nn.Linear(6, 3)

    def block(self, inner: int, outer: int) -> nn.Module:
        class Residual(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.conv1 = nn.Conv2d(inner, outer, 3, padding=1)
                self.norm = nn.BatchNorm2d(outer)
                self.conv2 = nn.Conv2d(outer, outer, 3, padding=1)
                self.short = nn.Conv2d(inner, outer, 1)

            def forward(self, x: Tensor) -> Tensor:
                out = self.conv2(self.norm(self.conv1(x)).relu_())
                out += self.short(x)
                return out

        return Residual()

    def forward(self, x: Tensor) -> Tensor:
        for name in "abc":
            block = getattr(self, name)
            x = checkpoint(block, x, use_reentrant=self.mode) if name in self.which else block(x)
            x = x.relu_()  # what comes out of a checkpoint may be changed in place
        return self.fc(x.mean(dim=(2, 3)))


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("family", [Window(initial=0.5), SampledWindow(initial=0.6)], ids=["exact", "sampled"])
@pytest.mark.parametrize("levels", ["a.conv2", "c.conv2", ("a.conv1", "b.conv2", "c.short")], ids=str)
def test_checkpoints_change_nothing(levels: Any, family: Window, reentrant: bool) -> None:
    """Levels inside and outside of the recomputed parts: outputs, KL and every gradient."""
    torch.manual_seed(0)
    pixels = images(3, 6, 6)
    net = convert(Checkpointed().double(), Hue(3), level=Variational(family), levels=levels, example=pixels)
    net = stirred(net).double().train()
    vary_theta(net, 0.1)

    def run(which: str) -> list[Tensor]:
        own = copy.deepcopy(net)
        own.network.mode, own.network.which = reentrant, which
        torch.manual_seed(3)
        shown = pixels.clone().requires_grad_()
        answer = own(shown)
        Elbo.of(answer, torch.tensor([0, 1, 2])).total(0.3).backward()
        grads = [parameter.grad for parameter in own.parameters()]
        assert all(grad is not None for grad in grads)
        return [answer.logits, answer.kl, shown.grad, *grads]  # type: ignore[list-item]

    expected = run("")
    for which in ("a", "c", "ab", "abc"):
        for one, two in zip(run(which), expected, strict=True):
            assert torch.allclose(one, two, atol=1e-7, rtol=1e-5), which


def test_a_second_backward_does_not_see_the_first() -> None:
    """Gradients that cross a reentrant checkpoint are those of one backward pass."""
    torch.manual_seed(0)
    pixels = images(3, 6, 6).requires_grad_()
    level = Variational(Window(initial=0.5), explore=0.0)
    net = convert(Checkpointed().double(), Hue(3), level=level, example=pixels.detach())
    net = stirred(net).double().train()
    net.network.which = "bc"
    answer = net(pixels)
    parameter = net.network.c.conv2.level.encoder.linear.bias
    found = []
    for _ in range(2):
        net.zero_grad()
        answer.kl.sum().backward(retain_graph=True)
        found.append(parameter.grad.clone())
    assert torch.equal(found[0], found[1])
    assert float(found[0].abs().sum()) > 0


# ---------------------------------------------------------------- statistics of a batch


def normed(norm: Callable[[int], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3), norm(6), nn.ReLU(inplace=True), nn.Conv2d(6, 5, 3, stride=2), norm(5), nn.ReLU(),
        nn.Conv2d(5, 4, 3), norm(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.BatchNorm1d(4),
        nn.Linear(4, 3),
    ).double()  # fmt: skip


NORMS: dict[str, Callable[[int], nn.Module]] = {
    "plain": nn.BatchNorm2d,
    "cumulative": lambda c: nn.BatchNorm2d(c, momentum=None),
    "not affine": lambda c: nn.BatchNorm2d(c, affine=False),
    "no running statistics": lambda c: nn.BatchNorm2d(c, track_running_stats=False),
    "instance": lambda c: nn.InstanceNorm2d(c, affine=True, track_running_stats=True),
}


@pytest.mark.parametrize("levels", ["3", "6"])
@pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS.keys())
@pytest.mark.parametrize("group", FEW, ids=str)
def test_views_that_do_not_count_are_not_in_the_statistics(group: Group, norm: Any, levels: str) -> None:
    """Before any step, training is what it was for the original: logits, gradients and running statistics."""
    plain = normed(norm)
    pixels = images(4) * torch.tensor([0.1, 1.0, 3.0]).view(3, 1, 1)  # views that differ much
    closed = Variational(Window(initial=1 / group.count), explore=0.0)
    net = convert(plain, group, level=closed, levels=levels, example=pixels).train()
    plain.train()
    labels = torch.tensor([0, 1, 2, 0])
    for _ in range(2):
        answer, expected = net(pixels).logits, plain(pixels)
        assert torch.allclose(answer, expected, atol=1e-10)
        F.cross_entropy(answer, labels).backward()
        F.cross_entropy(expected, labels).backward()
    found = {name.replace(".conv.", "."): buffer for name, buffer in net.network.named_buffers()}
    for name, buffer in plain.named_buffers():
        assert torch.allclose(found[name].double(), buffer.double(), atol=1e-10), name
    grads = {name.replace(".conv.", "."): each.grad for name, each in net.network.named_parameters()}
    for name, parameter in plain.named_parameters():
        assert torch.allclose(grads[name], parameter.grad, atol=1e-9), name
    with torch.no_grad():
        assert torch.allclose(net.eval()(pixels).logits, plain.eval()(pixels), atol=1e-10)


def test_with_the_whole_group_all_views_count_alike() -> None:
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), *tail()).double()
    net = stirred(convert(plain, Hue(3), level=Full(), example=images())).train()
    seen: list[Tensor] = []
    net.network[1].register_forward_pre_hook(lambda _, args: seen.append(args[0].detach().as_subclass(Tensor)))
    net.network[1].momentum = 1.0
    net(images())
    assert seen[0].shape[0] == 9
    assert torch.allclose(net.network[1].running_mean, seen[0].mean(dim=(0, 2, 3)))
    assert torch.allclose(net.network[1].running_var, seen[0].transpose(0, 1).flatten(1).var(dim=1))


def test_after_a_level_views_count_by_their_weight() -> None:
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), *tail()).double()
    level = Variational(Window(initial=0.6), explore=0.0)
    net = stirred(convert(plain, Hue(3), level=level, example=images())).train()
    vary_theta(net, 0.1)
    seen: list[Tensor] = []
    norm = net.network[1]
    norm.momentum = 1.0
    norm.register_forward_pre_hook(lambda _, args: seen.append(args[0].detach().as_subclass(Tensor)))
    norm.register_forward_hook(lambda _, __, out: seen.append(out.detach().as_subclass(Tensor)))
    q = net(images()).trace["0"]
    weights = q.weights(Hue(3).grid()).detach().double()
    assert float(weights[:, 1].std()) > 1e-3  # images differ
    values, out = seen
    share = (weights / 3).flatten()[:, None, None, None].expand_as(values) / 15**2
    mean = (share * values).sum(dim=(0, 2, 3))
    var = (share * (values - mean.view(-1, 1, 1)).square()).sum(dim=(0, 2, 3))
    assert torch.allclose(norm.running_mean, mean, atol=1e-7)
    normed = (values - mean.view(-1, 1, 1)) / (var.view(-1, 1, 1) + norm.eps).sqrt()
    assert torch.allclose(out, normed, atol=1e-6)
    many = 15**2 / float((weights / 3).square().sum())
    assert torch.allclose(norm.running_var, var * many / (many - 1), atol=1e-7)


def test_one_value_for_each_channel_has_no_statistics() -> None:
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), *tail()).double()
    net = convert(plain, Hue(3), example=images()).train()
    for one in (plain.train(), net):
        with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
            one(images(1, 3, 3))


# ---------------------------------------------------------------- geometry


def seen_in_others(
    group: Group, views: Tensor, kernels: list[Tensor], own: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """By the definition: view u gets, for each s, what view u·s shows, moved by s, under the kernel of s."""
    grid = group.grid(dtype=torch.float64)
    apart = views.unflatten(0, (-1, len(grid)))
    rows = []
    for u in grid:
        total: Any = 0
        for s, kernel in zip(grid[1:], kernels, strict=True):
            other = apart[:, int(group.index(group.compose(u, s)))]
            total = total + own(resample.move(other, group.plane(s)) if group.acts_on_plane else other, kernel)
        rows.append(total)
    return torch.stack(rows, dim=1).flatten(0, 1)


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


# ---------------------------------------------------------------- what networks do inside


class Standardised(nn.Conv2d):
    """A convolution with standardised weights, as BiT has."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        flat = self.weight.reshape(1, self.out_channels, -1)
        weight = F.batch_norm(flat, None, None, training=True, momentum=0.0).reshape_as(self.weight)
        return F.conv2d(input, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


@pytest.mark.parametrize("mix", ["pointwise", "full"])
@pytest.mark.parametrize("group", FEW, ids=str)
def test_subclasses_of_convolutions_are_converted(group: Group, mix: str) -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(
        SameConv2d(3, 6, 3, stride=2), nn.ReLU(), Standardised(6, 6, 3, padding=1), nn.ReLU(),
        SameConv2d(6, 6, 5, stride=2, groups=6), nn.ReLU(), SameConv2d(6, 4, 1), *tail(),
    ).double()  # fmt: skip
    net = assert_same_and_invariant(plain, group, images(2, 16, 16), mix=mix)
    assert net.summary.startswith("mixes 4 of 4 convolutions")
    assert isinstance(net.network[0].conv, SameConv2d)


@pytest.mark.parametrize("mix", ["pointwise", "full"])
@pytest.mark.parametrize(("kernel", "stride", "size"), [(3, 2, 12), (3, 2, 13), (5, 2, 12), (3, 1, 9), (7, 3, 12)])
def test_a_subclass_that_pads_in_its_own_way_is_met(kernel: int, stride: int, size: int, mix: str) -> None:
    conv = SameConv2d(3, 4, kernel, stride, bias=False).double()
    layer = MixedConv2d(conv, Hue(3), Mixing(mix), None, "conv")  # type: ignore[arg-type]
    for cross in layer.cross:
        nn.init.normal_(cross.weight)
    views = torch.rand(6, 3, size, size, dtype=torch.float64)

    def own(x: Tensor, weight: Tensor) -> Tensor:
        same = copy.deepcopy(conv)
        with torch.no_grad():
            whole = weight if mix == "full" else F.pad(weight, [kernel // 2] * 4)
            same.weight.copy_(whole)
        return same(x)

    with torch.no_grad():
        out = layer(attach(views.clone(), Record(Hue(3), layer._moves, 6)))
        expected = conv(views) + seen_in_others(Hue(3), views, [part.weight for part in layer.cross], own)
    assert torch.allclose(out, expected, atol=1e-12)


class ReadsWeights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(self.conv.weight.dtype) * self.conv.weight.abs().mean() + self.conv.bias.sum()
        assert self.conv.stride == (1, 1)
        return self.fc(self.conv(x).mean(dim=(2, 3))) / self.conv.in_channels


class Windows(nn.Module):
    """Takes the batch apart and puts it together again, as transformers on windows do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Conv2d(3, 4, 3, padding=1), nn.LayerNorm(4), nn.Conv2d(4, 4, 3)
        self.attention, self.fc = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).permute(0, 2, 3, 1)
        b, h, w, c = x.shape
        parts = x.reshape(b, h // 4, 4, w // 4, 4, c).transpose(2, 3).reshape(-1, 16, c)
        parts = self.norm(parts)
        parts = parts + self.attention(parts, parts, parts, need_weights=False)[0]
        x = parts.reshape(b, h // 4, w // 4, 4, 4, c).transpose(2, 3).reshape(b, h, w, c).permute(0, 3, 1, 2)
        largest, _ = self.last(x).flatten(2).max(dim=2)
        return self.fc(largest)


class Lists(nn.Module):
    """Lists, loops over rows, in-place sums and assignments to parts."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.register_buffer("scale", torch.ones(1, 8, 1, 1))
        self.fc = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        first = self.one(x)
        start = torch.zeros(first.shape, dtype=first.dtype)
        start += first
        kept = torch.zeros_like(start)
        kept[:, :2] = start[:, :2]
        second = self.two(torch.stack([row * 1.0 for row in kept]))
        both = torch.cat([*first.chunk(2, dim=1), second], dim=1) * self.scale.to(first)
        return self.fc(both.amax(dim=(2, 3)))


class Gate(nn.Module):
    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        return x * gate.sigmoid()


class PassesParameters(nn.Module):
    """Gives a part of itself to another module, as transformers do with their class token."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.gate, self.fc = nn.Conv2d(3, 4, 3, padding=1), Gate(), nn.Linear(4, 3)
        self.token = nn.Parameter(torch.randn(1, 4, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.gate(self.conv(x), self.token.expand(len(x), -1, -1, -1)).mean(dim=(2, 3)))


@pytest.mark.parametrize("group", FEW, ids=str)
@pytest.mark.parametrize("make", [ReadsWeights, Windows, Lists, PassesParameters])
def test_networks_that_do_unusual_things(make: type[nn.Module], group: Group) -> None:
    torch.manual_seed(0)
    plain = make().double().eval()
    net = assert_same_and_invariant(plain, group, images(2, 12, 12))
    assert not any(isinstance(buffer, Views) for buffer in net.buffers())
    assert all(parameter.requires_grad for parameter in net.parameters())


def test_a_network_may_be_a_convolution_alone() -> None:
    plain = nn.Conv2d(3, 4, 3, padding=1).double()
    net = stirred(convert(plain, Hue(3), level=Full(), example=images()))
    with torch.no_grad():
        out = net(images()).logits
        assert out.shape == (3, 4, 17, 17)
        assert torch.allclose(net(images().roll(1, 1)).logits, out, atol=1e-10)
        closed = convert(plain, Hue(3), example=images()).eval()
        assert torch.allclose(closed(images()).logits, plain(images()), atol=1e-10)


def test_instance_norms_are_allowed() -> None:
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), *tail()).double()
    for group in FEW:
        assert_same_and_invariant(plain, group, images(2))


def test_a_shared_convolution_is_converted_under_all_its_names() -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(4, 4, 3, padding=1)
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), conv, nn.ReLU(), conv, *tail()).double()
    net = assert_same_and_invariant(plain, Hue(3), images(2))
    assert net.network[1] is net.network[3]
    assert net.summary.startswith("mixes 2 of 2")
    assert list(net(images(2)).trace) == ["1", "1 (2)"]


class Branches(nn.Module):
    """Two branches with a level each, joined in one of several ways."""

    def __init__(self, join: str) -> None:
        super().__init__()
        self.join = join
        self.stem = nn.Conv2d(3, 4, 3)
        self.left, self.right, self.fc = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        one, two = self.left(x), self.right(x)
        joined = {
            "add": lambda: one + two,
            "in place": lambda: one.add_(two),
            "cat": lambda: torch.cat([one, two], dim=1)[:, 2:6],
            "gate": lambda: one * two.sigmoid().mean(dim=(2, 3), keepdim=True),
        }[self.join]()
        return self.fc(joined.mean(dim=(2, 3)))


@pytest.mark.parametrize("join", ["add", "in place", "cat", "gate"])
def test_joined_branches_keep_what_both_keep(join: str) -> None:
    """As the sum of two group features: the smaller coverage of the two, and both decisions in the trace."""
    torch.manual_seed(0)
    plain = Branches(join).double()
    net = convert(plain, Hue(3), level=Shared(Window(initial=0.9)), levels=["left", "right"], example=images())
    with torch.no_grad():
        net.network.left.level.raw.fill_(0.5)
        net.network.right.level.raw.fill_(0.8)
        answer = net(images())
        assert list(answer.trace) == ["left", "right"]
        narrow = answer.trace["left"].weights(Hue(3).grid()).double()
        views = net._views(images(), net._record(images())).as_subclass(Tensor)
        expected = (plain(views).unflatten(0, (3, 3)) * narrow.unsqueeze(-1)).sum(dim=1)
    assert torch.allclose(answer.logits, expected, atol=1e-7)


class Twice(nn.Module):
    """Uses one convolution in two branches."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3, padding=1), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.fc((self.conv(x) + self.conv(x.tanh())).mean(dim=(2, 3)))


def test_a_level_cannot_be_in_two_branches() -> None:
    torch.manual_seed(0)
    with pytest.raises(UserError, match=r"used in two branches that are joined later: choose others by levels="):
        convert(Twice().double(), Hue(3), example=images())
    assert list(convert(Twice().double(), Hue(3), levels="stem", example=images())(images()).trace) == ["stem"]


# ---------------------------------------------------------------- placed by execution


class Auxiliary(nn.Module):
    """An auxiliary head for training, registered last, and a stem that is registered after what follows it."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(4, 4, 3, padding=1)
        self.shortcut = nn.Conv2d(4, 4, 1)
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.fc = nn.Linear(4, 3)
        self.auxiliary = nn.Conv2d(4, 3, 3)

    def forward(self, x: Tensor) -> Any:
        x = self.stem(x).relu()
        x = self.body(x) + self.shortcut(x)
        out = self.fc(x.relu().mean(dim=(2, 3)))
        return (out, self.auxiliary(x).mean(dim=(2, 3))) if self.training else out


def test_the_level_is_on_the_last_convolution_that_runs() -> None:
    torch.manual_seed(0)
    plain = Auxiliary().double()
    net = assert_same_and_invariant(plain, Hue(3), images(2))
    assert list(net(images(2)).trace) == ["body"]  # not the head, not the stem, not the 1×1 shortcut after it
    assert type(net.network.auxiliary) is nn.Conv2d
    assert net.summary.startswith("mixes 3 of 4 convolutions")
    assert net.train()(images(2)).logits.shape == (2, 3)
    with pytest.raises(
        UserError, match="no convolution 'auxiliary' that runs in evaluation mode: choose from stem, body"
    ):
        convert(plain, Hue(3), levels="auxiliary", example=images())
    pointwise = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 1), *tail()).double()
    assert list(convert(pointwise, Hue(3), example=images())(images()).trace) == ["2"]


def test_modes_are_left_as_they_were() -> None:
    plain = network().train()
    plain[1].eval()
    before = {name: buffer.clone() for name, buffer in plain.named_buffers()}
    net = convert(plain, Hue(3), example=images())
    assert net.training
    assert net.network[3].conv1.level is None
    assert net.network[4].conv2.level.training
    assert not net.network[1].training
    assert all(torch.equal(before[name], buffer) for name, buffer in plain.named_buffers())
    assert not convert(plain.eval(), Hue(3), example=images()).training


def test_examples_are_found() -> None:
    """Sizes that the model names, and the usual ones."""
    head: list[nn.Module] = [nn.Flatten(), nn.Linear(4 * 30 * 30, 3)]
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), *head)  # takes 32×32 alone
    assert convert(plain, Hue(3)).summary.startswith("mixes 1 of 1")
    odd = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(4 * 15 * 19, 3))
    with pytest.raises(UserError, match=r"does not run on images of the usual sizes: pass example=.*RuntimeError"):
        convert(odd, Dihedral(1))
    odd.default_cfg = {"input_size": (1, 17, 21)}  # type: ignore[assignment]
    assert convert(odd, Dihedral(1)).summary.startswith("mixes 1 of 1")
    with pytest.raises(UserError, match=r"does not run on the example \(2, 3, 17, 21\)"):
        convert(odd, Dihedral(1), example=torch.rand(2, 3, 17, 21))


class Centred(nn.Module):
    """Subtracts the mean over its batch: another answer in other company."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x).relu()
        return self.fc((x - x.mean(dim=0, keepdim=True)).mean(dim=(2, 3)))


class Filled(nn.Module):
    """Copies its features into an empty tensor: they are not computed from the images by torch's functions."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.fc = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(x)
        empty = torch.zeros(x.shape, dtype=x.dtype)
        empty[:] = x
        return self.fc(self.two(empty).mean(dim=(2, 3)))


class Encoded(nn.Module):
    """Has a convolution that sees positions instead of images."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.place, self.fc = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(2, 4, 1), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.linspace(0, 1, x.shape[-1], dtype=x.dtype).expand(len(x), 2, *x.shape[2:])
        return self.fc((self.conv(x) + self.place(places)).relu().mean(dim=(2, 3)))


class OneByOne(nn.Module):
    """Sees each image by itself, so that no level decides for the views of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.fc(self.conv(each.unsqueeze(0)).relu().mean(dim=(2, 3))) for each in x])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_network_that_runs_image_by_image_is_refused(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    with pytest.raises(UserError, match="conv sees a batch of 1 for 2 images"):
        convert(OneByOne().to(dtype), Hue(3), example=images().to(dtype))


class Odd(nn.Module):
    """Ways not to be a function of each image alone, to put more into a batch, or not to be a module to copy."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.calls = way, 0
        self.one, self.two, self.fc = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.Linear(4, 3)
        self.register_buffer("memory", torch.rand(2, 4, 1, 1))
        two = self.two
        self.run = lambda x: two(x)

    def forward(self, x: Tensor) -> Tensor:
        if self.way == "pairs":
            x = torch.cat([x, x.flip(-1)])
        x = self.one(x).relu()
        if self.way == "batch":
            x = x + self.memory
        if self.way == "calls":
            self.calls += 1
            x = x + self.calls
        if self.way == "late pairs":
            x = torch.cat([x, x.flip(-1)])
        if "pairs" in self.way:
            one, two = self.two(x).chunk(2)
            return self.fc((one - two).abs().mean(dim=(2, 3)))
        return self.fc((self.run if self.way == "closure" else self.two)(x).mean(dim=(2, 3)))


@pytest.mark.parametrize(
    ("way", "words"),
    [
        (
            "batch",
            r"runs on 2 images, but not on their 6 views: does it hold something of the size of a batch\? \(Runt",
        ),
        ("calls", "answers otherwise when it is asked again"),
        ("pairs", "one sees a batch of 4 for 2 images, so it cannot tell their views apart"),
        ("closure", "a copy of the network still runs two of the original"),
    ],
)
def test_odd_networks_are_refused_in_a_sentence(way: str, words: str) -> None:
    torch.manual_seed(0)
    for level in (None, Full()):
        with pytest.raises(UserError, match=words):
            convert(Odd(way), Hue(3), level=level, example=images().float())


def test_convolutions_that_see_another_batch_have_neither_mixing_nor_level() -> None:
    torch.manual_seed(0)
    net = convert(Odd("late pairs"), Hue(3), mix="pointwise", example=images().float())
    assert net.cost.mixed == 1
    assert list(net.train()(images().float()).theta) == ["one"]
    with pytest.raises(UserError, match="there is no convolution 'two'"):
        convert(Odd("late pairs"), Hue(3), layers="two", example=images().float())


def test_a_network_that_would_answer_otherwise_is_refused() -> None:
    torch.manual_seed(0)
    for level in (None, Full()):
        with pytest.raises(UserError, match=r"does not have the original's answers: they differ by \d.*e-\d\d of"):
            convert(Centred().double(), Hue(3), level=level, example=images())
    with pytest.raises(UserError, match="two sees a tensor that was filled with values"):
        convert(Filled().double(), Hue(3), example=images())


class Rounds(nn.Module):
    """Amplifies rounding, which is another one for other batch sizes, as deep networks may."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x).relu() + 1e5
        return self.fc((x * len(x) / len(x) - 1e5).mean(dim=(2, 3)))


def test_a_network_that_amplifies_rounding_is_not_refused() -> None:
    torch.manual_seed(0)
    pixels = images().float()
    for group, level in ((Hue(3), None), (Rotations(4), Full())):
        net = convert(Rounds(), group, level=level, example=pixels)
        assert all(parameter.dtype == torch.float32 for parameter in net.parameters())
    with pytest.raises(UserError, match="does not have the original's answers"):
        convert(Centred(), Hue(3), example=pixels)


def test_a_convolution_that_does_not_see_the_images_is_left_alone() -> None:
    torch.manual_seed(0)
    net = assert_same_and_invariant(Encoded().double(), Hue(3), images())
    assert net.summary.startswith("mixes 1 of 2")
    assert type(net.network.place) is nn.Conv2d


@pytest.mark.parametrize(
    ("group", "more", "words"),
    [
        (SO2(), {}, "finite group"),
        (Rotations(8), {}, "between the grid"),
        (Hue(3), {"layers": ["5"]}, "there is no convolution '5'"),
        (Hue(3), {"until": "9"}, "there is no module '9'"),
        (Hue(3), {"until": "6"}, "6 holds no convolution"),
        (Hue(3), {"mix": "half"}, "auto, pointwise, full or none, got 'half'"),
        (Hue(3), {"budget": -1}, "at least 0, got -1"),
        (Hue(1), {}, "one element, which moves nothing"),
        (Hue(3), {"mean": (0.5, 0.5)}, "mean takes one number or 3, one for each channel, got 2: 0.5, 0.5"),
        (Hue(3), {"mean": (0.5, 0.5), "example": None}, "mean takes one number or 3"),
        (Hue(3), {"std": 0}, "std must be above 0, got 0"),
        (Hue(3), {"mean": float("nan")}, "mean must be finite, got nan"),
        (Hue(3), {"example": images() * float("nan")}, "pixels that are not finite numbers, such as nan"),
        (Hue(3), {"example": images()[:0]}, r"no images or no pixels, got the shape \(0, 3, 17, 17\)"),
        (Hue(3), {"example": images()[0]}, r"images B×C×H×W, got the shape \(3, 17, 17\)"),
        (Hue(3), {"example": images()[None]}, r"images B×C×H×W, got the shape \(1, 3, 3, 17, 17\)"),
        (Hue(3), {"example": (images() * 255).byte()}, r"got torch.uint8: divide by 255"),
        (Hue(3), {"example": images()[:, :1]}, "expected 3 channels, got 1"),
        (Hue(3), {"example": images().repeat(1, 2, 1, 1)}, "expected 3 channels, got 6"),
    ],
)
def test_what_cannot_be_is_named(group: Group, more: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        convert(network(), group, **{"example": images(), **more})


def test_one_number_stands_for_all_channels() -> None:
    one = convert(network(), Hue(3), mean=0.5, std=0.25, example=images())
    three = convert(network(), Hue(3), mean=[0.5] * 3, std=torch.full((3,), 0.25), example=images())
    assert torch.equal(one.mean.expand(1, 3, 1, 1), three.mean)
    assert torch.equal(one.std.expand(1, 3, 1, 1), three.std)
    with pytest.raises(TypeError, match="mean must be a number, or one for each channel, got 'a'"):
        convert(network(), Hue(3), mean="a", example=images())  # type: ignore[arg-type]


def test_modules_that_do_not_fit_are_named() -> None:
    with pytest.raises(UserError, match=r"cannot convert 1 \(LSTM\)"):
        convert(nn.Sequential(nn.Conv2d(3, 4, 3), nn.LSTM(4, 4)), Hue(3))
    for plain in (nn.Sequential(nn.Flatten(), nn.Linear(3, 4)), nn.ConvTranspose2d(3, 4, 3), nn.LazyConv2d(4, 3)):
        with pytest.raises(UserError, match="no convolution"):
            convert(plain, Hue(3))
    with pytest.raises(UserError, match="converted already"):
        convert(convert(network(), Hue(3), example=images()), Rotations(4))
    with pytest.raises(TypeError, match="level must be a value such as Variational"):
        convert(network(), Hue(3), level=Variational, example=images())  # type: ignore[arg-type]


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
