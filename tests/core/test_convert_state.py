"""Conversion keeps nothing between calls: copies, threads, checkpoints; and the statistics of a batch."""

from __future__ import annotations

import copy
import io
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from convert_support import FEW, convert, images, network, stirred, tail
from support import vary_theta
from vpgcnn import Elbo, Full, Hue, Rotations, SampledWindow, Shared, Variational, Window
from vpgcnn.groups import Group

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
