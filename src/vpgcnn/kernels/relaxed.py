"""Relaxed kernels (Wang et al., 2022): a few banks, mixed by weights of each output element's own."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vpgcnn.groups import Group
from vpgcnn.kernels.absolute import at_elements
from vpgcnn.kernels.base import Kernel, KernelSpec, check_whole
from vpgcnn.kernels.default import default_kernel

__all__ = ["Relaxed", "RelaxedKernel"]


@dataclass(frozen=True)
class Relaxed(KernelSpec):
    """Banks of a kernel, mixed differently at each output element. For any group on which the banks exist.

    The kernel at output element u is Σ_l w_l(u) ψ_l(R_u⁻¹x, v⁻¹u). Weights start equal: exactly equivariant.

        >>> GroupConv2d(16, 16, 3, Rotations(4), kernel=Relaxed(banks=3))

    Args:
        banks: How many kernels ψ_l are mixed.
        of: What a bank is, such as `Table()`; None for the group's default.
    """

    banks: int = 2
    of: KernelSpec | None = None

    def __post_init__(self) -> None:
        check_whole("banks", self.banks, 1)

    def build(self, in_channels: int, out_channels: int, size: int, group: Group, *, lift: bool) -> RelaxedKernel:
        of = default_kernel(group) if self.of is None else self.of
        return RelaxedKernel([of.build(in_channels, out_channels, size, group, lift=lift) for _ in range(self.banks)])


class RelaxedKernel(Kernel):
    """Equivariant while w_l(u) is the same for all u, as at the start. Built by `Relaxed`.

    Args:
        banks: The kernels ψ_l, of equal shape, each equivariant.
    """

    def __init__(self, banks: list[Kernel]) -> None:
        one = banks[0]
        super().__init__(one.in_channels, one.out_channels, one.size, one.group, lift=one.lift)
        self.banks = nn.ModuleList(banks)
        # Independent banks add up like noise: these weights keep the scale of one.
        self.weights = nn.Parameter(torch.full((len(banks), self.group.count), 1 / math.sqrt(len(banks))))

    def expand(self, u: Tensor, v: Tensor | None) -> Tensor:
        shares = at_elements(self.weights, self.group, u, dim=1)  # L U
        parts = []
        for share, bank in zip(shares, self.banks, strict=True):
            assert isinstance(bank, Kernel)
            weight = bank.expand(u, v)
            parts.append(share.to(weight.dtype)[:, None, None, None, None] * weight)
        return torch.stack(parts).sum(dim=0)
