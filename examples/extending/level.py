"""A level: training draws θ at random for each image, evaluation takes the middle. Nothing is learned.

    vpgcnn --use level.py train mnist67-180 --model.level "Jittered(0.2, 0.8)"

A level turns a feature into a distribution q(u|f). This one ignores what the feature shows.
"""

from dataclasses import dataclass

import torch

from vpgcnn import Group, GroupFeature
from vpgcnn.lab.specs import register
from vpgcnn.levels import Level, LevelSpec, WindowDistribution


@register
@dataclass(frozen=True)
class Jittered(LevelSpec):
    """The value that `level=` takes."""

    low: float = 0.0
    high: float = 1.0

    def build(self, group: Group, channels: int) -> "JitteredLevel":
        return JitteredLevel(group, self)


class JitteredLevel(Level):
    """The window [−πθ, πθ]; its KL teaches nothing, so it stays out of the loss (`regularised=False`)."""

    def __init__(self, group: Group, spec: Jittered) -> None:
        super().__init__()
        self.group, self.spec = group, spec

    def forward(self, feature: GroupFeature, generator: torch.Generator | None = None) -> WindowDistribution:
        share = torch.full((feature.shape[0], len(self.group.axes)), 0.5, device=feature.device)
        share = share.uniform_(generator=generator) if self.training else share
        theta = self.spec.low + (self.spec.high - self.spec.low) * share
        return WindowDistribution(self.group, theta, regularised=False)
