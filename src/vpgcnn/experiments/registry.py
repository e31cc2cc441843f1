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
    notes: what a reader of the table has to know, for each preset. published: the paper's test accuracy of an arm.
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
    notes: dict[str, str] = field(default_factory=dict)
    published: dict[str, str] = field(default_factory=dict)

    def arms_of(self, preset: str) -> list[str]:
        """The arms of a preset: those that are the same run as an earlier one are left out."""
        seen: list[TrainConfig] = []
        kept = []
        for arm in self.arms:
            config = self.config(arm, 0, preset)
            if config not in seen:
                kept.append(arm)
            seen.append(config)
        return kept

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


COLORMNIST_NOTES = """\
Arms: ordinary CNNs of two sizes (cnn-19k, cnn-26k), hue-equivariant (ce3, ce6: CEConv with 3 and 6 hues),
variational levels on the last two layers (vp3, vp6). All of them are trained on digits shifted by up to 2 pixels
and with a loss that counts classes alike (`--objective.balance 1`), and begin with the same weights for the same
seed. The arms named "plain" have neither, as published: it is they that compare with the paper's numbers and with
CEConv's own 91.35 ± 0.40 for ce3 (both of other draws). Small classes are those of at most 10 training images. "At
θ = 1": the same network, its levels set to all of the group at the test.\
"""
FLOWERS_NOTES = """\
Arms: an ordinary ResNet18, the same with random hue shifts in training (resnet-jitter), hue-equivariant with 3 hues
(ce3), equivariant in the first two stages only (ce3-hybrid), one learned level for all images (learned), a level
for each image (vp3), these two on the lift and stage 4. Levels of single images need encoders, a quarter of the
parameters more, as in the paper; ce3-wide is ce3 with about as many. Networks with the same width begin with the
same weights for the same seed. "Over hue shifts": the mean over 12 shifts, of every fourth test image. NLL is in
nats per image, the Brier score is the sum over classes (0 to 2), ECE has 15 bins. "At θ = 1": the same network, its
levels set to all of the group at the test. The paper's numbers are of 224 pixels, a ResNet18 of full width and 400
epochs.\
"""

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
        "test accuracy on draws of long-tailed ColorMNIST: ordinary, hue-equivariant and variational networks",
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
        notes={"cpu": COLORMNIST_NOTES},
        published={
            "cnn-19k": "71.0 ± 0.2",
            "ce3": "87.1 ± 0.1",
            "vp3": "85.4 ± 1.0",
            "ce6": "88.7 ± 0.3",
            "vp6": "88.4 ± 1.1",
            "ce3-plain": "87.1 ± 0.1",
            "vp3-plain": "85.4 ± 1.0",
        },
    ),
    "table-flowers": Experiment(
        "Flowers102: accuracy, accuracy over hue shifts and calibration of narrow ResNet18s",
        "flowers102",
        {
            "resnet": _t2,
            "resnet-jitter": _jittered,
            "ce3": _full,
            "ce3-hybrid": _model("full", equivariant=2),
            "ce3-wide": _model("full", width=27),
            "learned": _learned,
            "vp3": _variational,
        },
        (0, 1),
        measure_colors,
        table_colors,
        {"cpu": "flowers102-cpu", "paper": "flowers102"},
        notes={"cpu": FLOWERS_NOTES},
        published={"resnet": "64.6 ± 0.3", "ce3-hybrid": "68.0 ± 0.5", "learned": "67.2 ± 1.5", "vp3": "69.4 ± 0.6"},
    ),
    "table-cifar10": Experiment(
        "test accuracy on CIFAR-10 of T(2), full, learned and variational networks of the same size",
        "cifar10-se2",
        {"t2": _t2, "full": _full, "learned": _learned, "variational": _variational},
        (0, 1),
        measure_photographs,
        table_photographs,
        {"cpu": "cifar10-cpu", "paper": "cifar10"},
        notes={"cpu": "The paper's numbers are of its larger network, all of CIFAR-10 and 300 epochs."},
        published={"t2": "82.0 ± 0.2", "full": "83.9 ± 0.3", "learned": "85.1 ± 0.6", "variational": "85.1 ± 0.4"},
    ),
}


def experiment(name: str) -> Experiment:
    """The experiment of this name."""
    if name not in EXPERIMENTS:
        raise UserError(f"unknown experiment {name!r}: choose from {', '.join(EXPERIMENTS)}")
    return EXPERIMENTS[name]
