"""Scores against torchmetrics and closed forms."""

import math

import pytest
import torch

from vpgcnn import Hue
from vpgcnn.measure import brier, calibration_error, nll, orbit_probabilities, probabilities
from vpgcnn.measure.scores import cautious


def some(images: int = 300, classes: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    return (3 * torch.randn(images, classes, dtype=torch.float64)).softmax(1), torch.randint(classes, (images,))


def test_scores_are_those_of_torchmetrics() -> None:
    metrics = pytest.importorskip("torchmetrics.functional")
    chances, labels = some()
    theirs = metrics.calibration_error(chances, labels, task="multiclass", num_classes=7, n_bins=15, norm="l1")
    assert calibration_error(chances, labels) == pytest.approx(float(theirs), abs=1e-6)
    assert nll(chances, labels) == pytest.approx(float(torch.nn.functional.nll_loss(chances.log(), labels)))


def test_closed_forms() -> None:
    even, labels = torch.full((10, 4), 0.25, dtype=torch.float64), torch.zeros(10, dtype=torch.long)
    assert brier(even, labels) == pytest.approx(0.75**2 + 3 * 0.25**2)
    assert nll(even, labels) == pytest.approx(1.3862943611)
    sure = torch.eye(4, dtype=torch.float64)[torch.ones(10, dtype=torch.long)]
    assert brier(sure, labels) == 2
    assert calibration_error(sure, labels) == 1
    assert calibration_error(sure, labels + 1) == 0
    assert nll(sure, labels) < float("inf")


def test_an_orbit_is_every_image_under_every_move() -> None:
    images = torch.rand(5, 3, 4, 4)
    moves = [lambda x: x, lambda x: Hue(3).transform(x, Hue(3).grid()[1])]
    counts: list[int] = []
    rows = orbit_probabilities(lambda x: x.mean(dim=(2, 3)), images, moves, batch=2, on_progress=counts.append)
    assert rows.shape == (2, 5, 3)
    assert torch.allclose(rows[0], probabilities(lambda x: x.mean(dim=(2, 3)), images))
    assert torch.allclose(rows[1], rows[0].roll(1, dims=1))  # red → green → blue → red
    assert counts == [1, 1]


def test_few_agreeing_samples_leave_uncertainty() -> None:
    mean, error = cautious(torch.ones(2, dtype=torch.float64))
    assert mean == 1
    assert error > 0.5
    _, error = cautious(torch.zeros(1000, dtype=torch.float64))
    assert 0 < error < 0.01
    assert cautious(torch.zeros(0)) == (0.0, math.inf)
