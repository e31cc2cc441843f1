"""Promises about mean costs: valid whatever the distribution, useful with few images, refused when nonsense."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from vpgcnn.errors import UserError
from vpgcnn.measure.risk import betting_p_value, images_needed, widest

REPEATS = 3000
ALLOWED = 0.05 + 3 * math.sqrt(0.05 * 0.95 / REPEATS)
"""5 % of false promises, and three standard deviations of their count in these repeats."""


def drawn(values: list[float], shares: list[float], count: int, *, repeats: int = REPEATS, seed: int = 0) -> Tensor:
    """Independent costs `(repeats, count)` that take these values with these probabilities."""
    generator = torch.Generator().manual_seed(seed)
    index = torch.multinomial(torch.tensor(shares), repeats * count, replacement=True, generator=generator)
    return torch.tensor(values)[index].view(repeats, count)


def share_of_promises(costs: Tensor, at_most: float, confidence: float = 0.95) -> float:
    return sum(betting_p_value(row, at_most, confidence) <= 1 - confidence for row in costs) / len(costs)


# ---------------------------------------------------------------- the p-value


@pytest.mark.parametrize("count", [60, 400])
@pytest.mark.parametrize("saved", [0.0, 0.03, 0.2, 0.4], ids="saved {}".format)
@pytest.mark.parametrize("at_most", [0.02, 0.1], ids="at most {}".format)
def test_false_promises_are_rare_at_the_limit(at_most: float, saved: float, count: int) -> None:
    """Answers that get better (−1), stay (0) or get worse (1), whose mean cost is exactly what is just not allowed."""
    shares = [saved, 1 - 2 * saved - at_most, saved + at_most]
    assert share_of_promises(drawn([-1.0, 0.0, 1.0], shares, count), at_most) <= ALLOWED


@pytest.mark.parametrize(
    ("values", "shares"),
    [
        ([-0.1, 1.0], [0.95 / 1.1, 0.15 / 1.1]),  # mean 0.05: a small gain often, a large loss rarely
        ([-1.0, 0.5], [0.3, 0.7]),  # mean 0.05: the other way round
        ([0.0, 0.06], [1 / 6, 5 / 6]),  # mean 0.05: hardly any variance
    ],
    ids=["rare losses", "rare gains", "little variance"],
)
@pytest.mark.parametrize("count", [40, 300])
def test_false_promises_are_rare_for_costs_between_the_ends(
    values: list[float], shares: list[float], count: int
) -> None:
    mean = sum(value * share for value, share in zip(values, shares, strict=True))
    assert mean == pytest.approx(0.05, abs=1e-9)
    assert share_of_promises(drawn(values, shares, count), 0.05) <= ALLOWED


@pytest.mark.parametrize("level", [0.5, 0.2, 0.01])
def test_it_is_a_p_value_at_every_level(level: float) -> None:
    """Also at levels that the bets were not tuned for."""
    costs = drawn([-1.0, 1 / 16, 1.0], [0.1, 0.8, 0.1], 200)  # mean 0.05
    found = torch.tensor([betting_p_value(row, 0.05) for row in costs])
    assert ((found >= 0) & (found <= 1)).all()
    assert (found <= level).double().mean() <= level + 3 * math.sqrt(level * (1 - level) / REPEATS)


def test_small_costs_are_recognised() -> None:
    """What makes a promise useful: with 1 % allowed, 1000 images are enough if one answer in 500 gets worse."""
    costs = drawn([0.0, 1.0], [0.998, 0.002], 1000, repeats=400)
    assert share_of_promises(costs, 0.01) > 0.75
    assert share_of_promises(drawn([-1.0, 0.0, 1.0], [0.01, 0.98, 0.01], 3000, repeats=400), 0.01) > 0.75
    assert share_of_promises(drawn([-1.0, 0.0], [0.02, 0.98], 1000, repeats=400), 0.01) > 0.95


def test_more_images_and_smaller_costs_give_smaller_p_values() -> None:
    assert betting_p_value(torch.zeros(2000), 0.01) < betting_p_value(torch.zeros(500), 0.01) < 0.05
    assert betting_p_value(torch.zeros(100), 0.01) > 0.05
    assert betting_p_value(-torch.ones(100), 0.01) < betting_p_value(torch.zeros(100), 0.01)
    assert betting_p_value(torch.zeros(500), 0.02) < betting_p_value(torch.zeros(500), 0.01)


def test_costs_above_the_limit_are_no_evidence() -> None:
    for cost in (0.01, 0.5, 1.0):  # the first is the limit itself
        assert betting_p_value(torch.full((300,), cost, dtype=torch.float64), 0.01) == 1.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int8])
def test_whole_numbers_are_costs_too(dtype: torch.dtype) -> None:
    costs = drawn([-1.0, 0.0, 1.0], [0.05, 0.9, 0.05], 400, repeats=1)[0]
    assert betting_p_value(costs.to(dtype), 0.1) == betting_p_value(costs, 0.1)


# ---------------------------------------------------------------- a path of settings


def path_of_costs(means: list[float], saved: float, count: int, repeats: int) -> Tensor:
    """Costs `(repeats, settings, count)` on the same images: those that change at one setting change at bolder ones."""
    generator = torch.Generator().manual_seed(1)
    place = torch.rand(repeats, 1, count, generator=generator)
    worse = torch.tensor(means).add(saved).view(1, -1, 1)
    return (place < worse).float() - (place > 1 - saved).float()


@pytest.mark.parametrize("saved", [0.0, 0.05])
@pytest.mark.parametrize(
    "means",
    [
        [0.0, 0.01, 0.02, 0.03, 0.05, 0.06, 0.08],
        [0.05, 0.0, 0.0, 0.0],  # the first is not allowed
        [0.0, 0.05, 0.05, 0.05, 0.05, 0.05, 0.05],  # many chances to be wrong
        [0.0, 0.01, 0.2, 0.01, 0.051],
    ],
    ids=str,
)
def test_a_promise_is_kept(means: list[float], saved: float) -> None:
    """In 95 % of all samples the mean cost of the chosen setting is below what is allowed."""
    repeats, at_most, settings = 400, 0.05, [float(number) for number in range(len(means))]
    broken = 0
    for costs in path_of_costs(means, saved, 300, repeats):
        chosen = widest(settings, costs, at_most=at_most)
        broken += chosen is not None and means[int(chosen)] >= at_most
    assert broken / repeats <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / repeats)


def test_a_bold_setting_is_found_where_there_is_one() -> None:
    settings, means = [0.0, 0.25, 0.5, 1.0], [0.0, 0.002, 0.004, 0.2]
    chosen = [widest(settings, costs, at_most=0.02) for costs in path_of_costs(means, 0.0, 1000, 200)]
    assert sum(found == 0.5 for found in chosen) > 180


def test_the_search_stops_at_the_first_setting_that_fails() -> None:
    settings, zero, one = [-1.0, 0.0, 0.5, 1.0], torch.zeros(500), torch.ones(500)
    for costs, expected in (
        ([zero, zero, zero, zero], 1.0),
        ([zero, zero, one, zero], 0.0),  # although the last would pass
        ([zero, one, zero, zero], -1.0),
        ([one, zero, zero, zero], None),
    ):
        assert widest(settings, torch.stack(costs), at_most=0.05) == expected


def test_confidence_has_a_price() -> None:
    """A higher confidence never chooses a bolder setting."""
    settings, means = [0.0, 1.0, 2.0, 3.0], [0.0, 0.01, 0.02, 0.03]
    bolder = 0
    for costs in path_of_costs(means, 0.0, 300, 100):
        low, high = (widest(settings, costs, at_most=0.05, confidence=c) for c in (0.5, 0.99))
        assert (-1.0 if low is None else low) >= (-1.0 if high is None else high)
        bolder += low != high
    assert bolder > 50


# ---------------------------------------------------------------- the number of images


@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.99])
@pytest.mark.parametrize("at_most", [0.002, 0.005, 0.05, 0.3])
def test_so_many_images_are_needed_and_one_less_is_not_enough(at_most: float, confidence: float) -> None:
    count = images_needed(at_most, confidence)
    for images, chosen in ((count, 1.0), (count + 1, 1.0), (2 * count, 1.0), (10 * count, 1.0), (count - 1, None)):
        assert widest([1.0], torch.zeros(1, images), at_most=at_most, confidence=confidence) == chosen
    assert all(betting_p_value(torch.zeros(n), at_most, confidence) > 1 - confidence for n in range(1, count, 7))


def test_smaller_costs_and_higher_confidence_need_more_images() -> None:
    assert images_needed(0.001) > images_needed(0.01) > images_needed(0.1)
    assert images_needed(0.01, 0.99) > images_needed(0.01, 0.95) > images_needed(0.01, 0.5)
    assert images_needed(0.01) < 4.5 / 0.01  # in proportion to 1/cost: log(1/0.05) = 3 would be the least


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("costs", "at_most", "message"),
    [
        (torch.zeros(0), 0.1, r"one cost for each image, got shape \(0,\)"),
        (torch.zeros(3, 4), 0.1, r"one cost for each image, got shape \(3, 4\)"),
        (torch.tensor([0.0, 1.5]), 0.1, r"costs must lie in \[−1, 1\], got 1\.5"),
        (torch.tensor([0.0, -3.0]), 0.1, r"costs must lie in \[−1, 1\], got 3\.0"),
        (torch.zeros(5), 0.0, r"allowed cost must be between 0 and 1, got 0\.0"),
        (torch.zeros(5), 1.0, r"allowed cost must be between 0 and 1, got 1\.0"),
        (torch.zeros(5), -0.1, r"allowed cost must be between 0 and 1, got -0\.1"),
        (torch.zeros(5), float("nan"), r"allowed cost must be between 0 and 1, got nan"),
    ],
)
def test_nonsense_is_refused_by_name(costs: Tensor, at_most: float, message: str) -> None:
    with pytest.raises(UserError, match=message):
        betting_p_value(costs, at_most)


def test_a_path_needs_costs_for_each_setting_and_a_confidence() -> None:
    with pytest.raises(UserError, match="expected costs for 2 settings, got 3"):
        widest([0.0, 1.0], torch.zeros(3, 50), at_most=0.1)
    for confidence in (0.0, 1.0, 95.0, float("nan")):
        with pytest.raises(UserError, match=f"confidence must be between 0 and 1, got {confidence}"):
            widest([0.0], torch.zeros(1, 50), at_most=0.1, confidence=confidence)
    with pytest.raises(UserError, match=r"allowed cost must be at least 0\.0001, got 0"):
        images_needed(0.0)
    with pytest.raises(UserError, match="allowed cost must be between 0 and 1, got 1"):
        images_needed(1.0)


@pytest.mark.parametrize("confidence", [0.0, 1.0, 1.5])
def test_a_confidence_out_of_range_is_refused(confidence: float) -> None:
    for call in (lambda: images_needed(0.01, confidence), lambda: betting_p_value(torch.zeros(9), 0.01, confidence)):
        with pytest.raises(UserError, match=f"confidence must be between 0 and 1, got {confidence}"):
            call()


def test_costs_that_are_not_numbers_are_refused() -> None:
    with pytest.raises(UserError, match="got nan"):
        betting_p_value(torch.tensor([0.0, float("nan")]), 0.01)


def test_a_cost_that_no_sample_could_promise_is_refused_at_once() -> None:
    with pytest.raises(UserError, match=r"at least 0\.0001, got 1e-07"):
        images_needed(1e-7)
