"""Move the pixels of an image by an orthogonal matrix, exactly where a permutation of pixels suffices."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["move"]


def move(image: Tensor, matrix: Tensor, mode: str = "bilinear") -> Tensor:
    """Transform f(x) to f(A⁻¹x) about the centre of the image, with 0 outside.

    Where A is a signed permutation (quarter turns, mirrors) pixels are permuted, bit for bit; elsewhere they
    are interpolated.

    Args:
        image: `(B, C, H, W)`, square.
        matrix: A, orthogonal, `(2, 2)` or `(B, 2, 2)`, on points (x right, y up).
        mode: "bilinear" or "bicubic".

    Returns:
        `(B, C, H, W)`.
    """
    if image.shape[-1] != image.shape[-2]:
        raise ValueError(f"rotations and mirrors need square images, got {image.shape[-2]}×{image.shape[-1]}")
    if mode not in ("bilinear", "bicubic"):
        raise ValueError(f"mode must be 'bilinear' or 'bicubic', got {mode!r}")
    inverse = matrix.transpose(-1, -2).expand(image.shape[0], 2, 2)
    exact = (inverse.detach() == inverse.detach().round()).all(-1).all(-1)
    if not (torch.compiler.is_compiling() or matrix.requires_grad):
        # Both results are computed only where a batch mixes exact and other elements.
        if bool(exact.all()):
            return _permute(image, inverse)
        if not bool(exact.any()):
            return _interpolate(image, inverse, mode)
    smooth = _interpolate(image, inverse, mode)
    # The value is exact; the gradient with respect to the angle is that of the interpolation.
    sharp = _permute(image, inverse).to(smooth.dtype) + (smooth - smooth.detach() if matrix.requires_grad else 0.0)
    return torch.where(exact[:, None, None, None], sharp, smooth)


def _points(size: int, like: Tensor) -> Tensor:
    """Pixel centres relative to the image's centre, `(H·W, 2)` as (x right, y up), in pixels."""
    line = torch.arange(size, device=like.device, dtype=like.dtype) - (size - 1) / 2
    y, x = torch.meshgrid(-line, line, indexing="ij")
    return torch.stack([x.flatten(), y.flatten()], dim=-1)


def _permute(image: Tensor, inverse: Tensor) -> Tensor:
    size = image.shape[-1]
    source = _points(size, inverse) @ inverse.detach().round().transpose(-1, -2)
    column = (source[..., 0] + (size - 1) / 2).round().long().clamp(0, size - 1)
    row = ((size - 1) / 2 - source[..., 1]).round().long().clamp(0, size - 1)
    index = (row * size + column).unsqueeze(1).expand(-1, image.shape[1], -1)
    return image.flatten(2).gather(2, index).view_as(image)


def _interpolate(image: Tensor, inverse: Tensor, mode: str) -> Tensor:
    size = image.shape[-1]
    source = _points(size, inverse) @ inverse.transpose(-1, -2) * (2 / size)
    grid = torch.stack([source[..., 0], -source[..., 1]], dim=-1).unflatten(1, (size, size))
    return F.grid_sample(image, grid.to(image.dtype), mode=mode, padding_mode="zeros", align_corners=False)
