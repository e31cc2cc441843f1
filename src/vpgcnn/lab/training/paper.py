"""The hyperparameters of the paper's two tables, and which of them each kind of network gets.

docs/reproduce.md lists what the tables leave open and what was chosen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from vpgcnn.lab.training.config import LevelOptimiserConfig, OptimiserConfig, TrainConfig
from vpgcnn.levels import Shared, Variational
from vpgcnn.objective import KlSchedule

__all__ = ["BASELINES", "COLUMNS", "INSTAAUG_ENTROPY", "VP", "Column", "with_paper_settings"]


@dataclass(frozen=True)
class Column:
    """One dataset's column of a table of hyperparameters.

    Args:
        batch_size: Images per step.
        epochs: Passes over the training images.
        network: Optimiser of the network.
        levels: Optimiser of the levels: the encoders r_φ of VP G-CNN, the distributions of Partial G-CNN (*).
        ranges: Optimiser of InstaAug's network that predicts ranges (**).
    """

    batch_size: int
    epochs: int
    network: OptimiserConfig
    levels: OptimiserConfig
    ranges: OptimiserConfig | None = None


Kind = Literal["adamw", "adam", "sgd"]


def _column(batch_size: int, epochs: int, weight_decay: float, *optimisers: tuple[Kind, float]) -> Column:
    """A column: the table has one weight decay, which all optimisers get."""
    return Column(batch_size, epochs, *(OptimiserConfig(kind, lr, weight_decay) for kind, lr in optimisers))


VP = {
    "mnist67-180": _column(64, 300, 1e-3, ("adamw", 1e-3), ("sgd", 1e-3)),
    "cifar10": _column(64, 300, 1e-3, ("adamw", 1e-3), ("sgd", 1e-3)),
    "colormnist-lt": _column(64, 1500, 1e-5, ("adam", 1e-3), ("adam", 1e-4)),
    "flowers102": _column(64, 400, 1e-5, ("adam", 2e-4), ("adamw", 1e-4)),
}
"""Table (a), "The hyperparameter settings used to learn VP G-CNN"."""
BASELINES = {
    "colormnist-lt": _column(256, 1500, 1e-5, ("adam", 1e-3), ("adam", 1e-4), ("adam", 1e-4)),
    "flowers102": _column(64, 300, 0.0, ("adam", 1e-3), ("adam", 1e-4), ("adam", 1e-4)),
    "cifar10": _column(64, 300, 1e-4, ("adam", 1e-3), ("adamw", 1e-4), ("adam", 1e-3)),
    # The table has no column for MNIST67-180: that of VP G-CNN, with CIFAR-10's optimiser for InstaAug.
    "mnist67-180": _column(64, 300, 1e-3, ("adamw", 1e-3), ("sgd", 1e-3), ("adam", 1e-3)),
}
"""Table (b), "Hyperparameters for baseline models"."""
INSTAAUG_ENTROPY = 1e-4
"""Table (b), "Entropy regularization": the same for every dataset."""
COLUMNS = {"cifar100": "cifar10"}
"""Datasets without a column, and the one they use."""


def with_paper_settings(config: TrainConfig) -> TrainConfig:
    """The same run with the hyperparameters that the paper gives for this kind of network on this dataset.

    Networks with a level for each image get table (a), all others table (b): with the optimiser marked * for shared
    levels (Partial G-CNN) and the one marked ** for learned ranges of augmentation (InstaAug, and Augerino, which
    the paper does not run).

    Args:
        config: A run on one of the paper's datasets.
    """
    name = COLUMNS.get(config.data.name, config.data.name)
    column = (VP if isinstance(config.model.level, Variational) else BASELINES)[name]
    levels = column.levels
    if config.augmenter.kind in ("shared", "image", "mixture"):
        # λ·KL of a range from the whole circle is −λ·entropy plus a constant.
        config = replace(config, objective=KlSchedule(start=INSTAAUG_ENTROPY, peak=INSTAAUG_ENTROPY))
        if not isinstance(config.model.level, Shared):
            levels = column.ranges or column.levels
    if config.augmenter.kind == "policy":
        config = replace(config, augmenter=replace(config.augmenter, search=max(2, column.epochs // 3)))
    batch, epochs = column.batch_size, column.epochs
    own = LevelOptimiserConfig(levels.kind, levels.lr, levels.weight_decay)
    return replace(config, batch_size=batch, epochs=epochs, optimiser=column.network, level_optimiser=own)
