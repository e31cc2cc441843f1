"""Exploration in training, the dial after it, the price of what is not in use, and how fast an encoder moves."""

import io
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from support import SmallNet, random_feature, set_theta, vary_theta, warm
from vpgcnn import (
    SO2,
    Full,
    Group,
    GroupFeature,
    GumbelSoftmax,
    Hue,
    Prediction,
    Product,
    RankedSoftmax,
    ReparametrizedWindow,
    Rotations,
    SampledWindow,
    Shared,
    Variational,
    Window,
    convert,
)
from vpgcnn.errors import UserError
from vpgcnn.levels import Family, InvariantEncoder, LevelSpec, VariationalLevel
from vpgcnn.levels import level as level_module
from vpgcnn.levels.distributions import WindowDistribution
from vpgcnn.levels.level import EXPLORE, Condition, set_dial
from vpgcnn.measure import read_levels
from vpgcnn.objective import PRICE, Elbo, Price

BOTH = Product(SO2(3), Hue(3))
"""Floors differ: 0.03 on the first axis, 1/3 on the second."""


def built(group: Group = Hue(3), *, family: Family | None = None, **options: float) -> VariationalLevel:  # noqa: B008
    return Variational(family or Window(0.6), **options).build(group, 4)


def many(group: Group, count: int) -> GroupFeature:
    return random_feature(group, batch=count, size=1)


def explored_images(q) -> Tensor:
    """`(B,)`: whether the window of each image was drawn."""
    assert q.explored is not None
    assert torch.equal(q.explored >= 0, (q.explored >= 0).all(dim=1, keepdim=True).expand_as(q.explored))
    return q.explored[:, 0] >= 0


# ---------------------------------------------------------------- what is drawn, and when


def test_evaluation_draws_nothing() -> None:
    images = torch.rand(8, 3, 8, 8)
    net = warm(SmallNet(Hue(3), level=Variational(Window(0.6), explore=0.9)), images)
    same = SmallNet(Hue(3), level=Variational(Window(0.6), explore=0.0)).eval()
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
        for end in (closed, opened):
            assert float(end.double().mean()) == pytest.approx(0.25, abs=0.015)
        between = scaled[~closed & ~opened].sort().values
        even = torch.linspace(0, 1, len(between))
        assert float((between - even).abs().max()) < 0.02  # Kolmogorov-Smirnov: below 1.63/√10000 in 99 %
        ends.append(closed)
    assert float((ends[0] & ends[1]).double().mean()) == pytest.approx(1 / 16, abs=0.01)
    whole = q.explored[:, 0] == -0.5
    assert float((q.theta.detach()[whole] - 0.6).abs().mean()) < 0.1  # the encoder's, near the start


def test_half_of_the_decided_windows_are_narrowed_evenly() -> None:
    level, feature = built(explore=0.25), many(Hue(3), 40_000)
    set_theta(level, 0.8)
    q = level(feature)
    decided = ~explored_images(q)
    narrowed = q.explored[:, 0] < -1
    assert float(narrowed[decided].double().mean()) == pytest.approx(0.5, abs=0.02)
    assert torch.allclose(q.theta[decided & ~narrowed], torch.tensor(0.8))
    left = ((q.theta[narrowed, 0] - 1 / 3) / (0.8 - 1 / 3)).detach().sort().values
    assert float((left - torch.linspace(0, 1, len(left))).abs().max()) < 0.02


