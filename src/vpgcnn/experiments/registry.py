"""Experiments by name: which arms, which measurements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torch import nn

from vpgcnn.data import Dataset
from vpgcnn.errors import UserError
from vpgcnn.experiments.colors import measure_colors, table_colors
from vpgcnn.experiments.digits import measure_digits, table_digits
from vpgcnn.experiments.photographs import measure_photographs, table_photographs
from vpgcnn.models import ordinary
from vpgcnn.training.checkpoint import Card
from vpgcnn.training.config import TrainConfig
from vpgcnn.training.progress import Quiet
from vpgcnn.training.recipes import recipe

__all__ = ["EXPERIMENTS", "Experiment", "experiment"]

Arm = Callable[[TrainConfig], TrainConfig]
Row = dict[str, Any]


@dataclass(frozen=True)
class Experiment:
    """A comparison of arms that differ in nothing but what their name says.

    measure: what is added to each row beside accuracy. table: the rows as Markdown. result: the file's name
    for each preset. draws: whether a seed is also the number of a draw of the data. fewer: other seeds for some arms.
    """

    about: str
    recipe: str
    arms: dict[str, Arm]
    seeds: tuple[int, ...]
    measure: Callable[[nn.Module, Card, Dataset, Quiet], Row]
    table: Callable[[list[Row]], str]
    result: dict[str, str]
    draws: bool = False
    fewer: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def seeds_of(self, arm: str) -> tuple[int, ...]:
        """The seeds that an arm is run with."""
        return self.fewer.get(arm, self.seeds)

    def config(self, arm: str, seed: int, preset: str) -> TrainConfig:
        """The run of one arm and seed."""
        if arm not in self.arms:
            raise UserError(f"unknown arm {arm!r}: choose from {', '.join(self.arms)}")
        config = replace(self.arms[arm](recipe(self.recipe, preset)), seed=seed)
        return replace(config, data=replace(config.data, seed=seed)) if self.draws else config


def _model(level: Literal["t2", "full", "learned", "variational"], **changes: Any) -> Arm:
    """An arm whose network has this level, and other changes."""

    def arm(config: TrainConfig) -> TrainConfig:
        model = ordinary(config.model) if level == "t2" else replace(config.model, level=level)
        return replace(config, model=replace(model, **changes))

    return arm


_t2, _full, _learned, _variational = _model("t2"), _model("full"), _model("learned"), _model("variational")


def _jittered(config: TrainConfig) -> TrainConfig:
    return replace(_t2(config), data=replace(config.data, hue_jitter=0.5))


def _plain(arm: Arm) -> Arm:
    """The arm as published: images as they are, and a loss in which frequent classes count more."""

    def changed(config: TrainConfig) -> TrainConfig:
        config = arm(config)
        data, objective = replace(config.data, augment="none"), replace(config.objective, balance=0.0)
        return replace(config, data=data, objective=objective)

    return changed


EXPERIMENTS = {
    "fig-mnist67-180": Experiment(
        "confidence against rotation angle for 6s and 7s, with variational, learned and full levels",
        "mnist67-180",
        {"variational": _variational, "learned": _learned, "full": _full},
        (0, 1, 2),
        measure_digits,
        table_digits,
        {"cpu": "mnist67-180", "paper": "mnist67-180-paper"},
    ),
    "table-colormnist": Experiment(
        "test accuracy on ten draws of long-tailed ColorMNIST: ordinary, hue-equivariant and variational networks",
        "colormnist-lt",
        {
            "cnn-19k": _t2,
            "cnn-26k": _model("t2", width=20),
            "ce3": _full,
            "vp3": _variational,
            "ce6": _model("full", elements=6),
            "vp6": _model("variational", elements=6),
            "ce3-plain": _plain(_full),
            "vp3-plain": _plain(_variational),
        },
        (0, 1, 2, 3, 4),
        measure_colors,
        table_colors,
        {"cpu": "colormnist-lt", "paper": "colormnist-lt-paper"},
        draws=True,
        fewer=dict.fromkeys(("ce6", "vp6", "ce3-plain", "vp3-plain"), (0, 1)),
    ),
    "table-flowers": Experiment(
        "Flowers102: accuracy, accuracy over hue shifts and calibration of ResNet18s of about the same size",
        "flowers102",
        {
            "resnet": _t2,
            "resnet-jitter": _jittered,
            "ce3": _full,
            "ce3-hybrid": _model("full", equivariant=2),
            "learned": _learned,
            "vp3": _variational,
        },
        (0, 1),
        measure_colors,
        table_colors,
        {"cpu": "flowers102-cpu", "paper": "flowers102"},
    ),
    "table-cifar10": Experiment(
        "test accuracy on CIFAR-10 of T(2), full, learned and variational networks of the same size",
        "cifar10-se2",
        {"t2": _t2, "full": _full, "learned": _learned, "variational": _variational},
        (0, 1),
        measure_photographs,
        table_photographs,
        {"cpu": "cifar10-cpu", "paper": "cifar10"},
    ),
}


def experiment(name: str) -> Experiment:
    """The experiment of this name."""
    if name not in EXPERIMENTS:
        raise UserError(f"unknown experiment {name!r}: choose from {', '.join(EXPERIMENTS)}")
    return EXPERIMENTS[name]
