"""What travels with a feature: the grid of the lift, and what the levels on the way decided. Layers keep no state."""

import copy
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from support import SmallNet, random_feature, set_theta, vary_theta
from vpgcnn import (
    SO2,
    Full,
    Group,
    GroupBatchNorm,
    GroupConv2d,
    GroupFeature,
    GroupPool,
    Hue,
    LiftConv2d,
    Prediction,
    ReLU,
    ReparametrizedWindow,
    SampledWindow,
    Shared,
    SpatialPool,
    Variational,
    fold,
    name_layers,
)
from vpgcnn.features import Trace
from vpgcnn.levels.distributions import WindowDistribution

IMAGES = torch.rand(3, 3, 8, 8, generator=torch.Generator().manual_seed(0))

# ---------------------------------------------------------------- the grid travels


def chain(resample: bool, level: Variational | Full = Full()) -> nn.Sequential:  # noqa: B008
    common = {"padding": 1, "level": level, "resample": resample}
    return nn.Sequential(
        LiftConv2d(3, 4, 3, SO2(4), **common),
        GroupBatchNorm(4),
        nn.ReLU(),
        GroupConv2d(4, 4, 3, SO2(4), **common),
        ReLU(),
        SpatialPool("avg", 2),
        GroupConv2d(4, 4, 3, SO2(4), **common),
    )


def elements_of(model: nn.Sequential, images: Tensor) -> list[Tensor]:
    found, x = [], images
    for layer in model:
        x = layer(x)
        found.append(x.elements)
    return found


@pytest.mark.parametrize("level", [Full(), Variational()], ids=["full", "variational"])
def test_all_layers_share_the_elements_of_the_lift(level) -> None:
    model = chain(False, level)
    found = elements_of(model, IMAGES)
    assert all(elements is found[0] for elements in found)
    assert not torch.equal(found[0], SO2(4).grid())  # training: a random offset
    assert not torch.equal(found[0], elements_of(model, IMAGES)[0])
    calm = elements_of(model.eval(), IMAGES)
    assert all(elements is calm[0] for elements in calm)
    assert torch.equal(calm[0], SO2(4).grid())


def test_a_fresh_grid_is_drawn_where_it_is_asked_for() -> None:
    model = chain(True)
    lift, _, _, second, _, _, third = elements_of(model, IMAGES)
    assert not torch.equal(lift, second)
    assert not torch.equal(second, third)
    steps = third - third[:1]
    assert torch.allclose(steps.cos(), SO2(4).grid().cos(), atol=1e-6)  # an even grid
    calm = elements_of(model.eval(), IMAGES)
    assert all(torch.equal(elements, SO2(4).grid()) for elements in calm)


def test_elements_of_another_feature_come_with_their_span() -> None:
    lift = LiftConv2d(3, 4, 3, SO2(4), level=Variational(ReparametrizedWindow(initial=0.5)))
    one, two = lift(IMAGES), random_feature(SO2(4), batch=3, size=6)
    assert one.span is not None
    taken = GroupConv2d(4, 4, 3, SO2(4))(two, elements=one)
    assert taken.elements is one.elements
    assert taken.span is one.span
    assert GroupConv2d(4, 4, 3, SO2(4))(two, elements=one.elements).span is None


# ---------------------------------------------------------------- names


class Block(nn.Module):
    """A residual block: two convolutions with a level each, and a shortcut with one."""

    def __init__(self, group: Group, level: Variational) -> None:
        super().__init__()
        self.first = GroupConv2d(4, 4, 3, group, level=level, padding=1)
        self.second = GroupConv2d(4, 4, 3, group, level=replace(level, family=SampledWindow()), padding=1)
        self.shortcut = GroupConv2d(4, 4, 1, group, level=level)

    def forward(self, feature: GroupFeature) -> GroupFeature:
        return self.second(F.relu(self.first(feature))) + self.shortcut(feature)


class Net(nn.Module):
    def __init__(self, group: Group = Hue(3), level: Variational = Variational()) -> None:  # noqa: B008
        super().__init__()
        self.lift = LiftConv2d(3, 4, 3, group, level=level)
        self.blocks = nn.Sequential(Block(group, level), Block(group, level))
        self.last = GroupConv2d(4, 4, 3, group, level=Shared(regularised=True))
        self.pool, self.head = GroupPool(), nn.Linear(4, 5)
        name_layers(self)
        for module in self.modules():
            if isinstance(module, LiftConv2d | GroupConv2d) and not module.level.is_full:
                encoder = getattr(module.level, "encoder", None)
                if encoder is not None:  # levels that differ between images and layers
                    vary_theta(encoder, 0.1)
                    encoder.start.fill_(0.7)

    def forward(self, images: Tensor) -> Prediction:
        x = self.last(self.blocks(self.lift(images)))
        return Prediction(self.head(self.pool(x).mean(dim=(-2, -1))), x.trace)


