"""Recomputation for less memory: the same gradients bit by bit, statistics updated once, fewer bytes kept."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

from support import SmallNet
from vpgcnn import (
    SO2,
    Full,
    GroupBatchNorm,
    GroupConv2d,
    GroupFeature,
    Hue,
    LiftConv2d,
    ReparametrizedWindow,
    Siren,
    SpatialPool,
    Variational,
)
from vpgcnn._ops import recompute
from vpgcnn.lab.networks import build
from vpgcnn.lab.networks.config import COLOR_CNN
from vpgcnn.nn import ReluDropout, recomputed


class Chain(nn.Module):
    """Convolutions with all that may stand between two of them."""

    def __init__(self, *convs: nn.Module, activation: Callable[[GroupFeature], GroupFeature]) -> None:
        super().__init__()
        self.convs = nn.ModuleList(convs)
        self.norms = nn.ModuleList(GroupBatchNorm(conv.out_channels) for conv in convs)
        self.activation, self.pool = activation, SpatialPool("max", 2)

    def forward(self, images: Tensor) -> Tensor:
        x: GroupFeature = images
        for number, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            x = self.activation(norm(conv(x)))
            x = self.pool(x) if number == 1 else x
        return x.mean().square().mean()


def chain(width: int, activation: Callable[[GroupFeature], GroupFeature], level: object = None) -> nn.Module:
    group, level = Hue(3), level or Full()
    return Chain(
        LiftConv2d(3, width, 3, group, padding=1),
        *(GroupConv2d(width, width, 3, group, level=level, padding=1) for _ in range(3)),
        activation=activation,
    )


def turning(level: object) -> nn.Module:
    group = SO2(4)
    shape = {"kernel": Siren(hidden=4), "padding": 2}
    return Chain(
        LiftConv2d(3, 8, 5, group, **shape),
        *(GroupConv2d(8, 8, 5, group, level=level, **shape) for _ in range(2)),
        activation=torch.relu,
    )


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "relu": lambda: chain(6, torch.relu),
    "silu": lambda: chain(6, nn.SiLU()),
    "map": lambda: chain(6, lambda x: x.map(nn.functional.elu)),
    "dropout": lambda: chain(6, ReluDropout(0.3), Variational()),
    "plain dropout": lambda: chain(6, lambda x: nn.functional.dropout(torch.relu(x), 0.4), Variational()),
    "cyclic": lambda: chain(64, ReluDropout(0.3), Variational()),
    "rotations": lambda: turning(Variational()),
    "moved elements": lambda: turning(Variational(ReparametrizedWindow())),
    "pooled": lambda: SmallNet(Hue(3), level=Variational()),
    "colour CNN": lambda: build(COLOR_CNN, 3, 10),
}


def step(net: nn.Module, images: Tensor, seed: int) -> list[Tensor]:
    torch.manual_seed(seed)
    images = images.clone().requires_grad_()
    out = net(images)
    loss = out if isinstance(out, Tensor) else out.logits.square().mean() + out.kl.mean()
    loss.backward()
    parameters = [part.grad.clone() for part in net.parameters() if part.grad is not None]
    net.zero_grad()
    return [loss.detach(), images.grad, *parameters, *(buffer.clone() for buffer in net.buffers())]


@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels last"])
@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_and_statistics_are_the_same_bits(name: str, last: bool) -> None:
    images = torch.rand(3, 3, 28 if name == "colour CNN" else 12, 28 if name == "colour CNN" else 12)
    images = images.contiguous(memory_format=torch.channels_last) if last else images
    found = []
    for on in (False, True):
        torch.manual_seed(0)
        net = NETWORKS[name]().train()
        if on:
            with recomputed():
                found.append(step(net, images, 1))
        else:
            found.append(step(net, images, 1))
    assert len(found[0]) == len(found[1])
    for one, two in zip(*found, strict=True):
        assert torch.equal(one, two)


def kept(net: nn.Module, images: Tensor, monkeypatch: pytest.MonkeyPatch, *, on: bool) -> int:
    """How many bytes a forward pass leaves for the backward pass, without the parameters."""
    packs: list[weakref.ref[object]] = []
    pack = recompute._Book.pack

    def noticed(self: recompute._Book, tensor: Tensor) -> object:
        result = pack(self, tensor)
        packs.append(weakref.ref(result))
        return result

    with monkeypatch.context() as patch:
        patch.setattr(recompute._Book, "pack", noticed)
        if not on:
            patch.setattr(recompute._Book, "note", lambda *_: None)
        with recomputed():
            out = net(images)
    alive = [each() for each in packs]
    tensors = [each.content for each in alive if isinstance(each, recompute._Kept)]
    recipes = [each.recipe for each in tensors if isinstance(each, recompute._View)]
    tensors += [part for recipe in recipes for part in recipe.inputs]
    sizes = {
        each.untyped_storage().data_ptr(): each.untyped_storage().nbytes()
        for each in tensors
        if isinstance(each, Tensor) and not isinstance(each, nn.Parameter)
    }
    del out
    return sum(sizes.values())


@pytest.mark.parametrize(("name", "most"), [("relu", 0.75), ("dropout", 0.6), ("cyclic", 0.6), ("rotations", 0.65)])
def test_fewer_bytes_are_kept(name: str, most: float, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    net, images = NETWORKS[name]().train(), torch.rand(8, 3, 24, 24)
    assert kept(net, images, monkeypatch, on=True) <= most * kept(net, images, monkeypatch, on=False)


def test_nothing_outlives_the_backward_pass() -> None:
    """Without waiting for the garbage collector: a second step needs no more memory than the first."""
    net, images = NETWORKS["dropout"]().train(), torch.rand(4, 3, 12, 12)
    alive: list[weakref.ref[Tensor]] = []
    for conv in net.convs:
        conv.register_forward_hook(lambda *given: alive.append(weakref.ref(given[2].values)))
    gc.disable()
    try:
        with recomputed():
            loss = net(images)
        assert any(each() is not None for each in alive)
        loss.backward()
        del loss
        assert [each() for each in alive] == [None] * 4
    finally:
        gc.enable()


def test_what_was_written_to_is_not_computed_again() -> None:
    """An in-place change after the norm is part of the feature, and not of the recipe."""
    grads = []
    for on in (False, True):
        torch.manual_seed(0)
        conv, norm = GroupConv2d(4, 4, 3, Hue(3)), GroupBatchNorm(4)
        values = torch.randn(2, 4, 3, 6, 6)
        feature = GroupFeature(values, Hue(3).grid(), None, Hue(3))

        def run(conv: GroupConv2d = conv, norm: GroupBatchNorm = norm, feature: GroupFeature = feature) -> None:
            normed = norm(feature)
            normed.values.mul_(2)
            conv(normed).values.square().sum().backward()

        if on:
            with recomputed():
                run()
        else:
            run()
        grads.append(conv.kernel.weight.grad)
    assert torch.equal(*grads)


def test_views_of_an_input_are_not_taken_for_new_tensors() -> None:
    """One image of a batch, on which the transposition of the cyclic algorithm copies nothing."""
    grads = []
    for on in (False, True):
        torch.manual_seed(0)
        conv, images = GroupConv2d(64, 64, 3, Hue(3)), torch.randn(3, 3, 8, 8, 64, requires_grad=True)
        values = images[1:2].permute(0, 4, 1, 2, 3)
        feature = GroupFeature(values, Hue(3).grid(), torch.full((1, 3), 1 / 3, requires_grad=True), Hue(3))
        with recomputed() if on else nullcontext():
            out = conv(feature).values
        out.square().sum().backward()
        grads.append((images.grad, feature.weights.grad))
    for one, two in zip(*grads, strict=True):
        assert torch.equal(one, two)


def test_gradients_of_gradients() -> None:
    images = torch.rand(2, 3, 8, 8)
    found = []
    for on in (False, True):
        torch.manual_seed(0)
        net = chain(4, nn.SiLU()).double()
        parameters = list(net.parameters())
        if on:
            with recomputed():
                loss = net(images.double())
        else:
            loss = net(images.double())
        (first,) = torch.autograd.grad(loss, parameters[:1], create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), parameters, allow_unused=True))
    for one, two in zip(*found, strict=True):
        assert (one is None and two is None) or torch.allclose(one, two, rtol=1e-9, atol=1e-12)
