"""Adaptive constrained equivariance (ACE, 2025): a free kernel behind a gate, which a multiplier closes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vpgcnn.groups import Group
from vpgcnn.kernels.absolute import at_pairs
from vpgcnn.kernels.base import RELU_GAIN, Kernel, KernelSpec, check_strength
from vpgcnn.kernels.default import default_kernel

__all__ = ["Constrained", "ConstrainedKernel"]


@dataclass(frozen=True)
class Constrained(KernelSpec):
    """An equivariant kernel plus γ times a free one, under the constraint γ = 0 (ACE). For any group.

    Training starts free, at γ = 1, and a multiplier λ leads it to equivariance: `penalty(model)` adds λγ to the loss,
    `dual_step(model)`, after each optimiser step, adds rate·γ to λ. At γ = 0 the kernel is exactly equivariant.

    The elastic form lets γ differ from 0 at a price, for data that are not symmetric: |γ| ≤ s with ½·elastic·s² in the
    loss. The best slack s is λ/elastic, so λ|γ| is added to the loss and rate·(|γ| − λ/elastic) to λ ≥ 0.

        >>> GroupConv2d(16, 16, 3, Rotations(4), kernel=Constrained(elastic=1.0))

    Args:
        of: What the equivariant kernel is, such as `Table()`; None for the group's default.
        initial: γ at the start.
        rate: How fast λ follows γ.
        elastic: Price of slack in the constraint; None for none.
    """

    of: KernelSpec | None = None
    initial: float = 1.0
    rate: float = 1e-2
    elastic: float | None = None

    def __post_init__(self) -> None:
        check_strength("initial", self.initial)
        check_strength("rate", self.rate)
        if self.elastic is not None:
            check_strength("elastic", self.elastic)
            if self.elastic == 0:
                raise ValueError("elastic must be above 0, or None for a constraint without slack, got 0")

    def build(self, in_channels: int, out_channels: int, size: int, group: Group, *, lift: bool) -> ConstrainedKernel:
        of = default_kernel(group) if self.of is None else self.of
        return ConstrainedKernel(of.build(in_channels, out_channels, size, group, lift=lift), self)


class ConstrainedKernel(Kernel):
    """Equivariant while `gate` (γ) is 0, where training leads it. Built by `Constrained`.

    The multiplier λ is part of the state, so that a run can be resumed.

    Args:
        equivariant: The equivariant kernel.
        spec: The other settings.
    """

    multiplier: Tensor

    def __init__(self, equivariant: Kernel, spec: Constrained) -> None:
        one = equivariant
        super().__init__(one.in_channels, one.out_channels, one.size, one.group, lift=one.lift)
        self.equivariant, self.spec = equivariant, spec
        count, inputs = self.group.count, 1 if one.lift else self.group.count
        self.free = nn.Parameter(torch.empty(one.out_channels, count, one.in_channels, inputs, one.size, one.size))
        gain = 1.0 if one.lift else RELU_GAIN
        nn.init.normal_(self.free, std=math.sqrt(gain / (one.in_channels * inputs * one.size**2)))
        self.gate = nn.Parameter(torch.tensor(float(spec.initial)))
        self.register_buffer("multiplier", torch.zeros(()))

    def expand(self, u: Tensor, v: Tensor | None) -> Tensor:
        weight = self.equivariant.expand(u, v)
        return weight + self.gate.to(weight.dtype) * at_pairs(self.free.to(weight.dtype), self.group, u, v)

    def penalty(self) -> Tensor:
        return self.multiplier * (self.gate if self.spec.elastic is None else self.gate.abs())

    @torch.no_grad()
    def dual_step(self) -> None:
        if self.spec.elastic is None:
            self.multiplier.add_(self.spec.rate * self.gate)
        else:
            slack = self.multiplier / self.spec.elastic
            self.multiplier.add_(self.spec.rate * (self.gate.abs() - slack)).clamp_min_(0)
