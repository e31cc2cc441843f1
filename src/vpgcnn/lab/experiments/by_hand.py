"""The settings of levels that were found by hand, recipe by recipe, before levels learned by themselves.

The tables and figures of the paper were trained with these: λ, its schedule, the learning rate of the levels and their
first width, all from a few tries on validation images. `regret` compares them with the default.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from vpgcnn.lab.experiments.base import Change
from vpgcnn.lab.training.config import LevelOptimiserConfig, TrainConfig
from vpgcnn.levels import Variational, Window
from vpgcnn.objective import KlSchedule

__all__ = ["by_hand"]


@dataclass(frozen=True)
class _Settings:
    """What was chosen for one recipe.

    Args:
        objective: λ.
        lr: The learning rate of the levels.
        initial: θ at the start.
    """

    objective: KlSchedule
    lr: float
    initial: float = 0.9


SETTINGS = {
    "mnist67-180": _Settings(
        KlSchedule(start=0.01, peak=0.2, hold=0.15, ramp=0.25, stay=0.2, fall=0.2, end=0.005), 1e-2
    ),
    "mnist-ranges": _Settings(KlSchedule(start=0.05, peak=0.05, end=0.05), 1e-2),
    "mnist-turn-hue": _Settings(
        KlSchedule(start=0.01, peak=0.2, hold=0.15, ramp=0.25, stay=0.2, fall=0.2, end=0.005), 3e-3, 0.5
    ),
    "cifar10-se2": _Settings(KlSchedule(start=0.01, peak=0.01), 2e-3),
    "cifar100-se2": _Settings(KlSchedule(start=0.01, peak=0.01), 2e-3),
    "colormnist-lt": _Settings(KlSchedule(start=0.05, peak=0.05), 3e-4, 1.0),
    "flowers102": _Settings(KlSchedule(start=0.01, peak=0.01), 1e-3),
}
"""By the name of the recipe."""


def by_hand(recipe: str) -> Change:
    """Gives a recipe the settings of levels that were found for it by hand; levels do not explore.

    Args:
        recipe: The name of the recipe.
    """
    found = SETTINGS[recipe]

    def change(config: TrainConfig) -> TrainConfig:
        kind = config.optimiser.kind
        config = replace(config, objective=found.objective, level_optimiser=LevelOptimiserConfig(kind, found.lr))
        level = config.model.level
        if not isinstance(level, Variational):
            return config
        level = replace(level, family=Window(initial=found.initial), detach_features=False, explore=0.0)
        return replace(config, model=replace(config.model, level=level))

    return change
