"""Training leaves out elements of weight 0 where all images use the same: the same gradients, and less work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

from support import Counter, SmallNet
from vpgcnn import O2, SO2, Elbo, Fixed, Full, Group, Hue, Shared, Variational
from vpgcnn.levels import LevelSpec, Window
from vpgcnn.nn import GroupDropout, ReluDropout, all_elements, used_elements

NARROW = Shared(Window(initial=0.2))
CASES: dict[str, tuple[Group, list[LevelSpec]]] = {
    "fixed": (SO2(8), [Fixed(0.25)] * 4),
    "closed": (Hue(3), [Fixed(1 / 3)] * 4),
    "learned": (SO2(8), [NARROW] * 4),
    "two axes": (O2(4), [Fixed(0.2)] * 4),
    "between whole ones": (SO2(8), [Full(), NARROW, Full(), Fixed(0.1)]),
    "with levels for each image": (SO2(8), [NARROW, Variational(explore=0), Fixed(0.25), NARROW]),
    "closed on a finite group, where θ may open again": (Hue(3), [Shared(Window(initial=0.1))] * 4),
    "cyclic": (Hue(6), [Shared(Window(initial=0.5))] * 4),
}


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def step(net: nn.Module, images: Tensor, *, skips: bool) -> list[Tensor | None]:
    torch.manual_seed(1)
    net.zero_grad()
    images = images.clone().requires_grad_()
    with used_elements() if skips else nullcontext():
        prediction = net(images)
    Elbo.of(prediction, torch.arange(len(images)) % 2).total().backward()
    grads = [part.grad for part in (images, *net.parameters())]
    return [prediction.logits.detach(), *(None if g is None else g.clone() for g in grads)]


@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels last"])
@pytest.mark.parametrize("name", CASES)
def test_gradients_and_statistics_are_those_of_all_elements(name: str, last: bool) -> None:
    group, levels = CASES[name]
    torch.manual_seed(0)
    width = 64 if name == "cyclic" else 6
    net = SmallNet(group, levels=levels, width=width).train()
    images = torch.rand(4, 3, 8, 8)
    images = images.contiguous(memory_format=torch.channels_last) if last else images
    before = {key: value.clone() for key, value in net.state_dict().items()}
    found, statistics = [], []
    for skips in (False, True):
        net.load_state_dict(before)
        found.append(step(net, images, skips=skips))
        statistics.append([value.clone() for value in net.buffers()])
    seen = 0
    for one, two in zip(*found, strict=True):
        assert (one is None) == (two is None)
        if one is not None and two is not None:
            assert torch.allclose(one, two, rtol=1e-9, atol=1e-12)
            seen += bool(one.any())
    assert seen > 5
    for one, two in zip(*statistics, strict=True):
        assert torch.allclose(one, two, rtol=1e-12, atol=1e-12)


def work(net: nn.Module, images: Tensor, *, skips: bool) -> int:
    with Counter() as counter:
        step(net, images, skips=skips)
    return counter.total


@pytest.mark.parametrize(("name", "most"), [("fixed", 0.25), ("closed", 0.25), ("learned", 0.25)])
def test_narrow_windows_take_few_products(name: str, most: float) -> None:
    group, levels = CASES[name]
    torch.manual_seed(0)
    net, images = SmallNet(group, levels=levels, width=12).train(), torch.rand(4, 3, 8, 8)
    dense = work(net, images, skips=False)
    assert work(net, images, skips=True) <= most * dense
    with all_elements():
        assert work(net, images, skips=True) == dense


def test_values_that_were_left_out_are_refused() -> None:
    net = SmallNet(SO2(8), level=Fixed(0.25)).train()
    with used_elements():
        feature = net.feature(torch.rand(2, 3, 8, 8))
    with pytest.raises(RuntimeError, match="left out of this feature in training"):
        _ = feature.values


@pytest.mark.parametrize(
    "drop", [GroupDropout(0.4), GroupDropout(0.4, each=True), ReluDropout(0.4)], ids=lambda each: str(each)
)
def test_dropout_on_the_elements_in_use(drop: Callable[..., Tensor]) -> None:
    net = SmallNet(SO2(8), level=Fixed(0.25)).train()
    with used_elements():
        feature = net.feature(torch.rand(8, 3, 8, 8))
        before = torch.relu(feature).parts[0].values + 1
        parts = drop.train()(feature.each(lambda values: torch.relu(values) + 1)).parts
        assert parts is not None
    share = float((parts[0].values != 0).double().mean())
    assert abs(share - 0.6) < 0.15
    kept = parts[0].values != 0
    assert torch.allclose(parts[0].values[kept], before[kept] / 0.6, rtol=0.01)
