"""Residual pathway priors (Finzi et al., 2021): an equivariant kernel plus a free one, which has a stronger prior."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vpgcnn._ops.precision import full_precision
from vpgcnn.groups import Group
from vpgcnn.kernels.absolute import at_pairs
from vpgcnn.kernels.base import Kernel, KernelSpec, check_strength
from vpgcnn.kernels.default import default_kernel

__all__ = ["ResidualPathway", "ResidualPathwayKernel"]


@dataclass(frozen=True)
class ResidualPathway(KernelSpec):
    """An equivariant kernel A plus a free one F, with a Gaussian prior on each (RPP). For any group.

    F has a number for each output element, input element and tap: G times as many as a table. It starts at 0: exactly
    the kernel A. The priors are `penalty(model)`, which belongs in the loss: decay·‖A‖² + free_decay·‖F‖², both norms
    taken over the expanded weights.

        >>> GroupConv2d(16, 16, 3, Rotations(4), kernel=ResidualPathway(Table(), free_decay=0.1))

    Args:
        of: What A is, such as `Table()`; None for the group's default.
        decay: Strength of the prior on A, 1/(2σ²).
        free_decay: Strength of the prior on F, 1/(2σ²). The larger, the closer to equivariant.
    """

    of: KernelSpec | None = None
    decay: float = 1e-4
    free_decay: float = 1e-2

    def __post_init__(self) -> None:
        check_strength("decay", self.decay)
        check_strength("free_decay", self.free_decay)

    def build(
        self, in_channels: int, out_channels: int, size: int, group: Group, *, lift: bool
    ) -> ResidualPathwayKernel:
        of = default_kernel(group) if self.of is None else self.of
        built = of.build(in_channels, out_channels, size, group, lift=lift)
        return ResidualPathwayKernel(built, decay=self.decay, free_decay=self.free_decay)


class ResidualPathwayKernel(Kernel):
    """Equivariant while the free kernel is 0, as at the start. Built by `ResidualPathway`.

    Args:
        equivariant: The kernel A.
        decay: Strength of the prior on A.
        free_decay: Strength of the prior on F.
    """

    def __init__(self, equivariant: Kernel, *, decay: float, free_decay: float) -> None:
        one = equivariant
        super().__init__(one.in_channels, one.out_channels, one.size, one.group, lift=one.lift)
        self.equivariant, self.decay, self.free_decay = equivariant, decay, free_decay
        count = self.group.count
        shape = (one.out_channels, count, one.in_channels, 1 if one.lift else count, one.size, one.size)
        self.free = nn.Parameter(torch.zeros(shape))

    def expand(self, u: Tensor, v: Tensor | None) -> Tensor:
        weight = self.equivariant.expand(u, v)
        return weight + at_pairs(self.free.to(weight.dtype), self.group, u, v)

    def penalty(self) -> Tensor:
        grid = self.grid(self.free)
        with full_precision(grid.device):
            weight = self.equivariant.expand(grid, None if self.lift else grid)
        return self.decay * weight.square().sum() + self.free_decay * self.free.square().sum()
