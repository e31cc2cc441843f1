"""Cases in which 0.2 failed or was silently wrong: empty batches, odd elements, the meta device, vmap, ONNX."""

import math
import threading

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from support import FAMILIES, SmallNet, decided, random_feature, set_theta, vary_theta, warm
from vpgcnn import (
    SO2,
    Group,
    GroupBatchNorm,
    GroupConv2d,
    GroupDropout,
    GroupFeature,
    GroupLayerNorm,
    GroupPool,
    Hue,
    LiftConv2d,
    Prediction,
    Product,
    RankedSoftmax,
    ReLU,
    ReparametrizedWindow,
    Rotations,
    SampledWindow,
    Shared,
    SpatialPool,
    Variational,
    Window,
    fold,
    name_layers,
)
from vpgcnn.errors import UserError
from vpgcnn.export import Deployed, exported, onnx_bytes
from vpgcnn.kernels import TableKernel
from vpgcnn.levels import LevelSpec
from vpgcnn.levels.distributions import WindowDistribution
from vpgcnn.nn import ReluDropout

# ---------------------------------------------------------------- A5: an empty batch on the cyclic path


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("group", [Hue(3), Hue(6)], ids=repr)
def test_no_images_on_the_cyclic_path(group: Group, training: bool, folded: bool) -> None:
    conv = GroupConv2d(32, 32, 3, group, padding=1, stride=2, level=Variational()).train(training)
    assert isinstance(conv.kernel, TableKernel)
    feature = random_feature(group, channels=32, batch=0, size=20)
    assert conv.kernel._map_pays(feature.values, conv.geometry)
    if folded and not training:
        fold(conv)
    out = conv(feature.map(lambda values: values.requires_grad_()))
    assert out.shape == (0, 32, group.count, 10, 10)
    assert out.kl.shape == (0,)
    out.values.sum().backward()
    assert all(p.grad is None or not p.grad.any() for p in conv.parameters())


# ---------------------------------------------------------------- A6: ONNX of ranked softmax


class Net(nn.Module):
    def __init__(self, group: Group, level: LevelSpec) -> None:
        super().__init__()
        self.lift = LiftConv2d(3, 4, 3, group, level=level)
        self.last = GroupConv2d(4, 4, 3, group, level=level)
        self.pool, self.head = GroupPool(), nn.Linear(4, 5)
        name_layers(self)

    def forward(self, images: Tensor) -> Prediction:
        feature = self.last(nn.functional.relu(self.lift(images)))
        return Prediction(self.head(self.pool(feature).mean(dim=(-2, -1))), feature.trace)


@pytest.mark.parametrize("noise", ["ranked", "permuted"])
def test_ranked_softmax_exports_to_onnx(noise: str) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="there is no onnxruntime")
    pytest.importorskip("onnxscript", reason="there is no onnxscript")
    net = Net(Hue(3), Variational(RankedSoftmax(noise=noise, initial=0.6)))  # type: ignore[arg-type]
    vary_theta(net, 1.0)
    deployed = Deployed(net, example=torch.rand(2, 3, 8, 8))
    program = exported(deployed, channels=3, size=8)
    session = onnxruntime.InferenceSession(onnx_bytes(program, {"classes": list("abcde")}))
    for count in (1, 5):
        images = torch.rand(count, 3, 8, 8)
        logits, theta = session.run(None, {"images": images.numpy()})
        expected = net(images)
        assert torch.allclose(torch.from_numpy(logits), expected.logits, atol=1e-5)
        assert torch.allclose(torch.from_numpy(theta), torch.cat(list(expected.theta.values()), dim=1), rtol=1e-4)


# ---------------------------------------------------------------- A7: cells of elements that were moved


def test_moved_elements_of_a_residual_block_own_smaller_cells() -> None:
    """The lift spreads four elements over half of the circle; a window of a quarter then holds two of them, exactly."""
    lift = LiftConv2d(1, 3, 3, SO2(4), level=Shared(ReparametrizedWindow(initial=0.5))).eval()
    body = GroupConv2d(3, 3, 3, SO2(4), level=Variational(Window()), padding=1).eval()
    set_theta(body, 0.25)
    feature = lift(torch.rand(2, 1, 8, 8))
    main = body(feature)
    assert main.elements is feature.elements
    assert torch.allclose(main.weights, torch.tensor([[0.0, 0.5, 0.5, 0.0]]).expand(2, 4), atol=1e-6)
    side = GroupConv2d(3, 3, 1, SO2(4), level=Variational(ReparametrizedWindow())).eval()
    set_theta(side, 0.25)
    given = side(feature, elements=main)
    assert torch.allclose(given.weights, main.weights, atol=1e-6)
    assert torch.allclose((main + given).weights, main.weights, atol=1e-6)


