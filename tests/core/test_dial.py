"""The dial, which opens and closes windows after training."""

import io

import pytest
import torch

from support import BOTH, SmallNet, built, many, vary_theta, warm
from vpgcnn import (
    SO2,
    Full,
    Group,
    GroupFeature,
    GumbelSoftmax,
    Hue,
    RankedSoftmax,
    ReparametrizedWindow,
    Rotations,
    SampledWindow,
    Shared,
    Variational,
    Window,
)
from vpgcnn.errors import UserError
from vpgcnn.levels import Family, LevelSpec, VariationalLevel
from vpgcnn.levels.level import set_dial

# ---------------------------------------------------------------- the dial


DIALLED: dict[str, tuple[Group, Family, list[float]]] = {
    "hue": (Hue(6), Window(0.6), [1 / 6]),
    "so2": (SO2(4), Window(0.6, floor=0.1), [0.1]),
    "product": (BOTH, Window(0.6), [0.03, 1 / 3]),
    "sampled": (Rotations(4), SampledWindow(0.6), [1 / 4]),
    "reparametrized": (SO2(4), ReparametrizedWindow(0.6), [0.03]),
}
dialled = pytest.mark.parametrize(("group", "family", "floors"), DIALLED.values(), ids=DIALLED.keys())


def learned_level(group: Group, family: Family) -> tuple[VariationalLevel, GroupFeature]:
    """A level in evaluation mode and a feature of 12 images, which it gives windows that differ."""
    level, feature = built(group, family=family), many(group, 12)
    level.encoder.standardise.momentum = 1.0
    vary_theta(level, 0.01)
    level(feature)
    theta = level.eval()(feature).theta
    assert theta.std(dim=0).min() > 0.005
    assert 0.35 < theta.min() < theta.max() < 0.95
    return level, feature


@dialled
def test_the_dial_closes_leaves_and_opens_windows(group: Group, family: Family, floors: list[float]) -> None:
    level, feature = learned_level(group, family)
    learned = level(feature).theta
    set_dial(level, 1.0)
    assert torch.equal(level(feature).theta, torch.ones_like(learned))
    set_dial(level, -1.0)
    assert torch.allclose(level(feature).theta, torch.tensor(floors).expand_as(learned), atol=1e-6)
    set_dial(level, 0.0)
    assert torch.equal(level(feature).theta, learned)


@dialled
def test_the_dial_is_monotone_and_keeps_the_order_of_images(group: Group, family: Family, floors: list[float]) -> None:
    """In proportion: halfway to open is the mean of the learned window and 1, halfway to closed of it and the floor."""
    level, feature = learned_level(group, family)
    learned, path = level(feature).theta, []
    for dial in torch.linspace(-1, 1, 21).tolist():
        set_dial(level, dial)
        path.append(level(feature).theta)
    steps = torch.stack(path).diff(dim=0)
    assert (steps > 0).all()
    for part in (steps[:10], steps[10:]):
        assert torch.allclose(part, part.mean(dim=0).expand_as(part), atol=1e-6)
    for theta in path[1:-1]:
        assert torch.equal(theta.argsort(dim=0), learned.argsort(dim=0))
    assert torch.allclose(path[5], (learned + torch.tensor(floors)) / 2, atol=1e-6)
    assert torch.allclose(path[15], (learned + 1) / 2, atol=1e-6)


def test_an_open_network_is_the_full_one_and_a_closed_one_sees_the_identity_alone() -> None:
    images = torch.rand(3, 3, 8, 8)
    net = warm(SmallNet(Hue(3), level=Variational(Window(0.6))), images)
    full = SmallNet(Hue(3)).eval()
    full.load_state_dict({key: value for key, value in net.state_dict().items() if ".level." not in key})
    with torch.no_grad():
        learned = net(images).logits
        set_dial(net, 1.0)
        assert torch.allclose(net(images).logits, full(images).logits, atol=1e-6)
        set_dial(net, -1.0)
        for layer in ("lift", "convs.2"):
            weights = net(images).trace[layer].weights(Hue(3).grid())
            assert torch.allclose(weights, torch.eye(3)[:1].expand(3, 3), atol=1e-6)
        assert not torch.allclose(net(images).logits, learned, atol=1e-3)


def test_the_dial_is_saved_with_the_weights() -> None:
    images, spec = torch.rand(3, 3, 8, 8), Variational(Window(0.6))
    net = warm(SmallNet(Hue(3), level=spec), images)
    before = net(images).logits
    set_dial(net, 0.5)
    assert {key: float(value) for key, value in net.state_dict().items() if key.endswith("dial")} == {
        f"{layer}.level.dial": 0.5 for layer in ("lift", "convs.0", "convs.1", "convs.2")
    }
    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    file.seek(0)
    other = SmallNet(Hue(3), level=spec).eval()
    other.load_state_dict(torch.load(file))
    assert torch.equal(other(images).logits, net(images).logits)
    assert not torch.equal(other(images).logits, before)
    assert "dial" not in dict(net.named_parameters())  # it is not learned


@pytest.mark.parametrize("dial", [-1.01, 1.5, float("nan"), float("inf")])
def test_a_dial_out_of_range_is_refused(dial: float) -> None:
    level = built()
    set_dial(level, 0.25)
    with pytest.raises(UserError, match=rf"from −1 \(closed\) to 1 \(open\), got {dial}"):
        set_dial(level, dial)
    assert float(level.dial) == 0.25


@pytest.mark.parametrize(
    "level", [Full(), Shared(), Variational(RankedSoftmax()), Variational(GumbelSoftmax())], ids=repr
)
def test_networks_without_a_window_for_each_image_have_no_dial(level: LevelSpec) -> None:
    with pytest.raises(UserError, match="no level of this network has a window for each image"):
        set_dial(SmallNet(Hue(3), level=level), 0.5)
    some = SmallNet(Hue(3), levels=[level, level, level, Variational()])
    set_dial(some, 0.5)
    assert float(some.convs[2].level.dial) == 0.5
    some.eval()(torch.rand(2, 3, 8, 8))
