"""The cyclic algorithm: a convolution over Z_m with fewer products than its expanded weight has.

Along a cyclic group that leaves the plane alone, the expanded weight is block-circulant in (u, v).
A real Fourier transform over the group axis splits it exactly into blocks: one real product for
each real frequency, three for each complex one (Gauss). That is r = 4 plane convolutions instead of
9 for m = 3, and 8 instead of 36 for m = 6. With the small matrices A `(r, m)` and S `(m, r)`,

    k ∗ f = S (A k · A f)        over Z_m, for every pixel and pair of channels.

Both transforms are one product with a tall matrix, after a copy that puts the group axis first.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from vpgcnn.kernels import TableKernel

__all__ = ["analyse", "applies", "convolve", "pays", "pays_anywhere", "products"]


def _matrices(m: int) -> tuple[list[list[float]], list[list[float]]]:
    """A and the transpose of S, as rows of numbers."""
    into, back = [], []
    for frequency in range(m // 2 + 1):
        turn = [2 * math.pi * (frequency * v % m) / m for v in range(m)]
        cos, sin = [math.cos(t) for t in turn], [math.sin(t) for t in turn]
        if 2 * frequency % m == 0:
            into.append(cos)
            back.append([c / m for c in cos])
            continue
        # With a, b and c, d the cosine and sine parts of k and f, the three products are
        # p = ac, q = bd and s = (a + b)(c + d), and the answer's parts are p − q and s − p − q.
        into += [cos, sin, [c + s for c, s in zip(cos, sin, strict=True)]]
        back += [
            [2 * (c - s) / m for c, s in zip(cos, sin, strict=True)],
            [-2 * (c + s) / m for c, s in zip(cos, sin, strict=True)],
            [2 * s / m for s in sin],
        ]
    return into, back


def products(m: int) -> int:
    """How many plane convolutions the algorithm takes; the expanded weight takes m²."""
    return 2 * m - m // 2 - 1


def applies(kernel: TableKernel) -> bool:
    """Whether the algorithm is right for this layer, and its channels enough for some map to pay.

    Measured, forward + backward, on two AVX-512 cores (benchmarks/): narrow convolutions do not fill
    the vector units, and the products saved must outweigh the passes over memory that are added.
    """
    group, m = kernel.group, kernel.group.order or 1
    if kernel.lift or group.acts_on_plane or len(group.axes) != 1 or m < 2:
        return False
    return min(kernel.in_channels, kernel.out_channels) >= 16 and _saving(kernel, m) > 100


def pays(kernel: TableKernel, positions: int) -> bool:
    """Whether a map of so many output positions is worth it: small ones need more channels."""
    m = kernel.group.order or 1
    saved = (m**2 - products(m)) * kernel.size**2 * kernel.in_channels * kernel.out_channels
    return saved * positions > 2.5e6 and (positions >= 196 or pays_anywhere(kernel))


def pays_anywhere(kernel: TableKernel) -> bool:
    """Whether the channels alone decide for the algorithm: what `fold` goes by, which knows no map."""
    return _saving(kernel, kernel.group.order or 1) > 144


def _saving(kernel: TableKernel, m: int) -> float:
    """Products saved for each number that the transforms pass over."""
    r = products(m)
    typical = 2 * kernel.in_channels * kernel.out_channels / (kernel.in_channels + kernel.out_channels)
    return (m**2 - r) * min(kernel.size**2, 9) * typical / (m + r)


def _channels_last(channels: tuple[int, int], device: torch.device) -> bool:
    """On a CPU, narrow convolutions are faster when they need no reordering of their input."""
    return device.type == "cpu" and max(channels) < 128


def _split(x: Tensor, last: bool, weights: Tensor | None = None) -> list[Tensor]:
    """The r parts A x `(B, C, H, W)` of a signal or kernel `(B, C, m, H, W)`."""
    into = x.new_tensor(_matrices(x.shape[2])[0])
    x = x.permute((2, 0, 3, 4, 1) if last else (2, 0, 1, 3, 4))
    shape = x.shape[1:]
    flat = x.reshape(x.shape[0], shape[0], -1)
    if weights is not None:
        flat = flat * weights.t().unsqueeze(-1)
    parts = (into @ flat.flatten(1)).unflatten(1, shape).unbind(0)
    return [part.permute(0, 3, 1, 2) for part in parts] if last else list(parts)


def analyse(table: Tensor) -> Tensor:
    """A kernel `(O, C, m, k, k)` in the algorithm's basis, `(r, O, C, k, k)`."""
    last = _channels_last((table.shape[0], table.shape[1]), table.device)
    return torch.stack(_split(table, last))


def convolve(
    values: Tensor, weights: Tensor | None, analysed: Tensor, stride: int, padding: int, dilation: int
) -> Tensor:
    """The sum over elements v, each multiplied by weights `(B, m)`: `(B, C, m, H, W)` → `(B, O, m, H', W')`.

    weights None: all 1. analysed: the kernel, from `analyse`.
    """
    last = _channels_last((analysed.shape[1], analysed.shape[2]), values.device)
    parts = [
        F.conv2d(part, kernel, None, stride, padding, dilation)
        for part, kernel in zip(_split(values, last, weights), analysed.unbind(0), strict=True)
    ]
    stacked = torch.stack([part.permute(0, 2, 3, 1) if last else part for part in parts])
    back = stacked.new_tensor(_matrices(values.shape[2])[1]).t()
    out = (back @ stacked.flatten(1)).unflatten(1, stacked.shape[1:])
    return out.permute((1, 4, 0, 2, 3) if last else (1, 2, 0, 3, 4)).contiguous()
