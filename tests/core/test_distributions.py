import itertools
import math
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from support import name
from vpgcnn import (
    O2,
    SO2,
    Dihedral,
    Group,
    GumbelSoftmax,
    Hue,
    Product,
    RankedSoftmax,
    Rotations,
    SampledWindow,
    Shared,
    Window,
)
from vpgcnn.levels.distributions import (
    GumbelDistribution,
    RankedDistribution,
    WindowDistribution,
    midpoints,
    stratified,
)
from vpgcnn.levels.families import bound

THETA = st.floats(0.01, 1.0)
WINDOW_GROUPS: list[Group] = [
    SO2(5),
    SO2(8),
    Rotations(4),
    Hue(3),
    Hue(6),
    Dihedral(3),
    O2(4),
    Product(SO2(4), Hue(3)),
]
windows = pytest.mark.parametrize("group", WINDOW_GROUPS, ids=name)


def window(group: Group, *theta: float) -> WindowDistribution:
    values = theta if len(theta) == len(group.axes) else theta * len(group.axes)
    return WindowDistribution(group, torch.tensor([values], dtype=torch.float64))


def grid(group: Group, offset: float = 0.0) -> torch.Tensor:
    return group.grid(0.0 if group.order else offset, dtype=torch.float64)


# ---------------------------------------------------------------- the window


@windows
@given(theta=THETA, offset=st.floats(0, 2 * math.pi))
def test_weights_are_a_distribution(group: Group, theta: float, offset: float) -> None:
    weights = window(group, theta).weights(grid(group, offset))
    assert (weights >= 0).all()
    assert weights.sum().item() == pytest.approx(1.0, abs=1e-12)


@windows
def test_theta_one_is_exactly_uniform(group: Group) -> None:
    weights = window(group, 1.0).weights(grid(group))
    assert torch.allclose(weights, torch.full_like(weights, 1 / weights.numel()), atol=1e-15)


@pytest.mark.parametrize("group", [Rotations(4), Hue(3), Hue(6)], ids=name)
def test_theta_of_one_cell_leaves_the_identity_alone(group: Group) -> None:
    assert group.order is not None
    for theta in (1 / group.order, 0.5 / group.order, 0.0):
        weights = window(group, theta).weights(grid(group))
        assert weights[0, 0].item() == pytest.approx(1.0, abs=1e-12)
        assert weights[0, 1:].abs().max() < 1e-12


@windows
@pytest.mark.parametrize("theta", [0.13, 0.4, 0.77])
def test_weights_match_monte_carlo(group: Group, theta: float) -> None:
    """Angles drawn uniformly from the window fall into the cells as often as the weights say."""
    cells = grid(group, 0.3)
    draws = (torch.rand(200_000, len(group.axes), dtype=torch.float64) * 2 - 1) * math.pi * theta
    counts = group.counts
    flat = torch.zeros(len(draws), dtype=torch.long)
    offsets = cells[0]  # the first cell's centre on each axis
    for axis, count in enumerate(counts):
        step = 2 * math.pi / count
        flat = flat * count + ((draws[:, axis] - offsets[axis]) / step).round().long() % count
    frequency = torch.bincount(flat, minlength=len(cells)) / len(draws)
    assert torch.allclose(window(group, theta).weights(cells)[0], frequency.double(), atol=0.006)