@pytest.mark.parametrize(("spread", "theta"), [(0.3, 0.1), (0.9, 0.4), (1.0, 0.7), (0.5, 0.9)])
def test_weights_of_moved_elements_are_the_shares_of_their_cells(spread: float, theta: float) -> None:
    """Against angles that are counted one by one: each belongs to the nearest element within the span."""
    count = 8
    lift = LiftConv2d(1, 2, 3, SO2(count), level=Shared(ReparametrizedWindow(initial=spread))).eval()
    conv = GroupConv2d(2, 2, 1, SO2(count), level=Variational(Window())).eval()
    set_theta(conv, theta)
    out = conv(lift(torch.rand(1, 1, 8, 8)))
    fine = torch.linspace(-1, 1, 400_001)[1:-1] * math.pi * min(theta, spread)
    nearest = (fine[:, None] - out.elements[0, :, 0]).abs().argmin(dim=1)
    expected = torch.bincount(nearest, minlength=count) / len(fine)
    assert torch.allclose(out.weights[0], expected, atol=1e-3)


# ---------------------------------------------------------------- A8: elements outside the window


@pytest.mark.parametrize("layer", ["lift", "conv"])
def test_elements_that_are_all_outside_the_window(layer: str) -> None:
    """The nearest to the identity stays: weights sum to 1, and nothing is NaN."""
    elements = torch.tensor([[2.0], [-1.5], [3.0]])
    if layer == "lift":
        module = LiftConv2d(1, 3, 3, SO2(4), level=Variational(explore=0.0))
        given: Tensor | GroupFeature = torch.rand(2, 1, 8, 8)
    else:
        module = GroupConv2d(4, 3, 3, SO2(4), level=Variational(explore=0.0))
        given = random_feature(SO2(4))
    set_theta(module, 0.05)
    out = module(given, elements=elements)
    assert torch.equal(out.weights, torch.tensor([[0.0, 1.0, 0.0]]).expand(2, 3))
    assert out.coverage().isfinite().all()
    (out.mean().square().sum() + out.kl.sum()).backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in module.parameters())


def test_given_elements_stay_uneven_in_the_next_layer() -> None:
    """They travel with the feature, so the level of the next layer has to make its weights sum to 1 as well."""
    lift = LiftConv2d(1, 4, 3, SO2(4), level=Variational(explore=0.0))
    conv = GroupConv2d(4, 3, 3, SO2(4), level=Variational(explore=0.0))
    for module in (lift, conv):
        set_theta(module, 0.4)
    feature = conv(lift(torch.rand(2, 1, 8, 8), elements=torch.tensor([[0.0], [0.1], [9.5]])))
    assert torch.allclose(feature.weights.sum(dim=1), torch.ones(2), atol=1e-6)
    assert feature.elements.abs().max() <= math.pi


# ---------------------------------------------------------------- A10: the meta device


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("key", FAMILIES)
def test_every_family_on_the_meta_device(key: str, training: bool) -> None:
    group, level = FAMILIES[key]
    net = SmallNet(group, level=level).to("meta").train(training)
    prediction = net(torch.rand(2, 3, 8, 8, device="meta"))
    assert prediction.logits.shape == (2, 5)
    assert prediction.kl.shape == (2,)
    (prediction.logits.sum() + prediction.kl.sum()).backward()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize(
    "layer",
    [
        GroupBatchNorm(4),
        GroupLayerNorm(4),
        GroupDropout(0.3),
        ReluDropout(0.3),
        SpatialPool("max", 2),
        SpatialPool("avg", 2, antialias=True),
        GroupPool("mean"),
        GroupPool("max"),
        GroupPool("flatten"),
        ReLU(),
    ],
    ids=repr,
)
def test_every_layer_on_the_meta_device(layer: nn.Module, weighted: bool, training: bool) -> None:
    layer = layer.to("meta").train(training)
    feature = random_feature(Hue(3), size=8).to("meta")
    weights = torch.rand(2, 3, device="meta") if weighted else None
    out = layer(GroupFeature(feature.values, feature.elements, weights, feature.group))
    assert out.device.type == "meta"


@pytest.mark.parametrize("group", [SO2(4), Hue(3)], ids=repr)
def test_a_residual_sum_on_the_meta_device(group: Group) -> None:
    body = GroupConv2d(4, 4, 3, group, padding=1, level=Variational()).to("meta")
    side = GroupConv2d(4, 4, 1, group, level=Variational()).to("meta")
    feature = random_feature(group).to("meta")
    main = body(feature)
    for elements in (main, main.elements, None):
        out = main + side(feature, elements=elements)
        assert out.shape == feature.shape
        assert out.kl.device.type == "meta"


# ---------------------------------------------------------------- A11: per-sample gradients


