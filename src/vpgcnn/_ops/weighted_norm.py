"""Batch norm whose statistics come from some of the rows, or from all of them by their weight."""

from __future__ import annotations

import torch
from torch import Tensor

from vpgcnn._ops.precision import full_precision

__all__ = ["batch_norm"]


def batch_norm(
    x: Tensor,
    rows: Tensor,
    share: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    momentum: float,
    eps: float,
) -> Tensor:
    """`F.batch_norm` in training, with the statistics of other values.

    Args:
        x: `(N, C, …)`, what is normalised.
        rows: `(M, C, …)`, what the statistics are those of.
        share: `(M,)`, how much each row counts, 1 in all. None: all rows count the same.
        running_mean: `(C,)`, updated in place, or None; also `running_var`.
        running_var: As `running_mean`.
        weight: `(C,)` or None; also `bias`.
        bias: As `weight`.
        momentum: As for `F.batch_norm`; also `eps`.
        eps: As `momentum`.

    Returns:
        `(N, C, …)`, in the precision of x.
    """
    with full_precision(x.device):
        precision = torch.promote_types(x.dtype, torch.float32)
        mean, var, many = _moments(rows.to(precision), share)
        with torch.no_grad():
            if running_mean is not None:
                running_mean.lerp_(mean.to(running_mean.dtype), momentum)
            if running_var is not None:
                running_var.lerp_((var * (many / (many - 1))).to(running_var.dtype), momentum)
        scale = (var + eps).rsqrt()
        scale = scale if weight is None else scale * weight
        shape = (1, -1, *(1 for _ in range(x.dim() - 2)))
        out = (x.to(precision) - mean.view(shape)) * scale.view(shape)
        out = out if bias is None else out + bias.view(shape)
        return out.to(x.dtype)


def _moments(x: Tensor, share: Tensor | None) -> tuple[Tensor, Tensor, Tensor | float]:
    """Mean and variance `(C,)` of x `(N, C, …)`, and how many values they come from."""
    over = list(range(2, x.dim()))
    if share is None:
        var, mean = torch.var_mean(x, dim=[0, *over], correction=0)
        return mean, var, float(x.numel() // max(x.shape[1], 1))
    centre = x.mean(dim=over) if over else x
    mean = share @ centre
    far = (centre - mean).square()
    if over:
        far = far + x.var(dim=over, correction=0)
    positions = x.numel() // max(x.shape[0] * x.shape[1], 1)
    return mean, share @ far, positions / share.square().sum()
