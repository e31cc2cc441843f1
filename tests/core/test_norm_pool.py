import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from support import TABLES, channels_last, name, random_feature
from vpgcnn import (
    SO2,
    EquivarianceWarning,
    Group,
    GroupBatchNorm,
    GroupConv2d,
    GroupDropout,
    GroupFeature,
    GroupLayerNorm,
    GroupPool,
    Hue,
    LiftConv2d,
    Rotations,
    SpatialPool,
    Variational,
)
from vpgcnn._ops.chunks import parts
from vpgcnn._ops.memory_format import is_channels_last
from vpgcnn.levels.distributions import WindowDistribution
from vpgcnn.nn import ReluDropout
from vpgcnn.nn import norm as norm_module
from vpgcnn.testing import assert_equivariant


def weigh(feature: GroupFeature, weights: torch.Tensor) -> GroupFeature:
    return GroupFeature(feature.values, feature.elements, weights, feature.group)


@pytest.mark.parametrize("group", TABLES, ids=name)
@pytest.mark.parametrize(
    "layer",
    [
        lambda group: GroupBatchNorm(4),
        lambda group: GroupLayerNorm(4),
        lambda group: GroupDropout(0.3),
        lambda group: SpatialPool("max", 2),
        lambda group: SpatialPool("avg", 2, antialias=True),
        lambda group: SpatialPool("max", 2, antialias=True),
        lambda group: SpatialPool("max", 4, stride=2, antialias=True),
        lambda group: GroupPool("mean"),
        lambda group: GroupPool("max"),
        lambda group: GroupPool("rms"),
    ],
    ids=["batch", "layer", "dropout", "max", "avg-blur", "max-blur", "max-4-2-blur", "group-mean", "group-max", "rms"],
)
def test_each_is_equivariant(double: None, group: Group, layer) -> None:
    lift = LiftConv2d(3, 4, 3, group, padding=1)
    model = nn.Sequential(lift, layer(group))
    model.train()
    model(torch.rand(4, 3, 8, 8))
    assert_equivariant(model, torch.rand(2, 3, 8, 8), group, tolerance=1e-11)


def test_batch_norm_without_weights_is_torchs() -> None:
    ours, theirs = GroupBatchNorm(4), nn.BatchNorm3d(4)
    for _ in range(3):
        feature = random_feature(Hue(3))
        assert torch.allclose(ours(feature).values, theirs(feature.values), atol=1e-6)
    assert torch.allclose(ours.running_var, theirs.running_var)
    assert torch.allclose(ours.eval()(feature).values, theirs.eval()(feature.values), atol=1e-6)


@pytest.mark.parametrize("make", [GroupBatchNorm, GroupLayerNorm])
def test_uniform_weights_change_nothing(make) -> None:
    one, two, feature = make(4), make(4), random_feature(Hue(3))
    assert torch.allclose(one(feature).values, two(weigh(feature, torch.full((2, 3), 1 / 3))).values, atol=1e-5)


@pytest.mark.parametrize("make", [GroupBatchNorm, GroupLayerNorm])
def test_removed_elements_do_not_count_in_statistics(make) -> None:
    """With whole weights 0 or equal, the statistics are those of the kept elements alone."""
    norm, feature = make(4), random_feature(Hue(3))
    kept = GroupFeature(feature.values[:, :, :2], feature.elements[:2], None, feature.group)
    feature.values[:, :, 2] = 1e3
    out = norm(weigh(feature, torch.tensor([[0.5, 0.5, 0.0]]).expand(2, 3))).values
    assert torch.allclose(out[:, :, :2], make(4)(kept).values, atol=1e-4)


def test_weighted_batch_norm_normalises_and_tracks() -> None:
    norm, feature = GroupBatchNorm(4), random_feature(Hue(6), batch=16)
    weights = torch.rand(16, 6)
    weights = weights / weights.sum(dim=1, keepdim=True)
    feature = weigh(feature.map(lambda x: 3 * x + 7), weights)
    out = norm(feature)
    share = weights[:, None, :, None, None] / (16 * 49)
    assert torch.allclose((out.values * share).sum(dim=(0, 2, 3, 4)), torch.zeros(4), atol=1e-4)
    assert torch.allclose((out.values.square() * share).sum(dim=(0, 2, 3, 4)), torch.ones(4), atol=1e-3)
    for _ in range(200):
        norm(feature)
    calm = norm.eval()(feature).values
    assert torch.allclose(calm, out.values, atol=1e-2)
    assert int(norm.num_batches_tracked) == 201


