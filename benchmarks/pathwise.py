"""The last group convolution of the CIFAR network where each image has its own elements, both ways."""

from __future__ import annotations

import torch

from layers import Materialised
from timing import Program, device
from vpgcnn import SO2, GroupConv2d, Siren


def programs(elements: int, batch: int, channels: int = 64) -> tuple[Program, Program]:
    """Training steps: ours, which never builds a kernel for an image, and the one that does."""
    torch.manual_seed(0)
    conv = GroupConv2d(channels, channels, 7, SO2(elements), kernel=Siren(), bias=False).to(device())
    values = torch.randn(batch, channels, elements, 8, 8, device=device(), requires_grad=True)
    v, u = (torch.rand(batch, elements, 1, device=device()) * 6 - 3 for _ in range(2))
    target = torch.randn(batch, channels, elements, 2, 2, device=device())
    materialised = Materialised(conv)

    def ours() -> None:
        values.grad = None
        conv.zero_grad()
        conv.kernel.convolve(values, None, v, u, conv.geometry).backward(target)

    def theirs() -> None:
        values.grad = None
        conv.zero_grad()
        materialised(values, v, u).backward(target)

    return ours, theirs
