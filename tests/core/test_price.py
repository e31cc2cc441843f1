"""The price of what is not in use, and how fast an encoder moves."""

import pytest
import torch
import torch.nn.functional as F

from support import BOTH, SmallNet, built, explored_images, many, random_feature
from vpgcnn import (
    SO2,
    Dihedral,
    Full,
    Group,
    GumbelSoftmax,
    Hue,
    Prediction,
    RankedSoftmax,
    Shared,
    Variational,
)
from vpgcnn.errors import UserError
from vpgcnn.levels import Family, InvariantEncoder
from vpgcnn.levels.distributions import WindowDistribution
from vpgcnn.objective import PRICE, Elbo, Price

# ---------------------------------------------------------------- what is not in use, and its price


@pytest.mark.parametrize(
    ("group", "narrowest"), [(Hue(3), [1 / 3]), (SO2(4), [0.0]), (BOTH, [0.0, 1 / 3]), (Dihedral(1), [1.0, 0.5])]
)
def test_unused_goes_from_the_whole_of_an_axis_to_one_element(group: Group, narrowest: list[float]) -> None:
    """In proportion, and for each axis alike: a mirror is worth as much as a circle. One element is always in use."""
    low = torch.tensor(narrowest)
    movable = (low < 1).float()
    share = torch.rand(5, len(narrowest))
    theta = (low + (1 - low) * share).requires_grad_()
    assert torch.allclose(WindowDistribution(group, theta).unused(), ((1 - share) * movable).sum(dim=1), atol=1e-6)
    assert torch.equal(WindowDistribution(group, torch.ones(2, len(narrowest))).unused(), torch.zeros(2))
    assert torch.allclose(WindowDistribution(group, low[None]).unused(), movable.sum()[None], atol=1e-6)
    (gradient,) = torch.autograd.grad(WindowDistribution(group, theta).unused().sum(), theta)
    assert torch.allclose(gradient[:, low < 1], (-1 / (1 - low[low < 1])).expand(5, -1))


@pytest.mark.parametrize("family", [RankedSoftmax(initial=0.5), GumbelSoftmax(initial=0.5)], ids=repr)
def test_unused_of_other_families_is_a_share_that_their_kl_determines(family: Family) -> None:
    level = built(family=family).eval()
    q = level(many(Hue(3), 20))
    assert torch.allclose(q.unused(), (1 - torch.exp(-q.kl())) * 3 / 2)
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
    unused = torch.stack([q.unused() for q in own]).sum(dim=0)
    for found, each in ((prediction.kl, -theta.log().sum(dim=1)), (prediction.unused, unused)):
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
    for thetas, unused in (([[0.5, 0.7]], 0.6), ([[0.5, 0.7], [1.0, 1.0]], 0.3), ([[0.5, 0.7], [0.4, 0.4]], 0.75)):
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
    assert float(Elbo.of(both, labels).unused) == pytest.approx(0.6)  # not halved by the level that does not count


@pytest.mark.parametrize("nats", [-0.01, float("nan")])
def test_a_price_is_not_negative(nats: float) -> None:
    with pytest.raises(UserError, match=f"a price must not be negative, got {nats}"):
        Price(nats)


def test_a_price_does_not_change() -> None:
    price = Price(0.2)
    assert price.after(nll=3.0, kl=2.0) == price
    assert price.at(0.0) == price.at(1.0) == 0.2


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
