"""Named runs: a dataset with a network and all settings, small enough for two cores or as in the paper."""

from __future__ import annotations

from dataclasses import dataclass, replace

from vpgcnn.errors import UserError
from vpgcnn.groups import O2
from vpgcnn.kernels import Siren
from vpgcnn.lab.data.config import DataConfig
from vpgcnn.lab.networks.config import (
    COLOR_CNN,
    COLOR_RESNET,
    COLOR_RESNET_SMALL,
    DIGITS,
    DIGITS_IN_COLOR,
    RESNET,
    RESNET_SMALL,
    SIGNS,
    SIGNS_IN_COLOR,
    SIGNS_MIRRORED,
)
from vpgcnn.lab.training.config import LevelOptimiserConfig, OptimiserConfig, TrainConfig
from vpgcnn.lab.training.paper import with_paper_settings
from vpgcnn.levels import RankedSoftmax, ReparametrizedWindow, Shared, Variational
from vpgcnn.objective import KlSchedule

__all__ = ["PRESETS", "RECIPES", "Recipe", "demo_recipe", "recipe"]

PRESETS = ("cpu", "paper")


@dataclass(frozen=True)
class Recipe:
    """A run by name, in two sizes."""

    about: str
    cpu: TrainConfig
    paper: TrainConfig


MNIST67 = TrainConfig(
    data=DataConfig(name="mnist67-180"),
    model=DIGITS,
    optimiser=OptimiserConfig(lr=1e-2),
    epochs=6,
    select="last",
)
RANGES = replace(MNIST67, data=DataConfig(name="mnist-ranges"))
MULTIPLE = replace(MNIST67, data=DataConfig(name="mnist-multiple", limit=20_000))
BREAKING = replace(MNIST67, data=DataConfig(name="mnist-symmetry-breaking", limit=20_000))
TURN_HUE = replace(
    MNIST67,
    data=DataConfig(name="mnist-turn-hue", limit=12_000),
    model=DIGITS_IN_COLOR,
    epochs=8,
)
SIGN_TURNS = replace(
    MNIST67,
    data=DataConfig(name="gtsrb-turn", augment="shift"),
    model=SIGNS,
    optimiser=OptimiserConfig(lr=4e-3),
    epochs=12,
)
SIGN_BOTH = replace(SIGN_TURNS, data=replace(SIGN_TURNS.data, name="gtsrb"), model=replace(SIGNS, group=O2(4)))
SIGN_MIRRORS = replace(SIGN_TURNS, data=replace(SIGN_TURNS.data, name="gtsrb-mirror"), model=SIGNS_MIRRORED)
SIGN_COLORS = replace(MNIST67, data=DataConfig(name="gtsrb-colors", size=28), model=SIGNS_IN_COLOR)
CIFAR = TrainConfig(
    data=DataConfig(name="cifar10", augment="crop-flip"),
    model=RESNET_SMALL,
    optimiser=OptimiserConfig(lr=2e-3),
    epochs=6,
)
COLORMNIST = TrainConfig(
    data=DataConfig(name="colormnist-lt", augment="shift"),
    model=COLOR_CNN,
    balance=1.0,
    optimiser=OptimiserConfig("adam", 3e-3, 1e-5),
    epochs=100,
)
FLOWERS = TrainConfig(
    data=DataConfig(name="flowers102", size=64, augment="resized-crop"),
    model=COLOR_RESNET_SMALL,
    optimiser=OptimiserConfig("adam", 1e-3, 1e-5),
    epochs=60,
)
PAPER_WEIGHT = KlSchedule(start=1e-3, peak=1e-3)
"""λ of the paper preset; the paper does not print the one it used."""
SAMPLED = Variational(ReparametrizedWindow(), detach_features=False, explore=0.0)
PARTIAL = Shared(ReparametrizedWindow())
"""The paper's rotations: angles are sampled from each image's window, or from one window for all images."""
RANKED = Variational(RankedSoftmax(), detach_features=False)
"""The paper's hue shifts, without random ranks: these would make every level fully equivariant on average."""
PAPER_CIFAR = with_paper_settings(
    replace(CIFAR, model=replace(RESNET, level=SAMPLED, elsewhere=PARTIAL), objective=PAPER_WEIGHT)
)

