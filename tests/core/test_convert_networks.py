"""Conversion of whatever network: what it does inside, where levels go, and what is refused in a sentence."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from convert_support import FEW, assert_same_and_invariant, convert, images, network, seen_in_others, stirred, tail
from support import SameConv2d
from vpgcnn import Dihedral, Full, Hue, Rotations, Shared, Variational, Window
from vpgcnn.conversion import MixedConv2d, soften
from vpgcnn.conversion.plan import Mixing
from vpgcnn.conversion.views import Record, Views, attach
from vpgcnn.errors import UserError
from vpgcnn.groups import SO2, Group

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

    def __init__(self, size: float = 1e5) -> None:
        super().__init__()
        self.size = size
        self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x).relu() + self.size
        return self.fc((x * len(x) / len(x) - self.size).mean(dim=(2, 3)))


def test_a_network_that_amplifies_rounding_is_not_refused() -> None:
    torch.manual_seed(0)
    pixels = images().float()
    for group, level in ((Hue(3), None), (Rotations(4), Full())):
        net = convert(Rounds(), group, level=level, example=pixels)
        assert all(parameter.dtype == torch.float32 for parameter in net.parameters())
    with pytest.raises(UserError, match="does not have the original's answers"):
        convert(Centred(), Hue(3), example=pixels)


def test_answers_that_rounding_moves_by_more_than_a_hundredth_are_refused() -> None:
    """In double precision they would be the original's; but nobody runs the network in that."""
    torch.manual_seed(0)
    convert(Rounds(1e7).double(), Hue(3), example=images())
    with pytest.raises(UserError, match=r"they differ by [^ ]*e-0[12] of the largest one .* or on rounding"):
        convert(Rounds(2e6), Hue(3), example=images().float())


class Root(nn.Module):
    """Takes the root of how much more red than green there is: no number where there is less."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        roots = (x[:, :1] - x[:, 1:2]).mean(dim=(2, 3)).sqrt()
        return self.fc(self.conv(x).relu().mean(dim=(2, 3)) + roots)


def test_answers_that_are_no_numbers_are_named() -> None:
    torch.manual_seed(0)
    red = images().float() * torch.tensor([1.0, 0.1, 0.1]).view(3, 1, 1)
    assert bool(Root()(red).isfinite().all())
    for level in (None, Full()):
        with pytest.raises(UserError, match="to the example or to moved copies of it are not all finite numbers"):
            convert(Root(), Hue(3), level=level, example=red)


def test_what_cannot_be_copied_is_named() -> None:
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), *tail())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        nn.utils.weight_norm(plain[0])
    plain[0].weight.sum()  # computed from parameters that ask for gradients
    for change in (convert, lambda *args, **options: soften(*args, 0.5, **options)):
        with pytest.raises(UserError, match=r"cannot be copied \(RuntimeError: .*remove_weight_norm helps"):
            change(plain, Hue(3), example=images().float())
    nn.utils.remove_weight_norm(plain[0])
    assert convert(plain, Hue(3), example=images().float()).cost.mixed == 1


def test_a_convolution_that_does_not_see_the_images_is_left_alone() -> None:
    torch.manual_seed(0)
    net = assert_same_and_invariant(Encoded().double(), Hue(3), images())
    assert net.summary.startswith("mixes 1 of 2")
    assert type(net.network.place) is nn.Conv2d


@pytest.mark.parametrize(
    ("group", "more", "words"),
    [
        (SO2(), {}, "finite group"),
        (Rotations(8), {}, "pixels off their grid"),
        (Hue(3), {"layers": ["5"]}, "there is no convolution '5'"),
        (Hue(3), {"until": "9"}, "there is no module '9'"),
        (Hue(3), {"until": "6"}, "6 holds no convolution"),
        (Hue(3), {"mix": "half"}, "auto, pointwise, full or none, got 'half'"),
        (Hue(3), {"mix": "auto", "budget": -1}, "at least 0, got -1"),
        (Hue(3), {"mix": "full", "budget": 0.1}, "budget belongs to mix=\"auto\", got mix='full'"),
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
    for plain in (nn.Sequential(nn.Flatten(), nn.Linear(3, 4)), nn.ConvTranspose2d(3, 4, 3)):
        with pytest.raises(UserError, match="no convolution"):
            convert(plain, Hue(3))
    with pytest.raises(UserError, match="converted already"):
        convert(convert(network(), Hue(3), example=images()), Rotations(4))
    with pytest.raises(TypeError, match="level must be a value such as Variational"):
        convert(network(), Hue(3), level=Variational, example=images())  # type: ignore[arg-type]
