"""Random changes to training images, the same ones for the same generator however the batch is shared out."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from vpgcnn.data.config import DataConfig
from vpgcnn.errors import UserError
from vpgcnn.groups import SO2
from vpgcnn.hsv import shift_hue

__all__ = ["augmented"]

SHIFTS = {"shift": (2, "replicate"), "crop-flip": (4, "constant")}
"""By how many pixels at most, and what comes in: more of the border, or black."""
LEAST = 0.25
"""Of an image's area in a random part of it."""


def augmented(
    images: Tensor, config: DataConfig, size: int, generator: torch.Generator, part: slice, whole: int
) -> Tensor:
    """Images of a batch, bytes `(B, C, H, W)`, changed as the configuration says, with sides of `size` pixels.

    The batch of all processes has `whole` images and these are its `part`: choices are drawn for all
    of it, so that they do not depend on how many processes there are.
    """
    changed = _moved(images, config, size, generator, part, whole)
    if config.hue_jitter == 0:
        return changed
    if not 0 < config.hue_jitter <= 0.5:
        raise UserError(f"hue_jitter is a share of the circle, from 0 to 0.5, got {config.hue_jitter}")
    if images.shape[1] != 3:
        raise UserError("hue_jitter needs colour images")
    shift = (torch.rand(whole, generator=generator)[part] * 2 - 1) * config.hue_jitter
    return _bytes(shift_hue(changed.float() / 255, shift) * 255)


def _moved(
    images: Tensor, config: DataConfig, size: int, generator: torch.Generator, part: slice, whole: int
) -> Tensor:
    if config.augment == "resized-crop":
        chosen = torch.rand(whole, 5, generator=generator)[part]
        return _bytes(_cropped(images.float(), chosen, size))
    if config.augment in SHIFTS:
        most, border = SHIFTS[config.augment]
        shift = torch.randint(0, 2 * most + 1, (whole, 2), generator=generator)[part]
        if config.augment == "crop-flip":
            mirror = torch.rand(whole, generator=generator)[part] < 0.5
            images = torch.where(mirror[:, None, None, None], images.flip(-1), images)
        return _shifted(F.pad(images.float(), (most,) * 4, border).to(torch.uint8), shift, images.shape)
    if config.augment == "rotate":
        if not 0 <= config.max_angle <= 180:
            raise UserError(f"max_angle is in degrees, from 0 to 180, got {config.max_angle}")
        angle = (torch.rand(whole, generator=generator)[part] * 2 - 1) * math.radians(config.max_angle)
        turned = SO2().transform(images.float(), angle.unsqueeze(1), mode="bicubic")
        return _bytes(turned)
    return images


def _bytes(pixels: Tensor) -> Tensor:
    return pixels.round().clamp(0, 255).to(torch.uint8)


def _cropped(images: Tensor, chosen: Tensor, size: int) -> Tensor:
    """A random part of each image, of a quarter to all of its area and a shape of 3:4 to 4:3, mirrored or not."""
    area = LEAST + (1 - LEAST) * chosen[:, 0]
    shape = torch.exp((chosen[:, 1] * 2 - 1) * math.log(4 / 3))
    sides = torch.stack([(area * shape).sqrt(), (area / shape).sqrt()], dim=1).clamp_max(1)  # of 1, the image
    middle = (chosen[:, 2:4] * 2 - 1) * (1 - sides)
    mirror = torch.where(chosen[:, 4] < 0.5, -1.0, 1.0)
    turn = torch.zeros(len(images), 2, 3)
    turn[:, 0, 0], turn[:, 1, 1], turn[:, :, 2] = sides[:, 0] * mirror, sides[:, 1], middle
    grid = F.affine_grid(turn, [len(images), images.shape[1], size, size], align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="reflection", align_corners=False)


def _shifted(padded: Tensor, shift: Tensor, shape: torch.Size) -> Tensor:
    """The part of this shape of each padded image, from its own shift `(B, 2)` on."""
    batch, channels, height, width = shape
    rows = (shift[:, :1] + torch.arange(height)).view(batch, 1, height, 1)
    columns = (shift[:, 1:] + torch.arange(width)).view(batch, 1, 1, width)
    index = torch.arange(batch).view(-1, 1, 1, 1), torch.arange(channels).view(1, -1, 1, 1), rows, columns
    return padded[index]
