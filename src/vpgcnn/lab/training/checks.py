"""Checks of settings before a run starts."""

from __future__ import annotations

import math
import os
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import nn

from vpgcnn.errors import UserError
from vpgcnn.lab.training.checkpoint import Card
from vpgcnn.lab.training.config import TrainConfig
from vpgcnn.lab.training.trackers import check_tracker

__all__ = [
    "check_numbers",
    "check_reweighing",
    "check_search",
    "check_settings",
    "check_size",
    "check_threads",
    "held_count",
]

SMALLEST = 8
"""Smallest side of images in pixels: networks halve it up to three times."""

LARGEST = 2048
"""Largest side of images in pixels."""
SEEDS = 2**63
"""Seeds are smaller than this."""


def check_threads(count: int) -> None:
    """Refuse a number of threads that the machine cannot use; 0 leaves the choice to torch."""
    most = 4 * (os.cpu_count() or 1)
    if not 0 <= count <= most:
        raise UserError(f"threads must be from 0 to {most}, got {count}")


def check_numbers(config: Any, path: str) -> None:
    """Refuse numbers that are not finite, anywhere in a configuration.

    Args:
        config: A dataclass.
        path: What comes before the names of its fields in messages.
    """
    for part in fields(config):
        value, name = getattr(config, part.name), f"{path}{part.name}"
        if is_dataclass(value):
            check_numbers(value, f"{name}.")
        elif isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"{name} must be a finite number, got {value}")


def check_settings(config: TrainConfig, processes: int) -> None:
    """Refuse settings outside their range, and trackers that are not installed."""
    check_tracker(config.track)
    for name in ("epochs", "batch_size"):
        if getattr(config, name) < 1:
            raise UserError(f"{name} must be at least 1, got {getattr(config, name)}")
    for name in ("clip", "log_steps", "save_seconds", "watch"):
        if getattr(config, name) < 0:
            raise UserError(f"{name} must not be negative, got {getattr(config, name)}")
    for name, seed in (("seed", config.seed), ("data.seed", config.data.seed)):
        if not 0 <= seed < SEEDS:
            raise UserError(f"{name} must be a whole number from 0 to 2⁶³ − 1, got {seed}")
    if config.data.size is not None and config.data.size > LARGEST:
        raise UserError(f"data.size must be at most {LARGEST} pixels, got {config.data.size}")
    if config.data.size is not None and config.data.size < SMALLEST:
        raise UserError(
            f"data.size must be at least {SMALLEST} pixels, got {config.data.size}: networks halve images up to three "
            "times"
        )
    if config.batch_size % processes:
        raise UserError(f"batch_size {config.batch_size} cannot be divided evenly among {processes} processes")
    if not 0 <= config.warmup < 1:
        raise UserError(f"warmup is a share of the training, from 0 to below 1, got {config.warmup:g}")
    if not 0 <= config.final <= 1:
        raise UserError(f"final is a share of the highest learning rate, from 0 to 1, got {config.final:g}")
    if config.balance < 0:
        raise UserError(f"balance must not be negative, got {config.balance}")
    for name, settings in (("optimiser", config.optimiser), ("level_optimiser", config.level_optimiser)):
        if settings.lr is not None and settings.lr <= 0:
            raise UserError(f"{name}.lr must be > 0, got {settings.lr}")
        if settings.weight_decay < 0:
            raise UserError(f"{name}.weight_decay must not be negative, got {settings.weight_decay}")


def check_search(config: TrainConfig, images: int) -> None:
    """Refuse settings of a policy search that cannot work with this number of training images."""
    settings = config.augmenter
    if settings.search < 1 or not 0 < settings.held < 1:
        raise UserError(
            f"augmenter.search must be at least 1 epoch and augmenter.held a share of 1, got {settings.search} and "
            f"{settings.held}"
        )
    if not 0 <= settings.deviation <= 1:
        raise UserError(f"augmenter.deviation is a share of 180°, from 0 to 1, got {settings.deviation}")
    if settings.lr <= 0:
        raise UserError(f"augmenter.lr must be > 0, got {settings.lr}")
    left = images - max(1, round(settings.held * images))
    if left < config.batch_size:
        raise UserError(
            f"the search leaves {left} training images, fewer than a batch of {config.batch_size}: lower "
            "augmenter.held or batch_size"
        )


def held_count(share: float, images: int) -> int:
    """How many training images are held out to judge weights: at least two, because batch norms need them."""
    return max(2, round(share * images))


def check_reweighing(config: TrainConfig, images: int, processes: int) -> None:
    """Refuse settings with which the weights of moved images cannot be learned."""
    settings = config.augmenter
    if processes > 1:
        raise UserError(f"augmenter.kind reweighted trains in one process, got {processes}: its weights need the batch")
    if config.model.group.count > 1:  # their norms and convolutions have no second derivatives
        raise UserError(
            f"augmenter.kind reweighted differentiates training steps, which layers on {config.model.group} cannot do: "
            "choose --model.group none"
        )
    if not 0 < settings.held < 1:
        raise UserError(f"augmenter.held must be a share of the training images between 0 and 1, got {settings.held}")
    for name in ("lr", "lookahead"):
        if getattr(settings, name) <= 0:
            raise UserError(f"augmenter.{name} must be > 0, got {getattr(settings, name)}")
    left = images - held_count(settings.held, images)
    if left < config.batch_size:
        raise UserError(
            f"{left} training images are left, fewer than a batch of {config.batch_size}: lower augmenter.held or "
            "batch_size"
        )


def check_size(model: nn.Module, card: Card) -> None:
    """Refuse a network that is too deep for its images, by running one image through it."""
    try:
        with torch.no_grad():
            model.eval()(torch.zeros(1, card.channels, card.size, card.size))
    except UserError:
        raise
    except (RuntimeError, ValueError) as error:
        raise UserError(f"this network cannot take {card.size}×{card.size} images: {error}") from error
