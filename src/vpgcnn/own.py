"""Convolution with elements of each image's own, on either side: every image has its own kernel.

A SIREN kernel is linear in its few hidden functions, k = weight·s + bias, and there are two ways to use
that. On a small map the input is *contracted* with s first and mixed with the weights after: no kernel is
ever built. On a large map there are many positions for each number of a kernel, so it is *built* for one
image at a time, used, forgotten, and built again for the gradient: no batch of kernels is ever held.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from vpgcnn.kernels import SirenKernel
from vpgcnn.precision import full_precision

__all__ = ["Steps", "convolve_own"]

PAYS = 4  # building pays for this many positions for each hidden function (measured, see benchmarks)


class Steps(NamedTuple):
    """How a kernel moves over the plane, as in `nn.Conv2d`."""

    stride: int = 1
    padding: int = 0
    dilation: int = 1


def convolve_own(
    kernel: SirenKernel, values: Tensor, weights: Tensor | None, v: Tensor | None, u: Tensor, steps: Steps
) -> Tensor:
    """values `(B, C, V, H, W)` at elements v, averaged under weights, to `(B, O, U, H', W')` at u.

    u `(B, U, K)` or `(U, K)`, v `(B, V, K)`, `(V, K)` or None for a lift, weights `(B, V)` that sum to 1, or None.
    """
    if kernel.lift and kernel.group.acts_on_rgb:
        raise ValueError(f"elements of each image's own are for groups of the plane, not {kernel.group}")
    with full_precision(u.device):
        hidden = kernel.basis(u, v)
        hidden = torch.cat([hidden, torch.ones_like(hidden[..., :1])], dim=-1)  # B U V T S, the last one for the bias
        inputs = values.shape[2]
        share = 1 / inputs if weights is None else weights.to(hidden.dtype)[:, None, :, None, None]
        hidden = (hidden * share).expand(values.shape[0], -1, -1, -1, -1)
    rows, columns = (_positions(size, kernel.size, steps) for size in values.shape[-2:])
    if rows * columns >= PAYS * hidden.shape[-1] and not torch.compiler.is_compiling():
        return _build(kernel, values, hidden, steps)
    return _contract(kernel, values, hidden, steps).unflatten(3, (rows, columns))


def _positions(size: int, kernel_size: int, steps: Steps) -> int:
    return (size + 2 * steps.padding - steps.dilation * (kernel_size - 1) - 1) // steps.stride + 1


def _contract(kernel: SirenKernel, values: Tensor, hidden: Tensor, steps: Steps) -> Tensor:
    """Functions first: one product for each image, then one with the weights. `(B, O, U, Y)`."""
    batch, channels, inputs = values.shape[:3]
    outputs, taps, functions = hidden.shape[1], hidden.shape[3], hidden.shape[4]
    patches = F.unfold(values.flatten(1, 2), kernel.size, steps.dilation, steps.padding, steps.stride)
    patches = patches.unflatten(1, (channels, inputs, kernel.size**2)).permute(0, 2, 3, 1, 4)
    patches = patches.index_select(2, kernel.taps)  # B V T C Y
    projected = torch.bmm(
        hidden.permute(0, 1, 4, 2, 3).reshape(batch, outputs * functions, inputs * taps).to(values.dtype),
        patches.flatten(3, 4).flatten(1, 2),
    ).view(batch, outputs, functions * channels, patches.shape[-1])
    mixed = kernel.mixing().transpose(1, 2).flatten(1).to(projected.dtype) @ projected
    return mixed.transpose(1, 2)


def _build(kernel: SirenKernel, values: Tensor, hidden: Tensor, steps: Steps) -> Tensor:
    """Kernels one at a time. `(B, O, U, H', W')`."""
    with full_precision(values.device):
        square = hidden.new_zeros(*hidden.shape[:3], kernel.size**2, hidden.shape[-1])
        square = square.index_copy(3, kernel.taps, hidden).permute(0, 1, 4, 2, 3).flatten(3)
        out: Tensor = _Built.apply(values, square, kernel.mixing().to(square.dtype), kernel.size, steps)
        return out


class _Built(torch.autograd.Function):
    """values `(B, C, V, H, W)`, functions `(B, U, S, V·k²)` and mixing `(O, C, S)` to `(B, O, U, H', W')`."""

    @staticmethod
    def forward(values: Tensor, square: Tensor, mixing: Tensor, size: int, steps: Steps) -> Tensor:
        outputs, count = mixing.shape[0], square.shape[1]
        rows, columns = (_positions(side, size, steps) for side in values.shape[-2:])
        out = values.new_empty(values.shape[0], outputs, count, rows, columns)
        for image, own, into in zip(values, square, out, strict=True):
            weight = _weight(own, mixing, size).to(values.dtype)
            made = F.conv2d(image.flatten(0, 1), weight, None, steps.stride, steps.padding, steps.dilation)
            into.copy_(made.unflatten(0, (count, outputs)).transpose(0, 1))
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.size, ctx.steps = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None, None]:
        values, square, mixing = ctx.saved_tensors
        wanted = ctx.needs_input_grad[0]
        flat = mixing.flatten(0, 1)
        to_values = torch.empty_like(values) if wanted else None
        to_square, to_mixing = torch.empty_like(square), torch.zeros_like(flat)
        stride, padding, dilation = ([step, step] for step in ctx.steps)
        for i, own in enumerate(square):
            weight = _weight(own, mixing, ctx.size).to(values.dtype)
            to_input, to_weight, _ = torch.ops.aten.convolution_backward(
                grad[i].transpose(0, 1).flatten(0, 1).unsqueeze(0), values[i].flatten(0, 1).unsqueeze(0), weight, None,
                stride, padding, dilation, False, [0, 0], 1, [wanted, True, False],
            )  # fmt: skip
            if to_values is not None:
                to_values[i] = to_input.view_as(values[i])
            # U O·C V·k², the layout in which both of its gradients are plain products
            to_weight = to_weight.to(mixing.dtype).view(len(own), len(flat), -1)
            torch.matmul(flat.t(), to_weight, out=to_square[i])
            to_mixing += torch.matmul(to_weight, own.transpose(1, 2)).sum(dim=0)
        return to_values, to_square, to_mixing.view_as(mixing), None, None


def _weight(square: Tensor, mixing: Tensor, size: int) -> Tensor:
    """The kernel of one image, `(U·O, C·V, k, k)`: functions `(U, S, V·k²)` mixed by `(O, C, S)`."""
    rows = len(square) * mixing.shape[0]
    return torch.matmul(mixing.flatten(0, 1), square).reshape(rows, -1, size, size)
