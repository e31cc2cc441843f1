"""Batch norm whose statistics come from some of the rows, or from all of them by their weight."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vpgcnn._ops.autograd import Function, apply
from vpgcnn._ops.precision import full_precision

__all__ = ["batch_norm", "batch_norm_by_first"]


def batch_norm_by_first(
    x: Tensor,
    every: int,
    parts: int,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    momentum: float,
    eps: float,
) -> Tensor:
    """`F.batch_norm` in training, with the statistics of the first `parts` of every `every` · `parts` rows.

    Args:
        x: `(N, C, …)`, what is normalised.
        every: See above.
        parts: See above.
        running_mean: As for `batch_norm`, like all that follow.
        running_var: See `running_mean`.
        weight: See `running_mean`.
        bias: See `running_mean`.
        momentum: See `running_mean`.
        eps: See `running_mean`.

    Returns:
        `(N, C, …)`, in the precision of x.
    """
    others = (running_mean, running_var, weight, bias)
    fast = (
        x.device.type == "cpu"
        and x.dtype in (torch.float32, torch.float64)
        and all(each is None or each.dtype == x.dtype for each in others)
        and (running_mean is None) == (running_var is None)
        and not torch.compiler.is_compiling()
        and not torch._C._functorch.is_functorch_wrapped_tensor(x)
    )
    if not fast:
        return batch_norm(x, _first(x, every, parts), None, *others, momentum, eps)
    with torch.no_grad():
        mean, var = torch.batch_norm_update_stats(_first(x.detach(), every, parts), running_mean, running_var, momentum)
    out: Tensor = apply(_ByFirst, x, weight, bias, mean, var, every, parts, eps)
    return out


def _first(x: Tensor, every: int, parts: int) -> Tensor:
    return x.unflatten(0, (-1, every, parts))[:, 0].flatten(0, 1)


class _ByFirst(Function):
    """Normalisation by the mean and variance of some rows, with torch's own kernels for all rows."""

    @staticmethod
    def forward(
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        var: Tensor,
        every: int,
        parts: int,
        eps: float,
    ) -> Tensor:
        return F.batch_norm(x, mean, var, weight, bias, training=False, eps=eps)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:5])
        ctx.every, ctx.parts, ctx.eps = inputs[5:]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, mean, var = ctx.saved_tensors
        every, parts, eps = ctx.every, ctx.parts, ctx.eps
        if torch.is_grad_enabled():  # a gradient of the gradient: by the definition, whose graph is whole
            rows = _first(x, every, parts)
            out = batch_norm(x, rows, None, None, None, weight, bias, 0.0, eps)
            wanted = [each for each in (x, weight, bias) if each is not None and each.requires_grad]
            found = dict(
                zip(map(id, wanted), torch.autograd.grad(out, wanted, grads[0], create_graph=True), strict=True)
            )
            return *(found.get(id(each)) for each in (x, weight, bias)), None, None, None, None, None
        near = (var + eps).rsqrt()
        given = near.new_ones(near.shape) if weight is None else weight
        back = torch.ops.aten.native_batch_norm_backward
        grad, by_weight, by_bias = back(grads[0], x, given, mean, var, mean, near, False, eps, [True, True, True])
        # What the rows that were measured change in the mean and the variance, and these in all rows.
        first, shape = _first(x, every, parts), (1, -1, *(1 for _ in range(x.dim() - 2)))
        many = first.numel() // max(first.shape[1], 1)
        tilt = -(given * near * near * by_weight) / many
        level = -(given * near * by_bias) / many - tilt * mean
        change = torch.addcmul(level.view(shape), first, tilt.view(shape))
        grad.unflatten(0, (-1, every, parts))[:, 0].add_(change.unflatten(0, (-1, parts)))
        return grad, None if weight is None else by_weight, None if bias is None else by_bias, *(None,) * 5


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
