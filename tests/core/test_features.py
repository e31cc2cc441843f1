import pytest
import torch
import torch.nn.functional as F
from torch import nn

from support import channels_last, random_feature
from vpgcnn import SO2, GroupFeature, Hue, Pointwise, Prediction, ReLU, Rotations, Shared
from vpgcnn.levels.distributions import WindowDistribution


def decision(*theta: float) -> WindowDistribution:
    """A window of Hue(3) for each of so many images."""
    return WindowDistribution(Hue(3), torch.tensor(theta).unsqueeze(1))


def test_slices_keep_the_parts_together() -> None:
    feature = random_feature(Hue(3), batch=5)
    weights, theta = torch.rand(5, 3), torch.arange(1, 6) / 5
    trace = {"conv": decision(*theta.tolist())}
    feature = GroupFeature(feature.values, feature.elements, weights, feature.group, trace)
    part = feature[1:3]
    assert part.shape[0] == len(part) == 2
    assert torch.equal(part.kl, -theta[1:3].log())
    assert torch.equal(part.weights, weights[1:3])
    assert part.elements is feature.elements
    assert torch.equal(feature[4].values, feature.values[4:])
    assert torch.equal(feature[-1].values, feature.values[4:])
    mask = torch.tensor([True, False, False, False, True])
    assert torch.equal(feature[mask].trace["conv"].theta[:, 0], theta[mask])
    assert torch.equal(feature[[3, 1]].values, feature.values[[3, 1]])
    own = GroupFeature(feature.values, torch.rand(5, 3, 1), None, feature.group, span=torch.rand(5, 1))
    assert own.moves_elements
    assert own[:2].elements.shape == (2, 3, 1)
    assert own[:2].span.shape == (2, 1)


def test_as_many_images_as_elements_are_still_told_apart() -> None:
    """The elements `(3, 1)` of a shared grid are not a part of the batch, though there are three images."""
    feature = random_feature(Hue(3), batch=3)
    assert feature[:1].elements is feature.elements


def test_it_is_a_sequence_of_images() -> None:
    feature = random_feature(Hue(3), batch=3)
    assert [len(one) for one in feature] == [1, 1, 1]
    assert torch.equal(feature[torch.tensor(1)].values, feature.values[1:2])
    for wrong in (3, -4, 100):
        with pytest.raises(IndexError, match=f"image {wrong} of 3"):
            feature[wrong]


def test_moves_and_detaches() -> None:
    feature = random_feature(Hue(3)).map(lambda x: x.requires_grad_())
    feature = GroupFeature(feature.values, feature.elements, None, feature.group, {"conv": decision(0.5, 0.7)})
    assert not feature.detach().values.requires_grad
    half = feature.to(torch.bfloat16)
    assert half.dtype == torch.bfloat16
    assert half.elements.dtype == torch.float32
    assert half.kl.dtype == torch.float32
    meta = feature.to("meta")
    parts = (meta.values, meta.elements, meta.trace["conv"].theta, meta.kl)
    assert {part.device.type for part in parts} == {"meta"}


def test_mean_and_coverage() -> None:
    feature = random_feature(Hue(3))
    assert feature.coverage() is None
    assert torch.equal(feature.mean(), feature.values.mean(dim=2))
    weights = torch.tensor([[0.5, 0.25, 0.25], [1.0, 0.0, 0.0]])
    weighted = GroupFeature(feature.values, feature.elements, weights, feature.group)
    assert torch.equal(weighted.coverage(), torch.tensor([[1.0, 0.5, 0.5], [1.0, 0.0, 0.0]]))
    assert torch.allclose(weighted.mean()[1], feature.values[1, :, 0])


def test_repr_says_what_it_is() -> None:
    assert repr(random_feature(SO2(8))) == (
        "GroupFeature(SO2(n=8): 2 images, 4 channels, 8 elements, 7×7, full, float32, cpu)"
    )


