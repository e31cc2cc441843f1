"""Arms of experiments: what each changes of a recipe."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from vpgcnn.experiments.base import Arm
from vpgcnn.models import AugmenterConfig, ColorConfig, ordinary
from vpgcnn.models.config import PLAIN_RESNET, LevelName, PlainConfig
from vpgcnn.training.config import TrainConfig

__all__ = [
    "AVERAGED",
    "FULL",
    "LEARNED",
    "T2",
    "VARIATIONAL",
    "as_published",
    "converted",
    "drawn",
    "jittered",
    "moved",
    "partial_gcnn",
    "plain",
    "tuned",
    "turned",
    "wide",
    "with_level",
]


def with_level(level: Literal["t2", "full", "learned", "variational"], **changes: Any) -> Arm:
    """An arm whose network has this level, and other changes."""

    def arm(config: TrainConfig) -> TrainConfig:
        model = ordinary(config.model) if level == "t2" else replace(config.model, level=level)
        return replace(config, model=replace(model, **changes))

    return arm


T2, FULL, LEARNED, VARIATIONAL = with_level("t2"), with_level("full"), with_level("learned"), with_level("variational")


def wide(arm: Arm) -> Arm:
    """The arm in a network an eighth wider: about as many parameters as encoders that are not light add."""

    def changed(config: TrainConfig) -> TrainConfig:
        config = arm(config)
        assert isinstance(config.model, ColorConfig)
        return replace(config, model=replace(config.model, width=round(config.model.width * 9 / 8)))

    return changed


LOGITS = 10.0
"""How much faster logits learn than windows: at a chance of 0.9, a step of a logit changes θ by a sixteenth of it."""


def partial_gcnn(elements: int) -> Arm:
    """Partial G-CNN on hues: one level for all images in every layer after the lift, by Gumbel-softmax.

    A residual sum has one draw, that of the convolutions at its beginning: shortcuts and what is added to it later
    have no level of their own, as an element would otherwise have to be drawn again and again to stay.
    """

    def arm(config: TrainConfig) -> TrainConfig:
        assert isinstance(config.model, ColorConfig)
        model = config.model
        layers = _drawn_once(model, 1) if model.shape == "resnet" else tuple(f"conv{number}" for number in range(2, 8))
        model = replace(model, level="learned", family="gumbel", elements=elements, where=layers)
        return replace(config, model=model, levels=replace(config.levels, rate=LOGITS * config.levels.rate))

    return arm


def _drawn_once(model: ColorConfig, first: int) -> tuple[str, ...]:
    """The layers of a ResNet's stages, beginning with this one, in which each residual sum has one draw."""
    parts = ("first", "second", "third") if model.block == "bottleneck" else ("first", "second")
    return tuple(
        f"stage{stage}.{block}.{part}"
        for stage, depth in enumerate(model.depths, start=1)
        for block in range(depth)
        for part in (parts[:-1] if block else parts)
        if stage >= first
    )


def drawn(first: int, **changes: Any) -> Arm:
    """Levels for each image on the lift and from this stage on, of which training draws elements; other changes."""

    def arm(config: TrainConfig) -> TrainConfig:
        assert isinstance(config.model, ColorConfig)
        layers = ("lift", *_drawn_once(config.model, first))
        return with_level("variational", family="drawn", where=layers, **changes)(config)

    return arm


def moved(arm: Arm, kind: Literal["fixed", "shared", "image", "policy"], **settings: Any) -> Arm:
    """The arm behind an augmentation: as far as it can, a range for all, a range for each image, a policy."""

    def changed(config: TrainConfig) -> TrainConfig:
        config = arm(config)
        chosen = {"samples": 4, **settings}
        objective, model = config.objective, config.model
        if kind == "image":  # InstaAug keeps the entropy between two bounds
            objective = replace(objective, mode="band", start=0.0, speed=0.003, low=0.2, high=2.0)
            large = isinstance(model, ColorConfig) and model.shape == "resnet" and model.width >= 64
            chosen["predictor"] = "resnet" if large else "small"
        if kind == "policy":
            chosen["search"] = max(2, config.epochs // 3)
            if isinstance(model, ColorConfig) and model.shape == "resnet":
                # It reads ten times as many features there: at 1e-2 all images are moved by 180° after an epoch.
                chosen.setdefault("rate", 1e-3)
        return replace(config, augmenter=AugmenterConfig(kind, **chosen), objective=objective)

    return changed


def jittered(config: TrainConfig) -> TrainConfig:
    """The ordinary network, training images in random hues."""
    return replace(T2(config), data=replace(config.data, hue_jitter=0.5))


def turned(config: TrainConfig) -> TrainConfig:
    """The ordinary network, training images turned at random."""
    return replace(T2(config), data=replace(config.data, augment="rotate", max_angle=180.0))


def as_published(arm: Arm) -> Arm:
    """The arm as published: images as they are, and a loss in which frequent classes count more."""

    def changed(config: TrainConfig) -> TrainConfig:
        config = arm(config)
        data, objective = replace(config.data, augment="none"), replace(config.objective, balance=0.0)
        return replace(config, data=data, objective=objective)

    return changed


AVERAGED = moved(T2, "fixed", initial=1.0, samples=8, training=False)


def plain(config: TrainConfig) -> TrainConfig:
    """The ordinary ResNet18 in plain PyTorch, as wide as the recipe's."""
    return replace(config, model=_plain_of(config))


def _plain_of(config: TrainConfig) -> PlainConfig:
    assert isinstance(config.model, ColorConfig)
    return replace(PLAIN_RESNET, width=config.model.width)


def converted(level: LevelName) -> Arm:
    """The same, converted to three hues."""

    def arm(config: TrainConfig) -> TrainConfig:
        return replace(config, model=replace(_plain_of(config), hues=3, level=level))

    return arm


def tuned(start: str, arm: Arm, *, hue_jitter: float = 0.0) -> Arm:
    """The arm, beginning with what the arm `start` learned, for a third of the epochs at a third of the rates."""

    def changed(config: TrainConfig) -> TrainConfig:
        config = arm(config)
        rate, data = config.network.rate / 3, replace(config.data, hue_jitter=hue_jitter)
        config = replace(config, start=Path(start), epochs=max(1, config.epochs // 3), data=data)
        return replace(config, network=replace(config.network, rate=rate))

    return changed