def test_the_gradient_sees_beyond_a_flat_stretch() -> None:
    """A loss that is lower only for closed windows: flat at θ = 0.9, but narrowed windows find out."""

    def slope(share: float) -> float:
        level = built(explore=share)
        set_theta(level, 0.9)
        theta = level(many(Hue(3), 4000)).theta
        loss = (theta - 0.4).clamp(0, 0.2).mean()
        (found,) = torch.autograd.grad(loss, [level.encoder.linear.bias])
        return float(found)

    assert slope(0.0) == 0
    assert slope(0.25) > 0


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
    """Under `vmap` each image draws its own; those that explore give the encoder no gradient."""
    level = built(explore=0.5)
    state = {key: value.detach() for key, value in level.named_parameters()}
    values = torch.randn(64, 1, 4, 3, 5, 5)

    def loss(parameters: dict[str, Tensor], one: Tensor) -> Tensor:
        feature = GroupFeature(one, Hue(3).grid(), None, Hue(3))
        return functional_call(level, parameters, (feature,)).theta.sum()

    found = vmap(grad(loss), in_dims=(None, 0), randomness="different")(state, values)["encoder.linear.bias"]
    silent = int((found[:, 0] == 0).sum())
    assert 16 < silent < 48


# ---------------------------------------------------------------- gradients


@pytest.mark.parametrize("term", ["nll", "kl", "unused"])
def test_explored_images_teach_the_encoder_nothing(term: str) -> None:
    """The gradient at the encoder's output, for each image of each level: exactly 0 where the window was drawn."""
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
    explored = explored_images(prediction.trace["lift"])
    assert 0 < int(explored.sum()) < 16
    getattr(Elbo.of(prediction, labels), term).backward()
    assert len(raws) == 4
    for raw in raws:
        assert raw.grad is not None
        assert not raw.grad[explored].any()
        assert raw.grad[~explored].all()


def test_explored_images_teach_the_network() -> None:
    """A batch in which every window was drawn: all weights but those of the levels learn from the nll."""
    net = SmallNet(Hue(3), level=Variational(explore=1 - 1e-9))
    prediction = net(torch.rand(6, 3, 8, 8))
    assert all(explored_images(q).all() for q in prediction.trace.values())
    elbo = Elbo.of(prediction, torch.tensor([0, 1, 2, 3, 4, 0]))
    assert elbo.kl.item() == 0
    assert elbo.unused.item() == 0
    elbo.total().backward()
    for key, parameter in net.named_parameters():
        if ".level." in key:
            assert parameter.grad is None or not parameter.grad.any(), key
        else:
            assert parameter.grad is not None, key
            assert parameter.grad.any(), key


def test_outliers_among_the_images_do_not_decide_for_all() -> None:
    """An image's gradient is at most `INFLUENCE` times the mean of those that are not 0, on each axis."""
    from vpgcnn.levels.families import INFLUENCE, tempered

    given = torch.tensor([[1.0, 0.0], [-1.0, 0.2], [0.5, -0.2], [0.0, 0.1], *[[1.0, 0.1]] * 4, [-91.5, 0.0]])
    parameters = torch.rand(9, 2, requires_grad=True)
    same = tempered(parameters)
    assert torch.equal(same, parameters)
    (found,) = torch.autograd.grad(same, parameters, given)
    assert torch.equal(found[:8], given[:8])
    assert found[8].tolist() == pytest.approx([-INFLUENCE * 98 / 8, 0.0])
    (alone,) = torch.autograd.grad(tempered(parameters), parameters, given[8:].expand(9, 2))
    assert torch.equal(alone, given[8:].expand(9, 2))  # where all are alike, there is no outlier


@pytest.mark.parametrize("share", [0.0, 0.25])
def test_the_gradients_of_levels_that_explore_are_free_of_outliers(share: float) -> None:
    from vpgcnn.levels.families import INFLUENCE

    level, raws = built(explore=share), []
    level.encoder.register_forward_hook(lambda _module, _inputs, raw: raws.append(raw))
    q = level(many(Hue(3), 40))
    decided = torch.ones(40, dtype=torch.bool) if q.explored is None else ~explored_images(q)
    outlier = int(decided.nonzero()[0])
    pull = torch.ones(40, 1)
    pull[outlier] = 1000.0
    (found,) = torch.autograd.grad((q.theta * pull).sum(), raws)
    left = torch.ones(40) if q.explored is None else torch.where(q.explored[:, 0] < -1, -1 - q.explored[:, 0], 1.0)
    pull = pull * left[:, None]  # of narrowed windows
    mean = pull[decided].mean()
    assert found[outlier].item() == pytest.approx(
        min(pull[outlier].item(), INFLUENCE * mean.item()) if share else 1000.0
    )
    decided[outlier] = False
    assert torch.allclose(found[decided], pull[decided])


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
    vary_theta(level, 0.02)
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