def test_it_is_a_tree_of_tensors() -> None:
    """torch.export and other tools may take it apart and put it together."""
    from torch.utils import _pytree as pytree

    feature = random_feature(Hue(3))
    feature = GroupFeature(feature.values, feature.elements, None, feature.group, {"conv": decision(0.5, 0.7)})
    leaves, spec = pytree.tree_flatten(feature)
    assert len([leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]) == 3  # values, elements, θ of the trace
    doubled = pytree.tree_map_only(torch.Tensor, lambda t: 2 * t, feature)
    assert torch.equal(doubled.values, 2 * feature.values)
    assert torch.equal(doubled.trace["conv"].theta, 2 * feature.trace["conv"].theta)
    again = pytree.tree_unflatten(leaves, spec)
    assert isinstance(again, GroupFeature)
    assert torch.equal(again.kl, feature.kl)
    assert again.trace["conv"].group == Hue(3)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ((torch.rand(2, 4, 7, 7), torch.rand(3, 1), None), r"B×C×G×H×W, got shape \(2, 4, 7, 7\)"),
        ((torch.rand(2, 4, 3, 7, 7), torch.rand(5, 1), None), r"3 elements, but elements have shape \(5, 1\)"),
        ((torch.rand(2, 4, 3, 7, 7), torch.rand(4, 3, 1), None), r"3 elements, but elements have shape \(4, 3, 1\)"),
        ((torch.rand(2, 4, 3, 7, 7), torch.rand(3, 2), None), r"Hue\(m=3\) has 1 angles, got \(3, 2\)"),
        ((torch.rand(2, 4, 3, 7, 7), torch.rand(3, 1), torch.rand(3)), r"weights must be 2×3, got shape \(3,\)"),
    ],
)
def test_bad_parts_are_named(parts, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GroupFeature(*parts, Hue(3))


# ---------------------------------------------------------------- torch's own activations


@pytest.mark.parametrize(
    "layer",
    [nn.ReLU(), nn.LeakyReLU(), nn.SiLU(), nn.GELU(), nn.ELU(), nn.Softplus(), nn.Tanh(), nn.Sigmoid(), nn.PReLU()],
    ids=lambda layer: type(layer).__name__,
)
def test_torchs_activations_act_on_a_feature(layer: nn.Module) -> None:
    feature = random_feature(Hue(3))
    feature = GroupFeature(feature.values, feature.elements, torch.rand(2, 3), feature.group, {"a": decision(0.5, 0.7)})
    out = layer(feature)
    assert torch.equal(out.values, layer(feature.values))
    assert out.weights is feature.weights
    assert out.elements is feature.elements
    assert out.trace is feature.trace


def test_activations_as_modules() -> None:
    feature = random_feature(Hue(3))
    assert torch.equal(ReLU()(feature).values, feature.values.relu())
    assert torch.equal(Pointwise(F.silu)(feature).values, F.silu(feature.values))
    slope = Pointwise(nn.PReLU())
    assert len(list(slope.parameters())) == 1
    assert "silu" in repr(Pointwise(F.silu))
    kept = channels_last(feature.values)
    assert ReLU()(feature.with_values(kept)).values.stride() == kept.stride()


@pytest.mark.parametrize(
    ("call", "instead"),
    [
        (lambda f: F.batch_norm(f, None, None, training=True), "GroupBatchNorm"),
        (nn.LayerNorm(7), "GroupLayerNorm"),
        (nn.GroupNorm(1, 4), "GroupLayerNorm"),
        (nn.Conv2d(4, 4, 3), "GroupConv2d"),
        (nn.MaxPool2d(2), r'SpatialPool\("max", size\)'),
        (nn.AvgPool2d(2), r'SpatialPool\("avg", size\)'),
        (nn.Linear(7, 2), "GroupPool"),
        (lambda f: torch.flatten(f), r"GroupPool\(\)"),
        (lambda f: torch.cumsum(f, 2), "cumsum does not act on a GroupFeature: pointwise functions go through"),
    ],
)
def test_other_functions_of_torch_are_refused_and_say_what_to_use(call, instead: str) -> None:
    with pytest.raises(TypeError, match=instead):
        call(random_feature(Hue(3)))


# ---------------------------------------------------------------- sums


def weigh(feature: GroupFeature, weights: torch.Tensor) -> GroupFeature:
    return GroupFeature(feature.values, feature.elements, weights, feature.group)


def test_a_sum_keeps_what_both_keep() -> None:
    feature = random_feature(SO2(8))
    theta = torch.tensor([[0.8], [0.3]]), torch.tensor([[0.4], [0.9]])
    weights = [WindowDistribution(SO2(8), t).weights(feature.elements) for t in theta]
    out = weigh(feature, weights[0]) + weigh(feature, weights[1])
    narrower = WindowDistribution(SO2(8), torch.minimum(*theta)).weights(feature.elements)
    assert out.weights is not None
    assert torch.allclose(out.weights, narrower, atol=1e-6)
    assert torch.equal(out.values, 2 * feature.values)
    full = weigh(feature, weights[0]) + feature
    assert torch.equal(full.weights, weights[0])
    assert torch.equal((feature + weigh(feature, weights[0])).weights, weights[0])
    assert (feature + feature).weights is None


def test_a_sum_of_elements_that_have_nothing_in_common() -> None:
    """Branches that sample their elements may keep different ones; the sum then keeps both, for that image alone."""
    feature = random_feature(Hue(3))
    one, two = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]]), torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.5, 0.5]])
    one.requires_grad_()
    out = weigh(feature, one) + weigh(feature, two)
    assert out.weights is not None
    assert torch.allclose(out.weights, torch.tensor([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0]]))
    (gradient,) = torch.autograd.grad(out.weights[:, 1].sum(), one)
    assert bool(gradient.isfinite().all())


def test_a_sum_refuses_other_elements_shapes_and_things() -> None:
    one = random_feature(SO2(4))
    shifted = GroupFeature(one.values, SO2(4).grid(0.1), None, one.group)
    with pytest.raises(ValueError, match="cannot add features on different elements: pass `elements=`"):
        one + shifted
    with pytest.raises(ValueError, match="shapes or groups differ"):
        one + random_feature(SO2(8))
    with pytest.raises(ValueError, match="shapes or groups differ"):
        one + random_feature(Rotations(4))
    with pytest.raises(TypeError, match="unsupported operand"):
        one + 1.0


def test_a_prediction_without_levels_has_no_kl() -> None:
    prediction = Prediction(torch.zeros(3, 5, dtype=torch.bfloat16), {})
    assert torch.equal(prediction.kl, torch.zeros(3))
    assert prediction.theta == {}
    logits, trace = prediction
    assert (logits is prediction.logits, trace) == (True, {})


def test_only_regularised_levels_count_in_the_kl() -> None:
    level = Shared(regularised=False).build(Hue(3)), Shared(regularised=True).build(Hue(3))
    feature = random_feature(Hue(3))
    quiet, counted = (part(feature) for part in level)
    prediction = Prediction(torch.zeros(2, 5), {"quiet": quiet, "counted": counted})
    assert torch.equal(prediction.kl, counted.kl())
    assert set(prediction.theta) == {"quiet", "counted"}
