"""Exploration in training: what is drawn, when, and what it does to gradients."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from support import BOTH, SmallNet, built, explored_images, many, random_feature, vary_theta, warm
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
    convert,
)
from vpgcnn.levels import Family, InvariantEncoder, VariationalLevel
from vpgcnn.levels import level as level_module
from vpgcnn.levels.costs import CALM, INFLUENCE, KNOTS, WORTH, slopes_at, slopes_of
from vpgcnn.levels.level import EXPLORE, Condition
from vpgcnn.measure import read_levels
from vpgcnn.objective import Elbo

# ---------------------------------------------------------------- what is drawn, and when


def test_evaluation_draws_nothing() -> None:
    images = torch.rand(8, 3, 8, 8)
    net = warm(SmallNet(Hue(3), level=Variational(Window(0.6), explore=0.9)), images)
    same = SmallNet(Hue(3), level=Variational(Window(0.6), explore=0.1)).eval()
    same.load_state_dict(net.state_dict())
    with torch.no_grad():
        state = torch.get_rng_state()
        one, two, three = net(images), net(images), same(images)
        assert torch.equal(torch.get_rng_state(), state)
        assert all(q.explored is None for q in one.trace.values())
        assert torch.equal(one.logits, two.logits)
        assert torch.equal(one.logits, three.logits)  # the share has no effect on evaluation
        net.train()
        drawn = net(images)
    assert all(q.explored is not None for q in drawn.trace.values())
    assert not torch.equal(torch.get_rng_state(), state)


def test_without_exploration_training_draws_nothing() -> None:
    net, images = SmallNet(Hue(3), level=Variational(explore=0.0)), torch.rand(4, 3, 8, 8)
    state = torch.get_rng_state()
    prediction = net(images)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(q.explored is None for q in prediction.trace.values())


@pytest.mark.parametrize("share", [None, 0.05, 0.5, 0.95])
def test_the_share_of_explored_images(share: float | None) -> None:
    level, expected, count = built(explore=share), EXPLORE if share is None else share, 20_000
    explored = explored_images(level(many(Hue(3), count)))
    noise = math.sqrt(expected * (1 - expected) / count)
    assert float(explored.double().mean()) == pytest.approx(expected, abs=4 * noise)
    first, second = (explored_images(level(many(Hue(3), count))) for _ in range(2))
    assert not torch.equal(first, second)  # other images in the next step


def test_a_quarter_is_closed_a_quarter_open_and_the_others_cover_what_is_between() -> None:
    """On each axis, from its own floor; axes are drawn independently. Decided windows stay."""
    q = built(BOTH, explore=0.5)(many(BOTH, 40_000))
    explored = explored_images(q)
    theta = q.theta.detach()[explored]
    assert len(theta) > 19_000
    ends = []
    for axis, floor in ((0, 0.03), (1, 1 / 3)):
        scaled = (theta[:, axis] - floor) / (1 - floor)
        closed, opened = scaled < 1e-6, scaled > 1 - 1e-6
        for end, expected in ((closed, 3 / 8), (opened, 1 / 4)):
            assert float(end.double().mean()) == pytest.approx(expected, abs=0.015)
        between = scaled[~closed & ~opened].sort().values
        even = torch.linspace(0, 1, len(between))
        assert float((between - even).abs().max()) < 0.02  # Kolmogorov-Smirnov: below 1.63/√10000 in 99 %
        ends.append(closed)
    assert float((ends[0] & ends[1]).double().mean()) == pytest.approx(9 / 64, abs=0.01)
    assert float((q.theta.detach()[~explored] - 0.6).abs().mean()) < 0.1  # the encoder's, near the start


def test_explored_windows_do_not_depend_on_the_image_or_the_encoder() -> None:
    answers = []
    for std in (0.0, 3.0):
        level, feature = built(explore=0.5), many(Hue(3), 200).map(lambda x, std=std: x + std)
        vary_theta(level, std)
        torch.manual_seed(1)
        answers.append(level(feature))
    one, two = answers
    assert torch.equal(one.explored, two.explored)
    explored = explored_images(one)
    assert torch.equal(one.theta[explored], two.theta[explored])
    assert not torch.equal(one.theta[~explored], two.theta[~explored])


@pytest.mark.parametrize("family", [Window(), SampledWindow(), ReparametrizedWindow()], ids=repr)
def test_every_kind_of_window_explores(family: Family) -> None:
    group = SO2(4) if isinstance(family, ReparametrizedWindow) else Rotations(4)
    assert built(group, family=family).explore == EXPLORE > 0
    q = built(group, family=family, explore=0.5)(many(group, 50))
    assert type(q.theta[explored_images(q)]) is Tensor
    assert q.theta.min() < 0.5  # none would be so narrow at the start


# ---------------------------------------------------------------- all levels of a network together


class Mixed(nn.Module):
    """A residual network of levels that see inputs and outputs, of two families, with others in between."""

    def __init__(self, group: Group, explore: float) -> None:
        super().__init__()
        wide, sampled = Variational(explore=explore), Variational(SampledWindow(), explore=explore)
        seen = Variational(condition="output", explore=explore)
        self.start = SmallNet(group, levels=[Full(), Shared(), wide, sampled], pool=False)
        self.side = SmallNet(group, levels=[seen, Full(), wide, seen], pool=False)

    def forward(self, images: Tensor) -> GroupFeature:
        feature = self.start.feature(images)
        for number, conv in enumerate(self.side.convs):
            conv.name = f"side {number}"
            feature = conv(feature) + feature
        return feature


@pytest.mark.parametrize("condition", [None, "output"])
@pytest.mark.parametrize("group", [Hue(3), BOTH], ids=repr)
def test_all_levels_explore_the_same_images_with_the_same_windows(group: Group, condition: Condition | None) -> None:
    net, images = SmallNet(group, level=Variational(condition=condition, explore=0.5)), torch.rand(16, 3, 8, 8)
    first, *others = net(images).trace.values()
    explored = explored_images(first)
    assert 0 < int(explored.sum()) < 16
    for q in others:
        assert torch.equal(q.explored, first.explored)
        assert torch.equal(q.theta[explored], first.theta[explored])
        assert not torch.equal(q.theta[~explored], first.theta[~explored])
    assert not torch.equal(next(iter(net(images).trace.values())).explored, first.explored)


def test_branches_families_and_levels_without_exploration_do_not_break_the_chain() -> None:
    trace = Mixed(Rotations(4), 0.5)(torch.rand(16, 3, 8, 8)).trace
    drawn = [q for q in trace.values() if q.explored is not None]
    assert len(trace) == 5  # of which one is shared
    assert len(drawn) == 4
    explored = explored_images(drawn[0])
    assert 0 < int(explored.sum()) < 16
    for q in drawn[1:]:
        assert torch.equal(q.explored, drawn[0].explored)
        assert torch.equal(q.theta[explored], drawn[0].theta[explored])


def test_levels_of_a_converted_network_explore_together() -> None:
    plain = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
    )
    level = Variational(explore=0.5)
    net = convert(plain, Hue(3), level=level, levels=["0", "2"], example=torch.rand(2, 3, 12, 12)).train()
    one, two = net(torch.rand(16, 3, 12, 12)).trace.values()
    assert 0 < int(explored_images(one).sum()) < 16
    assert torch.equal(one.explored, two.explored)


def test_processes_explore_as_one_would(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same seed in each process, two halves of a batch get the draws of the whole."""
    level, feature = built(explore=0.5), many(Hue(3), 40)

    def drawn(processes: int, place: int) -> Tensor:
        monkeypatch.setattr(level_module, "processes", lambda: (processes, place))
        torch.manual_seed(2)
        part = feature.values.chunk(processes)[place]
        return level(feature.with_values(part)).explored

    assert torch.equal(torch.cat([drawn(2, 0), drawn(2, 1)]), drawn(1, 0))


