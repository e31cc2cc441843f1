"""Input-awareness against closed forms and scipy."""

import math

import pytest
import torch

from vpgcnn.errors import UserError
from vpgcnn.measure import against_truth, awareness, mutual_information, rank_correlation


def test_a_level_that_is_the_label_says_all_of_it() -> None:
    labels = torch.arange(600) % 3
    found = awareness(torch.tensor([0.3, 0.6, 0.9])[labels], labels)
    assert found["between_classes"] == pytest.approx(1)
    assert found["within"] == pytest.approx(0, abs=1e-7)
    assert found["information"] == pytest.approx(math.log(3), abs=0.02)
    assert found["certain"] == pytest.approx(1, abs=0.02)
    assert found["kl"] == pytest.approx(-(math.log(0.3) + math.log(0.6) + math.log(0.9)) / 3, rel=1e-6)
    assert found["active"] is True


def test_a_level_that_is_noise_says_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    labels, theta = torch.arange(3000) % 10, torch.rand(3000, generator=generator)
    found = awareness(theta, labels)
    assert found["information"] < 0.01
    assert found["between_classes"] < 0.01
    assert found["within"] == pytest.approx(float(theta.std()), rel=0.01)


def test_a_level_for_all_is_not_active() -> None:
    found = awareness(torch.full((50,), 0.8), torch.arange(50) % 2)
    assert found["active"] is False
    assert found["information"] == found["between_classes"] == found["std"] == 0


def test_information_of_a_noisy_label_is_that_of_the_channel() -> None:
    """A bit that is wrong with probability 0.1: log 2 − h(0.1) nats."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(2, (20_000,), generator=generator)
    flipped = labels ^ (torch.rand(20_000, generator=generator) < 0.1).long()
    wanted = math.log(2) + 0.1 * math.log(0.1) + 0.9 * math.log(0.9)
    assert mutual_information(flipped.float(), labels) == pytest.approx(wanted, abs=0.01)


def test_rank_correlation_is_scipys() -> None:
    stats = pytest.importorskip("scipy.stats")
    generator = torch.Generator().manual_seed(0)
    one = torch.rand(40, generator=generator).mul(8).round()  # with ties
    two = one + torch.rand(40, generator=generator).mul(6).round()
    assert rank_correlation(one, two) == pytest.approx(stats.spearmanr(one.numpy(), two.numpy()).statistic)
    assert rank_correlation(one, one.square()) == pytest.approx(1)
    assert rank_correlation(one, torch.ones(40)) == 0


def test_windows_are_held_against_the_truth() -> None:
    found = against_truth(torch.tensor([0.5, 0.2, 1.0]), torch.tensor([0.25, 0.4, 1.0]))
    assert found["error"] == pytest.approx((0.25 + 0.2) / 3)
    assert found["overlap"] == pytest.approx((0.5 + 0.5 + 1) / 3)
    assert found["rank_correlation"] == pytest.approx(0.5)
    with pytest.raises(UserError, match=r"lies in \[0, 1\]"):
        against_truth(torch.tensor([0.5]), torch.tensor([90.0]))
    with pytest.raises(UserError, match="one number for each image"):
        awareness(torch.rand(3, 1), torch.zeros(3))