# ---------------------------------------------------------------- what is not in use, and its price


@pytest.mark.parametrize("group", [Hue(3), SO2(4), BOTH], ids=repr)
def test_unused_is_what_is_missing_of_each_axis(group: Group) -> None:
    axes = len(group.axes)
    theta = (0.4 + 0.5 * torch.rand(5, axes)).requires_grad_()
    unused = WindowDistribution(group, theta).unused()
    assert torch.allclose(unused, axes - theta.sum(dim=1))
    (gradient,) = torch.autograd.grad(unused.sum(), theta)
    assert torch.equal(gradient, -torch.ones(5, axes))
    assert torch.equal(WindowDistribution(group, torch.ones(2, axes)).unused(), torch.zeros(2))


@pytest.mark.parametrize("family", [RankedSoftmax(initial=0.5), GumbelSoftmax(initial=0.5)], ids=repr)
def test_unused_of_other_families_is_a_share_that_their_kl_determines(family: Family) -> None:
    level = built(family=family).eval()
    q = level(many(Hue(3), 20))
    assert torch.allclose(q.unused(), 1 - torch.exp(-q.kl()))
    assert ((q.unused() > 0) & (q.unused() < 1)).all()


def test_explored_images_cost_nothing() -> None:
    """In `Prediction.kl` and `.unused`; the others count as without exploration, over all levels that are learned."""
    net = SmallNet(BOTH, levels=[Variational(explore=0.5), Full(), Shared(), Variational(explore=0.5)])
    prediction = net(torch.rand(16, 3, 8, 8))
    own = [prediction.trace[layer] for layer in ("lift", "convs.2")]
    explored = explored_images(own[0])
    assert 0 < int(explored.sum()) < 16
    theta = torch.cat([q.theta for q in own], dim=1)
    assert theta[explored].min() < 0.5
    for found, each in ((prediction.kl, -theta.log().sum(dim=1)), (prediction.unused, (1 - theta).sum(dim=1))):
        assert not found[explored].any()
        assert torch.allclose(found[~explored], each[~explored], atol=1e-6)
        assert found[~explored].all()


def two_levels(*thetas: list[float], regularised: bool = True) -> Prediction:
    trace = {
        f"conv{number}": WindowDistribution(Hue(3), torch.tensor(theta).unsqueeze(1), regularised=regularised)
        for number, theta in enumerate(thetas)
    }
    return Prediction(torch.tensor([[0.2, -0.1], [0.4, 1.0]]), trace)


def test_the_default_loss_is_the_nll_and_the_price_of_what_is_not_in_use() -> None:
    """The mean over images and levels: of two levels, each counts half."""
    labels = torch.tensor([0, 1])
    for thetas, unused in (([[0.5, 0.7]], 0.4), ([[0.5, 0.7], [1.0, 1.0]], 0.2), ([[0.5, 0.7], [0.4, 0.4]], 0.5)):
        prediction = two_levels(*thetas)
        elbo, nll = Elbo.of(prediction, labels), F.cross_entropy(prediction.logits, labels)
        assert float(elbo.unused) == pytest.approx(unused)
        assert torch.equal(elbo.nll, nll)
        assert float(elbo.total()) == pytest.approx(float(nll) + PRICE * unused)
        assert float(Price(0.3).loss(elbo, 0.5)) == pytest.approx(float(nll) + 0.3 * unused)
        assert torch.equal(Price().loss(elbo, 0.5), elbo.total())
        assert float(elbo.total(0.3)) == pytest.approx(float(nll) + 0.3 * float(elbo.kl))


