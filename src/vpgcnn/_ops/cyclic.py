"""The cyclic algorithm: a convolution over Z_m with fewer products than the expanded weight needs.

Along a cyclic group that leaves the plane alone, the expanded weight is block-circulant in (u, v).
A real Fourier transform over the group axis splits it exactly into blocks: one real product for
each real frequency, three for each complex one (Gauss). That is r = 4 plane convolutions instead of
9 for m = 3, and 8 instead of 36 for m = 6. With the small matrices A `(r, m)` and S `(m, r)`,

    k ∗ f = S (A k · A f)        over Z_m, for every pixel and pair of channels.

Both transforms are one product with a tall matrix, after a copy that puts the group axis first.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vpgcnn._ops.constants import constant
from vpgcnn._ops.recompute import noted

__all__ = ["Shape", "analyse", "convolve", "could_pay", "pays", "pays_anywhere", "products"]


class Shape(NamedTuple):
    """The sizes that decide whether the algorithm pays.

    Args:
        m: Number of elements of the group.
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        size: Pixels of a side of the kernel.
    """

    m: int
    in_channels: int
    out_channels: int
    size: int


Rows = tuple[tuple[float, ...], ...]


def _matrices(m: int) -> tuple[Rows, Rows]:
    """A and the transpose of S, as rows."""
    into, back = [], []
    for frequency in range(m // 2 + 1):
        turn = [2 * math.pi * (frequency * v % m) / m for v in range(m)]
        cos, sin = [math.cos(t) for t in turn], [math.sin(t) for t in turn]
        if 2 * frequency % m == 0:
            into.append(cos)
            back.append([c / m for c in cos])
            continue
        # With a, b and c, d the cosine and sine parts of k and f, the three products are
        # p = ac, q = bd and s = (a + b)(c + d); the parts of the result are p − q and s − p − q.
        into += [cos, sin, [c + s for c, s in zip(cos, sin, strict=True)]]
        back += [
            [2 * (c - s) / m for c, s in zip(cos, sin, strict=True)],
            [-2 * (c + s) / m for c, s in zip(cos, sin, strict=True)],
            [2 * s / m for s in sin],
        ]
    return tuple(map(tuple, into)), tuple(map(tuple, back))


def products(m: int) -> int:
    """The number of plane convolutions that the algorithm takes; the expanded weight takes m²."""
    return 2 * m - m // 2 - 1


def could_pay(shape: Shape) -> bool:
    """Whether there are enough channels for the algorithm to pay on some map.

    Thresholds were measured, forward and backward, on two AVX-512 cores (benchmarks/). Narrow convolutions
    do not fill the vector units, and the products saved must outweigh the added passes over memory.
    """
    return shape.m >= 2 and min(shape.in_channels, shape.out_channels) >= 16 and _saving(shape) > 100


def pays(shape: Shape, positions: int) -> bool:
    """Whether the algorithm pays for this number of output positions: small maps need more channels."""
    saved = (shape.m**2 - products(shape.m)) * shape.size**2 * shape.in_channels * shape.out_channels
    return saved * positions > 2.5e6 and (positions >= 196 or pays_anywhere(shape))


def pays_anywhere(shape: Shape) -> bool:
    """Whether the algorithm pays whatever the map. Used for folding, where the map is not known."""
    return _saving(shape) > 144


def _saving(shape: Shape) -> float:
    """Products saved per number that the transforms read or write."""
    m, r = shape.m, products(shape.m)
    typical = 2 * shape.in_channels * shape.out_channels / (shape.in_channels + shape.out_channels)
    return (m**2 - r) * min(shape.size**2, 9) * typical / (m + r)


def _channels_last(channels: tuple[int, int], device: torch.device) -> bool:
    """Whether to use the channels-last format: on a CPU, narrow convolutions then need no reordering."""
    return device.type == "cpu" and max(channels) < 128


def _split(x: Tensor, last: bool, weights: Tensor | None = None) -> list[Tensor]:
    """The r parts A x, each `(B, C, H, W)`, of a signal or kernel `(B, C, m, H, W)`."""
    made, shape = _product(x, last, weights)
    # The parts are larger than what they are made of, which is often kept in any case.
    noted(made, lambda *given: _product(given[0], last, given[1])[0], x, weights)
    parts = made.unflatten(1, shape).unbind(0)
    return [part.permute(0, 3, 1, 2) for part in parts] if last else list(parts)


def _product(x: Tensor, last: bool, weights: Tensor | None = None) -> tuple[Tensor, torch.Size]:
    """A x with the group axis first, and the shape of the others."""
    into = constant(_matrices(x.shape[2])[0], x.dtype, x.device)
    flat = _turned(x, last)
    if weights is not None:
        noted(flat, lambda given: _turned(given, last), x)
        flat = flat * weights.t().unsqueeze(-1)
    batch, channels, _, *sides = x.shape
    return into @ flat.flatten(1), torch.Size((batch, *sides, channels) if last else (batch, channels, *sides))


def _turned(x: Tensor, last: bool) -> Tensor:
    return x.permute((2, 0, 3, 4, 1) if last else (2, 0, 1, 3, 4)).flatten(2)


def analyse(table: Tensor) -> Tensor:
    """Transform a kernel `(O, C, m, k, k)` to the algorithm's basis, `(r, O, C, k, k)`."""
    last = _channels_last((table.shape[0], table.shape[1]), table.device)
    return torch.stack(_split(table, last))


def convolve(
    values: Tensor, weights: Tensor | None, analysed: Tensor, stride: int, padding: int, dilation: int
) -> Tensor:
    """Convolve over the plane and the group.

    Args:
        values: `(B, C, m, H, W)`.
        weights: `(B, m)`, multiplied into the elements of the input; None for all 1.
        analysed: The kernel, from `analyse`.
        stride: As in `F.conv2d`.
        padding: As in `F.conv2d`.
        dilation: As in `F.conv2d`.

    Returns:
        `(B, O, m, H', W')`.
    """
    last = _channels_last((analysed.shape[1], analysed.shape[2]), values.device)
    parts = [
        F.conv2d(part, kernel, None, stride, padding, dilation)
        for part, kernel in zip(_split(values, last, weights), analysed.unbind(0), strict=True)
    ]
    stacked = torch.stack([part.permute(0, 2, 3, 1) if last else part for part in parts])
    back = constant(_matrices(values.shape[2])[1], stacked.dtype, stacked.device).t()
    out = (back @ stacked.flatten(1)).unflatten(1, stacked.shape[1:])
    return out.permute((1, 4, 0, 2, 3) if last else (1, 2, 0, 3, 4)).contiguous()