@pytest.mark.parametrize("group", [Hue(3), BOTH], ids=repr)
def test_the_same_seed_gives_the_same_draws_with_and_without_a_generator(group: Group) -> None:
    level, feature = built(group, explore=0.5), many(group, 64)
    torch.manual_seed(5)
    without = level(feature).explored
    state = torch.get_rng_state()
    given = level(feature, torch.Generator().manual_seed(5)).explored
    assert torch.equal(torch.get_rng_state(), state)  # the generator is the only source
    assert torch.equal(given, without)
    assert not torch.equal(level(feature, torch.Generator().manual_seed(6)).explored, given)


def test_per_sample_gradients_with_exploration() -> None:
    """Under `vmap` each image draws its own window, and its own slope is what the encoder learns from."""
    level = built(explore=0.5)
    state = {key: value.detach() for key, value in level.named_parameters()}
    values = torch.randn(64, 1, 4, 3, 5, 5)

    def loss(parameters: dict[str, Tensor], one: Tensor) -> Tensor:
        feature = GroupFeature(one, Hue(3).grid(), None, Hue(3))
        return functional_call(level, parameters, (feature,)).theta.sum()

    found = vmap(grad(loss), in_dims=(None, 0), randomness="different")(state, values)["encoder.linear.bias"]
    assert found.shape == (64, KNOTS)
    closed, whole = found[:, 0] != 0, found[:, -1] != 0
    assert 5 < int(closed.sum()) < 30  # only drawn windows are at an end
    assert 3 < int(whole.sum()) < 25
    assert found.any(dim=1).all()


