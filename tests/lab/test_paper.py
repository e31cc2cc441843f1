"""The paper preset: the settings of every arm are those of the paper's two tables of hyperparameters."""

from __future__ import annotations

import pytest
import torch

from vpgcnn.groups import SO2, Hue
from vpgcnn.lab.experiments.registry import EXPERIMENTS
from vpgcnn.lab.networks import build
from vpgcnn.lab.networks.config import NO_GROUP
from vpgcnn.lab.training.config import OptimiserConfig, TrainConfig
from vpgcnn.lab.training.recipes import recipe
from vpgcnn.levels import Full, GumbelSoftmax, RankedSoftmax, ReparametrizedWindow, Shared, Variational
from vpgcnn.objective import Elbo, KlSchedule

# Appendix "Hyperparameters", table (a), "The hyperparameter settings used to learn VP G-CNN" (tab:hyper):
# batch size, epochs, optimiser, learning rate, optimiser (r_φ), learning rate (r_φ), weight decay.
VP = {
    "MNIST67-180": (64, 300, "AdamW", 0.001, "SGD", 0.001, 0.001),
    "CIFAR10": (64, 300, "AdamW", 0.001, "SGD", 0.001, 0.001),
    "ColoredMNIST": (64, 1500, "Adam", 0.001, "Adam", 0.0001, 0.00001),
    "Flowers102": (64, 400, "Adam", 0.0002, "AdamW", 0.0001, 0.00001),
}
# Table (b), "Hyperparameters for baseline models" (tab:hyper-base): batch size, epochs, optimiser, learning rate,
# weight decay, optimiser* and learning rate* (Partial G-CNN), optimiser** and learning rate** (InstaAug), entropy**.
BASELINES = {
    "ColoredMNIST": (256, 1500, "Adam", 0.001, 0.00001, "Adam", 0.0001, "Adam", 0.0001, 0.0001),
    "Flowers102": (64, 300, "Adam", 0.001, 0, "Adam", 0.0001, "Adam", 0.0001, 0.0001),
    "CIFAR10": (64, 300, "Adam", 0.001, 0.0001, "AdamW", 0.0001, "Adam", 0.001, 0.0001),
}
KIND = {"AdamW": "adamw", "Adam": "adam", "SGD": "sgd"}

# Each line of the paper's tables of results: the experiment, the arm, the column of hyperparameters, the method.
LINES = [
    # Figure "Partial equivariance trained on MNIST67-180" shows VP G-CNN only.
    ("fig-mnist67-180", "variational", "MNIST67-180", "vp"),
    # "Test accuracy on CIFAR10" (tab:test-rotation)
    ("table-cifar10", "t2", "CIFAR10", "plain"),
    ("table-cifar10", "t2-instaaug", "CIFAR10", "instaaug"),
    ("table-cifar10", "full", "CIFAR10", "plain"),
    ("table-cifar10", "full-instaaug", "CIFAR10", "instaaug"),
    ("table-cifar10", "shared", "CIFAR10", "partial"),
    ("table-cifar10", "variational", "CIFAR10", "vp"),
    ("table-cifar10", "full8", "CIFAR10", "plain"),
    ("table-cifar10", "full8-instaaug", "CIFAR10", "instaaug"),
    ("table-cifar10", "shared8", "CIFAR10", "partial"),
    ("table-cifar10", "variational8", "CIFAR10", "vp"),
    # "Test accuracy in CIFAR100" (tab:c100), which has no column of its own
    ("table-cifar100", "full", "CIFAR10", "plain"),
    ("table-cifar100", "shared", "CIFAR10", "partial"),
    ("table-cifar100", "variational", "CIFAR10", "vp"),
    # "Test accuracy on long-tailed ColorMNIST and Flowers102" (tab:test-color)
    ("table-colormnist", "cnn-19k", "ColoredMNIST", "plain"),
    ("table-colormnist", "cnn-instaaug", "ColoredMNIST", "instaaug"),
    ("table-colormnist", "ce3", "ColoredMNIST", "plain"),
    ("table-colormnist", "ce3-instaaug", "ColoredMNIST", "instaaug"),
    ("table-colormnist", "partial3", "ColoredMNIST", "partial"),
    ("table-colormnist", "vp3", "ColoredMNIST", "vp"),
    ("table-colormnist", "ce6", "ColoredMNIST", "plain"),
    ("table-colormnist", "ce6-instaaug", "ColoredMNIST", "instaaug"),
    ("table-colormnist", "partial6", "ColoredMNIST", "partial"),
    ("table-colormnist", "vp6", "ColoredMNIST", "vp"),
    ("table-flowers", "resnet", "Flowers102", "plain"),
    ("table-flowers", "resnet-instaaug", "Flowers102", "instaaug"),
    ("table-flowers", "ce3-hybrid", "Flowers102", "plain"),
    ("table-flowers", "ce3-instaaug", "Flowers102", "instaaug"),
    ("table-flowers", "partial3", "Flowers102", "partial"),
    ("table-flowers", "vp3", "Flowers102", "vp"),
    ("table-flowers", "ce6-hybrid", "Flowers102", "plain"),
    ("table-flowers", "ce6-instaaug", "Flowers102", "instaaug"),
    ("table-flowers", "partial6", "Flowers102", "partial"),
    ("table-flowers", "vp6", "Flowers102", "vp"),
    # "Test accuracy comparison with AdaAug" (tab:adaaug), whose own settings the paper does not give
    ("table-flowers", "resnet-adaaug", "Flowers102", "plain"),
    ("table-flowers", "ce3-adaaug", "Flowers102", "plain"),
    ("table-flowers", "partial3-adaaug", "Flowers102", "partial"),
]


