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
from torch.utils.checkpoint import checkpoint

from vpgcnn.function import Function
from vpgcnn.kernels import SirenKernel
from vpgcnn.precision import full_precision

__all__ = ["Steps", "convolve_own"]

CHUNK = 3 * 2**18  # numbers of the hidden functions that are held at a time
PAYS = 4  # building pays for this many positions for each hidden function (measured, see benchmarks)


class Steps(NamedTuple):
    """How a kernel moves over the plane, as in `nn.Conv2d`."""

    stride: int = 1
    padding: int = 0
    dilation: int = 1

    def positions(self, size: int, kernel_size: int) -> int:
        """How many output positions there are along a side of `size` pixels."""
        return (size + 2 * self.padding - self.dilation * (kernel_size - 1) - 1) // self.stride + 1


def convolve_own(
    kernel: SirenKernel, values: Tensor, weights: Tensor | None, v: Tensor | None, u: Tensor, steps: Steps
) -> Tensor:
    """values `(B, C, V, H, W)` at elements v, averaged under weights, to `(B, O, U, H', W')` at u.

    u `(B, U, K)` or `(U, K)`, v `(B, V, K)`, `(V, K)` or None for a lift, weights `(B, V)` that sum to 1, or None.
    """
    if kernel.lift and kernel.group.acts_on_rgb:
        raise ValueError(f"elements of each image's own are for groups of the plane, not {kernel.group}")
    rows, columns = (steps.positions(size, kernel.size) for size in values.shape[-2:])
    compiling = torch.compiler.is_compiling()
    if rows * columns >= PAYS * kernel.functions and not compiling:
        return _build(kernel, values, weights, v, u, steps)
    count = max(1, CHUNK // (kernel.functions * len(kernel.taps) * u.shape[-2] * values.shape[2]))
    if compiling or len(values) <= count:
        return _contract(kernel, values, weights, v, u, steps).unflatten(3, (rows, columns))
    # A few images at a time, and their functions again for the gradient: they stay in the cache, and none is kept.
    parts = []
    for start in range(0, len(values), count):
        own = slice(start, start + count)
        some = (_some(weights, own, 2), _some(v, own, 3), _some(u, own, 3))
        parts.append(
            checkpoint(_contract, kernel, values[own], *some, steps, use_reentrant=False, preserve_rng_state=False)
        )
    return torch.cat(parts).unflatten(3, (rows, columns))


def _some(tensor: Tensor | None, own: slice, dim: int) -> Tensor | None:
    """The rows of some images, of a tensor that has a row for each."""
    return tensor[own] if tensor is not None and tensor.dim() == dim else tensor


def _contract(
    kernel: SirenKernel, values: Tensor, weights: Tensor | None, v: Tensor | None, u: Tensor, steps: Steps
) -> Tensor:
    """Functions first: one product for each image, then one with the weights. `(B, O, U, Y)`."""
    batch, channels, inputs = values.shape[:3]
    outputs, functions = u.shape[-2], kernel.functions
    if weights is not None:
        values = values * weights.to(values.dtype)[:, None, :, None, None]
    with full_precision(u.device):
        hidden = kernel.columns(u, v).expand(batch, -1, -1)  # B V·T U·S
        mixing = kernel.mixing() if weights is not None else kernel.mixing() / inputs
    if values.shape[-2:] == (kernel.size, kernel.size) and steps.padding == 0 and steps.dilation == 1:
        patches = values.flatten(3).unsqueeze(2)  # the kernel covers the map: B C 1 V k²
    else:
        patches = F.unfold(values.flatten(1, 2), kernel.size, steps.dilation, steps.padding, steps.stride)
        patches = patches.unflatten(1, (channels, inputs, kernel.size**2)).permute(0, 1, 4, 2, 3)  # B C Y V k²
    if len(kernel.taps) < kernel.size**2:
        patches = patches.index_select(4, kernel.taps)
    positions = patches.shape[2]
    projected = torch.bmm(patches.flatten(3).flatten(1, 2), hidden.to(values.dtype))
    projected = projected.view(batch, channels, positions, outputs, functions).permute(0, 3, 2, 1, 4)  # B U Y C S
    mixed = projected.flatten(3) @ mixing.flatten(1).t().to(projected.dtype)  # B U Y O
    return mixed.permute(0, 3, 1, 2)


def _build(
    kernel: SirenKernel, values: Tensor, weights: Tensor | None, v: Tensor | None, u: Tensor, steps: Steps
) -> Tensor:
    """Kernels one at a time. `(B, O, U, H', W')`."""
    with full_precision(u.device):
        hidden = kernel.basis(u, v)
        hidden = torch.cat([hidden, torch.ones_like(hidden[..., :1])], dim=-1)
        share = 1 / values.shape[2] if weights is None else weights.to(hidden.dtype)[:, None, :, None, None]
        hidden = (hidden * share).expand(values.shape[0], -1, -1, -1, -1)  # B U V T S
        square = hidden.new_zeros(*hidden.shape[:3], kernel.size**2, hidden.shape[-1])
        square = square.index_copy(3, kernel.taps, hidden).permute(0, 1, 4, 2, 3).flatten(3)
        out: Tensor = _Built.apply(values, square, kernel.mixing().to(square.dtype), kernel.size, steps)
        return out


class _Built(Function):
    """values `(B, C, V, H, W)`, functions `(B, U, S, V·k²)` and mixing `(O, C, S)` to `(B, O, U, H', W')`."""

    @staticmethod
    def forward(values: Tensor, square: Tensor, mixing: Tensor, size: int, steps: Steps) -> Tensor:
        outputs, count = mixing.shape[0], square.shape[1]
        rows, columns = (steps.positions(side, size) for side in values.shape[-2:])
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
            torch.bmm(flat.t().expand(len(own), -1, -1), to_weight, out=to_square[i])
            for change, functions in zip(to_weight, own, strict=True):
                to_mixing.addmm_(change, functions.t())
        return to_values, to_square, to_mixing.view_as(mixing), None, None


def _weight(square: Tensor, mixing: Tensor, size: int) -> Tensor:
    """The kernel of one image, `(U·O, C·V, k, k)`: functions `(U, S, V·k²)` mixed by `(O, C, S)`."""
    rows = len(square) * mixing.shape[0]
    return torch.bmm(mixing.flatten(0, 1).expand(len(square), -1, -1), square).view(rows, -1, size, size)