@pytest.mark.parametrize("theta", [0.11, 0.35, 0.5, 0.81, 0.97])
@pytest.mark.parametrize("points", [3, 4, 7])
def test_gradient_is_the_derivative_of_the_window_average(theta: float, points: int) -> None:
    """d/dθ Σ w_j h_j for h constant on cells: ((h(πθ) + h(−πθ))/2 − mean) / θ, by calculus."""
    group = SO2(points)
    cells, h = grid(group, 0.37), torch.randn(points, dtype=torch.float64)
    level = torch.tensor([[theta]], dtype=torch.float64, requires_grad=True)
    mean = (WindowDistribution(group, level).weights(cells) * h).sum()
    (slope,) = torch.autograd.grad(mean, level)

    def value_at(angle: float) -> float:
        gap = torch.remainder(cells[:, 0] - angle + math.pi, 2 * math.pi) - math.pi
        return float(h[gap.abs().argmin()])

    ends = (value_at(math.pi * theta) + value_at(-math.pi * theta)) / 2
    assert slope.item() == pytest.approx((ends - mean.item()) / theta, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("group", [Hue(3), Rotations(4), SO2(8), SO2(5)], ids=name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_full_window_feels_its_edge(group: Group, dtype: torch.dtype) -> None:
    """At θ = 1 the gradient is the one-sided derivative: a window that was opened can close again."""
    level = torch.ones(1, 1, dtype=dtype, requires_grad=True)
    weights = WindowDistribution(group, level).weights(group.grid(dtype=dtype))
    (slope,) = torch.autograd.grad(weights[0, 0], level)
    step = 1e-3
    below = window(group, 1 - step).weights(grid(group))[0, 0].item()
    assert slope.item() == pytest.approx((1 / weights.numel() - below) / step, rel=0.01)
    assert slope.item() < -0.1


@given(theta=THETA)
def test_window_kl_is_the_integral(theta: float) -> None:
    """∫ q log(q/p) with q = 1/(2πθ) on the window and p = 1/2π."""
    angle = torch.linspace(-math.pi, math.pi, 200_001, dtype=torch.float64)
    density = (angle.abs() <= math.pi * theta).double() / (2 * math.pi * theta)
    integral = torch.trapezoid(torch.xlogy(density, density * 2 * math.pi), angle)
    assert window(SO2(), theta).kl().item() == pytest.approx(float(integral), abs=2e-3, rel=2e-3)


@windows
@given(theta=THETA)
def test_cells_know_less_than_the_angle(group: Group, theta: float) -> None:
    q = window(group, theta)
    weights = q.weights(grid(group))
    cells = math.log(weights.shape[1]) + torch.xlogy(weights, weights).sum()
    assert -1e-9 <= cells.item() <= q.kl().item() + 1e-9


@pytest.mark.parametrize("theta", [0.3, 0.5, 0.84, 0.95])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_loses_no_element(theta: float, dtype: torch.dtype) -> None:
    """An element that a window covers by a tenth of its weight is not within rounding error of its edge."""
    group = SO2(4)
    exact = WindowDistribution(group, torch.tensor([[theta]])).weights(group.grid())
    half = WindowDistribution(group, torch.tensor([[theta]], dtype=dtype)).weights(group.grid().to(dtype))
    assert half.dtype == dtype
    assert torch.allclose(half.float(), exact, atol=0.01)


def test_axes_are_independent() -> None:
    group = Product(Rotations(4), Hue(3))
    joint = window(group, 0.6, 0.5)
    one, two = window(Rotations(4), 0.6), window(Hue(3), 0.5)
    outer = torch.outer(one.weights(grid(Rotations(4)))[0], two.weights(grid(Hue(3)))[0])
    assert torch.allclose(joint.weights(grid(group))[0], outer.flatten())
    assert joint.kl().item() == pytest.approx(one.kl().item() + two.kl().item())


def test_samples_stay_in_the_window_and_fill_it() -> None:
    q = WindowDistribution(SO2(), torch.tensor([[0.3], [1.0]]))
    drawn = q.sample(stratified(1000, 1, q.theta))
    assert drawn.shape == (2, 1000, 1)
    assert (drawn.abs().amax(dim=1)[:, 0] <= math.pi * q.theta[:, 0]).all()
    assert torch.allclose(drawn.var(dim=1)[:, 0], (math.pi * q.theta[:, 0]) ** 2 / 3, rtol=0.02)
    assert midpoints(4, 1, q.theta).flatten().tolist() == pytest.approx([-0.75, -0.25, 0.25, 0.75])


@pytest.mark.parametrize("theta", [-0.1, 1.2, float("nan")])
def test_theta_outside_the_unit_interval_is_refused(theta: float) -> None:
    with pytest.raises(ValueError, match=rf"theta must be in \[0, 1\], got {theta}"):
        WindowDistribution(SO2(), torch.tensor([[0.5], [theta]], dtype=torch.float64))


def test_bounds_can_be_reached_and_left_again() -> None:
    raw = torch.tensor([[1.3], [1.3], [0.5], [-0.2], [-0.2]], requires_grad=True)
    out = bound(raw, [0.1], 1.0)
    assert out.flatten().tolist() == pytest.approx([1.0, 1.0, 0.5, 0.1, 0.1])
    out.backward(torch.tensor([[1.0], [-1.0], [2.0], [1.0], [-1.0]]))
    # Gradient descent moves against the gradient: only what would go further outside is stopped.
    assert raw.grad is not None
    assert raw.grad.flatten().tolist() == [1.0, 0.0, 2.0, 0.0, -1.0]


# ---------------------------------------------------------------- ranks


def ranked(m: int, theta: float, noise: str = "ranked", keys: torch.Tensor | None = None) -> RankedDistribution:
    batch = 1 if keys is None else len(keys)
    beta = torch.full((batch, 1), 1 / theta, dtype=torch.float64)
    return RankedDistribution(Hue(m), beta, m, 1 / (m * (m + 1)), noise, keys)  # type: ignore[arg-type]


def test_the_papers_worked_example() -> None:
    """m = 3, threshold 0.25: θ = 1 selects u1, θ = 3 selects u1 and u2 (one of the two neighbours)."""
    elements = Hue(3).grid(dtype=torch.float64)
    soft = ranked(3, 1.0)._ladder(torch.tensor([3.0, 2.0, 1.0], dtype=torch.float64))[0]
    assert soft[0].tolist() == pytest.approx([0.67, 0.24, 0.09], abs=0.005)
    soft = ranked(3, 3.0)._ladder(torch.tensor([3.0, 2.0, 1.0], dtype=torch.float64))[0]
    assert soft[0].tolist() == pytest.approx([0.45, 0.32, 0.23], abs=0.005)
    assert ranked(3, 1.0).weights(elements).tolist() == [[1.0, 0.0, 0.0]]
    assert ranked(3, 3.0).weights(elements).tolist() == [[0.5, 0.5, 0.0]]


@pytest.mark.parametrize("m", [2, 3, 4, 6, 12])
def test_ranked_levels_reach_both_ends_and_grow_in_between(m: int) -> None:
    family = RankedSoftmax()
    raw = torch.linspace(0, 10, 400, dtype=torch.float64).unsqueeze(1)
    beta = family.bounded(raw, Hue(m))
    q = family.distribution(beta, Hue(m), noisy=False, generator=None)
    elements = Hue(m).grid(dtype=torch.float64)
    weights = q.weights(elements)
    number = (weights > 0).sum(dim=1)
    assert number[0] == m
    assert number[-1] == 1
    assert (number[1:] <= number[:-1]).all()
    # What is kept is always nearest to the identity: the identity, then one neighbour, and so on.
    near = Hue(m).angle(elements)
    for row in weights:
        assert near[row > 0].max() <= near[row == 0].min() + 1e-5 if (row == 0).any() else True


def test_exchangeable_noise_is_the_same_for_every_element() -> None:
    """The literal formula: whatever θ, every element is kept equally often, and the choice made for
    a shifted image is distributed like the shifted choice. It cannot express partial equivariance."""
    keys = torch.rand(60_000, 3, dtype=torch.float64)
    for theta in (0.3, 1.0, 5.0):
        weights = ranked(3, theta, "exchangeable", keys).weights(Hue(3).grid(dtype=torch.float64))
        patterns, counts = torch.unique(weights.mul(12).round().long(), dim=0, return_counts=True)
        frequency = {tuple(p.tolist()): c / len(keys) for p, c in zip(patterns, counts.tolist(), strict=True)}
        for pattern, share in frequency.items():
            shifted = pattern[-1:] + pattern[:-1]
            assert frequency.get(shifted, 0.0) == pytest.approx(share, abs=0.01)
    # "permuted" does express it: the identity is always kept, the others are not.
    weights = ranked(3, 1.0, "permuted", keys).weights(Hue(3).grid(dtype=torch.float64))
    assert (weights[:, 0] == 1).all()


@pytest.mark.parametrize("noise", ["permuted", "exchangeable"])
@pytest.mark.parametrize("theta", [1.0, 2.0, 3.0, 20.0])
def test_evaluation_takes_the_mean_of_the_noise(noise: str, theta: float) -> None:
    elements = Hue(6).grid(dtype=torch.float64)
    keys = torch.rand(40_000, 6, dtype=torch.float64)
    mean = ranked(6, theta, noise, keys).weights(elements).mean(dim=0)
    assert torch.allclose(ranked(6, theta, noise).weights(elements)[0], mean, atol=0.01)


@pytest.mark.parametrize("theta", [0.5, 1.0, 3.0])
def test_ranked_kl_is_the_sum(theta: float) -> None:
    weights = [math.exp(rank / theta) for rank in (1, 2, 3, 4)]
    weights = [w / sum(weights) for w in weights]
    expected = sum(w * math.log(w / (1 / 4)) for w in weights)
    assert ranked(4, theta).kl().item() == pytest.approx(expected, rel=1e-9)
    keys = torch.rand(1, 4, dtype=torch.float64)
    assert ranked(4, theta, "permuted", keys).kl().item() == pytest.approx(expected, rel=1e-9)


# ---------------------------------------------------------------- Gumbel


def chances(*values: float) -> torch.Tensor:
    """The logits of these chances, for one image."""
    return torch.logit(torch.tensor([values], dtype=torch.float64))


@pytest.mark.parametrize("values", [(0.3, 0.8), (0.99, 0.999), (0.5, 0.1, 0.9, 0.7, 0.2), (0.6,)])
def test_gumbel_evaluation_is_the_mean_over_all_subsets(values: tuple[float, ...]) -> None:
    """Enumerated: each element is in or out by its chance, the identity is in, those that are in count alike."""
    expected = torch.zeros(len(values) + 1, dtype=torch.float64)
    for subset in itertools.product((0, 1), repeat=len(values)):
        chance = math.prod(p if kept else 1 - p for p, kept in zip(values, subset, strict=True))
        expected += chance * torch.tensor([1, *subset], dtype=torch.float64) / (1 + sum(subset))
    group = Hue(len(values) + 1)
    q = GumbelDistribution(group, chances(*values), 1.0)
    assert torch.allclose(q.weights(group.grid())[0], expected, rtol=0, atol=1e-12)
    assert q.kl().item() == pytest.approx(sum(w * math.log(w * len(expected)) for w in expected.tolist()), abs=1e-12)
    assert q.theta.item() == pytest.approx((1 + sum(values)) / len(expected))


def test_gumbel_draws_are_in_by_their_chances() -> None:
    """Over many draws: the identity always is in, the others are as often as their chances say, all count alike."""
    family, logits = GumbelSoftmax(temperature=0.5), chances(0.3, 0.8).float().expand(4, 2)
    generator, seen = torch.Generator().manual_seed(1), []
    for _ in range(4000):
        q = family.distribution(logits, Hue(3), noisy=True, generator=generator)
        weights = q.weights(Hue(3).grid())
        assert torch.equal(weights, weights[:1].expand(4, 3))  # one draw for all images with the same chances
        seen.append(weights[0])
    drawn = torch.stack(seen)
    kept = drawn > 0
    assert torch.allclose(drawn, kept / kept.sum(dim=1, keepdim=True), atol=1e-6)
    assert torch.allclose(kept.double().mean(dim=0), torch.tensor([1.0, 0.3, 0.8]).double(), atol=0.03)
    calm = family.distribution(logits, Hue(3), noisy=False, generator=None)
    assert torch.allclose(drawn.mean(dim=0), calm.weights(Hue(3).grid())[0], atol=0.02)


def test_gumbel_learns_by_every_element_also_by_those_that_are_out() -> None:
    """A loss that has more of an element in raises its chance, whether it was drawn or not."""
    family = GumbelSoftmax()
    for seed in range(20):
        logits = torch.zeros(1, 2, requires_grad=True)
        q = family.distribution(logits, Hue(3), noisy=True, generator=torch.Generator().manual_seed(seed))
        q.weights(Hue(3).grid())[0, 1].backward()
        assert logits.grad is not None
        assert logits.grad[0, 0] > 0


# ---------------------------------------------------------------- sampled windows


@pytest.mark.parametrize(
    ("group", "theta"), [(Hue(3), [0.7]), (Hue(6), [0.6]), (Product(Rotations(4), Hue(3)), [0.55, 0.8])], ids=str
)
def test_elements_of_a_window_are_drawn_as_often_as_it_covers_their_cells(group: Group, theta: list[float]) -> None:
    """Against covered cells that are counted, angle by angle: how often each is in, and evaluation as their mean."""
    fine = torch.linspace(-1, 1, 20001)[:-1]
    covered = torch.ones(1)
    for axis, width in zip(group.axes, theta, strict=True):
        nearest = (fine * (axis.order or 0) / 2).round().long() % (axis.order or 0)
        inside = torch.bincount(nearest, (fine.abs() <= width).float()) / torch.bincount(nearest)
        covered = torch.outer(covered, inside).flatten()
    images, family = torch.tensor([theta]).expand(20000, -1), SampledWindow()
    generator = torch.Generator().manual_seed(1)
    drawn = family.distribution(images, group, noisy=True, generator=generator).weights(group.grid())
    kept = drawn > 0
    assert torch.allclose(drawn, kept / kept.sum(dim=1, keepdim=True), atol=1e-6)
    assert torch.allclose(kept.float().mean(dim=0), covered, atol=0.015)  # each image has a draw of its own
    calm = family.distribution(images[:1], group, noisy=False, generator=None).weights(group.grid())
    assert torch.allclose(calm[0], drawn.mean(dim=0), atol=0.01)


@pytest.mark.parametrize("noisy", [True, False])
def test_sampled_windows_can_be_all_of_the_group_and_only_the_identity_and_leave_both(noisy: bool) -> None:
    for order in (2, 3, 5, 6, 7):
        theta = torch.tensor([[1.0], [1 / order]], requires_grad=True)
        q = SampledWindow().distribution(theta, Hue(order), noisy=noisy, generator=None)
        weights = q.weights(Hue(order).grid())
        assert torch.allclose(weights[0], torch.full((order,), 1 / order), atol=1e-6)
        assert torch.equal(weights[1], torch.eye(order)[0])
        (grad,) = torch.autograd.grad(weights[:, 0].sum(), theta)
        assert (grad < 0).all()  # a wider window has less weight on the identity, at both ends


@pytest.mark.parametrize(
    "make",
    [
        partial(Window, initial=0.0),
        partial(Window, initial=1.5),
        partial(RankedSoftmax, noise="loud"),
        partial(RankedSoftmax, initial=-3.0),
        partial(GumbelSoftmax, initial=1.0),
        partial(GumbelSoftmax, initial=0.0),
        partial(Window, floor=1e-7),
        lambda: Shared(RankedSoftmax(eta=0.5)).build(Hue(3)),
        lambda: Shared(GumbelSoftmax()).build(SO2(4)),
        lambda: Shared(RankedSoftmax()).build(SO2(4)),
        partial(GumbelSoftmax, temperature=0.0),
        lambda: Shared(SampledWindow()).build(SO2(4)),
    ],
)
def test_families_refuse_nonsense(make) -> None:
    with pytest.raises(ValueError, match=r"got"):
        make()
