"""A family: bell-shaped weights exp(κ cos u), with θ = 1/(1 + κ), instead of a window with hard ends.

    vpgcnn --use family.py train mnist67-180 --model.level "Variational(Bell(0.5), condition='output')"

A family says which parameters a level learns and turns them into a distribution. This one has the same parameters as a
window.
"""

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from vpgcnn import Group, Window
from vpgcnn.lab.specs import register
from vpgcnn.levels import WindowDistribution


@register
@dataclass(frozen=True)
class Bell(Window):
    """The value that a level takes: Variational(Bell()), Shared(Bell(0.5))."""

    def distribution(self, parameters: Tensor, group: Group, *, noisy: bool, generator: Generator | None) -> "Bells":
        return Bells(group, parameters, validate=False)


class Bells(WindowDistribution):
    """q(u|f) for each image: `theta` `(B, K)`, weights `(B, G)` and the KL to the whole group `(B,)`."""

    def weights(self, elements: Tensor, span: Tensor | None = None) -> Tensor:
        kappa = (1 / self.theta - 1).to(elements.dtype).unsqueeze(1)
        return (kappa * torch.cos(elements)).sum(dim=-1).softmax(dim=1)

    def kl(self) -> Tensor:
        weights = self.weights(self.group.grid(dtype=self.theta.dtype, device=self.theta.device))
        return math.log(self.group.count) + torch.special.xlogy(weights, weights).sum(dim=1)