# ---------------------------------------------------------------- gradients


def test_images_teach_the_encoder_the_slope_at_the_width_they_had() -> None:
    """Of each image of each level, drawn windows included: predicted minus true slope, shared by the two next knots."""
    net = SmallNet(Hue(6), level=Variational(Window(0.6), explore=0.5))
    images, labels = torch.rand(16, 3, 8, 8), torch.randint(5, (16,))
    raws: list[Tensor] = []

    def keep(_module: nn.Module, _inputs: object, raw: Tensor) -> None:
        raw.retain_grad()
        raws.append(raw)

    for module in net.modules():
        if isinstance(module, InvariantEncoder):
            module.register_forward_hook(keep)
    prediction = net(images)
    levels = [module for module in net.modules() if isinstance(module, VariationalLevel)]
    priors = {q: level.prior.detach()[None] for q, level in zip(prediction.trace.values(), levels, strict=True)}  # type: ignore[union-attr]
    for q in prediction.trace.values():
        q.theta.retain_grad()
    Elbo.of(prediction, labels).total().backward()
    assert len(raws) == 4
    for raw, q in zip(raws, prediction.trace.values(), strict=True):
        assert raw.grad is not None
        assert q.theta.grad is not None
        opening = (q.theta.detach() - 1 / 6) / (1 - 1 / 6)
        true = q.theta.grad * (1 - 1 / 6)  # of the mean over the batch
        most = torch.maximum(INFLUENCE * true.abs().mean(dim=0), WORTH * slopes_at(priors[q], opening).abs() / 16)
        wrong = slopes_at(slopes_of(raw.detach()), opening) / 16 - true.clamp(-most, most)
        steep = 2 * (raw.detach().square() + CALM / 2) / (raw.detach().square() + CALM).sqrt()
        near = (1 - (opening - torch.linspace(0, 1, KNOTS)).abs() * (KNOTS - 1)).clamp_min(0)
        assert torch.allclose(raw.grad, wrong * near * steep, atol=1e-7)
        assert raw.grad[explored_images(q)].any()


@pytest.mark.parametrize("term", ["kl", "unused"])
def test_what_all_images_pay_teaches_the_prior(term: str) -> None:
    net = SmallNet(Hue(6), level=Variational(Window(0.6), explore=0.5))
    prediction = net(torch.rand(16, 3, 8, 8))
    getattr(Elbo.of(prediction, torch.randint(5, (16,))), term).backward()
    for module in net.modules():
        if isinstance(module, VariationalLevel):
            assert module.prior is not None
            assert module.prior.grad is not None
            assert module.prior.grad.any()
            assert all(parameter.grad is None for parameter in module.encoder.parameters())


