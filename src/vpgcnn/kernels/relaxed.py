"""Relaxed kernels (Wang et al., 2022): a few banks, mixed by weights that differ between output elements, or images."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vpgcnn._ops.geometry import Geometry
from vpgcnn._ops.precision import full_precision
from vpgcnn.features import GroupFeature
from vpgcnn.groups import Group
from vpgcnn.kernels.absolute import at_elements
from vpgcnn.kernels.base import EncoderMaker, Kernel, KernelSpec, check_whole
from vpgcnn.kernels.default import default_kernel

__all__ = ["Relaxed", "RelaxedKernel", "RelaxedPerImageKernel"]


@dataclass(frozen=True)
class Relaxed(KernelSpec):
    """Banks of a kernel, mixed differently at each output element. For any group on which the banks exist.

    The kernel at output element u is Σ_l w_l(u) ψ_l(R_u⁻¹x, v⁻¹u). Weights start equal: exactly equivariant.

        >>> GroupConv2d(16, 16, 3, Rotations(4), kernel=Relaxed(banks=3))

    Args:
        banks: How many kernels ψ_l are mixed.
        of: What a bank is, such as `Table()`; None for the group's default.
        per_image: Whether each image has weights of its own, w_l(u|f), from an invariant encoder that sees what the
            banks make of it. Images then differ in how they break the symmetry, and in whether they do.
    """

    banks: int = 2
    of: KernelSpec | None = None
    per_image: bool = False

    def __post_init__(self) -> None:
        check_whole("banks", self.banks, 1)

    def build(self, in_channels: int, out_channels: int, size: int, group: Group, *, lift: bool) -> RelaxedKernel:
        of = default_kernel(group) if self.of is None else self.of
        kind = RelaxedPerImageKernel if self.per_image else RelaxedKernel
        return kind([of.build(in_channels, out_channels, size, group, lift=lift) for _ in range(self.banks)])


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


class RelaxedPerImageKernel(RelaxedKernel):
    """Equivariant for images whose w_l(u|f) is the same for all u, as at the start. Built by `Relaxed(per_image=True)`.

    w_l(u|f) is `weights` plus what the encoder finds in the outputs of the banks. It does not depend on the pose of the
    image: w_l(u|L_g f) = w_l(u|f).

    Args:
        banks: The kernels ψ_l, of equal shape, each equivariant.
    """

    def __init__(self, banks: list[Kernel]) -> None:
        super().__init__(banks)
        self.encoder: nn.Module | None = None

    def use_encoder(self, make: EncoderMaker) -> None:
        channels, count = len(self.banks) * self.out_channels, self.weights.numel()
        self.encoder = make(self.group, channels, torch.zeros(count), self.out_channels)
        for part in self.encoder.get_submodule("linear").parameters():
            nn.init.zeros_(part)

    def expand(self, u: Tensor, v: Tensor | None) -> Tensor:
        raise ValueError("a kernel with weights for each image cannot be a part of another kernel")

    def fold(self, u: Tensor, v: Tensor | None) -> Tensor:
        """The banks side by side: `(O·L·U, C·V, k, k)`."""
        with full_precision(u.device):
            return torch.stack([bank.expand(u, v) for bank in self._each()], dim=1).flatten(3, 4).flatten(0, 2)

    def convolve(
        self,
        values: Tensor,
        weights: Tensor | None,
        v: Tensor | None,
        u: Tensor,
        geometry: Geometry,
        *,
        bias: Tensor | None = None,
        folded: Tensor | None = None,
    ) -> Tensor:
        if folded is not None:
            parts = self.convolve_expanded(values, weights, folded, geometry, None)
            return self._mixed(parts.unflatten(2, (len(self.banks), u.shape[-2])), u, bias)
        each = [bank.convolve(values, weights, v, u, geometry) for bank in self._each()]
        return self._mixed(torch.stack(each, dim=2), u, bias)

    def convolve_views(
        self, views: Tensor, u: Tensor, geometry: Geometry, bias: Tensor | None, folded: Tensor | None = None
    ) -> Tensor:
        each = [bank.convolve_views(views, u, geometry, None) for bank in self._each()]
        return self._mixed(torch.stack(each, dim=2), u, bias)

    def image_weights(self, parts: Tensor, u: Tensor) -> Tensor:
        """w_l(u|f), `(B, L, U)`, from the outputs of the banks `(B, O, L, U, H, W)`."""
        if u.dim() == 3:
            raise ValueError("weights for each image need a grid that images share: choose a level that moves nothing")
        if self.encoder is None:
            raise ValueError("a kernel with weights for each image belongs in a layer, which gives it an encoder")
        seen = GroupFeature(parts.detach().transpose(1, 2).flatten(1, 2), u, None, self.group)
        own = self.encoder(seen, relu=True).unflatten(1, self.weights.shape)
        return at_elements(self.weights + own, self.group, u, dim=2)

    def _mixed(self, parts: Tensor, u: Tensor, bias: Tensor | None) -> Tensor:
        shares = self.image_weights(parts, u).to(parts.dtype)
        out = (parts * shares[:, None, :, :, None, None]).sum(dim=2)
        return out if bias is None else out + bias.to(out.dtype)[:, None, None, None]

    def _each(self) -> list[Kernel]:
        return [bank for bank in self.banks if isinstance(bank, Kernel)]
