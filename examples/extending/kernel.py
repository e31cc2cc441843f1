"""A kernel: each output element u scales the shared table by a number of its own, w(u).

    vpgcnn --use kernel.py train mnist67-180 --model.group "Rotations(4)" --model.kernel "Scaled()"

A kernel has to define `expand`. The layer uses a faster algorithm only where it computes what `expand` says.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vpgcnn import Group
from vpgcnn.kernels import KernelSpec, TableKernel
from vpgcnn.lab.specs import register


@register
@dataclass(frozen=True)
class Scaled(KernelSpec):
    """The value that `kernel=` takes."""

    spread: float = 0.0  # standard deviation of w(u) about 1 at the start

    def build(self, in_channels: int, out_channels: int, size: int, group: Group, *, lift: bool) -> "ScaledKernel":
        return ScaledKernel(in_channels, out_channels, size, group, lift=lift, spread=self.spread)


class ScaledKernel(TableKernel):
    """Equivariant while all w(u) are equal, as at the start; training may let them differ."""

    def __init__(self, *sizes: int | Group, lift: bool, spread: float) -> None:
        super().__init__(*sizes, lift=lift)  # type: ignore[arg-type]
        self.scale = nn.Parameter(1 + spread * torch.randn(self.group.count))

    def expand(self, u: Tensor, v: Tensor | None) -> Tensor:
        """`(O, U, C, V, k, k)`."""
        return super().expand(u, v) * self.scale[:, None, None, None, None]
