"""Deployed networks: logits and θ as the network gives them, for any batch, in several threads, as ONNX."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from support import FAMILIES, SmallNet, vary_theta, warm
from vpgcnn import (
    SO2,
    Group,
    GumbelSoftmax,
    Hue,
    LiftConv2d,
    Prediction,
    Product,
    RankedSoftmax,
    Rotations,
    Shared,
    Variational,
    convert,
)
from vpgcnn.errors import UserError
from vpgcnn.export import Deployed, exported, onnx_bytes
from vpgcnn.levels import LevelSpec

EXPORTED = [name for name in FAMILIES if name != "reparametrized"]


def deployed(name: str = "window-hue") -> Deployed:
    """A small network of this family, whose norms have seen images."""
    group, level = FAMILIES[name]
    net = warm(SmallNet(group, level=level, width=4), torch.rand(4, 3, 8, 8))
    vary_theta(net, 0.3)  # so that images differ in θ
    return Deployed(net, torch.rand(1, 3, 8, 8))


@pytest.mark.parametrize("name", EXPORTED)
def test_logits_and_theta_are_those_of_the_network(name: str) -> None:
    group, level = FAMILIES[name]
    net = warm(SmallNet(group, level=level, width=4), torch.rand(4, 3, 8, 8))
    images = torch.rand(5, 3, 8, 8)
    with torch.no_grad():
        expected = net(images)
        logits, theta = Deployed(net, images[:1])(images)
    assert torch.allclose(logits, expected.logits, atol=1e-5)
    columns = [column for q in expected.theta.values() for column in q.expand(5, -1).unbind(dim=1)]
    assert theta.shape == (5, len(columns))
    for one, two in zip(theta.unbind(dim=1), columns, strict=True):
        assert torch.allclose(one, two, atol=1e-5)


def test_columns_are_named_after_layers_and_circles() -> None:
    assert deployed("full").layers == []
    assert deployed("full")(torch.rand(3, 3, 8, 8))[1].shape == (3, 0)
    assert deployed("window-hue").layers == ["lift", "convs.0", "convs.1", "convs.2"]
    assert deployed("window-product").layers[:2] == ["lift rotation", "lift hue"]


def test_levels_that_move_elements_are_refused() -> None:
    group, level = FAMILIES["reparametrized"]
    with pytest.raises(UserError, match=r"ReparametrizedWindow.* cannot be exported"):
        Deployed(SmallNet(group, level=level), torch.rand(1, 3, 8, 8))


# ---------------------------------------------------------------- threads


def in_threads(call: Callable[[Tensor], tuple[Tensor, Tensor]], batches: list[Tensor], rounds: int) -> list[Any]:
    """What threads that start together get, each for its own batch, again and again."""
    results: list[list[Any]] = [[] for _ in batches]
    together = threading.Barrier(len(batches))

    def work(place: int) -> None:
        together.wait()
        for _ in range(rounds):
            try:
                with torch.no_grad():
                    results[place].append(call(batches[place]))
            except Exception as error:
                results[place].append(error)

    threads = [threading.Thread(target=work, args=(place,)) for place in range(len(batches))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.mark.parametrize("sizes", [(3, 3, 3), (2, 5, 3)], ids=["equal", "unequal"])
@pytest.mark.parametrize("name", ["window-hue", "window-product", "ranked", "converted"])
def test_threads_do_not_disturb_each_other(name: str, sizes: tuple[int, ...]) -> None:
    """Of the hooks that an earlier version put on the network, two threads saw each other's levels."""
    if name == "converted":
        plain = torch.nn.Sequential(
            torch.nn.Conv2d(3, 4, 3, padding=1),
            torch.nn.ReLU(),
            torch.nn.Conv2d(4, 4, 3, padding=1),
            torch.nn.AdaptiveAvgPool2d(1),
            torch.nn.Flatten(),
            torch.nn.Linear(4, 3),
        ).eval()
        net = Deployed(convert(plain, Hue(3)), torch.rand(1, 3, 8, 8))
    else:
        net = deployed(name)
    batches = [torch.rand(size, 3, 8, 8) for size in sizes]
    with torch.no_grad():
        expected = [net(batch) for batch in batches]
    if name not in ("converted", "ranked"):  # the window is on the identity alone; shares come in steps
        assert float(torch.cat([theta for _, theta in expected]).std(dim=0).max()) > 1e-3
    for answers, (logits, theta) in zip(in_threads(net, batches, 10), expected, strict=True):
        assert len(answers) == 10
        for answer in answers:
            assert not isinstance(answer, Exception), answer
            assert torch.allclose(answer[0], logits, atol=1e-6)
            assert torch.allclose(answer[1], theta, atol=1e-6)


# ---------------------------------------------------------------- programs


def test_a_program_takes_any_number_of_images() -> None:
    net = deployed()
    program = exported(net, 3, 8).module()
    for count in (1, 3, 7):
        images = torch.rand(count, 3, 8, 8)
        with torch.no_grad():
            for one, two in zip(program(images), net(images), strict=True):
                assert torch.allclose(one, two, atol=1e-5)


class OneLayer(torch.nn.Module):
    """A lift with a level and a linear layer: exporting takes time for every layer."""

    def __init__(self, group: Group, level: LevelSpec) -> None:
        super().__init__()
        self.lift, self.head = LiftConv2d(3, 4, 3, group, level=level), torch.nn.Linear(4, 3)

    def forward(self, images: Tensor) -> Prediction:
        feature = self.lift(images)
        return Prediction(self.head(feature.mean().mean(dim=(-2, -1))), feature.trace)


ONNX = {
    "window": (SO2(4), Variational()),
    "product": (Product(Rotations(4), Hue(3)), Variational()),
    "ranked": (Hue(3), Variational(RankedSoftmax())),
    "ranked-shared": (Rotations(4), Shared(RankedSoftmax())),
    "gumbel": (Hue(3), Variational(GumbelSoftmax())),
}


@pytest.mark.parametrize("name", ONNX)
def test_onnx_gives_the_same(name: str) -> None:
    """The sort of the ranked family has no counterpart in ONNX, unless it is written as one that has."""
    onnxruntime = pytest.importorskip("onnxruntime", reason="there is no onnxruntime")
    pytest.importorskip("onnxscript", reason="there is no onnxscript")
    group, level = ONNX[name]
    made = Deployed(warm(OneLayer(group, level), torch.rand(4, 3, 8, 8)), torch.rand(1, 3, 8, 8))
    session = onnxruntime.InferenceSession(onnx_bytes(exported(made, 3, 8), {"classes": ["a"]}))
    for count in (1, 4):
        images = torch.rand(count, 3, 8, 8)
        with torch.no_grad():
            expected = made(images)
        for one, two in zip(session.run(None, {"images": images.numpy()}), expected, strict=True):
            assert one.shape == two.shape
            assert torch.allclose(torch.from_numpy(one), two, atol=1e-4)
