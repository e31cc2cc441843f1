"""Changes that arms of several experiments make to a recipe. What only one table needs is in the file of that table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, Literal

from vpgcnn.groups import Hue
from vpgcnn.lab.experiments.base import Change
from vpgcnn.lab.networks import AugmenterConfig, ColorConfig, ordinary
from vpgcnn.lab.training.config import LevelOptimiserConfig, TrainConfig
from vpgcnn.levels import Full, GumbelSoftmax, Shared, Variational
from vpgcnn.objective import Band

__all__ = [
    "ADAAUG",
    "AUGERINO",
    "AUTOAUGMENT",
    "AVERAGED",
    "FULL",
    "FULL_INSTAAUG",
    "INSTAAUG",
    "LEARNED_MIXTURE",
    "METAAUGMENT",
    "SHARED",
    "T2",
    "VARIATIONAL",
    "augmented",
    "drawn_once",
    "jittered",
    "partial_gcnn",
    "with_level",
]

LOGIT_RATE = 10.0
"""How much faster logits learn than windows (cpu preset): at p = 0.9 a step of a logit changes p by 0.09 of it."""


def with_level(level: Literal["t2", "full", "shared", "variational"], **changes: Any) -> Change:
    """Gives the network another level.

    Args:
        level: t2: no group. full: the whole group. shared: one level for all images. variational: the recipe's.
        changes: Other settings of the network (group, width, where, …), or of its variational level (family,
            encoder_width, detach_features).
    """
    of_level = {part.name for part in fields(Variational)}

    def change(config: TrainConfig) -> TrainConfig:
        model = ordinary(config.model) if level == "t2" else config.model
        start = config.model.level if isinstance(config.model.level, Variational) else Variational()
        variational = replace(start, **{key: value for key, value in changes.items() if key in of_level})
        if level == "full":
            model = replace(model, level=Full())
        elif level == "shared":
            model = replace(model, level=Shared(variational.family))
        elif level == "variational":
            model = replace(model, level=variational)
        return replace(config, model=replace(model, **{k: v for k, v in changes.items() if k not in of_level}))

    return change


T2, FULL, SHARED, VARIATIONAL = with_level("t2"), with_level("full"), with_level("shared"), with_level("variational")


def partial_gcnn(hues: int) -> Change:
    """Partial G-CNN on hues: one Gumbel-softmax level for all images in every layer after the lift.

    In a ResNet each residual sum is sampled once, at its beginning: if shortcuts and later summands were sampled
    too, an element would have to be drawn several times to stay.
    """

    def change(config: TrainConfig) -> TrainConfig:
        model = config.model
        assert isinstance(model, ColorConfig)
        layers = drawn_once(model) if model.shape == "resnet" else [f"conv{number}" for number in range(2, 8)]
        level = Shared(GumbelSoftmax(final=0.1))
        model = replace(model, level=level, group=Hue(hues), where=tuple(layers))
        own = config.level_optimiser.beside(config.optimiser)
        faster = LevelOptimiserConfig(own.kind, LOGIT_RATE * own.lr, own.weight_decay)
        return replace(config, model=model, level_optimiser=faster)

    return change


def drawn_once(model: ColorConfig, first: int = 1) -> Sequence[str]:
    """The layers of a ResNet, from a stage on, that sample each residual sum once."""
    parts = ("first", "second", "third") if model.block == "bottleneck" else ("first", "second")
    return [
        f"stage{stage}.{block}.{part}"
        for stage, depth in enumerate(model.depths, start=1)
        for block in range(depth)
        for part in (parts[:-1] if block else parts)
        if stage >= first
    ]


def augmented(
    change: Change,
    kind: Literal["fixed", "shared", "image", "mixture", "policy", "reweighted", "autoaugment"],
    **settings: Any,
) -> Change:
    """Puts an augmentation before the network.

    Args:
        change: What else the arm changes.
        kind: fixed: a given range. shared: one learned range (Augerino). image: a predicted range for each image
            (InstaAug). mixture: two of them, anywhere (after Singhal et al.). policy: a searched policy (AdaAug).
            reweighted: learned weights of moved images (MetaAugment). autoaugment: AutoAugment's policy for CIFAR-10.
        settings: Other settings of the augmentation.
    """

    def changed(config: TrainConfig) -> TrainConfig:
        config = change(config)
        chosen = {"samples": 4, **settings}
        objective, model = config.objective, config.model
        if kind in ("image", "mixture"):  # InstaAug keeps, and so do Singhal et al., the entropy between two bounds
            objective = Band(low=0.2, high=2.0, rate=0.003, weight=0.0)
            large = isinstance(model, ColorConfig) and model.shape == "resnet" and model.width >= 64
            chosen["predictor"] = "resnet" if large else "small"
        if kind == "policy":
            chosen["search"] = max(2, config.epochs // 3)
            if isinstance(model, ColorConfig) and model.shape == "resnet":
                # The policy reads ten times as many features there: at 1e-2 it moves every image by 180°.
                chosen.setdefault("lr", 1e-3)
        return replace(config, augmenter=AugmenterConfig(kind, **chosen), objective=objective)

    return changed


AVERAGED = augmented(T2, "fixed", initial=1.0, samples=8, training=False)
AUGERINO, INSTAAUG, ADAAUG = augmented(T2, "shared"), augmented(T2, "image"), augmented(T2, "policy")
LEARNED_MIXTURE = augmented(T2, "mixture")
METAAUGMENT = augmented(T2, "reweighted", initial=1.0, held=0.1, lr=1e-3)
AUTOAUGMENT = augmented(T2, "autoaugment")
FULL_INSTAAUG = augmented(FULL, "image")


def jittered(config: TrainConfig) -> TrainConfig:
    """The ordinary network, trained on images with random hue shifts."""
    return replace(T2(config), data=replace(config.data, hue_jitter=0.5))