RECIPES = {
    "mnist67-180": Recipe(
        "6s, 7s and 6s turned into 9s: which rotations may be used differs from digit to digit",
        MNIST67,
        with_paper_settings(
            replace(
                MNIST67,
                model=replace(DIGITS, level=SAMPLED, where=("lift", "last"), elsewhere=PARTIAL, kernel=Siren()),
                objective=PAPER_WEIGHT,
            )
        ),
    ),
    "mnist-ranges": Recipe(
        "4s and 7s in three sizes: the true range of rotations is known for each image; the network has to find it",
        RANGES,
        RANGES,
    ),
    "mnist-ranges-eighth": Recipe(
        "mnist-ranges with a narrower range for the largest digits",
        replace(RANGES, data=DataConfig(name="mnist-ranges-eighth")),
        replace(RANGES, data=DataConfig(name="mnist-ranges-eighth")),
    ),
    "mnist-multiple": Recipe(
        "all digits, of which each has its own range of rotations, from none (0) to nearly all (9)",
        MULTIPLE,
        replace(MULTIPLE, data=DataConfig(name="mnist-multiple")),
    ),
    "mnist-symmetry-breaking": Recipe(
        "all digits, of which 6s and 9s change places upside down: the others may be rotated",
        BREAKING,
        replace(BREAKING, data=DataConfig(name="mnist-symmetry-breaking")),
    ),
    "mnist-turn-hue": Recipe(
        "digits in colour with a network on rotations × hues: which of the two may be used differs between digits",
        TURN_HUE,
        replace(TURN_HUE, data=DataConfig(name="mnist-turn-hue"), epochs=20),
    ),
    "gtsrb-turn": Recipe(
        "traffic signs as they stand on the road: most stay what they are at any angle, some arrows do not",
        SIGN_TURNS,
        SIGN_TURNS,
    ),
    "gtsrb-mirror": Recipe(
        "the same signs and mirrors: signs for left and right are each other's mirror images",
        SIGN_MIRRORS,
        SIGN_MIRRORS,
    ),
    "gtsrb": Recipe(
        "the same signs, rotations and mirrors at once: a window on each of the two",
        SIGN_BOTH,
        SIGN_BOTH,
    ),
    "gtsrb-colors": Recipe(
        "four of the signs, pale or vivid, dark or light: for some signs that is the class, for others it is noise",
        SIGN_COLORS,
        SIGN_COLORS,
    ),
    "cifar10-se2": Recipe(
        "photographs of ten classes with the SE(2) ResNet",
        CIFAR,
        PAPER_CIFAR,
    ),
    "cifar100-se2": Recipe(
        "photographs of a hundred classes with the SE(2) ResNet",
        replace(CIFAR, data=replace(CIFAR.data, name="cifar100")),
        replace(PAPER_CIFAR, data=replace(CIFAR.data, name="cifar100")),
    ),
    "cifar10-color": Recipe(
        "photographs of ten classes with the colour ResNet18: which of them may change their hue?",
        replace(CIFAR, model=COLOR_RESNET_SMALL),
        replace(
            CIFAR,
            model=replace(COLOR_RESNET, level=RANKED),
            objective=PAPER_WEIGHT,
            optimiser=OptimiserConfig("adam", 1e-3, 1e-5),
            level_optimiser=LevelOptimiserConfig("adamw", 1e-4),
            epochs=300,
        ),
    ),
    "colormnist-lt": Recipe(
        "digits in red, green and blue, 30 classes, most of them small: hue equivariance transfers what is learned on "
        "large classes to small ones",
        COLORMNIST,
        with_paper_settings(
            replace(
                COLORMNIST,
                data=DataConfig(name="colormnist-lt"),
                model=replace(COLOR_CNN, level=replace(RANKED, family=RankedSoftmax(initial=0.0))),
                objective=PAPER_WEIGHT,
                balance=0.0,
            )
        ),
    ),
    "flowers102": Recipe(
        "photographs of 102 flowers: some may change colour without changing class, others may not",
        FLOWERS,
        with_paper_settings(
            replace(
                FLOWERS,
                data=DataConfig(name="flowers102", size=224, augment="resized-crop"),
                model=replace(COLOR_RESNET, level=RANKED),
                objective=PAPER_WEIGHT,
            )
        ),
    ),
}


def recipe(name: str, preset: str = "cpu") -> TrainConfig:
    """The settings of a named run."""
    if name not in RECIPES:
        raise UserError(f"unknown recipe {name!r}: choose from {', '.join(RECIPES)}")
    if preset not in PRESETS:
        raise UserError(f"unknown preset {preset!r}: choose cpu or paper")
    config: TrainConfig = getattr(RECIPES[name], preset)
    return config


def demo_recipe() -> TrainConfig:
    """MNIST67-180 on the embedded digits, in a few minutes."""
    return replace(MNIST67, data=replace(MNIST67.data, source="embedded"), epochs=40)
