"""Networks that nobody had tried: each is converted rightly, with gradients, or refused in one sentence."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from convert_support import FEW, assert_same_and_invariant, convert, images, stirred
from support import vary_theta
from vpgcnn import Elbo, Full, Hue, Rotations, Variational, Window
from vpgcnn.conversion import soften
from vpgcnn.errors import UserError
from vpgcnn.groups import Group


class Plain(nn.Module):
    """Three convolutions; the second and third are called by `middle`."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.fc = nn.Linear(8, 3)
        self.kept: Any = None
        self.double()

    def forward(self, x: Tensor) -> Any:
        return self.fc(self.middle(self.a(x).relu()).relu().mean(dim=(2, 3)))

    def middle(self, x: Tensor) -> Tensor:
        return self.c(self.b(x).relu())


class Keywords(Plain):
    """Calls a convolution by keyword, and another time not."""

    def middle(self, x: Tensor) -> Tensor:
        return self.c(input=self.c(self.b(input=x).relu()).relu())


class Constants(Plain):
    """A filter bank: weights are buffers."""

    def __init__(self) -> None:
        super().__init__()
        for conv in (self.a, self.c):
            for name, value in list(conv.named_parameters()):
                delattr(conv, name)
                conv.register_buffer(name, value.detach())


class KeepsMask(Plain):
    """Makes a mask from what it sees first, and keeps it."""

    def middle(self, x: Tensor) -> Tensor:
        x = super().middle(x)
        if self.kept is None:
            self.kept = 0.5 * x.new_ones(1, 1, *x.shape[2:])
        return x * self.kept


class KeepsAll(Plain):
    """The same, of the shape of a batch."""

    def middle(self, x: Tensor) -> Tensor:
        x = super().middle(x)
        if self.kept is None or self.kept.shape != x.shape:
            self.kept = 0.5 * torch.ones_like(x)
        return x * self.kept


class KeepsTable(Plain):
    """Keeps a positional encoding in the type of what it sees."""

    def middle(self, x: Tensor) -> Tensor:
        x = super().middle(x)
        if self.kept is None:
            self.kept = torch.linspace(0, 1, x.shape[1], dtype=torch.float32).view(-1, 1, 1).type_as(x)
        return x + self.kept


class Compiled(Plain):
    """Holds a part that torch compiles."""

    def __init__(self) -> None:
        super().__init__()
        self.c = torch.compile(self.c, backend="eager")  # type: ignore[assignment]


class Checkpointed(Plain):
    """Has a reentrant checkpoint of its own."""

    def middle(self, x: Tensor) -> Tensor:
        run = super().middle
        found: Tensor = checkpoint(run, x, use_reentrant=True) if x.requires_grad else run(x)
        return found


