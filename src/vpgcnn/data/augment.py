"""Random changes to training images, the same ones for the same generator however the batch is shared out."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vpgcnn.data.config import DataConfig
from vpgcnn.errors import UserError
from vpgcnn.groups import SO2

__all__ = ["augmented"]

SHIFT = 4


def augmented(images: Tensor, config: DataConfig, generator: torch.Generator, part: slice, whole: int) -> Tensor:
    """Images of a batch, bytes `(B, C, H, W)`, changed as the configuration says.

    The batch of all processes has `whole` images and these are its `part`: choices are drawn for all
    of it, so that they do not depend on how many processes there are.
    """
    if config.augment == "crop-flip":
        shift = torch.randint(0, 2 * SHIFT + 1, (whole, 2), generator=generator)[part]
        mirror = torch.rand(whole, generator=generator)[part] < 0.5
        return _shifted(torch.where(mirror[:, None, None, None], images.flip(-1), images), shift)
    if config.augment == "rotate":
        if not 0 <= config.max_angle <= 180:
            raise UserError(f"max_angle is in degrees, from 0 to 180, got {config.max_angle}")
        angle = (torch.rand(whole, generator=generator)[part] * 2 - 1) * math.radians(config.max_angle)
        turned = SO2().transform(images.float(), angle.unsqueeze(1), mode="bicubic")
        return turned.round().clamp(0, 255).to(torch.uint8)
    return images


def _shifted(images: Tensor, shift: Tensor) -> Tensor:
    """Each image moved by up to SHIFT pixels each way, black where nothing was."""
    batch, channels, height, width = images.shape
    padded = torch.nn.functional.pad(images, (SHIFT,) * 4)
    rows = (shift[:, :1] + torch.arange(height)).view(batch, 1, height, 1)
    columns = (shift[:, 1:] + torch.arange(width)).view(batch, 1, 1, width)
    index = torch.arange(batch).view(-1, 1, 1, 1), torch.arange(channels).view(1, -1, 1, 1), rows, columns
    return padded[index]
