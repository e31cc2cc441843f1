"""Convolution with a kernel for each image, for levels that move elements.

A kernel that is linear in a few functions, k = weight·s, allows two algorithms. On a small
map the input is *contracted* with s first and then mixed by the weights, so no kernel is ever built. On a large
map, with many positions for each number of a kernel, the kernel is *built* for one image at a time and built again
for the gradient, so no batch of kernels is ever stored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from vpgcnn._ops import choice
from vpgcnn._ops.active import can_read
from vpgcnn._ops.autograd import Function, apply
from vpgcnn._ops.geometry import Geometry
from vpgcnn._ops.precision import full_precision

__all__ = ["Inputs", "convolve"]

CHUNK = 3 * 2**18  # how many numbers of the hidden functions to hold at a time
PAYS = 4  # building is faster from this many positions per hidden function (measured, see benchmarks/)

Functions = Callable[[Tensor, Tensor | None], Tensor]


class Inputs(NamedTuple):
    """The inputs of the convolution.

    Args:
        values: `(B, C, V, H, W)`.
        weights: `(B, V)`, rows sum to 1, or None.
        v: Input elements `(B, V, K)`, `(V, K)`, or None for a lift.
        u: Output elements `(B, U, K)` or `(U, K)`.
    """

    values: Tensor
    weights: Tensor | None
    v: Tensor | None
    u: Tensor

    def some(self, own: slice) -> Inputs:
        """The inputs of some of the images."""
        values, weights, v, u = self
        return Inputs(
            values[own],
            None if weights is None else weights[own],
            v[own] if v is not None and v.dim() == 3 else v,
            u[own] if u.dim() == 3 else u,
        )


def convolve(
    inputs: Inputs,
    mixing: Tensor,
    basis: Functions,
    columns: Functions,
    taps: Tensor,
    size: int,
    geometry: Geometry,
) -> Tensor:
    """Convolve each image with the kernel at its elements.

    Args:
        inputs: Values, weights and elements.
        mixing: What the functions are multiplied by, `(O, C, S)`.
        basis: The functions of (u, v) at the taps, `(..., U, V, T, S)`.
        columns: The same as a matrix: `(..., V·T, U·S)`.
        taps: Positions of the T taps in the k×k square.
        size: Pixels of a side of the kernel.
        geometry: Stride, padding and dilation.

    Returns:
        `(B, O, U, H', W')`.
    """
    values, functions = inputs.values, mixing.shape[-1]
    rows, cols = (geometry.positions(side, size) for side in values.shape[-2:])
    compiling = torch.compiler.is_compiling()
    build = rows * cols >= PAYS * functions and not compiling
    if choice.is_measuring(values) and can_read(mixing):
        key = choice.key_of("each", values, *mixing.shape, len(taps), size, *geometry, inputs.u.shape[-2])
        programs = {
            "build": lambda x, m: _build(inputs._replace(values=x), m, basis, taps, size, geometry),
            "contract": lambda x, m: _contracted(inputs._replace(values=x), m, columns, taps, size, geometry),
        }
        build = choice.choose(key, "build" if build else "contract", (values, mixing), programs) == "build"
    if build:
        return _build(inputs, mixing, basis, taps, size, geometry)
    return _contracted(inputs, mixing, columns, taps, size, geometry).unflatten(3, (rows, cols))


def _contracted(
    inputs: Inputs, mixing: Tensor, columns: Functions, taps: Tensor, size: int, geometry: Geometry
) -> Tensor:
    """`_contract`, a few images at a time."""
    values, functions = inputs.values, mixing.shape[-1]
    count = max(1, CHUNK // (functions * len(taps) * inputs.u.shape[-2] * values.shape[2]))
    if torch.compiler.is_compiling() or len(values) <= count:
        return _contract(inputs, mixing, columns, taps, size, geometry)
    # A few images at a time stay in the cache; their functions are computed again for the gradient.
    parts = [
        checkpoint(
            _contract, inputs.some(slice(start, start + count)), mixing, columns, taps, size, geometry,
            use_reentrant=False, preserve_rng_state=False,
        )
        for start in range(0, len(values), count)
    ]  # fmt: skip
    return torch.cat(parts)


def _contract(
    inputs: Inputs, mixing: Tensor, columns: Functions, taps: Tensor, size: int, geometry: Geometry
) -> Tensor:
    """Contract with the functions, one product for each image, then mix: `(B, O, U, Y)`."""
    values, weights, v, u = inputs
    batch, channels, count = values.shape[:3]
    outputs, functions = u.shape[-2], mixing.shape[-1]
    if weights is not None:
        values = values * weights.to(values.dtype)[:, None, :, None, None]
    with full_precision(u.device):
        hidden = columns(u, v).expand(batch, -1, -1)  # B V·T U·S
        mixing = mixing if weights is not None else mixing / count
    if values.shape[-2:] == (size, size) and geometry.padding == 0 and geometry.dilation == 1:
        patches = values.flatten(3).unsqueeze(2)  # the kernel covers the map: B C 1 V k²
    else:
        patches = F.unfold(values.flatten(1, 2), size, geometry.dilation, geometry.padding, geometry.stride)
        patches = patches.unflatten(1, (channels, count, size**2)).permute(0, 1, 4, 2, 3)  # B C Y V k²
    if len(taps) < size**2:
        patches = patches.index_select(4, taps)
    positions = patches.shape[2]
    projected = torch.bmm(patches.flatten(3).flatten(1, 2), hidden.to(values.dtype))
    projected = projected.view(batch, channels, positions, outputs, functions).permute(0, 3, 2, 1, 4)  # B U Y C S
    mixed = projected.flatten(3) @ mixing.flatten(1).t().to(projected.dtype)  # B U Y O
    return mixed.permute(0, 3, 1, 2)


def _build(inputs: Inputs, mixing: Tensor, basis: Functions, taps: Tensor, size: int, geometry: Geometry) -> Tensor:
    """Build one kernel at a time: `(B, O, U, H', W')`."""
    values, weights, v, u = inputs
    with full_precision(u.device):
        hidden = basis(u, v)
        share = 1 / values.shape[2] if weights is None else weights.to(hidden.dtype)[:, None, :, None, None]
        hidden = (hidden * share).expand(values.shape[0], -1, -1, -1, -1)  # B U V T S
        square = hidden.new_zeros(*hidden.shape[:3], size**2, hidden.shape[-1])
        square = square.index_copy(3, taps, hidden).permute(0, 1, 4, 2, 3).flatten(3)
        out: Tensor = apply(_Built, values, square, mixing.to(square.dtype), size, geometry)
        return out


class _Built(Function):
    """values `(B, C, V, H, W)`, functions `(B, U, S, V·k²)` and mixing `(O, C, S)` to `(B, O, U, H', W')`."""

    @staticmethod
    def forward(values: Tensor, square: Tensor, mixing: Tensor, size: int, geometry: Geometry) -> Tensor:
        outputs, count = mixing.shape[0], square.shape[1]
        rows, columns = (geometry.positions(side, size) for side in values.shape[-2:])
        out = values.new_empty(values.shape[0], outputs, count, rows, columns)
        for image, own, into in zip(values, square, out, strict=True):
            weight = _weight(own, mixing, size).to(values.dtype)
            made = F.conv2d(image.flatten(0, 1), weight, None, geometry.stride, geometry.padding, geometry.dilation)
            into.copy_(made.unflatten(0, (count, outputs)).transpose(0, 1))
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.size, ctx.geometry = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None, None]:
        values, square, mixing = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True: the result will be differentiated again
            return *_differentiable_gradients(values, square, mixing, grad, ctx.size, ctx.geometry), None, None
        wanted = ctx.needs_input_grad[0]
        flat = mixing.flatten(0, 1)
        to_values = torch.empty_like(values) if wanted else None
        to_square, to_mixing = torch.empty_like(square), torch.zeros_like(flat)
        stride, padding, dilation = ([step, step] for step in ctx.geometry)
        for i, own in enumerate(square):
            weight = _weight(own, mixing, ctx.size).to(values.dtype)
            to_input, to_weight, _ = torch.ops.aten.convolution_backward(
                grad[i].transpose(0, 1).flatten(0, 1).unsqueeze(0), values[i].flatten(0, 1).unsqueeze(0), weight, None,
                stride, padding, dilation, False, [0, 0], 1, [wanted, True, False],
            )  # fmt: skip
            if to_values is not None:
                to_values[i] = to_input.view_as(values[i])
            # U O·C V·k²: in this layout both gradients are matrix products.
            to_weight = to_weight.to(mixing.dtype).view(len(own), len(flat), -1)
            torch.bmm(flat.t().expand(len(own), -1, -1), to_weight, out=to_square[i])
            for change, functions in zip(to_weight, own, strict=True):
                to_mixing.addmm_(change, functions.t())
        return to_values, to_square, to_mixing.view_as(mixing), None, None


def _differentiable_gradients(
    values: Tensor, square: Tensor, mixing: Tensor, grad: Tensor, size: int, geometry: Geometry
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of `_Built` by operations that torch can differentiate again."""
    stride, padding, dilation = ([step, step] for step in geometry)
    flat = mixing.flatten(0, 1)
    to_values, to_square, to_mixing = [], [], torch.zeros_like(flat)
    for image, own, upstream in zip(values, square, grad, strict=True):
        weight = _weight(own, mixing, size).to(values.dtype)
        to_input, to_weight, _ = torch.ops.aten.convolution_backward(
            upstream.transpose(0, 1).flatten(0, 1).unsqueeze(0), image.flatten(0, 1).unsqueeze(0), weight, None,
            stride, padding, dilation, False, [0, 0], 1, [True, True, False],
        )  # fmt: skip
        changes = to_weight.to(mixing.dtype).reshape(own.shape[0], flat.shape[0], -1)  # U O·C V·k²
        to_values.append(to_input.view_as(image))
        to_square.append(flat.t() @ changes)
        to_mixing = to_mixing + (changes @ own.transpose(1, 2)).sum(dim=0)
    return torch.stack(to_values), torch.stack(to_square), to_mixing.view_as(mixing)


def _weight(square: Tensor, mixing: Tensor, size: int) -> Tensor:
    """The kernel of one image, `(U·O, C·V, k, k)`: functions `(U, S, V·k²)` mixed by `(O, C, S)`."""
    rows = len(square) * mixing.shape[0]
    return torch.bmm(mixing.flatten(0, 1).expand(len(square), -1, -1), square).view(rows, -1, size, size)