NAMES = [
    "lift",
    "blocks.0.first",
    "blocks.0.second",
    "blocks.0.shortcut",
    "blocks.1.first",
    "blocks.1.second",
    "blocks.1.shortcut",
    "last",
]


def test_decisions_stand_under_the_paths_of_their_layers() -> None:
    prediction = Net()(IMAGES)
    assert list(prediction.trace) == NAMES
    assert list(prediction.theta) == NAMES
    assert all(theta.shape == (3, 1) for theta in prediction.theta.values())
    assert prediction.trace["last"].shared
    assert not prediction.trace["lift"].shared


def test_layers_without_a_name_are_numbered() -> None:
    model = nn.Sequential(
        LiftConv2d(3, 4, 3, Hue(3), level=Variational()), GroupConv2d(4, 4, 3, Hue(3), level=Variational())
    )
    first, second = model(IMAGES).trace
    assert first.startswith("LiftConv2d-")
    assert second.startswith("GroupConv2d-")
    assert list(name_layers(model)(IMAGES).trace) == ["0", "1"]
    alone = LiftConv2d(3, 4, 3, Hue(3), level=Variational())
    before = alone.name
    assert name_layers(alone).name == before  # the root has no path


def test_full_layers_leave_no_trace() -> None:
    prediction = SmallNet(Hue(3), levels=[Full(), Variational(), Full(), Full()])(IMAGES)
    assert list(prediction.trace) == ["convs.0"]


# ---------------------------------------------------------------- the KL


def sum_of_layers(trace: Trace) -> Tensor:
    total = torch.zeros(3)
    for q in trace.values():
        if q.regularised:
            total = total + q.kl()
    return total


@pytest.mark.parametrize("group", [Hue(3), SO2(4)], ids=repr)
@pytest.mark.parametrize("training", [True, False])
def test_nothing_is_counted_twice(group: Group, training: bool) -> None:
    """The sum over layers, each once: also what two branches share from before they parted."""
    level = Variational(explore=0.0)
    net = Net(group, level) if group.order else SmallNet(group, level=level)
    prediction = net.train(training)(IMAGES)
    assert torch.equal(prediction.kl, sum_of_layers(prediction.trace))
    assert (prediction.kl > 0).all()
    feature = random_feature(group, batch=3)
    conv = GroupConv2d(4, 4, 3, group, level=level, padding=1)
    once = conv(feature)
    assert torch.equal((once + once).kl, once.kl)
    assert torch.equal((once + feature).kl, once.kl)
    assert torch.equal((feature + once).kl, once.kl)
    further = GroupConv2d(4, 4, 3, group, level=level, padding=1)(once)
    assert torch.equal((further + once).kl, once.kl + further.trace[list(further.trace)[1]].kl())


def test_the_kl_has_the_gradient_of_every_layer_once() -> None:
    net = Net(level=Variational(explore=0.0))
    set_theta(net, 0.6)  # by the start alone: no level depends on those before it
    prediction = net(IMAGES)
    theta = [q.theta for q in prediction.trace.values()]
    grads = torch.autograd.grad(prediction.kl.sum(), theta)
    for value, grad in zip(theta, grads, strict=True):
        assert torch.allclose(grad, -1 / value)


def test_a_layer_that_is_used_twice_is_counted_twice() -> None:
    conv = GroupConv2d(4, 4, 3, Hue(3), level=Variational(explore=0.0), padding=1)
    conv.name = "conv"
    set_theta(conv, 0.5)
    feature = conv(F.relu(conv(conv(random_feature(Hue(3))))))
    assert list(feature.trace) == ["conv", "conv (2)", "conv (3)"]
    assert feature.kl.tolist() == pytest.approx([3 * math.log(2)] * 2)


def test_one_layer_on_two_branches_is_refused() -> None:
    """Two decisions under one name: one of them would be lost."""
    conv = GroupConv2d(4, 4, 3, Hue(3), level=Variational(), padding=1)
    conv.name = "conv"
    feature = random_feature(Hue(3))
    with pytest.raises(ValueError, match="both branches hold a decision of the layer 'conv', and not the same one"):
        conv(feature) + conv(feature.map(torch.tanh))
    one, two = (GroupConv2d(4, 4, 3, Hue(3), level=Variational(), padding=1) for _ in range(2))
    assert len((one(feature) + two(feature)).trace) == 2


def test_a_trace_is_not_changed_by_what_comes_after() -> None:
    conv = GroupConv2d(4, 4, 3, Hue(3), level=Variational(), padding=1)
    before = conv(random_feature(Hue(3)))
    names = list(before.trace)
    conv(before)
    assert list(before.trace) == names


def test_a_prediction_knows_its_kl_and_theta() -> None:
    theta = torch.tensor([[0.5, 0.25], [1.0, 1.0]])
    group = SO2(4)
    q = WindowDistribution(group, theta[:, :1])
    quiet = replace(q, theta=theta[:, 1:], regularised=False)
    prediction = Prediction(torch.zeros(2, 5), {"a": q, "b": quiet})
    assert prediction.kl.tolist() == pytest.approx([math.log(2), 0.0])
    assert torch.equal(prediction.theta["b"], theta[:, 1:])


