"""A group: red and blue swapped, or not. For images whose class survives the swap of two channels (BGR files, say).

    vpgcnn --use group.py train colormnist-lt --model.group "Swap()"

A group says which circles it is made of, how elements compose and how they act. A swap is a circle of two points.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from vpgcnn.groups import Axis, Group, wrap
from vpgcnn.lab.specs import register


@register
@dataclass(frozen=True)
class Swap(Group):
    """Two elements: 0 leaves the image alone, π exchanges red and blue."""

    axes = (Axis("swap", 2),)
    acts_on_plane = False
    acts_on_rgb = True

    def compose(self, u: Tensor, v: Tensor) -> Tensor:
        return wrap(u + v)

    def inverse(self, u: Tensor) -> Tensor:
        return wrap(-u)

    def plane(self, u: Tensor) -> Tensor:
        return torch.eye(2, dtype=u.dtype, device=u.device).expand(*u.shape[:-1], 2, 2)

    def rgb(self, u: Tensor) -> Tensor:
        swapped = torch.cos(u[..., :1, None]) < 0  # (…, 1, 1)
        stay = torch.eye(3, dtype=u.dtype, device=u.device)
        return torch.where(swapped, stay.flip(0), stay)
