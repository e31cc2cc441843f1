"""Experiments by name: which arms, which measurements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from vpgcnn.data import Dataset
from vpgcnn.errors import UserError
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
    for each preset.
    """

    about: str
    recipe: str
    arms: dict[str, Arm]
    seeds: tuple[int, ...]
    measure: Callable[[nn.Module, Card, Dataset, Quiet], Row]
    table: Callable[[list[Row]], str]
    result: dict[str, str]

    def config(self, arm: str, seed: int, preset: str) -> TrainConfig:
        """The run of one arm and seed."""
        if arm not in self.arms:
            raise UserError(f"unknown arm {arm!r}: choose from {', '.join(self.arms)}")
        return replace(self.arms[arm](recipe(self.recipe, preset)), seed=seed)


def _t2(config: TrainConfig) -> TrainConfig:
    return replace(config, model=ordinary(config.model))


def _full(config: TrainConfig) -> TrainConfig:
    return replace(config, model=replace(config.model, level="full"))


def _learned(config: TrainConfig) -> TrainConfig:
    return replace(config, model=replace(config.model, level="learned"))


def _variational(config: TrainConfig) -> TrainConfig:
    return replace(config, model=replace(config.model, level="variational"))


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