class Invariant(nn.Module):
    """A network without batch statistics in its layers."""

    def __init__(self, group: Group, level: LevelSpec) -> None:
        super().__init__()
        self.lift = LiftConv2d(3, 4, 3, group, level=level)
        self.norm = GroupLayerNorm(4)
        self.last = GroupConv2d(4, 4, 3, group, level=level)
        self.head = nn.Linear(4, 5)

    def forward(self, images: Tensor) -> Prediction:
        feature = self.last(self.norm(self.lift(images)).map(torch.relu))
        return Prediction(self.head(feature.mean().mean(dim=(-2, -1))), feature.trace)


VMAPPED = {
    key: FAMILIES[key] for key in ("window-hue", "window-rotations", "window-so2", "sampled", "gumbel", "ranked")
}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("key", VMAPPED)
def test_per_sample_gradients(key: str, training: bool) -> None:
    """`vmap` of `grad` against one backward pass for each image; in training each image draws its own noise."""
    group, level = VMAPPED[key]
    net = Invariant(group, decided(level)).train(training)
    vary_theta(net, 0.1)
    parameters = {key: value.detach() for key, value in net.named_parameters()}
    images = torch.rand(3, 3, 8, 8)

    def loss(parameters: dict[str, Tensor], image: Tensor) -> Tensor:
        prediction = functional_call(net, parameters, (image.unsqueeze(0),))
        return prediction.logits.square().sum() + prediction.kl.sum()

    randomness = "different" if training else "error"
    found = vmap(grad(loss), in_dims=(None, 0), randomness=randomness)(parameters, images)
    for name, value in found.items():
        assert value.shape == (3, *parameters[name].shape)
        assert value.isfinite().all(), name
    noisy = training and (key in ("sampled", "gumbel") or group.order is None)
    if not noisy:
        for place, image in enumerate(images):
            for name, value in grad(loss)(parameters, image).items():
                assert torch.allclose(found[name][place], value, atol=1e-4, rtol=1e-3), name
    assert any(value.flatten(1).std(dim=0).max() > 0 for name, value in found.items() if "encoder" in name)


# ---------------------------------------------------------------- A9: a deployed network in two threads


def test_a_deployed_network_serves_two_threads() -> None:
    """θ comes out of the call itself; hooks on the network would mix the calls up."""
    images = torch.rand(16, 3, 8, 8)
    net = warm(SmallNet(Hue(3), level=Variational(SampledWindow())), images)
    vary_theta(net, 0.3)
    deployed = Deployed(net, example=images[:1])
    assert deployed.layers == ["lift", "convs.0", "convs.1", "convs.2"]
    parts = [images[:3], images[3:5]]
    with torch.no_grad():
        expected = [deployed(part) for part in parts]
    wrong: list[str] = []

    def serve(place: int) -> None:
        with torch.no_grad():
            for _ in range(30):
                try:
                    logits, theta = deployed(parts[place])
                except Exception as error:
                    wrong.append(repr(error))
                    return
                if not (torch.equal(logits, expected[place][0]) and torch.equal(theta, expected[place][1])):
                    wrong.append(f"part {place} differs")

    threads = [threading.Thread(target=serve, args=(place,)) for place in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert not torch.equal(expected[0][1][:1], expected[0][1][1:2])  # levels differ between images


def test_levels_that_move_elements_are_not_deployed() -> None:
    net = SmallNet(SO2(4), level=Shared(ReparametrizedWindow()))
    with pytest.raises(UserError, match="ReparametrizedWindow"):
        Deployed(net, example=torch.rand(1, 3, 8, 8))


def test_columns_of_a_group_with_several_circles() -> None:
    net = SmallNet(Product(Rotations(4), Hue(3)), levels=[Variational(), Shared(), Shared(), Shared()])
    deployed = Deployed(net, example=torch.rand(1, 3, 8, 8))
    assert deployed.layers[:2] == ["lift rotation", "lift hue"]
    _, theta = deployed(torch.rand(3, 3, 8, 8))
    assert theta.shape == (3, len(deployed.layers)) == (3, 8)
    full = Deployed(SmallNet(Hue(3)), example=torch.rand(1, 3, 8, 8))
    assert full.layers == []
    assert full(torch.rand(3, 3, 8, 8))[1].shape == (3, 0)


# ---------------------------------------------------------------- more cells than one


@pytest.mark.parametrize("theta", [0.2, 0.6, 1.0])
def test_a_span_of_the_whole_circle_changes_nothing(theta: float) -> None:
    q = WindowDistribution(SO2(5), torch.full((2, 1), theta))
    elements = SO2(5).grid(0.3)
    assert torch.equal(q.weights(elements), q.weights(elements, torch.ones(2, 1)))
