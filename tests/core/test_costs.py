"""Curves of what a window costs: their lowest point, and that levels learn them."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from support import built, many
from vpgcnn import SO2, GroupFeature, Hue, Product, Rotations, Variational, Window
from vpgcnn.levels import VariationalLevel, set_dial
from vpgcnn.levels.costs import INFLUENCE, KNOTS, WORTH, bowl, cheapest, decided, drawn, slopes_at, slopes_of, teach

# ---------------------------------------------------------------- the lowest point

FINE = torch.linspace(0, 1, 100 * (KNOTS - 1) + 1, dtype=torch.float64)


def cost(slopes: Tensor, opening: Tensor) -> Tensor:
    """The area under slopes `(KNOTS,)` up to each opening, by a sum over a fine grid."""
    at = slopes_at(slopes.expand(1, len(FINE), KNOTS), FINE[None])[0]
    area = torch.cat([at.new_zeros(1), ((at[1:] + at[:-1]) / 2 * FINE.diff()).cumsum(0)])
    place = opening * (len(FINE) - 1)
    below = place.long().clamp_max(len(FINE) - 2)
    return area[below] + (place - below) * (area[below + 1] - area[below])


@given(st.lists(st.sampled_from([-1.0, -0.3, 0.0, 0.2, 1.5]), min_size=KNOTS, max_size=KNOTS))
def test_it_is_the_widest_of_those_that_cost_least(numbers: list[float]) -> None:
    slopes = torch.tensor(numbers, dtype=torch.float64)
    costs = cost(slopes, FINE)
    found = cheapest(slopes.expand(2, 1, KNOTS))
    assert found.shape == (2, 1)
    assert float(found[0, 0]) == float(found[1, 0])
    assert 0 <= float(found[0, 0]) <= 1
    assert float(cost(slopes, found[0])) <= float(costs.min()) + 1e-5  # of a parabola, on a grid
    assert float(found[0, 0]) >= float(FINE[costs <= costs.min() + 1e-12].max()) - float(FINE[1])


@pytest.mark.parametrize(
    ("slopes", "expected"),
    [
        (lambda t: 0 * t, 1.0),  # nothing is known against the whole group
        (lambda t: 0 * t + 1, 0.0),
        (lambda t: t - 0.3, 0.3),
        (lambda t: torch.where(t < 0.5, -0.1 + 0 * t, 1 + 0 * t), 0.375 + 0.1 / 1.1 / 8),
        (lambda t: torch.where(t < 0.7, 0.1 + 0 * t, -1 + 0 * t), 1.0),  # over a hill
        (lambda t: torch.where(t < 0.3, 1 + 0 * t, -0.1 + 0 * t), 0.0),  # a dip that does not pay
    ],
    ids=["flat", "rising", "valley", "wall", "hill", "dip"],
)
def test_it_sees_all_widths(slopes: Callable[[Tensor], Tensor], expected: float) -> None:
    knots = torch.linspace(0, 1, KNOTS, dtype=torch.float64)
    assert float(cheapest(slopes(knots)[None, None])) == pytest.approx(expected, abs=1e-7)


NUMBERS = st.one_of(st.sampled_from([-1.0, -0.1, 0.0, 0.1, 1.0]), st.floats(-2, 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(
    st.lists(NUMBERS, min_size=3 * 2 * KNOTS, max_size=3 * 2 * KNOTS),
    st.lists(NUMBERS, min_size=2 * KNOTS, max_size=2 * KNOTS),
)
def test_windows_that_are_read_are_those_of_tensors(
    dtype: torch.dtype, answers: list[float], common: list[float]
) -> None:
    """Costs of two widths may differ by less than rounding: then another rounding would choose another window."""
    raw, prior = torch.tensor(answers, dtype=dtype).view(3, -1), torch.tensor(common, dtype=dtype).view(2, KNOTS)
    for scale in (1.0, 1e-2):
        expected = cheapest(slopes_of(raw * scale) + prior * scale)
        assert torch.allclose(decided(raw * scale, prior * scale), expected, rtol=0, atol=4 * torch.finfo(dtype).eps)
    assert decided(raw.bfloat16(), prior.bfloat16()).dtype == torch.float32
    assert decided(raw[:0], prior).shape == (0, 2)


@pytest.mark.parametrize("images", [1, 64])
def test_levels_decide_the_same_with_gradients_and_without(images: int) -> None:
    level = Variational().build(Product(SO2(8), Hue(3)), 4).double().eval()
    assert level.prior is not None
    torch.nn.init.normal_(level.encoder.linear.weight)
    torch.nn.init.normal_(level.prior, mean=-0.05, std=0.2)
    grid = level.group.grid(dtype=torch.float64)
    feature = GroupFeature(torch.randn(images, 4, len(grid), 5, 5, dtype=torch.float64), grid, None, level.group)
    expected = level(feature)
    with torch.no_grad():
        found = level(feature)
        set_dial(level, -0.5)
        closer = level(feature)
    assert torch.allclose(found.theta, expected.theta, rtol=0, atol=1e-12)
    assert torch.allclose(found.kl(), expected.kl(), rtol=0, atol=1e-12)
    assert torch.allclose(found.unused(), expected.unused(), rtol=0, atol=1e-12)
    assert (closer.theta < found.theta).all()
    assert images == 1 or float(found.theta.std(dim=0).max()) > 0.01


@pytest.mark.parametrize("opening", [0.0, 0.2, 0.77, 1.0])
def test_a_bowl_is_lowest_where_it_should_be(opening: float) -> None:
    found = cheapest(slopes_of(bowl(torch.tensor([[opening, 1 - opening]], dtype=torch.float64))))
    assert found[0].tolist() == pytest.approx([opening, 1 - opening], abs=1e-7)


def test_drawn_openings_cover_the_range() -> None:
    openings = drawn(torch.linspace(0, 1, 8001)[:-1])
    assert [float((openings == end).double().mean()) for end in (0, 1)] == pytest.approx([3 / 8, 1 / 4], abs=1e-3)


# ---------------------------------------------------------------- learning


def test_teaching_changes_no_number_and_its_gradient_is_that_of_a_regression() -> None:
    opening, predicted = 0.5 + torch.rand(5, 2) / 2, torch.randn(5, 2, requires_grad=True)
    pull = torch.tensor([[1.0, -0.5], [0.5, 1.0], [-1.0, 0.4], [0.6, -0.7], [-0.8, 1.0]])

    def loss(openings: Tensor) -> Tensor:
        return (openings.square() * pull).sum(dim=1).mean()

    taught = teach(opening, predicted)
    assert torch.equal(taught, opening)
    (found,) = torch.autograd.grad(loss(taught), predicted)
    true = 2 * opening * pull
    (expected,) = torch.autograd.grad(((predicted - true).square() / 2).sum(dim=1).mean(), predicted)
    assert torch.allclose(found, expected, atol=1e-7)


def test_an_outlier_does_not_decide_for_all() -> None:
    predicted = torch.zeros(100, 1, requires_grad=True)
    pull = torch.full((100, 1), 0.1)
    pull[0] = -500.0
    (found,) = torch.autograd.grad((teach(torch.rand(100, 1), predicted, torch.tensor(-0.05)) * pull).mean(), predicted)
    most = INFLUENCE * (500 + 99 * 0.1) / 100
    assert most > WORTH * 0.05
    assert float(found[0]) == pytest.approx(most / 100)
    assert torch.allclose(found[1:], torch.tensor(-0.1 / 100))


LOSSES: dict[str, tuple[Callable[[Tensor], Tensor], float]] = {
    "wall": (lambda t: 4 * (t - 0.5).clamp_min(0) - 0.2 * t, 0.5),
    "hill, open better": (lambda t: 0.2 * torch.sin(math.pi * t) - 0.1 * t, 1.0),
    "hill, closed better": (lambda t: 0.2 * torch.sin(math.pi * t) + 0.1 * t, 0.0),
    "free": (lambda t: -0.05 * t, 1.0),
}


def opening_of(level: VariationalLevel, feature: GroupFeature) -> Tensor:
    closed, whole = level.family.opened(torch.tensor([[0.0], [1.0]]), level.group)
    with torch.no_grad():
        return (level.eval()(feature).theta - closed) / (whole - closed)


@pytest.mark.parametrize("start", [0.4, 0.95])
@pytest.mark.parametrize("name", LOSSES)
def test_a_level_finds_the_best_width_from_any_start(name: str, start: float) -> None:
    """Also beyond a flat stretch and over a hill, where the slope at the window's own width leads away from it."""
    (loss, best), feature = LOSSES[name], many(Rotations(4), 64)
    level = built(Rotations(4), family=Window(start), explore=0.5)
    optimiser = torch.optim.Adam(level.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(250):
        optimiser.zero_grad()
        theta = level.train()(feature, generator).theta
        loss((theta - 0.25) / 0.75).mean().backward()
        optimiser.step()
    assert float((opening_of(level, feature) - best).abs().mean()) < 0.1


def test_images_that_differ_get_windows_that_differ() -> None:
    """Half of the images lose by opening, half gain, and no image is ever told its best width."""
    feature = many(Hue(3), 128)
    bound = torch.arange(128) % 2 == 0
    feature = feature.with_values(feature.values + 2.0 * bound.view(-1, 1, 1, 1, 1))
    level = built(explore=0.5)
    optimiser = torch.optim.Adam(level.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        optimiser.zero_grad()
        theta = level.train()(feature, generator).theta[:, 0]
        torch.where(bound, 0.7 * theta, -0.2 * theta).mean().backward()
        optimiser.step()
    opening = opening_of(level, feature)[:, 0]
    assert float(opening[bound].mean()) < 0.05
    assert float(opening[~bound].mean()) > 0.95


def test_the_loss_may_be_a_sum_or_in_parts() -> None:
    """A multiple of the loss has the same lowest point."""
    openings = []
    for factor in (1.0, 64.0):
        level, feature = built(Rotations(4), explore=0.5), many(Rotations(4), 64)
        optimiser = torch.optim.Adam(level.parameters(), lr=1e-2)
        generator = torch.Generator().manual_seed(0)
        for _ in range(300):
            optimiser.zero_grad()
            theta = level.train()(feature, generator).theta
            (factor * LOSSES["wall"][0]((theta - 0.25) / 0.75)).mean().backward()
            optimiser.step()
        openings.append(float(opening_of(level, feature).mean()))
    assert openings == pytest.approx([0.5, 0.5], abs=0.1)


def test_what_is_the_same_for_all_images_is_learned_apart_from_their_losses() -> None:
    """The price is no matter of the encoder: its slopes end where the price is, and windows at the best width."""
    level, feature = built(Rotations(4), explore=0.5), many(Rotations(4), 64)
    assert level.prior is not None
    optimiser = torch.optim.Adam(level.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        optimiser.zero_grad()
        q = level.train()(feature, generator)
        (0.3 * q.unused() + 2 * ((q.theta[:, 0] - 0.25) / 0.75 - 0.5).clamp_min(0)).mean().backward()
        assert level.prior.grad is not None
        optimiser.step()
    assert torch.allclose(level.prior, torch.tensor(-0.3), atol=0.15)
    assert float((opening_of(level, feature) - 0.5).abs().mean()) < 0.1


@pytest.mark.parametrize("group", [Hue(3), SO2(4)], ids=repr)
def test_evaluation_teaches_too_where_gradients_are_wanted(group: Hue | SO2) -> None:
    """As in fine-tuning with norms in evaluation mode."""
    level = Variational().build(group, 4).eval()
    level(many(group, 6)).theta.sum().backward()
    assert level.encoder.linear.bias.grad is not None
    assert level.encoder.linear.bias.grad.any()
