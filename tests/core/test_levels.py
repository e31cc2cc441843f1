"""Levels and their encoders: invariance of θ, determinism, gradients, randomness that is passed in."""

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from support import FAMILIES, GROUPS, channels_last, decided, moved, name, random_feature, vary_theta
from vpgcnn import (
    SO2,
    Fixed,
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
from vpgcnn.errors import NotFiniteError
from vpgcnn.levels import Family, InvariantEncoder, LevelSpec, SharedLevel, VariationalLevel, set_progress

families = pytest.mark.parametrize(("group", "level"), FAMILIES.values(), ids=FAMILIES.keys())


@pytest.mark.parametrize("group", GROUPS, ids=name)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("hidden", [None, 3], ids=["as-wide", "lighter"])
def test_theta_is_invariant(double: None, group: Group, weighted: bool, hidden: int | None) -> None:
    """θ(L_g f) = θ(f), for features with and without weights. Quarter turns for the continuous groups."""
    feature = random_feature(group, size=6)
    if weighted:
        weights = torch.rand(2, feature.shape[2])
        weights[:, -1] = 0
        weights[:, 0] += 0.1
        feature = replace(feature, weights=weights / weights.sum(1, keepdim=True))
    encoder = InvariantEncoder(group, 4, torch.tensor([0.5]), hidden)
    vary_theta(encoder, 1.0)
    answer = encoder(feature)
    assert answer.std() > 1e-6  # it looks at the image
    for g in group.grid():
        exact = group.plane(g) == group.plane(g).round()
        if bool(exact.all()):
            assert torch.allclose(encoder(moved(feature, group, g)), answer, atol=1e-12)


def test_an_element_that_was_left_out_does_not_reach_the_encoder() -> None:
    feature = random_feature(Hue(3))
    weights = torch.tensor([[0.5, 0.5, 0.0]]).expand(2, 3)
    encoder = InvariantEncoder(Hue(3), 4, torch.tensor([0.5]))
    vary_theta(encoder, 1.0)
    changed = feature.values.clone()
    changed[:, :, 2] += 5
    one = encoder(GroupFeature(feature.values, feature.elements, weights, feature.group))
    two = encoder(GroupFeature(changed, feature.elements, weights, feature.group))
    assert torch.equal(one, two)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("pixels", [False, True])
def test_a_level_can_look_at_a_relu_that_is_not_computed(double: None, weighted: bool, pixels: bool) -> None:
    level = Variational(detach_features=False, explore=0.0).build(Hue(3), 4)
    feature = random_feature(Hue(3), batch=600)  # more than go at once
    if weighted:
        feature = replace(feature, weights=torch.rand(600, 3).softmax(dim=1))
    vary_theta(level, 1.0)
    values = feature.values - feature.values.mean()
    if pixels:
        values = channels_last(values)
    values[0, 0] = 0.0  # where a ReLU has no gradient
    answers = []
    for look in (level.after_relu, lambda feature: level(feature.map(F.relu))):
        start = values.detach().requires_grad_()
        theta = look(feature.with_values(start)).theta
        answers.append((theta, *torch.autograd.grad(theta.square().sum(), [start, level.encoder.first.weight])))
    for one, two in zip(*answers, strict=True):
        assert torch.allclose(one, two, rtol=0, atol=1e-12)
    assert not torch.allclose(answers[0][0], level(feature.with_values(values)).theta, atol=1e-3)


@pytest.mark.parametrize("detached", [False, True])
def test_a_detached_level_learns_without_shaping_what_it_sees(detached: bool) -> None:
    level = Variational(detach_features=detached, explore=0.0).build(Hue(3), 4)
    same = Variational(detach_features=not detached, explore=0.0).build(Hue(3), 4)
    feature = random_feature(Hue(3))
    same.load_state_dict(level.state_dict())
    start, weights = feature.values.detach().requires_grad_(), torch.tensor([[0.5, 0.3, 0.2]]).repeat(2, 1)
    feature = replace(feature, values=start, weights=weights.requires_grad_())
    theta = level(feature).theta
    assert torch.equal(theta, same(feature).theta)
    seen = torch.autograd.grad(theta.square().sum(), [start, weights], allow_unused=True, retain_graph=True)
    assert [gradient is None for gradient in seen] == [detached] * 2
    to_encoder = torch.autograd.grad(theta.square().sum(), list(level.encoder.parameters()))
    assert all(torch.isfinite(grad).all() for grad in to_encoder)
    assert to_encoder[0].abs().sum() > 0
    assert Variational().detach_features


def test_the_encoder_is_as_light_as_the_papers() -> None:
    """Two 1-D convolutions and a linear layer: 4C² for a circle of elements, 2C² where there are no neighbours."""

    def count(group: Group, channels: int) -> int:
        return sum(p.numel() for p in InvariantEncoder(group, channels, torch.ones(1)).parameters())

    assert count(Hue(3), 17) == 4 * 17**2 + 2 * 17 + 17 + 1
    assert count(SO2(), 64) == 2 * 64**2 + 2 * 64 + 64 + 1
    # Colour ResNet18, all five convolutions of the last stage and the lift: 14.14 M − 11.39 M in the paper's code.
    extra = 2 * count(Hue(3), 221) + 3 * count(Hue(3), 443) + count(Hue(3), 55)
    assert extra == pytest.approx(2.75e6, rel=0.01)


def test_the_encoder_can_be_lighter() -> None:
    """`hidden` channels instead of the layer's: 3C·h + h² numbers and biases."""
    encoder = InvariantEncoder(Hue(3), 17, torch.ones(1), hidden=5)
    assert sum(p.numel() for p in encoder.parameters()) == 3 * 17 * 5 + 5**2 + 2 * 5 + 5 + 1
    with pytest.raises(ValueError, match="width must be at least 1, got 0"):
        InvariantEncoder(Hue(3), 17, torch.ones(1), hidden=0)


@families
def test_distribution_contract(group: Group, level: LevelSpec) -> None:
    """One interface for all: shapes, a distribution, KL ≥ 0."""
    module, feature = level.build(group, 4), random_feature(group, batch=5)
    for mode in (True, False):
        q = module.train(mode)(feature)
        weights = q.weights(feature.elements)
        assert weights.shape == (5, feature.shape[2])
        assert torch.allclose(weights.sum(dim=1), torch.ones(5), atol=1e-5)
        assert (weights >= -1e-6).all()
        assert q.theta.shape[0] == 5
        assert q.kl().shape == (5,)
        assert (q.kl() >= -1e-6).all()


@families
def test_evaluation_is_deterministic(group: Group, level: LevelSpec) -> None:
    module, feature = level.build(group, 4).eval(), random_feature(group)
    one, two = (module(feature).weights(feature.elements) for _ in range(2))
    assert torch.equal(one, two)


@pytest.mark.parametrize("key", ["permuted", "exchangeable", "gumbel", "sampled"])
def test_randomness_is_passed_in(key: str) -> None:
    group, level = FAMILIES[key]
    module, feature = decided(level).build(group, 4), random_feature(group, batch=32)

    def weights(seed: int) -> torch.Tensor:
        return module(feature, torch.Generator().manual_seed(seed)).weights(feature.elements)

    module.encoder.start.fill_(0.0 if key == "gumbel" else 0.8)
    assert torch.equal(weights(1), weights(1))
    assert not all(torch.equal(weights(1), weights(seed)) for seed in range(2, 12))


@families
def test_every_parameter_gets_a_gradient(group: Group, level: LevelSpec) -> None:
    module, feature = decided(level).build(group, 4), random_feature(group, batch=8)
    q = module(feature)
    loss = (q.weights(feature.elements) * torch.randn(feature.shape[2])).sum() + q.kl().sum()
    if module.is_full:
        assert list(module.parameters()) == []
        return
    loss.backward()
    for key, parameter in module.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.abs().sum() > 0, key


def test_full_is_the_whole_group() -> None:
    q = Full().build(Hue(3))(random_feature(Hue(3)))
    assert torch.equal(q.theta, torch.ones(2, 1))
    assert torch.allclose(q.weights(Hue(3).grid()), torch.full((2, 3), 1 / 3))
    assert torch.equal(q.kl().abs(), torch.zeros(2))


def test_shared_is_the_same_for_all_images_and_variational_is_not() -> None:
    feature = random_feature(Hue(6), batch=8)
    shared, variational = Shared().build(Hue(6)), Variational(Window(0.5), explore=0.0).build(Hue(6), 4)
    vary_theta(variational, 0.01)
    assert shared(feature).theta.unique().numel() == 1
    assert variational(feature).theta.unique().numel() == 8
    assert shared(feature).theta[0].item() == pytest.approx(0.9)


def test_learning_moves_theta_where_the_loss_wants_it() -> None:
    """From a nearly full window down to the identity, back up to exactly 1, by the weights' gradient alone."""
    level, feature = Shared(Window(initial=1.0)).build(Rotations(4)), random_feature(Rotations(4), batch=1)
    optimiser = torch.optim.SGD(level.parameters(), lr=0.02)

    def descend(sign: float) -> float:
        for _ in range(300):
            optimiser.zero_grad()
            (sign * level(feature).weights(feature.elements)[0, 0]).backward()
            optimiser.step()
        return level(feature).theta.item()

    assert descend(-1.0) == pytest.approx(0.25)
    assert descend(+1.0) == 1.0


def test_a_shared_level_weighs_the_images_together_at_its_bound() -> None:
    """θ = 1 stays when most images want more, although one wants less: the bound sees their sum."""
    level = Shared(Window(initial=1.0)).build(Hue(3))
    (level(random_feature(Hue(3))).theta[:, 0] * torch.tensor([-10.0, 1.0])).sum().backward()
    assert level.raw.grad.tolist() == [0.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_removed_elements_weigh_exactly_nothing_in_every_precision(dtype: torch.dtype) -> None:
    level = Shared().build(Hue(3)).to(dtype)
    nn.init.zeros_(level.raw)
    feature = random_feature(Hue(3))
    weights = level(feature).weights(feature.elements)
    assert torch.equal(weights, torch.tensor([[1.0, 0.0, 0.0]]).expand(2, 3).to(weights.dtype))


def test_a_model_made_in_inference_mode_does_not_spoil_later_ones() -> None:
    with torch.inference_mode():
        Variational().build(Hue(7), 4)
    Variational().build(Hue(7), 4)(random_feature(Hue(7))).kl().sum().backward()


def test_torch_func_goes_through_a_level() -> None:
    level, feature = Variational().build(Hue(3), 4).eval(), random_feature(Hue(3))
    state = dict(level.named_parameters())

    def loss(parameters: dict[str, torch.Tensor]) -> torch.Tensor:
        q = torch.func.functional_call(level, parameters, (feature,))
        return q.weights(feature.elements)[:, 0].sum() + q.kl().sum()

    grads = torch.func.grad(loss)(state)
    assert grads["encoder.linear.bias"].abs().max() > 0


@pytest.mark.parametrize("level", [Variational(), Shared()], ids=["variational", "shared"])
@pytest.mark.parametrize("batch", [0, 1])
@pytest.mark.parametrize("training", [True, False])
def test_levels_take_an_empty_batch_and_a_single_image(level, batch: int, training: bool) -> None:
    assert level.build(Hue(3), 4).train(training)(random_feature(Hue(3), batch=batch)).theta.shape == (batch, 1)


def test_images_that_differ_little_get_levels_that_differ() -> None:
    """What all images have in common does not drown what tells them apart."""
    level = Variational(explore=0.0).build(Hue(6), 8)
    vary_theta(level, 0.05)
    feature = random_feature(Hue(6), channels=8, batch=32).map(lambda x: 5 + 0.1 * x)
    assert level(feature).theta.std() > 0.01


def test_not_a_number_is_refused() -> None:
    feature = random_feature(Hue(3))
    feature.values[1, 0, 0, 0, 0] = float("nan")
    level = Variational().build(Hue(3), 4)
    with pytest.raises(NotFiniteError, match="input of a level is not finite: image 1 of 2 has NaN or infinity"):
        level(feature)
    assert torch.isfinite(level.encoder.standardise.running_mean).all()


def test_reparametrized_windows_need_a_continuous_group() -> None:
    with pytest.raises(ValueError, match=r"Hue\(m=3\) has finite axes: use Window"):
        Variational(ReparametrizedWindow()).build(Hue(3), 4)


def test_the_encoder_refuses_another_number_of_elements() -> None:
    with pytest.raises(ValueError, match="expected 6 elements, got 3"):
        InvariantEncoder(Hue(6), 4, torch.ones(1))(random_feature(Hue(3)))


def test_a_value_builds_its_module() -> None:
    level = Variational(Window(initial=0.4), encoder_width=3, explore=0.0).build(SO2(8), channels=4)
    assert isinstance(level, VariationalLevel)
    assert level(random_feature(SO2(8), batch=16)).theta.mean().item() == pytest.approx(0.4, abs=0.05)
    assert "initial=0.4" in repr(level)
    assert "detach_features=True" in repr(level)
    assert "explore=0" in repr(level)
    assert level.encoder.second.out_features == 3
    assert isinstance(Shared().build(SO2(8)), SharedLevel)
    assert Variational(ReparametrizedWindow()).build(SO2(8), 4).moves_elements
    assert not Variational(SampledWindow()).build(Hue(3), 4).moves_elements


def test_what_all_images_share_is_marked() -> None:
    feature = random_feature(Hue(3))
    for spec, shared, regularised in (
        (Full(), True, False),
        (Shared(), True, False),
        (Shared(regularised=True), True, True),
        (Variational(), False, True),
    ):
        q = spec.build(Hue(3), 4)(feature)
        assert (q.shared, q.regularised) == (shared, regularised)


# ---------------------------------------------------------------- Partial G-CNN's options


def test_the_temperature_falls_in_equal_ratios() -> None:
    level = Shared(GumbelSoftmax(temperature=1.0, final=0.01)).build(Hue(3))
    model, feature = nn.Sequential(nn.Linear(1, 1), level), random_feature(Hue(3))
    found = []
    for progress in (0.0, 0.5, 1.0):
        set_progress(model, progress)
        found.append(level(feature).temperature)
    assert found == pytest.approx([1.0, 0.1, 0.01])
    assert GumbelSoftmax(temperature=0.7).at(1.0).temperature == 0.7
    with pytest.raises(ValueError, match=r"temperature must be positive, got 1\.0 and 0"):
        GumbelSoftmax(final=0.0)


def test_draws_are_sharp_at_a_low_temperature_and_evaluation_does_not_draw() -> None:
    """The straight-through gradient of a sharp draw is nearly 0; those that are in count alike at every temperature."""
    level, feature = Shared(GumbelSoftmax(final=1e-3)).build(Hue(3)), random_feature(Hue(3), batch=50)
    sizes = []
    for progress in (0.0, 1.0):
        set_progress(level, progress)
        level.zero_grad()
        weights = level(feature, torch.Generator().manual_seed(2)).weights(feature.elements)
        kept = weights > 1e-6
        assert torch.allclose(weights, kept / kept.sum(dim=1, keepdim=True), atol=1e-6)
        weights[:, 1].sum().backward()
        assert level.raw.grad is not None
        sizes.append(float(level.raw.grad.abs().sum()))
    assert sizes[1] < 1e-2 * sizes[0]
    level.eval()
    calm = level(feature).weights(feature.elements)
    assert torch.equal(calm, level(feature).weights(feature.elements))
    assert calm[0, 0] > calm[0, 1] > 0.25  # nearly all of the group, the identity most


def test_levels_of_gumbel_can_be_all_of_the_group() -> None:
    level, feature = Shared(GumbelSoftmax()).build(Hue(6)), random_feature(Hue(6))
    nn.init.constant_(level.raw, 30.0)
    for module in (level.train(), level.eval()):
        q = module(feature)
        assert torch.allclose(q.weights(feature.elements), torch.full((2, 6), 1 / 6))
        assert torch.allclose(q.theta, torch.ones(2, 1))
        assert torch.allclose(q.kl(), torch.zeros(2), atol=1e-6)


def test_a_level_nested_in_another_stays_within_it() -> None:
    first = Shared().build(SO2(8))
    second = Shared().build(SO2(8), below=first)
    third = Shared().build(SO2(8), below=second)
    feature = random_feature(SO2(8))
    for raw in (0.3, 0.8):
        nn.init.constant_(first.raw, raw)
        nn.init.constant_(second.raw, 5.0)  # wants all of the group
        nn.init.constant_(third.raw, 0.5)
        theta = [level(feature).theta[0, 0].item() for level in (first, second, third)]
        assert theta == pytest.approx([raw, raw, raw / 2])
    third(feature).theta.sum().backward()
    assert first.raw.grad is not None  # a narrow first level narrows all
    assert [key for key, _ in third.named_parameters()] == ["raw"]
    with pytest.raises(ValueError, match="must have the family of the outer one, got GumbelSoftmax"):
        Shared(GumbelSoftmax()).build(Hue(3), below=first)
    with pytest.raises(ValueError, match="needs windows or Gumbel-softmax"):
        Shared(RankedSoftmax()).build(Hue(3), below=Shared(RankedSoftmax()).build(Hue(3)))


def test_chances_within_others_are_their_product() -> None:
    first = Shared(GumbelSoftmax()).build(Hue(3))
    second = Shared(GumbelSoftmax()).build(Hue(3), below=first)
    with torch.no_grad():
        first.raw.copy_(torch.logit(torch.tensor([0.5, 0.999])))
        second.raw.copy_(torch.logit(torch.tensor([0.4, 0.999])))
    product = second.shared_parameters().sigmoid()
    assert torch.allclose(product, torch.tensor([[0.2, 0.998]]), atol=1e-4)
    nn.init.constant_(first.raw, 40.0)
    nn.init.constant_(second.raw, 40.0)
    assert bool(second.shared_parameters().isfinite().all())


@pytest.mark.parametrize("family", [Window(), GumbelSoftmax()], ids=["window", "gumbel"])
def test_levels_within_others_begin_as_wide_as_they(family: Family) -> None:
    """Many layers deep: a share that began at .9 in each would leave next to nothing of the last."""
    levels: list[SharedLevel] = []
    for _ in range(12):
        levels.append(Shared(family).build(Hue(3), below=levels[-1] if levels else None))
    feature = random_feature(Hue(3))
    assert levels[-1](feature).theta[0, 0] > 0.85


def test_nested_levels_multiply_and_survive_a_deep_copy() -> None:
    """Partial G-CNN's monotonic variant: the copy's levels stay within each other, not within the original's."""
    first, *rest = [Shared().build(SO2(8))]
    for _ in range(2):
        rest.append(Shared().build(SO2(8), below=(rest or [first])[-1]))
    levels = copy.deepcopy(nn.ModuleList([first, *rest]))
    own = torch.tensor([0.5, 0.9, 0.7])
    for level, raw in zip(levels, own, strict=True):
        nn.init.constant_(level.raw, float(raw))
    theta = torch.stack([level.shared_parameters()[0, 0] for level in levels])
    assert torch.allclose(theta, own.cumprod(0))


def test_a_hopeless_element_does_not_spoil_the_gradient() -> None:
    """Logits so low that their chances would be 0 in single precision: the KL's gradient stays a number, and finite."""
    raw = torch.tensor([[-200.0, -100.0]], requires_grad=True)
    family = GumbelSoftmax()
    family.distribution(family.bounded(raw, Hue(3)), Hue(3), noisy=False, generator=None).kl().sum().backward()
    assert raw.grad is not None
    assert raw.grad.isfinite().all()


@pytest.mark.parametrize("theta", ["half", 0, 1.5, float("nan")])
def test_a_fixed_window_is_a_share_of_the_circle(theta: object) -> None:
    with pytest.raises(ValueError, match=rf"theta must be a number in \(0, 1\], got {theta!r}"):
        Fixed(theta)  # type: ignore[arg-type]
