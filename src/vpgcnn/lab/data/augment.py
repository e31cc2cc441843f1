"""Random augmentation of training images that does not depend on how a batch is split over processes."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from vpgcnn.color import shift_hue
from vpgcnn.errors import UserError
from vpgcnn.groups import SO2
from vpgcnn.lab.data.config import DataConfig

__all__ = ["augment_batch"]

SHIFTS = {"shift": (2, "replicate"), "crop-flip": (4, "constant")}
"""The largest shift in pixels, and the padding mode: repeat the border, or fill with black."""
MIN_CROP_AREA = 0.25
"""The smallest crop of `resized-crop`, as a share of the image area."""


def augment_batch(
    images: Tensor, config: DataConfig, size: int, generator: torch.Generator, part: slice, whole: int
) -> Tensor:
    """Augment this process's part of a batch.

    Random numbers are drawn for the whole batch, so the result does not depend on the number of processes.

    Args:
        images: The images of this process, bytes `(B, C, H, W)`.
        config: Which augmentation, and how strong.
        size: Height and width of the output of `resized-crop`; the other augmentations keep the size.
        generator: The source of all random numbers, in the same state in every process.
        part: The position of `images` within the whole batch.
        whole: The number of images in the batch over all processes.

    Returns:
        The augmented images, bytes `(B, C, H, W)`, or `(B, C, size, size)` for `resized-crop`.

    Raises:
        UserError: If `hue_jitter` or `max_angle` is out of range, or if `hue_jitter` is used with grey images.
    """
    changed = _augment_geometry(images, config, size, generator, part, whole)
    if config.hue_jitter == 0:
        return changed
    if not 0 < config.hue_jitter <= 0.5:
        raise UserError(f"hue_jitter is a share of the circle and must be between 0 and 0.5, got {config.hue_jitter}")
    if images.shape[1] != 3:
        raise UserError(f"hue_jitter needs colour images, got {images.shape[1]} channel(s): set it to 0")
    shift = (torch.rand(whole, generator=generator)[part] * 2 - 1) * config.hue_jitter
    return _to_bytes(shift_hue(changed.float() / 255, shift) * 255)


def _augment_geometry(
    images: Tensor, config: DataConfig, size: int, generator: torch.Generator, part: slice, whole: int
) -> Tensor:
    if config.augment == "resized-crop":
        draws = torch.rand(whole, 5, generator=generator)[part]
        return _to_bytes(_crop_and_resize(images.float(), draws, size))
    if config.augment in SHIFTS:
        largest, padding_mode = SHIFTS[config.augment]
        shift = torch.randint(0, 2 * largest + 1, (whole, 2), generator=generator)[part]
        if config.augment == "crop-flip":
            mirror = torch.rand(whole, generator=generator)[part] < 0.5
            images = torch.where(mirror[:, None, None, None], images.flip(-1), images)
        return _crop(F.pad(images.float(), (largest,) * 4, padding_mode).to(torch.uint8), shift, images.shape)
    if config.augment == "rotate":
        if not 0 <= config.max_angle <= 180:
            raise UserError(f"max_angle is in degrees and must be between 0 and 180, got {config.max_angle}")
        angle = (torch.rand(whole, generator=generator)[part] * 2 - 1) * math.radians(config.max_angle)
        rotated = SO2().transform(images.float(), angle.unsqueeze(1), mode="bicubic")
        return _to_bytes(rotated)
    return images


def _to_bytes(pixels: Tensor) -> Tensor:
    return pixels.round().clamp(0, 255).to(torch.uint8)


def _crop_and_resize(images: Tensor, draws: Tensor, size: int) -> Tensor:
    """Crop each image at random, resize the crop to `size` × `size`, and mirror half of them.

    Args:
        images: `(B, C, H, W)`.
        draws: `(B, 5)` uniform in [0, 1): area (a quarter to all of the image), aspect ratio (3:4 to 4:3), centre
            (x and y), and whether to mirror.
        size: Height and width of the output.
    """
    area = MIN_CROP_AREA + (1 - MIN_CROP_AREA) * draws[:, 0]
    aspect = torch.exp((draws[:, 1] * 2 - 1) * math.log(4 / 3))
    sides = torch.stack([(area * aspect).sqrt(), (area / aspect).sqrt()], dim=1).clamp_max(1)  # shares of the sides
    centre = (draws[:, 2:4] * 2 - 1) * (1 - sides)
    mirror = torch.where(draws[:, 4] < 0.5, -1.0, 1.0)
    affine = torch.zeros(len(images), 2, 3)
    affine[:, 0, 0], affine[:, 1, 1], affine[:, :, 2] = sides[:, 0] * mirror, sides[:, 1], centre
    grid = F.affine_grid(affine, [len(images), images.shape[1], size, size], align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="reflection", align_corners=False)


def _crop(padded: Tensor, corner: Tensor, shape: torch.Size) -> Tensor:
    """Cut a window of this shape out of each padded image; `corner` `(B, 2)` is its upper left pixel."""
    batch, channels, height, width = shape
    rows = (corner[:, :1] + torch.arange(height)).view(batch, 1, height, 1)
    columns = (corner[:, 1:] + torch.arange(width)).view(batch, 1, 1, width)
    index = torch.arange(batch).view(-1, 1, 1, 1), torch.arange(channels).view(1, -1, 1, 1), rows, columns
    return padded[index]
