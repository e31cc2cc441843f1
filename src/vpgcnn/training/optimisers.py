"""Optimisers by name, and the course of their learning rates."""

from __future__ import annotations

import math

import torch
from torch import nn

from vpgcnn.training.config import OptimiserConfig

__all__ = ["make_optimiser", "parts_of", "rate_factor"]


def make_optimiser(parameters: list[nn.Parameter], settings: OptimiserConfig) -> torch.optim.Optimizer:
    """Adam, AdamW or SGD, in one call for all parameters where the device can."""
    fused = {parameter.device.type for parameter in parameters} <= {"cpu", "cuda"}
    if settings.kind == "sgd":
        return torch.optim.SGD(parameters, settings.rate, momentum=0.9, weight_decay=settings.decay, fused=fused)
    kind = torch.optim.AdamW if settings.kind == "adamw" else torch.optim.Adam
    return kind(parameters, settings.rate, weight_decay=settings.decay, fused=fused)


def parts_of(model: nn.Module) -> dict[str, list[tuple[str, nn.Parameter]]]:
    """The named parameters of the "network" and, where there are any, of its "levels"."""
    parts: dict[str, list[tuple[str, nn.Parameter]]] = {"network": [], "levels": []}
    for name, parameter in model.named_parameters():
        of_levels = ".level." in name or name.startswith("ranges.")
        parts["levels" if of_levels else "network"].append((name, parameter))
    return {part: members for part, members in parts.items() if members}


def rate_factor(step: int, total: int, warmup: float, final: float) -> float:
    """A line up to 1 over the warm-up, then a cosine down to `final`."""
    rise = warmup * total
    if step < rise:
        return (step + 1) / (rise + 1)
    return final + (1 - final) * (1 + math.cos(math.pi * (step - rise) / max(1.0, total - rise))) / 2