# ---------------------------------------------------------------- torch's tools


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    torch.compiler.reset()


def same(one: Prediction, two: Prediction) -> None:
    assert torch.allclose(one.logits, two.logits, atol=1e-5)
    assert list(one.trace) == list(two.trace)
    for layer, q in one.trace.items():
        assert type(q) is type(two.trace[layer])
        assert torch.allclose(q.theta, two.trace[layer].theta, atol=1e-5)
    assert torch.allclose(one.kl, two.kl, atol=1e-5)


class Small(nn.Module):
    """A residual sum of two branches with levels, and one layer that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.lift = LiftConv2d(3, 4, 3, Hue(3), level=Shared(SampledWindow(0.6), regularised=True))
        self.conv = GroupConv2d(4, 4, 3, Hue(3), level=Variational(), padding=1)
        self.side = GroupConv2d(4, 4, 1, Hue(3), level=Shared())
        self.head = nn.Linear(4, 5)
        name_layers(self)

    def forward(self, images: Tensor) -> Prediction:
        x = self.lift(images)
        x = self.conv(F.relu(self.conv(x))) + self.side(x)
        return Prediction(self.head(x.mean().mean(dim=(-2, -1))), x.trace)


@pytest.mark.parametrize(("backend", "training"), [("eager", False), ("aot_eager", True)])
def test_a_compiled_network_returns_its_trace(backend: str, training: bool) -> None:
    net = Small().train(training)
    compiled = torch.compile(net, fullgraph=True, backend=backend)
    torch.manual_seed(1)
    expected = net(IMAGES)
    torch.manual_seed(1)
    made = compiled(IMAGES)
    same(made, expected)
    assert list(made.trace) == ["lift", "conv", "conv (2)", "side"]
    (made.logits.sum() + made.kl.sum()).backward()
    assert all(parameter.grad is not None for parameter in net.parameters())


def test_an_exported_network_returns_its_trace() -> None:
    net = Small().eval()
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(net, (IMAGES,), dynamic_shapes=({0: batch},), strict=False)
    for images in (IMAGES, torch.rand(7, 3, 8, 8)):
        same(Prediction(*program.module()(images)), net(images))


def test_a_deep_copy_traces_the_same() -> None:
    """As data parallelism and model averaging copy: names are kept, nothing is shared."""
    net = Net().eval()
    other = copy.deepcopy(net)
    same(other(IMAGES), net(IMAGES))
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert not torch.allclose(other(IMAGES).logits, net(IMAGES).logits)


def test_a_prediction_is_gathered_as_data_parallelism_does() -> None:
    """Halves of a batch on two replicas, put together part by part."""
    from torch.utils._pytree import tree_map

    net = Net().eval()
    whole = net(IMAGES[:2])
    halves = [copy.deepcopy(net)(IMAGES[:1]), copy.deepcopy(net)(IMAGES[1:2])]
    same(tree_map(lambda *parts: torch.cat(parts), *halves), whole)


# ---------------------------------------------------------------- no state


def state_of(model: nn.Module) -> dict[str, object]:
    """Everything that a module holds, parameters and buffers by value."""
    found: dict[str, object] = {}
    for path, module in model.named_modules():
        for key, value in vars(module).items():
            if key in ("_parameters", "_buffers"):
                found |= {f"{path}.{key}.{part}": None if t is None else t.clone() for part, t in value.items()}
            elif key != "_modules":
                found[f"{path}.{key}"] = copy.copy(value)
    return found


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("group", [Hue(3), SO2(4)], ids=repr)
def test_evaluation_leaves_no_state_behind(group: Group, folded: bool) -> None:
    net = (Net(group) if group.order else SmallNet(group, level=Variational())).eval()
    net = fold(net) if folded else net
    before, saved = state_of(net), {key: value.clone() for key, value in net.state_dict().items()}
    net(IMAGES).logits.sum().backward()
    net.zero_grad()
    after = state_of(net)
    assert after.keys() == before.keys()
    for key, value in before.items():
        same_value = torch.equal(value, after[key]) if isinstance(value, Tensor) else value == after[key]
        assert same_value, key
    for key, value in net.state_dict().items():
        assert torch.equal(value, saved[key]), key


def test_training_writes_running_statistics_only() -> None:
    net = SmallNet(SO2(4), level=Variational())
    before = state_of(net)
    net(IMAGES)
    changed = {
        key
        for key, value in state_of(net).items()
        if not (torch.equal(value, before[key]) if isinstance(value, Tensor) else value == before[key])
    }
    assert changed
    assert all(key.rsplit(".", 1)[1] in ("running_mean", "running_var", "num_batches_tracked") for key in changed)
