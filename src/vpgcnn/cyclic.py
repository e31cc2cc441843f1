"""The cyclic algorithm: a convolution over Z_m with fewer products than its expanded weight has.

Along a cyclic group that leaves the plane alone, the expanded weight is block-circulant in (u, v).
A real Fourier transform over the group axis splits it exactly into blocks: one real product for
each real frequency, three for each complex one (Gauss), so 4 plane convolutions instead of 9 for
m = 3 and 8 instead of 36 for m = 6. The transforms are small matrices along the group axis.
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor

from vpgcnn.kernels import TableKernel

__all__ = ["analyse_kernel", "convolve", "products"]


@functools.lru_cache(maxsize=64)
def transforms(m: int) -> tuple[Tensor, Tensor, Tensor]:
    """Matrices (A, B, C), `(r, m)`, `(r, m)` and `(m, r)`, with k ∗ f = C((B k)·(A f)) over Z_m."""
    turn = torch.arange(m, dtype=torch.float64) * (2 * torch.pi / m)
    left, right, back = [], [], []
    for frequency in range(m // 2 + 1):
        cos, sin = torch.cos(frequency * turn), torch.sin(frequency * turn)
        if frequency == 0 or 2 * frequency == m:
            left.append(cos)
            right.append(cos)
            back.append(cos / m)
            continue
        # (a − ib)(c − id): with p = ac, q = bd, s = (a+b)(c+d) the product is (p−q) − i(s−p−q).
        left += [cos, sin, cos + sin]
        right += [cos, sin, cos + sin]
        back += [2 * (cos - sin) / m, -2 * (cos + sin) / m, 2 * sin / m]
    return torch.stack(left), torch.stack(right), torch.stack(back, dim=1)


def products(m: int) -> int:
    """How many plane convolutions the algorithm takes; the expanded weight takes m²."""
    return transforms(m)[0].shape[0]


def _matrix(index: int, m: int, like: Tensor) -> Tensor:
    return transforms(m)[index].to(device=like.device, dtype=like.dtype)


def analyse_kernel(table: Tensor) -> Tensor:
    """A kernel `(O, C, m, k, k)` in the algorithm's basis, `(r·O, C, k, k)`."""
    analysed = torch.einsum("rg,ocgxy->rocxy", _matrix(1, table.shape[2], table), table)
    return analysed.flatten(0, 1)


def convolve(
    values: Tensor, weights: Tensor | None, analysed: Tensor, stride: int, padding: int, dilation: int
) -> Tensor:
    """values `(B, C, m, H, W)`, element v multiplied by weights `(B, m)`, to `(B, O, m, H', W')`."""
    batch, channels, m = values.shape[:3]
    into = _matrix(0, m, values)
    if weights is not None:
        into = into * weights.to(values.dtype).unsqueeze(1)
        split = torch.einsum("brg,bcghw->brchw", into, values)
    else:
        split = torch.einsum("rg,bcghw->brchw", into, values)
    out = F.conv2d(split.flatten(1, 2), analysed, None, stride, padding, dilation, groups=into.shape[-2])
    out = out.unflatten(1, (into.shape[-2], -1))
    return torch.einsum("gr,brohw->boghw", _matrix(2, m, out), out)


def worthwhile(kernel: TableKernel) -> bool:
    return (
        not kernel.lift
        and not kernel.group.acts_on_plane
        and len(kernel.group.axes) == 1
        and min(kernel.in_channels, kernel.out_channels) >= 32
    )