def test_levels_that_are_not_in_the_loss_cost_nothing() -> None:
    labels = torch.tensor([0, 1])
    for prediction in (two_levels(), two_levels([0.5, 0.7], regularised=False)):
        elbo = Elbo.of(prediction, labels)
        assert float(elbo.unused) == 0
        assert torch.equal(elbo.total(), elbo.nll)
    quiet = two_levels([0.4, 0.4], regularised=False).trace["conv0"]
    both = Prediction(torch.zeros(2, 2), {**two_levels([0.5, 0.7]).trace, "quiet": quiet})
    assert float(Elbo.of(both, labels).unused) == pytest.approx(0.4)  # not halved by the level that does not count


@pytest.mark.parametrize("nats", [-0.01, float("nan")])
def test_a_price_is_not_negative(nats: float) -> None:
    with pytest.raises(UserError, match=f"a price must not be negative, got {nats}"):
        Price(nats)


def test_a_price_does_not_change() -> None:
    price = Price(0.2)
    assert price.after(nll=3.0, kl=2.0) == price
    assert price.at(0.0) == price.at(1.0) == 0.2


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


# ---------------------------------------------------------------- the encoder's speed


def speed(width: int, *, last_alone: bool, repeats: int = 5) -> tuple[float, float]:
    """How far one Adam step moves an encoder's answers to 32 images: what is common to all, and the deviation."""
    common, apart = 0.0, 0.0
    for seed in range(repeats):
        torch.manual_seed(seed)
        encoder = InvariantEncoder(Hue(3), 8, torch.tensor([0.6]), width)
        feature, target = random_feature(Hue(3), channels=8, batch=32), torch.randn(32, 1)
        optimiser = torch.optim.Adam((encoder.linear if last_alone else encoder).parameters(), 1e-3)
        before = encoder(feature)
        (before * target).sum().backward()
        optimiser.step()
        with torch.no_grad():
            moved = encoder(feature) - before
        common += moved.mean().abs().item() / repeats
        apart += moved.std().item() / repeats
    return common, apart


@pytest.mark.parametrize(("last_alone", "factor"), [(True, 3.0), (False, 10.0)], ids=["last layer", "all layers"])
def test_the_answers_of_wide_and_narrow_encoders_move_equally_fast(last_alone: bool, factor: float) -> None:
    """By 0.5 to 5 % of the circle in a step of 0.001, in common and for single images.

    The last layer alone: the same for all widths. The layers before it add to the speed of wide encoders.
    """
    found = {width: speed(width, last_alone=last_alone) for width in (4, 32, 256)}
    for part in zip(*found.values(), strict=True):
        assert max(part) < factor * min(part), found
        assert all(0.005 < value < 0.05 for value in part), found


@pytest.mark.parametrize("width", [4, 32, 256])
def test_an_encoder_begins_at_its_start_whatever_its_width(width: int) -> None:
    start = torch.tensor([0.6, 0.4])
    encoder = InvariantEncoder(Hue(3), 8, start, width)
    raw = encoder(random_feature(Hue(3), channels=8, batch=64))
    assert torch.allclose(raw.mean(dim=0), start, atol=1e-5)  # what is added has mean 0
    assert 0.01 < raw.std(dim=0).mean() < 0.2


def test_the_dial_acts_in_evaluation_only() -> None:
    """Training, and fine-tuning after it, is that of the windows as learned: the encoder keeps its gradient."""
    level, feature = built(explore=0.0), many(Hue(3), 8)
    before = level.train()(feature).theta
    level.dial.fill_(1.0)
    assert torch.equal(level(feature).theta, before)
    level(feature).theta.sum().backward()
    assert level.encoder.linear.bias.grad is not None
    assert bool(level.encoder.linear.bias.grad.any())
    assert bool((level.eval()(feature).theta == 1).all())


def test_weights_of_an_encoder_without_scale_are_refused_even_if_keys_may_be_missing() -> None:
    level = built()
    older = {name: value for name, value in level.state_dict().items() if not name.endswith("start")}
    with pytest.raises(UserError, match="encoder is from an older version"):
        level.load_state_dict(older, strict=False)