def test_explored_images_teach_all_of_the_network() -> None:
    """A batch in which every window was drawn: what they leave unused is not in the loss, but its slopes are."""
    net = SmallNet(Hue(3), level=Variational(explore=1 - 1e-9))
    prediction = net(torch.rand(6, 3, 8, 8))
    assert all(explored_images(q).all() for q in prediction.trace.values())
    elbo = Elbo.of(prediction, torch.tensor([0, 1, 2, 3, 4, 0]))
    assert elbo.kl.item() == 0
    assert elbo.unused.item() == 0
    elbo.total().backward()
    for key, parameter in net.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.any(), key


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize("family", [RankedSoftmax(), GumbelSoftmax()], ids=repr)
def test_families_that_cannot_explore(family: Family) -> None:
    with pytest.raises(ValueError, match=rf"^{type(family).__name__}\(.* cannot draw windows at random"):
        built(family=family, explore=0.5)
    for share in (None, 0.0):
        level = built(family=family, explore=share)
        assert level.explore == 0.0
        assert level(many(Hue(3), 40)).explored is None


@pytest.mark.parametrize("share", [-0.1, 1.0, 1.5, float("nan")])
def test_a_share_is_from_zero_to_below_one(share: float) -> None:
    with pytest.raises(ValueError, match=f"explore is a share of the images, from 0 to below 1, got {share}"):
        Variational(explore=share)


# ---------------------------------------------------------------- reading


def test_sampled_readings_do_not_explore() -> None:
    images = torch.rand(6, 3, 8, 8)
    net = warm(SmallNet(Hue(3), level=Variational(Window(0.6), explore=0.9)), images)
    calm, sampled = read_levels(net, images).theta, read_levels(net, images, sampled=True).theta
    for layer, theta in calm.items():
        assert torch.equal(sampled[layer], theta)
    with pytest.raises(RuntimeError):
        read_levels(net, torch.rand(6, 3, 1, 1), sampled=True)
    assert {module.explore for module in net.modules() if isinstance(module, VariationalLevel)} == {0.9}


# ---------------------------------------------------------------- channels that the encoder does not see


def test_in_training_the_encoder_sees_a_random_half_of_the_channels_of_each_image() -> None:
    """The same half at all elements of an image, so that it stays invariant; all channels in evaluation."""
    level = Variational().build(Rotations(4), 64)
    seen: list[Tensor] = []
    level.encoder.first.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    feature = random_feature(Rotations(4), channels=64, batch=50, size=1)
    feature = feature.map(lambda values: values.abs() + 1)
    level.train()(feature)
    level.eval()(feature)
    noisy, whole = (each.reshape(50, 4, 3, 64) for each in seen)  # an element sees itself and its two neighbours
    assert bool((whole > 0).all())
    kept = noisy > 0
    assert torch.allclose(noisy[kept], 2 * whole[kept])  # the mean stays what it was
    assert torch.equal(kept, kept[:, :1, :1].expand_as(kept))
    of_image = kept[:, 0, 0]
    assert 0.45 < float(of_image.float().mean()) < 0.55
    assert not torch.equal(of_image[0], of_image[1])


@pytest.mark.parametrize(("channels", "explore"), [(64, 0.0), (16, 0.25)])
def test_narrow_features_and_levels_that_do_not_explore_drop_nothing(channels: int, explore: float) -> None:
    """In training, two decisions about the same image are the same; of 16 channels none can be spared."""
    level = Variational(explore=explore).build(Hue(3), channels)
    feature = random_feature(Hue(3), channels=channels, batch=20, size=1)
    assert torch.equal(level.encoder(feature), level.encoder(feature, keep=torch.ones(20, channels)))
    seen: list[Tensor] = []
    level.encoder.first.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    level.train()(feature)
    level.eval()(feature)
    assert torch.equal(*seen)