@pytest.mark.parametrize("make", [GroupBatchNorm, GroupLayerNorm])
def test_norm_gradients_reach_values_and_weights(double: None, make) -> None:
    feature, raw = random_feature(Hue(3), size=3), torch.rand(2, 3)

    def run(values: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        share = weights / weights.sum(dim=1, keepdim=True)
        return make(4)(GroupFeature(values, feature.elements, share, feature.group)).values

    assert torch.autograd.gradcheck(run, (feature.values.requires_grad_(), raw.requires_grad_()), fast_mode=True)


@pytest.mark.parametrize("make", [GroupBatchNorm, GroupLayerNorm])
def test_statistics_keep_their_precision_under_autocast(make) -> None:
    feature = random_feature(Hue(3), batch=8).map(lambda x: x + 50)
    feature = weigh(feature, torch.tensor([[0.5, 0.3, 0.2]]).expand(8, 3))
    expected = make(4)(feature).values
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.allclose(make(4)(feature).values, expected, atol=1e-4)


def test_running_variance_is_unbiased_for_few_weights() -> None:
    """All weight on one of eight elements, two positions: as if there were no other elements."""
    total = torch.zeros(4)
    for _ in range(400):
        norm, feature = GroupBatchNorm(4, momentum=1.0), random_feature(Hue(8), size=1, batch=2)
        norm(weigh(feature, torch.eye(8)[:1].expand(2, 8)))
        total += norm.running_var / 400
    assert torch.allclose(total, torch.ones(4), atol=0.25)


@pytest.mark.parametrize("seed", [None, 3])
def test_dropout_of_each_number_by_itself(seed: int | None) -> None:
    drop, feature = GroupDropout(0.25, each=True), random_feature(Hue(3), channels=500).map(torch.ones_like)
    made = []
    for _ in range(2):
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        made.append(drop(feature, generator=generator).values)
    assert made[0].unique().tolist() == pytest.approx([0, 4 / 3])
    assert abs(float(made[0].mean()) - 1) < 0.02
    assert float((made[0][:, :, 0] != made[0][:, :, 1]).float().mean()) > 0.1  # elements by themselves
    assert torch.equal(*made) == (seed is not None)
    assert drop.eval()(feature) is feature


def test_dropout_drops_whole_channels_and_keeps_the_mean() -> None:
    drop, feature = GroupDropout(0.25), random_feature(Hue(3), channels=2000).map(torch.ones_like)
    out = drop(feature, generator=torch.Generator().manual_seed(0)).values
    per_channel = out.flatten(2)
    assert torch.equal(per_channel.amin(dim=2), per_channel.amax(dim=2))
    assert out.mean().item() == pytest.approx(1.0, abs=0.03)
    assert drop.eval()(feature) is feature


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("pixels", [False, True])
def test_relu_and_dropout_in_one(pixels: bool, seed: int | None) -> None:
    layer, feature = ReluDropout(0.25), random_feature(Hue(3), channels=300)
    values = (channels_last(feature.values) if pixels else feature.values.clone()).requires_grad_()
    made = []
    for _ in range(2):
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        made.append(layer(feature.with_values(values), generator=generator).values)
    kept = made[0] != 0
    assert torch.allclose(made[0][kept], values[kept] / (1 - 0.25))
    assert bool((values[kept] > 0).all())
    assert abs(float(kept.sum() / (values > 0).sum()) - 0.75) < 0.01
    assert torch.equal(*made) == (seed is not None)
    gradient = torch.randn_like(values)
    made[0].backward(gradient)
    assert values.grad is not None
    assert torch.allclose(values.grad, torch.where(kept, gradient / 0.75, 0.0))
    assert torch.equal(layer.eval()(feature).values, feature.values.relu())
    assert torch.equal(ReluDropout(0.0)(feature).values, feature.values.relu())


@pytest.mark.parametrize("p", [0.001, 0.3, 0.5, 0.9])
def test_dropout_by_eight_bits_drops_as_many_as_asked_for_on_average(p: float) -> None:
    """One call drops by a multiple of 1/256, many calls by p; the mean stays in each of them."""
    layer, feature = ReluDropout(p), random_feature(Hue(3), channels=100).map(torch.ones_like)
    generator = torch.Generator().manual_seed(0)
    made = [layer(feature, generator=generator).values for _ in range(400)]
    share = sum(float((values == 0).float().mean()) for values in made) / len(made)
    assert share == pytest.approx(p, abs=3 * (p * (1 - p) / (len(made) * feature.values.numel())) ** 0.5 + 2e-4)
    scales = {float(values.max()) for values in made}
    chances = sorted(256 * (1 - 1 / scale) for scale in scales)
    assert chances == pytest.approx(sorted({math.floor(256 * p), math.ceil(256 * p)}), abs=1e-3)


@pytest.mark.parametrize("pixels", [False, True])
def test_dropout_of_many_images_takes_each_part_by_itself(pixels: bool) -> None:
    """More numbers than go at once: all of them get their own bits, and a gradient."""
    feature = random_feature(Hue(3), batch=40, channels=16, size=20)
    values = (channels_last(feature.values) if pixels else feature.values).abs().add(1).requires_grad_()
    assert len(parts(values)) > 1
    out = ReluDropout(0.5)(feature.with_values(values)).values
    kept = (out != 0).flatten(1).double()
    assert torch.equal(out, torch.where(out != 0, 2 * values, 0.0))
    (gradient,) = torch.autograd.grad(out.sum(), values)
    assert torch.equal(gradient, torch.where(out != 0, 2.0, 0.0))
    alike = torch.corrcoef(kept).fill_diagonal_(0)  # between images, so between parts
    assert float(alike.abs().max()) < 6 / kept.shape[1] ** 0.5
    lines = (out != 0).permute(0, 3, 4, 1, 2).flatten().double() if pixels else kept.flatten()
    for lag in (1, 2, 8):
        beside = torch.corrcoef(torch.stack([lines[lag:], lines[:-lag]]))[0, 1]
        assert abs(float(beside)) < 5 / len(lines) ** 0.5


def test_dropout_can_be_differentiated_twice_and_in_batches(double: None) -> None:
    feature = random_feature(Hue(3), size=3)
    values = feature.values.requires_grad_()

    def run(given: torch.Tensor) -> torch.Tensor:
        return ReluDropout(0.3)(feature.with_values(given), generator=torch.Generator().manual_seed(0)).values

    assert torch.autograd.gradcheck(run, (values,))
    assert torch.autograd.gradgradcheck(lambda x: run(x) ** 2, (values,))
    several = torch.randn(3, *values.shape)
    (together,) = torch.autograd.grad(run(values), values, several, is_grads_batched=True)
    for gradient, found in zip(several, together, strict=True):
        assert torch.equal(torch.autograd.grad(run(values), values, gradient)[0], found)


def test_a_chance_that_eight_bits_cannot_say_is_met_too() -> None:
    feature = random_feature(Hue(3), batch=30, channels=50, size=20).map(torch.ones_like)
    kept = ReluDropout(0.999)(feature).values != 0
    assert float(kept.double().mean()) == pytest.approx(0.001, rel=0.1)


@pytest.mark.parametrize("weighted", [False, True])
def test_a_batch_of_no_images_leaves_the_statistics(weighted: bool) -> None:
    norm, feature = GroupBatchNorm(4), random_feature(Hue(3), batch=0)
    values = feature.values.requires_grad_()
    given = feature.with_values(values)
    out = norm(weigh(given, torch.ones(0, 3)) if weighted else given).values
    out.sum().backward()
    assert out.shape == values.shape
    assert torch.equal(norm.running_var, torch.ones(4))
    assert torch.equal(norm.running_mean, torch.zeros(4))


@pytest.mark.parametrize("order", [(1, 0, 2, 3, 4), (2, 0, 1, 3, 4), (2, 0, 3, 4, 1), (0, 1, 3, 4, 2)])
def test_batch_norm_takes_values_that_lie_in_any_order(double: None, order: tuple[int, ...]) -> None:
    """Axes of a dense tensor in another order: the gradient is that of the same values map by map."""
    feature, weights = random_feature(Hue(3), batch=5), torch.rand(5, 3).softmax(dim=1)
    back = sorted(range(5), key=order.__getitem__)
    upstream, found = torch.randn(feature.shape), []
    for values in (feature.values.clone(), feature.values.permute(order).contiguous().permute(back)):
        start = values.requires_grad_()
        out = GroupBatchNorm(4)(replace(feature, values=start, weights=weights)).values
        found.append((out, *torch.autograd.grad(out, start, upstream)))
    assert not found[1][0].isnan().any()
    for one, two in zip(*found, strict=True):
        assert torch.allclose(one, two, rtol=0, atol=1e-12)


# ---------------------------------------------------------------- layout


@pytest.mark.parametrize("channels", [1, 4])
@pytest.mark.parametrize("weighted", [False, True])
def test_batch_norm_is_the_same_in_both_layouts(double: None, weighted: bool, channels: int) -> None:
    feature, weights = random_feature(Hue(3), batch=5, channels=channels), torch.rand(5, 3)
    feature = feature.map(lambda x: 3 * x + 7)
    weights = weights / weights.sum(dim=1, keepdim=True)
    gradient, found = torch.randn_like(feature.values), []
    for layout in (torch.Tensor.clone, channels_last):
        norm = GroupBatchNorm(channels)
        for parameter in norm.parameters():
            nn.init.uniform_(parameter, generator=torch.Generator().manual_seed(1))
        values, share = layout(feature.values).requires_grad_(), weights.clone().requires_grad_()
        given = feature.with_values(values)
        out = norm(weigh(given, share) if weighted else given).values
        assert is_channels_last(out) == is_channels_last(values) == (layout is channels_last)
        out.backward(gradient)
        calm = norm.eval()(given).values
        assert is_channels_last(calm) == (layout is channels_last)
        found.append(
            [
                out,
                calm,
                *torch.autograd.grad(calm, [values, *norm.parameters()], gradient),
                values.grad,
                norm.weight.grad,
                norm.bias.grad,
                norm.running_mean,
                norm.running_var,
            ]
        )
        found[-1] += [share.grad] if weighted else []
    for by_map, pixelwise in zip(*found, strict=True):
        assert torch.allclose(by_map, pixelwise, atol=1e-12)


def test_channels_last_batch_norm_passes_gradcheck(double: None) -> None:
    feature, raw = random_feature(Hue(3), size=3), torch.rand(2, 3)

    def run(values: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        share = weights / weights.sum(dim=1, keepdim=True)
        return GroupBatchNorm(4)(weigh(feature.with_values(channels_last(values)), share)).values

    assert torch.autograd.gradcheck(run, (feature.values.requires_grad_(), raw.requires_grad_()), fast_mode=True)


def reference_norm(norm: GroupBatchNorm, feature: GroupFeature) -> torch.Tensor:
    """The same by plain operations, which autograd differentiates as often as it is asked to."""
    values, weights = feature.values, feature.weights
    weights = torch.full(values.shape[:3:2], 1 / values.shape[2]) if weights is None else weights
    share = weights[:, None, :, None, None] / (values.shape[0] * values.shape[3] * values.shape[4])
    mean = (values * share).sum(dim=(0, 2, 3, 4), keepdim=True)
    var = ((values - mean).square() * share).sum(dim=(0, 2, 3, 4), keepdim=True)
    wide = (None, slice(None), None, None, None)
    return (values - mean) * (var + norm.eps).rsqrt() * norm.weight[wide] + norm.bias[wide]


@pytest.mark.parametrize("layout", [torch.Tensor.clone, channels_last], ids=["contiguous", "channels-last"])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_gradient_penalty_through_batch_norm_keeps_all_its_terms(double: None, layout, weighted: bool) -> None:
    """Second derivatives by `autograd.grad`, which dropped terms in silence, and by `backward`, which raised."""
    base, raw = random_feature(Hue(3), size=3, batch=3), torch.randn(3, 3, requires_grad=True)
    values = base.values.requires_grad_()
    norm = GroupBatchNorm(4)
    nn.init.normal_(norm.weight)
    mix = torch.randn(4, requires_grad=True)
    parameters = [values, mix, norm.weight, norm.bias, *([raw] if weighted else [])]

    def penalty(run) -> torch.Tensor:
        shares = raw.softmax(dim=1) if weighted else None
        given = replace(base, values=layout(values * mix[:, None, None, None]), weights=shares)
        out = run(norm, given)
        (slope,) = torch.autograd.grad((out.relu() ** 3).sum(), values, create_graph=True)
        return slope.square().sum()

    ours = torch.autograd.grad(penalty(lambda norm, given: norm(given).values), parameters)
    theirs = torch.autograd.grad(penalty(reference_norm), parameters)
    for found, expected in zip(ours, theirs, strict=True):
        assert expected.abs().max() > 1e-3
        assert torch.allclose(found, expected, rtol=1e-8, atol=1e-10)
    penalty(lambda norm, given: norm(given).values).backward()
    assert torch.allclose(values.grad, theirs[0], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("layout", [torch.Tensor.clone, channels_last], ids=["contiguous", "channels-last"])
def test_batch_norm_passes_gradgradcheck(double: None, layout) -> None:
    feature, raw = random_feature(Hue(2), channels=2, size=2), torch.rand(2, 2)

    def run(values: torch.Tensor, weights: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        norm = GroupBatchNorm(2)
        share = weights / weights.sum(dim=1, keepdim=True)
        given = weigh(feature.with_values(layout(values)), share)
        return torch.func.functional_call(norm, {"weight": scale}, (given,)).values

    inputs = feature.values.requires_grad_(), raw.requires_grad_(), torch.rand(2, requires_grad=True)
    assert torch.autograd.gradcheck(run, inputs)
    assert torch.autograd.gradgradcheck(run, inputs)


def test_statistics_of_a_map_far_from_zero() -> None:
    """A naive E[x²] − E[x]² would lose all digits here."""
    feature = random_feature(Hue(3), batch=8).map(lambda x: x + 3000)
    out = GroupBatchNorm(4)(feature.with_values(channels_last(feature.values))).values
    assert out.std(correction=0).item() == pytest.approx(1, abs=1e-3)


# ---------------------------------------------------------------- pools


def test_pools_without_blur_are_torchs() -> None:
    feature = random_feature(Hue(3), size=8)
    assert torch.equal(SpatialPool("max", 2)(feature).values[0], nn.functional.max_pool2d(feature.values[0], 2))
    assert torch.equal(
        SpatialPool("avg", 4, stride=2)(feature).values[0], nn.functional.avg_pool2d(feature.values[0], 4, 2)
    )


@pytest.mark.parametrize("size", [8, 9])
def test_the_quick_maximum_is_the_same(size: int) -> None:
    feature, pool = random_feature(Hue(3), size=size), SpatialPool("max", 2)
    with torch.no_grad():
        quick = pool(feature).values
    assert torch.equal(quick, pool(feature).values)


def test_antialiased_pool_moves_smoothly() -> None:
    """Shifting the input by one pixel changes a blurred pool less than a plain one."""
    image = torch.zeros(1, 1, 1, 16, 16)
    image[..., 8, 8] = 1
    feature = GroupFeature(image, Rotations(1).grid(), None, Rotations(1))
    shifted = feature.map(lambda x: x.roll(1, dims=-1))

    def change(antialias: bool) -> float:
        pool = SpatialPool("max", 2, antialias=antialias)
        one, two = pool(feature).values, pool(shifted).values
        return float((one.sum() - two.sum()).abs() + (one.amax() - two.amax()).abs())

    blurred = SpatialPool("max", 2, antialias=True)(feature)
    assert blurred.shape[-1] == 8
    constant = SpatialPool("max", 2, antialias=True)(feature.map(torch.ones_like))
    assert torch.allclose(constant.values, torch.ones_like(constant.values))
    assert change(True) <= change(False) + 1e-6


def test_a_pool_that_leaves_pixels_over_warns() -> None:
    with pytest.warns(EquivarianceWarning, match="a pool of size 2 with stride 2"):
        SpatialPool("max", 2)(random_feature(Rotations(4), size=7))
    SpatialPool("max", 2)(random_feature(Hue(3), size=7))


def test_group_pools() -> None:
    feature = random_feature(Hue(3))
    assert torch.allclose(GroupPool("mean")(feature), feature.values.mean(dim=2))
    assert torch.equal(GroupPool("max")(feature), feature.values.amax(dim=2))
    assert torch.equal(GroupPool("flatten")(feature), feature.values.flatten(1, 2))
    partial = weigh(feature, torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]))
    assert torch.allclose(GroupPool("mean")(partial)[0], feature.values[0, :, :2].mean(dim=1), atol=1e-6)
    assert torch.allclose(GroupPool("max")(partial)[0], feature.values[0, :, :2].amax(dim=1), atol=1e-6)
    assert torch.allclose(GroupPool("max")(partial)[1], feature.values[1, :, 0], atol=1e-6)
    flat = GroupPool("flatten")(partial).unflatten(1, (4, 3))
    assert torch.equal(flat[0, :, :2], feature.values[0, :, :2])
    assert flat[0, :, 2].abs().max() == 0


def test_a_root_mean_square_keeps_what_one_pose_shows() -> None:
    """One of 8 poses: 1/8 in the mean, 1/√8 in the root. What is 0 stays 0, and its slope stays finite."""
    values = torch.zeros(1, 2, 8, 1, 1)
    values[0, 0, 3] = 10.0
    feature = GroupFeature(values.requires_grad_(), SO2(8).grid(), None, SO2(8))
    pooled = GroupPool("rms")(feature).flatten()
    assert torch.allclose(pooled, torch.tensor([10 / 8**0.5, 0.0]), atol=0.25)
    assert pooled[1] == 0
    pooled.sum().backward()
    assert values.grad is not None
    assert values.grad.isfinite().all()
    alone = weigh(feature, torch.eye(8)[3:4])
    assert torch.allclose(GroupPool("rms")(alone).flatten(), torch.tensor([10.0, 0.0]), atol=0.25)


@pytest.mark.parametrize("mode", ["mean", "rms", "max", "flatten"])
def test_group_pools_are_continuous_in_theta_and_feel_it(double: None, mode: str) -> None:
    feature = random_feature(SO2(8), batch=1)
    pool, target = GroupPool(mode), torch.randn(1)

    def run(theta: torch.Tensor) -> torch.Tensor:
        weights = WindowDistribution(SO2(8), theta.view(1, 1)).weights(feature.elements)
        return (pool(weigh(feature, weights)) * target).sum()

    path = torch.stack([run(t) for t in torch.linspace(0.05, 1, 2001)])
    coarse, fine = (each.diff().abs().max() for each in (path[::2], path))
    assert fine < 0.65 * coarse  # a jump would stay as it is
    for theta in (0.31, 0.55, 0.93):
        level = torch.tensor([theta], requires_grad=True)
        assert torch.autograd.gradcheck(run, (level,))
        assert torch.autograd.grad(run(level), level)[0].abs() > 0


def test_a_residual_block_shares_the_elements_of_the_lift() -> None:
    """Sums themselves are tested with features; here a shortcut takes over the elements of a body that resamples."""
    body = GroupConv2d(4, 6, 3, SO2(4), padding=1, level=Variational(), resample=True)
    shortcut = GroupConv2d(4, 6, 1, SO2(4))
    feature = random_feature(SO2(4))
    main = body(feature)
    out = main + shortcut(feature, elements=main)
    assert out.elements is main.elements
    assert not torch.equal(out.elements, feature.elements)
    assert torch.equal(out.weights, main.weights)
    again = main + shortcut(feature, elements=main.elements)
    assert torch.equal(again.values, out.values)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: GroupBatchNorm(3)(random_feature(Hue(3))), "expected 3 channels, got 4"),
        (lambda: GroupDropout(1.0), "got 1.0"),
        (lambda: ReluDropout(-0.1), "got -0.1"),
        (lambda: SpatialPool("median", 2), "got 'median'"),
        (lambda: SpatialPool("max", 0), "got 0"),
        (lambda: GroupPool("sum"), "got 'sum'"),
    ],
)
def test_bad_input_is_named(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_moments_are_the_same_wherever_they_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU has a kernel of its own for them; other devices and compiled programs take torch's general one."""
    channels = torch.randn(6, 5, 4, 4) * 3 + torch.arange(5.0)[:, None, None]
    here = norm_module._moments(channels)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    for one, other in zip(here, norm_module._moments(channels), strict=True):
        torch.testing.assert_close(one, other)
