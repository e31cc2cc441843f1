"""Optimisers by name, their parameters, and the schedule of their learning rates."""

from __future__ import annotations

import math

import torch
from torch import nn

from vpgcnn.lab.training.config import OptimiserConfig, TrainConfig

__all__ = ["make_optimiser", "parts_of", "rate_factor", "settings_of"]


def make_optimiser(parameters: list[nn.Parameter], settings: OptimiserConfig) -> torch.optim.Optimizer:
    """Adam, AdamW or SGD; fused into one kernel where the device can."""
    fused = {parameter.device.type for parameter in parameters} <= {"cpu", "cuda"}
    if settings.kind == "sgd":
        return torch.optim.SGD(parameters, settings.lr, momentum=0.9, weight_decay=settings.weight_decay, fused=fused)
    kind = torch.optim.AdamW if settings.kind == "adamw" else torch.optim.Adam
    return kind(parameters, settings.lr, weight_decay=settings.weight_decay, fused=fused)


def parts_of(model: nn.Module) -> dict[str, list[tuple[str, nn.Parameter]]]:
    """The named parameters of the "network" and of its "levels"; a part without parameters is left out."""
    parts: dict[str, list[tuple[str, nn.Parameter]]] = {"network": [], "levels": []}
    for name, parameter in model.named_parameters():
        of_levels = ".level." in name or name.startswith("ranges.")
        parts["levels" if of_levels else "network"].append((name, parameter))
    return {part: members for part, members in parts.items() if members}


def settings_of(config: TrainConfig) -> dict[str, OptimiserConfig]:
    """The settings of each part that `parts_of` names."""
    return {"network": config.optimiser, "levels": config.level_optimiser.beside(config.optimiser)}


def rate_factor(step: int, total: int, warmup: float, final: float) -> float:
    """The learning rate of a step as a share of the highest: a line up to 1, then a cosine down to `final`.

    Args:
        step: Number of the step, from 0.
        total: Steps of the training.
        warmup: Share of the training in which the rate rises.
        final: The share at the end.
    """
    rise = warmup * total
    if step < rise:
        return (step + 1) / (rise + 1)
    return final + (1 - final) * (1 + math.cos(math.pi * (step - rise) / max(1.0, total - rise))) / 2
