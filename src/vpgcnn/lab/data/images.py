"""Image files as tensors: any format that Pillow reads, upright, at a reduced size if they are huge."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from vpgcnn.lab.pixels import decode_pixels

__all__ = ["read_image"]


def read_image(
    path: Path, size: int | None = None, channels: int | None = None, share: float = 1.0, *, quick: bool = False
) -> Tensor:
    """Read an image file.

    Args:
        path: A file in any format that Pillow reads, with 8 or 16 bits per channel.
        size: If given, crop the image to its centre square and resize that to `size` × `size` pixels.
        channels: 1 or 3. None keeps grey images grey and converts all others to RGB.
        share: With `size`: crop to this share of the shorter side, in (0, 1].
        quick: With `size`: decode JPEG files at about twice that size. Photographs are read several times faster; their
            pixels differ slightly.

    Returns:
        Bytes `(C, H, W)`, upright according to the EXIF orientation. Images of more than `MAX_PIXELS` pixels come at a
        whole fraction of their size.

    Raises:
        UserError: If the file is missing, damaged, too large or has 32-bit pixels.
    """
    return torch.from_numpy(decode_pixels(path, str(path), size, channels, share, max_pixels=None, quick=quick))