def of(experiment: str, arm: str) -> TrainConfig:
    return EXPERIMENTS[experiment].config(arm, 0, "paper")


@pytest.mark.parametrize(("experiment", "arm", "column", "method"), LINES)
def test_every_arm_has_the_papers_hyperparameters(experiment: str, arm: str, column: str, method: str) -> None:
    config = of(experiment, arm)
    levels: OptimiserConfig | None = None
    if method == "vp":
        batch, epochs, kind, lr, level_kind, level_lr, decay = VP[column]
        levels = OptimiserConfig(KIND[level_kind], level_lr, decay)  # type: ignore[arg-type]
        assert isinstance(config.model.level, Variational)
    else:
        batch, epochs, kind, lr, decay, *star, kind2, lr2, entropy = BASELINES[column]
        if method == "partial":
            levels = OptimiserConfig(KIND[star[0]], star[1], decay)  # type: ignore[arg-type, index]
            assert isinstance(config.model.level, Shared)
        elif method == "instaaug":
            levels = OptimiserConfig(KIND[kind2], lr2, decay)  # type: ignore[arg-type, index]
            assert config.augmenter.kind == "image"
            assert isinstance(config.objective, KlSchedule)
            assert {config.objective.at(progress) for progress in (0.0, 0.5, 1.0)} == {entropy}
        if method != "partial":
            assert config.model.level == Full()
    assert (config.batch_size, config.epochs) == (batch, epochs)
    assert config.optimiser == OptimiserConfig(KIND[kind], lr, decay)  # type: ignore[arg-type, index]
    assert levels is None or config.level_optimiser.beside(config.optimiser) == levels


def test_every_number_that_the_paper_prints_has_an_arm() -> None:
    """An arm that carries the paper's accuracy is in the list above (the plain ones repeat two of them)."""
    published = {(e, arm) for e, entry in EXPERIMENTS.items() for arm in entry.arms if entry.arm(arm).published}
    listed = {(experiment, arm) for experiment, arm, *_ in LINES}
    assert published - listed == {("table-colormnist", "ce3-plain"), ("table-colormnist", "vp3-plain")}
    assert {("table-colormnist", arm) for arm in ("ce3-plain", "vp3-plain")}.isdisjoint(
        {("table-colormnist", arm) for arm in EXPERIMENTS["table-colormnist"].arms_of("paper")}
    )  # they are ce3 and vp3 there


def test_groups_and_levels_are_the_papers() -> None:
    """Windows of rotations are sampled (eq. so2), hues ranked (eq. ste); Partial G-CNN on hues is Gumbel-softmax."""
    for experiment, where in (("fig-mnist67-180", ("lift", "last")), ("table-cifar10", ("lift", "last"))):
        model = of(experiment, "variational").model
        assert model.level == Variational(ReparametrizedWindow(), detach_features=False, explore=0.0)
        assert model.where == where  # type: ignore[union-attr]
        assert model.elsewhere == Shared(ReparametrizedWindow())  # type: ignore[union-attr]
        assert of(experiment, "shared").model.level == Shared(ReparametrizedWindow())
        assert of(experiment, "t2").model.group == NO_GROUP
    assert of("table-cifar10", "variational").model.group == SO2(4)
    assert of("table-cifar10", "variational8").model.group == SO2(8)
    for experiment in ("table-colormnist", "table-flowers"):
        for hues in (3, 6):
            vp, partial = (of(experiment, f"{method}{hues}").model for method in ("vp", "partial"))
            assert vp.group == partial.group == Hue(hues)
            assert isinstance(vp.level, Variational)
            assert isinstance(vp.level.family, RankedSoftmax)
            assert vp.level.family.noise == "ranked"
            assert partial.level == Shared(GumbelSoftmax(final=0.1))
        noisy = of(experiment, "vp3-noise").model.level
        assert isinstance(noisy, Variational)
        assert isinstance(noisy.family, RankedSoftmax)
        assert noisy.family.noise == "exchangeable"  # the paper's ε ~ Unif{1, …, m}
    data = of("table-colormnist", "vp3").data
    assert (data.augment, of("table-colormnist", "vp3").balance) == ("none", 0.0)


def test_the_rows_that_are_not_in_the_paper_keep_our_settings() -> None:
    assert EXPERIMENTS["fig-ranges"].config("shared", 0, "paper").epochs == recipe("mnist-ranges", "paper").epochs
    assert EXPERIMENTS["table-convert"].config("plain-tuned", 0, "paper").epochs == 400 // 3


@pytest.mark.parametrize(
    ("experiment", "arm", "shape"),
    [
        ("fig-mnist67-180", "variational", (1, 28)),
        ("fig-mnist67-180", "shared", (1, 28)),
        ("table-colormnist", "vp3", (3, 28)),
        ("table-colormnist", "partial6", (3, 28)),
    ],
)
def test_networks_of_the_paper_preset_take_a_step(experiment: str, arm: str, shape: tuple[int, int]) -> None:
    model = build(of(experiment, arm).model, shape[0], 3).train()
    elbo = Elbo.of(model(torch.rand(2, shape[0], shape[1], shape[1])), torch.tensor([0, 2]))
    elbo.total(0.001).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