class Frozen(Plain):
    """Its first layers are not trained."""

    def middle(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = self.b(x).relu()
        return self.c(x)


class GradientsInTraining(Plain):
    def forward(self, x: Tensor) -> Any:
        with torch.set_grad_enabled(self.training):
            return super().forward(x)


@pytest.mark.parametrize("group", FEW, ids=str)
@pytest.mark.parametrize(
    "make", [Keywords, Constants, KeepsMask, KeepsAll, KeepsTable, Compiled, Checkpointed, Frozen, GradientsInTraining]
)
def test_it_is_converted(make: type[Plain], group: Group) -> None:
    """The same answers, also for another batch afterwards; invariance; a gradient for every new parameter."""
    pixels = images()
    closed = assert_same_and_invariant(make().eval(), group, pixels)
    for batch in (pixels[:2], pixels.flip(0, 3)):
        with torch.no_grad():
            expected = make().eval()(batch)
        for grads in (False, True):
            with torch.set_grad_enabled(grads):
                assert torch.allclose(closed(batch).logits, expected, atol=1e-10)
    assert torch.equal(copy.deepcopy(closed)(pixels[:2]).logits, closed(pixels[:2]).logits)
    net = stirred(convert(make(), group, level=Variational(Window(initial=0.6), explore=0.0), example=pixels)).train()
    vary_theta(net, 0.1)
    for batch in (pixels, pixels[:2]):
        net.zero_grad()
        Elbo.of(net(batch), torch.arange(len(batch))).total(0.1).backward()
        new = {name: each for name, each in net.named_parameters() if ".cross." in name or ".level." in name}
        assert [name for name, each in new.items() if each.grad is None or not each.grad.any()] == []


def test_layers_that_no_gradient_reaches_do_not_mix() -> None:
    assert convert(Frozen(), Hue(3), example=images()).cost.mixed == 1
    assert convert(Plain(), Hue(3), example=images()).cost.mixed == 3


def test_complex_answers_are_averaged() -> None:
    class Complex(Plain):
        def forward(self, x: Tensor) -> Tensor:
            found = super().forward(x)
            return torch.complex(found, found.square())

    assert_same_and_invariant(Complex().eval(), Hue(3), images())


@pytest.mark.parametrize("wrap", ["a module", "a method"])
def test_a_part_that_is_compiled_later_still_mixes(wrap: str) -> None:
    net = stirred(convert(Plain(), Rotations(4), level=Full(), example=images())).eval()
    with torch.no_grad():
        expected = net(images()).logits
        if wrap == "a module":
            net.network.c = torch.compile(net.network.c, backend="eager")
        else:
            net.network.c.compile(backend="eager")
        assert torch.allclose(net(images()).logits, expected, atol=1e-10)


# ---------------------------------------------------------------- refused


class _Reversed(torch.autograd.Function):
    """Two residual blocks whose input is computed again from their output."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, f: nn.Module, g: nn.Module, *_: Tensor) -> Tensor:
        one, two = x.chunk(2, dim=1)
        one = one + f(two)
        found = torch.cat([one, two + g(one)], dim=1)
        ctx.save_for_backward(found)
        ctx.parts = f, g
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (found,), (f, g) = ctx.saved_tensors, ctx.parts
        one, two = found.chunk(2, dim=1)
        with torch.no_grad():
            two = two - g(one)
            x = torch.cat([one - f(two), two], dim=1)
        parameters = [*f.parameters(), *g.parameters()]
        with torch.enable_grad():
            one, two = x.requires_grad_().chunk(2, dim=1)
            one = one + f(two)
            again = torch.cat([one, two + g(one)], dim=1)
        first, *rest = torch.autograd.grad(again, [x, *parameters], grads[0])
        return first, None, None, *rest


class Odd(Plain):
    """Ways to be refused."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.parts = way, [self.b, self.c]
        self.f, self.g = (nn.Conv2d(4, 4, 3, padding=1).double() for _ in "fg")
        if way == "lazy":
            self.fc = nn.LazyLinear(3)
        if way == "complex":
            self.a = nn.Conv2d(3, 8, 3, dtype=torch.complex128)
            self.b = self.c = self.f = self.g = nn.Identity()  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Any:
        if self.way == "complex":
            return self.fc(self.c(self.b(self.a(x.to(torch.complex128)))).abs().mean(dim=(2, 3)))
        return super().forward(x)

    def middle(self, x: Tensor) -> Tensor:
        if self.way == "reversible":
            found: Tensor = _Reversed.apply(x, self.f, self.g, *self.f.parameters(), *self.g.parameters())
            return self.c(found)
        if self.way == "list":
            for part in self.parts:
                x = part(x).relu()
            return x
        if self.way == "by row":
            return torch.vmap(lambda row: super(Odd, self).middle(row[None])[0])(x)
        return super().middle(x).detach() if self.way == "detached" else super().middle(x)


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("reversible", "[fg] is computed again in the backward pass from what an autograd function kept"),
        ("list", "b runs, but not under its name: forward holds it in a list"),
        ("by row", "mixes the images of a batch"),
        ("detached", r"no gradient reaches c \(torch.no_grad or detach\), so its level would not learn"),
        ("lazy", r"fc \(LazyLinear\) has no weights yet: run the network on images first"),
        ("complex", r"no convolution \(all of them have complex weights\)"),
    ],
)
def test_it_is_refused_in_a_sentence(way: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        convert(Odd(way), Hue(3), example=images())


def test_reversible_networks_can_be_softened() -> None:
    assert "f" in soften(Odd("reversible"), Rotations(4), 0.5, example=images()).defects


def test_without_a_level_that_learns_no_gradient_is_needed() -> None:
    net = convert(Odd("detached"), Hue(3), level=Full(), example=images()).eval()
    assert net.cost.mixed == 0
    with torch.no_grad():
        assert torch.allclose(net(images().roll(1, 1)).logits, net(images()).logits, atol=1e-10)


class Choice(Plain):
    """Which layer runs is chosen by an attribute."""

    branch = "c"

    def middle(self, x: Tensor) -> Tensor:
        found: Tensor = F.relu(self.get_submodule(self.branch)(x))
        return found


def test_a_level_that_does_not_run_is_named() -> None:
    """All views would count, and nothing would say so."""
    net = convert(Choice(), Hue(3), level=Variational(Window(initial=0.6)), example=images())
    net.train()(images())
    net.network.branch = "b"
    for mode in (True, False):
        with pytest.raises(UserError, match=r"does not depend on c, whose level .* did not run this time"):
            net.train(mode)(images())
