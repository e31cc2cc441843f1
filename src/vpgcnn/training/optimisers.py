"""Optimisers by name."""

from __future__ import annotations

import torch
from torch import nn

from vpgcnn.training.config import OptimiserConfig

__all__ = ["make_optimiser"]


def make_optimiser(parameters: list[nn.Parameter], settings: OptimiserConfig) -> torch.optim.Optimizer:
    """Adam, AdamW or SGD, in one call for all parameters where the device can."""
    fused = {parameter.device.type for parameter in parameters} <= {"cpu", "cuda"}
    if settings.kind == "sgd":
        return torch.optim.SGD(parameters, settings.rate, momentum=0.9, weight_decay=settings.decay, fused=fused)
    kind = torch.optim.AdamW if settings.kind == "adamw" else torch.optim.Adam
    return kind(parameters, settings.rate, weight_decay=settings.decay, fused=fused)
