"""Projection-based regularisation (PER, Kim et al., 2023): a free kernel, pulled towards its equivariant part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vpgcnn.groups import Group, Product
from vpgcnn.kernels.base import Kernel, KernelSpec, check_strength, check_whole
from vpgcnn.kernels.table import TableKernel, has_table, spread_index

__all__ = ["Projected", "ProjectedKernel", "adjust_strengths"]

LARGEST_RATIO = 1e6
"""How many times further from one symmetry than from another a network can be, for the adjustment of λ."""


@dataclass(frozen=True)
class Projected(KernelSpec):
    """A free kernel W with a penalty on its distance from equivariant ones (PER). For groups that have tables.

    W has a number for each output element, input element and tap: G times as many as a table. It starts as a table:
    exactly equivariant. The penalty is `penalty(model)`, which belongs in the loss: ½λ‖W − PW‖², where P, the mean over
    the group's orbit, projects on the equivariant kernels; with a λ for each factor of a product, Σ_j ½λ_j‖W − P_jW‖².

        >>> GroupConv2d(16, 16, 3, Product(Rotations(4), Hue(3)), kernel=Projected((1.0, 0.1)))

    With several λ_j, the published rule finds out which symmetry the data have, once in training: the distances R_j of
    all such kernels of the network are watched over the last `watch` steps before `adjust_at`, the first half of these
    to settle; from the smallest R_j of the second half follows λ_j ← λ_j / (R_j / min_k R_k)^power. So a symmetry that
    costs nothing to keep (a small R_j) keeps its λ, and the penalties of others get smaller. `dual_step(model)`, after
    each step of the optimiser, does it.

    Args:
        strength: λ, or one for each factor of a `Product`. The larger, the closer to equivariant.
        adjust_at: The step after which the λ_j are adjusted; None for never.
        power: How much they are adjusted.
        watch: How many steps before that the distances are watched.
    """

    strength: float | tuple[float, ...] = 1.0
    adjust_at: int | None = None
    power: float = 1.0
    watch: int = 100

    def __post_init__(self) -> None:
        for each in self.strength if isinstance(self.strength, tuple) else (self.strength,):
            check_strength("strength", each)
        check_strength("power", self.power)
        check_whole("watch", self.watch, 1)
        if self.adjust_at is not None:
            check_whole("adjust_at", self.adjust_at, 1)
            if not isinstance(self.strength, tuple):
                raise ValueError(f"adjust_at compares several strengths, one for each factor, got {self.strength}")

    def build(self, in_channels: int, out_channels: int, size: int, group: Group, *, lift: bool) -> ProjectedKernel:
        return ProjectedKernel(in_channels, out_channels, size, group, lift=lift, spec=self)


class ProjectedKernel(Kernel):
    """Equivariant while the tables of all output elements are equal, as at the start. Built by `Projected`.

    The free kernel is stored as its output elements see it: `tables[u]` is a table of relative elements and turned taps
    (as in `TableKernel`) for this u alone. That reorders the numbers of the expanded weight (and, at a lift, turns
    their colours): norms are the same, and the mean over the orbit is the mean over u.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        size: Pixels of a side.
        group: The layer's group.
        lift: Whether the input is an image.
        spec: The other settings.
    """

    spread: Tensor
    strengths: Tensor
    """λ, or one for each factor of the group; part of the state, as they may be adjusted."""
    lowest: Tensor
    """The smallest distances of the network that were seen so far, one for each factor."""
    steps: Tensor

    def __init__(
        self, in_channels: int, out_channels: int, size: int, group: Group, *, lift: bool, spec: Projected
    ) -> None:
        super().__init__(in_channels, out_channels, size, group, lift=lift)
        if not has_table(group):
            raise ValueError(
                f"{group} does not move the taps of a k×k kernel onto each other, so projections are not exact: use "
                "kernel=ResidualPathway() or Relaxed()"
            )
        self.factors, strength = _factors(group), spec.strength
        if isinstance(strength, tuple) and len(strength) != len(self.factors):
            raise ValueError(f"{group} has {len(self.factors)} factors, got {len(strength)} strengths: {strength}")
        self.spec = spec
        self.register_buffer("strengths", torch.tensor(strength, dtype=torch.get_default_dtype()))
        # Not infinite: checkpoints refuse that.
        self.register_buffer("lowest", torch.full((len(self.factors),), torch.finfo(torch.float32).max))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        spread, _ = spread_index(group, in_channels, size, lift)
        if spread.dim() == 3:  # rows of taps that stay
            spread = spread.unsqueeze(-1) * size**2 + torch.arange(size**2)
        self.register_buffer("spread", spread.flatten(1).unsqueeze(1), persistent=False)  # U 1 C·V·k²
        start = TableKernel(in_channels, out_channels, size, group, lift=lift).table().detach()
        self.tables = nn.Parameter(start.repeat(group.count, 1, 1, 1, 1, 1))

    def expand(self, u: Tensor, v: Tensor | None) -> Tensor:
        return self.expand_tables(self.tables, u, v)

    def expand_tables(self, tables: Tensor, u: Tensor, v: Tensor | None) -> Tensor:
        """The expansion `(O, U, C, V, k, k)` of other tables `(U, O, C, V, k, k)`, such as those of the projection."""
        count = self.group.count
        if u.shape[0] != count or (v is not None and v.shape[0] != count):
            got = u.shape[0] if u.shape[0] != count or v is None else v.shape[0]
            raise ValueError(f"expected the {count} elements of {self.group}, got {got}")
        numbers = tables.flatten(2)
        weight = numbers.gather(2, self.spread.expand_as(numbers)).view_as(tables).transpose(0, 1)
        return self.undo_colors(weight, u)

    def projected(self, factor: int | None = None) -> Tensor:
        """The tables `(U, O, C, V, k, k)` of the nearest equivariant kernel: the exact mean over the orbit.

        Args:
            factor: Equivariant to this factor of the group only; None for the whole group.
        """
        circles = self.tables.unflatten(0, self.group.counts)
        over = range(len(self.group.axes)) if factor is None else self.factors[factor]
        return circles.mean(dim=tuple(over), keepdim=True).expand_as(circles).flatten(0, len(self.group.axes) - 1)

    def distance(self, factor: int | None = None) -> Tensor:
        """‖W − PW‖², a scalar: 0 exactly where the kernel is equivariant, to one factor or the whole group."""
        return (self.tables - self.projected(factor)).square().sum()

    def penalty(self) -> Tensor:
        if self.strengths.dim() == 0:
            return self.strengths / 2 * self.distance()
        return (self.strengths / 2 * self.distances()).sum()

    def distances(self) -> Tensor:
        """‖W − P_jW‖² for each factor of the group, `(J,)`."""
        return torch.stack([self.distance(factor) for factor in range(len(self.factors))])

    @torch.no_grad()
    def dual_step(self) -> None:
        self.steps.add_(1)


@torch.no_grad()
def adjust_strengths(kernels: Sequence[ProjectedKernel]) -> None:
    """Watch the distances of kernels and adjust their λ_j, once, together; after each `dual_step`.

    Args:
        kernels: All kernels of a network. Those without `adjust_at` are left alone.
    """
    for spec in {kernel.spec for kernel in kernels if kernel.spec.adjust_at is not None}:
        together = [kernel for kernel in kernels if kernel.spec == spec]
        step, end = int(together[0].steps), spec.adjust_at or 0
        if not end - spec.watch // 2 <= step <= end:
            continue
        found = torch.stack([kernel.distances() for kernel in together]).sum(dim=0)
        lowest = torch.minimum(together[0].lowest, found.to(together[0].lowest.dtype))
        ratios = (lowest / lowest.min().clamp_min(torch.finfo(lowest.dtype).tiny)).clamp(1, LARGEST_RATIO)
        for kernel in together:
            kernel.lowest.copy_(lowest)
            if step == end:
                kernel.strengths.div_(ratios**spec.power)


def _factors(group: Group) -> list[range]:
    """The axes of each factor of a product, in order; all axes where the group is none."""
    if not isinstance(group, Product):
        return [range(len(group.axes))]
    first, start = _factors(group.first), len(group.first.axes)
    return first + [range(start + axes.start, start + axes.stop) for axes in _factors(group.second)]
