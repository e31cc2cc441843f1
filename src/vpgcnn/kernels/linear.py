"""Kernels that are linear in a few functions of place and angle: `Siren`, `Harmonic`."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vpgcnn._ops import per_image
from vpgcnn._ops.constants import constant
from vpgcnn._ops.geometry import Geometry
from vpgcnn._ops.precision import full_precision
from vpgcnn.groups import even_grid
from vpgcnn.kernels.base import Kernel

__all__ = ["LinearKernel"]


class LinearKernel(Kernel):
    """A kernel k(x, g) = Σ_s weight[s]·φ_s(x, g), with functions φ that all pairs of channels share.

    A subclass registers `taps`, makes `weight` and says what the functions are. Everything else follows: the expansion,
    its scale at the start, and a convolution for each image that never builds a kernel.
    """

    taps: Tensor
    """Positions of the T taps in the k×k square; the others are 0."""
    weight: nn.Parameter
    """`(O, C, S)`."""

    @abstractmethod
    def basis(self, u: Tensor, v: Tensor | None) -> Tensor:
        """The functions at the taps, `(..., U, V, T, S)`, with those that `mixing` adds after the others.

        u `(..., U, K)` and v `(..., V, K)` may be shared, or one row for each image.
        """

    def columns(self, u: Tensor, v: Tensor | None) -> Tensor:
        """The same as a matrix for each image, `(..., V·T, U·S)`."""
        return self.basis(u, v).movedim(-4, -2).flatten(-2).flatten(-3, -2)

    def mixing(self) -> Tensor:
        """What the functions are multiplied by, `(O, C, S)`."""
        return self.weight

    def as_defined(self) -> bool:
        """Whether a function depends on its own elements alone, and `columns` is `basis`: then fast paths are safe.

        Nothing is known of a subclass, so it has to say so itself.
        """
        return False

    @torch.no_grad()
    def start_at_unit_scale(self) -> None:
        """Draw the weights, so that pre-activations have unit scale."""
        nn.init.normal_(self.weight)
        self.weight.div_(math.sqrt(self._gain() * self.in_channels))

    def _gain(self) -> float:
        """E[h²] of the output for one input channel, for pre-activations of unit scale and weights of unit scale.

        Neighbouring taps of a smooth kernel are alike, and so are the features that it makes: how much
        they add up depends on the functions. The correlation of features between elements and
        positions is followed through a few layers of a wide network, exactly: the kernel acts on it as
        a product in the Fourier basis of the plane, a ReLU by its known second moment.
        """
        coarse = tuple(axis.order or 4 for axis in self.group.axes)
        grid = self.group.grid(dtype=torch.float64) if self.group.order else even_grid(coarse)
        hidden = self.basis(grid, None if self.lift else grid)[..., : self.weight.shape[-1]]
        if self.lift:  # images, taken as white
            return float(hidden.square().sum(dim=(1, 2, 3)).mean())
        count, field = len(grid), 2 * self.size + 1
        square = hidden.new_zeros(count, count, self.size**2, hidden.shape[-1]).index_copy(2, self.taps, hidden)
        taps = square.unflatten(2, (self.size, self.size)).permute(4, 0, 1, 2, 3) / count
        waves = torch.fft.fft2(taps, s=(field, field))
        correlation = hidden.new_zeros(count, count, field, field)
        correlation[range(count), range(count), 0, 0] = 1
        gains = []
        for _ in range(6):
            moment = torch.fft.fft2(_relu_moment(correlation)).to(waves.dtype)
            turned = torch.einsum("suvxy,vwxy->suwxy", waves, moment)
            covariance = torch.fft.ifft2(torch.einsum("suwxy,stwxy->utxy", turned, waves.conj())).real
            energy = covariance[range(count), range(count), 0, 0]
            gains.append(float(energy.mean()))
            correlation = covariance / (energy[:, None] * energy).sqrt()[..., None, None]
        # The first layers still see noise; the mean of logarithms is what a deep net multiplies up.
        return math.exp(sum(map(math.log, gains[2:])) / len(gains[2:]))

    def expand(self, u: Tensor, v: Tensor | None) -> Tensor:
        return self.undo_colors(self._assemble(self.mixing(), self.basis(u, v)), u)

    def fold_some(
        self, u: Tensor, v: Tensor | None, rows: Sequence[int], columns: Sequence[int], folded: Tensor | None = None
    ) -> Tensor:
        if folded is not None or not self.as_defined():
            return super().fold_some(u, v, rows, columns, folded)
        some = u[constant(tuple(rows), torch.long, u.device)]
        return self.fold(some, None if v is None else v[constant(tuple(columns), torch.long, u.device)])

    def _convolve_each(
        self,
        values: Tensor,
        weights: Tensor | None,
        v: Tensor | None,
        u: Tensor,
        geometry: Geometry,
        bias: Tensor | None,
    ) -> Tensor:
        """One image at a time is slow: the kernel is linear in a few functions, see `_ops.per_image`."""
        mixes_colors = self.lift and self.group.acts_on_rgb
        if mixes_colors or not self.as_defined() or values.shape[0] == 0:
            return super()._convolve_each(values, weights, v, u, geometry, bias)
        with full_precision(u.device):
            mixing = self.mixing()
        inputs = per_image.Inputs(values, weights, v, u)
        out = per_image.convolve(inputs, mixing, self.basis, self.columns, self.taps, self.size, geometry)
        return out if bias is None else out + bias.to(out.dtype)[:, None, None, None]

    def _assemble(self, mixing: Tensor, functions: Tensor) -> Tensor:
        """mixing `(O, C, S)` and functions `(U, V, T, S)` to weights `(O, U, C, V, k, k)`."""
        outputs, inputs = functions.shape[:2]
        # The functions are laid into the square first: 0 outside the disc.
        square = functions.new_zeros(outputs, inputs, self.size**2, functions.shape[-1])
        square = square.index_copy(2, self.taps, functions)
        weight = _mixed(mixing.to(functions.dtype) / inputs, square.flatten(1, 2))
        return weight.unflatten(3, (inputs, self.size, self.size))


def _mixed(mixing: Tensor, functions: Tensor) -> Tensor:
    """mixing `(O, C, S)` and functions `(U, P, S)` to `(O, U, C, P)`, as conv2d wants it, in few large products."""
    each = torch.bmm(mixing.flatten(0, 1).expand(len(functions), -1, -1), functions.transpose(1, 2))
    return each.unflatten(1, mixing.shape[:2]).transpose(0, 1).contiguous()


def _relu_moment(correlation: Tensor) -> Tensor:
    """E[relu(a) relu(b)] for standard normal a, b with this correlation."""
    angle = torch.arccos(correlation.clamp(-1, 1))
    return (torch.sin(angle) + (math.pi - angle) * correlation) / (2 * math.pi)
