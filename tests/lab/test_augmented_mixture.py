"""Moves from a mixture of windows that is predicted for each image (after Singhal et al., 2023)."""

import math

import pytest
import torch
from torch import nn

from test_augmented import Corner, wedge
from vpgcnn import SO2
from vpgcnn.errors import UserError
from vpgcnn.lab.networks import AugmenterConfig, augmented
from vpgcnn.lab.networks.augmented import AugmentedByMixture
from vpgcnn.objective import Elbo


def made(**settings: float) -> AugmentedByMixture:
    torch.manual_seed(0)
    model = augmented(Corner(), AugmenterConfig("mixture", width=4, **settings), 1)
    assert isinstance(model, AugmentedByMixture)
    return model


def fix(model: AugmentedByMixture, widths: list[float], logits: list[float], means: list[float]) -> None:
    """Make the predictor answer the same for all images."""
    head = model.ranges[1]
    nn.init.zeros_(head.weight)
    head.bias.data.copy_(torch.tensor([*widths, *logits, *means]))


def test_evaluation_averages_over_all_windows() -> None:
    model, images = made(samples=4), wedge(2)
    fix(model, [0.2, 0.1], [0.0, math.log(3)], [0.0, 1.0])
    network = model.network
    expected = torch.zeros(2, 2)
    for share, middle, width in ((0.25, 0.0, 0.2), (0.75, 1.0, 0.1)):
        for noise in (-0.5, 0.5):
            turned = SO2().transform(images, math.pi * (middle + width * noise))
            expected += share / 2 * network(turned).logits.softmax(dim=1)
    prediction = model.eval()(images)
    assert torch.allclose(prediction.logits.exp(), expected, atol=1e-5)
    assert torch.allclose(prediction.logits.exp().sum(dim=1), torch.ones(2), atol=1e-5)
    q = prediction.trace["ranges"]
    assert torch.allclose(q.kl(), prediction.kl)


def test_all_parameters_of_the_mixture_learn_and_it_finds_the_way_that_helps() -> None:
    """Half of the picture is bright; upside down the class is another. The window at 180° must lose its share."""
    model, images, labels = made(initial=0.3), wedge(16), torch.zeros(16, dtype=torch.long)
    optimiser = torch.optim.Adam(model.ranges.parameters(), lr=3e-2)
    before = model.eval().moves(images).shares[:, 0, 1].mean()
    model.train()
    for step in range(30):
        optimiser.zero_grad()
        Elbo.of(model(images), labels).total(0.0).backward()
        if step == 0:
            grads = model.ranges[1].bias.grad
            assert bool((grads.abs() > 0).all()), grads
        optimiser.step()
    after = model.eval().moves(images).shares[:, 0, 1].mean()
    assert float(before.detach()) == pytest.approx(0.5, abs=0.05)
    assert float(after.detach()) < 0.3


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(UserError, match="needs as many samples, got 1"):
        made(samples=1)
