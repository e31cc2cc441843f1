"""Programs to time: a layer's training step, and the bare `conv2d` that does the same multiplications."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from timing import Program, device
from vpgcnn import Full, Group, GroupConv2d, GroupFeature, LiftConv2d, Table, fold
from vpgcnn.kernels import Kernel, KernelSpec, SirenKernel
from vpgcnn.levels import LevelSpec

SEPARABLE, FULL = Table(separable=True), Full()


@dataclass(frozen=True)
class Shape:
    """A convolution: batch, channels in and out, map, kernel, padding."""

    batch: int
    inputs: int
    outputs: int
    size: int
    kernel: int = 3
    padding: int = 1
    lift: bool = False

    def __str__(self) -> str:
        lift = "lift " if self.lift else ""
        return f"{lift}{self.batch}×{self.inputs}→{self.outputs}, {self.size}², k{self.kernel} p{self.padding}"


def layer(shape: Shape, group: Group, kernel: KernelSpec | None, level: LevelSpec = FULL) -> LiftConv2d | GroupConv2d:
    """The layer of a shape; its grid stays at offset 0, so that both sides do the same work."""
    make = LiftConv2d if shape.lift else GroupConv2d
    return make(
        shape.inputs,
        shape.outputs,
        shape.kernel,
        group,
        kernel=kernel,
        level=level,
        padding=shape.padding,
        bias=False,
    ).to(device())


def _input(shape: Shape, conv: LiftConv2d | GroupConv2d, weighted: bool) -> tuple[Tensor, Tensor | None]:
    count = () if shape.lift else (conv.count,)
    values = torch.randn(shape.batch, shape.inputs, *count, shape.size, shape.size, device=device(), requires_grad=True)
    weights = (
        torch.full((shape.batch, conv.count), 1 / conv.count, device=device(), requires_grad=True) if weighted else None
    )
    return values, weights


def training_step(shape: Shape, conv: LiftConv2d | GroupConv2d, weighted: bool = False) -> Program:
    """Forward and backward of a layer, with gradients for input and parameters."""
    values, weights = _input(shape, conv, weighted)
    grid = conv.group.grid(device=device())
    with torch.no_grad():
        example = conv(values if shape.lift else GroupFeature(values, grid, None, conv.group)).values
    target = torch.randn_like(example)
    learned = [values, *([] if weights is None else [weights]), *conv.parameters()]

    def run() -> None:
        for part in learned:
            part.grad = None
        out = conv(values if shape.lift else GroupFeature(values, grid, weights, conv.group))
        extra = [] if out.weights is None else [out.weights, out.kl]
        grads = [target, *(torch.ones_like(part) for part in extra)]
        torch.autograd.backward([out.values, *extra], grads)

    return run


def expanded(conv: LiftConv2d | GroupConv2d) -> Tensor:
    """The weight that the layer's convolution would have after expansion."""
    grid = conv.group.grid(device=device())
    with torch.no_grad():
        return Kernel.fold(conv.kernel, grid, None if conv.lifts else grid).clone()


def bare_step(shape: Shape, conv: LiftConv2d | GroupConv2d) -> Program:
    """Forward and backward of `conv2d` with the expanded weight: the yardstick."""
    values, _ = _input(shape, conv, weighted=False)
    weight = expanded(conv).requires_grad_()
    with torch.no_grad():
        target = torch.randn_like(F.conv2d(values.flatten(1, -3), weight, padding=shape.padding))

    def run() -> None:
        values.grad = weight.grad = None
        F.conv2d(values.flatten(1, -3), weight, padding=shape.padding).backward(target)

    return run


def folded_pass(shape: Shape, conv: LiftConv2d | GroupConv2d) -> tuple[Program, Program]:
    """Evaluation with cached kernels, and the bare `conv2d`."""
    values, _ = _input(shape, conv, weighted=False)
    fold(conv.eval())
    grid, weight = conv.group.grid(device=device()), expanded(conv)
    fixed = values.detach()
    feature = fixed if shape.lift else GroupFeature(fixed, grid, None, conv.group)

    def ours() -> None:
        with torch.no_grad():
            conv(feature)

    def bare() -> None:
        with torch.no_grad():
            F.conv2d(fixed.flatten(1, -3), weight, padding=shape.padding)

    return ours, bare


class Materialised(nn.Module):
    """What our per-image convolution avoids: a kernel for each image, built, and a grouped `conv2d`."""

    def __init__(self, conv: GroupConv2d) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, values: Tensor, v: Tensor, u: Tensor) -> Tensor:
        kernel = self.conv.kernel
        assert isinstance(kernel, SirenKernel)
        batch, height, width = values.shape[0], *values.shape[-2:]
        functions = kernel.basis(u, v)  # B U V T S
        weight = torch.einsum("ocs,buvts->boucvt", kernel.mixing(), functions)
        square = weight.new_zeros(*weight.shape[:-1], kernel.size**2)
        square = square.index_copy(-1, kernel.taps, weight) / v.shape[1]
        square = square.flatten(3, 4).flatten(0, 2).unflatten(-1, (kernel.size, kernel.size))
        out = F.conv2d(values.reshape(1, -1, height, width), square, padding=self.conv.padding, groups=batch)
        return out.view(batch, kernel.out_channels, u.shape[1], *out.shape[-2:])
