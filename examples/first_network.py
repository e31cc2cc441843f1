"""Your first partially equivariant network, with a training loop of your own.

    python examples/first_network.py --steps 300

The layers are ordinary modules: they go into your network and your loop. (`vpgcnn train mnist67-180` does
the same with checkpoints, resume, several processes and a report.)
"""

from __future__ import annotations

import argparse
import sys
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vpgcnn import SO2, GroupBatchNorm, GroupConv2d, GroupPool, LiftConv2d, SirenKernel, SpatialPool, Variational
from vpgcnn.analysis import read_theta
from vpgcnn.data import DataConfig, load
from vpgcnn.objective import Elbo, KlSchedule


class DigitNet(nn.Module):
    """Three convolutions over SO(2); the last one, which sees the most of the image, has a level for each image."""

    def __init__(self, classes: int = 3, points: int = 8) -> None:
        super().__init__()
        group, kernel = SO2(), partial(SirenKernel, omega=4.0)
        self.lift = LiftConv2d(1, 10, 7, group, points=points, kernel=kernel, padding="same")
        self.middle = GroupConv2d(10, 10, 5, group, points=points, kernel=kernel, padding="same")
        self.last = GroupConv2d(10, 20, 5, group, points=points, kernel=kernel, level=Variational)
        self.norms = nn.ModuleList(GroupBatchNorm(width) for width in (10, 10, 20))
        self.pool, self.group_pool = SpatialPool("max", 2), GroupPool("mean")
        self.head = nn.Linear(20, classes)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Images `(B, 1, 28, 28)` to logits `(B, classes)` and the KL of the levels `(B,)`."""
        x = self.pool(self.norms[0](self.lift(images)).map(F.relu))
        x = self.pool(self.norms[1](self.middle(x, elements=x.elements)).map(F.relu))
        x = self.norms[2](self.last(x, elements=x.elements)).map(F.relu)
        return self.head(self.group_pool(x).amax(dim=(-2, -1))), x.divergence


def main() -> None:
    """Train on 6s, 7s and turned 6s that are labelled 9, then print what was learned."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300, help="training steps (default: 300, about a minute)")
    steps = parser.parse_args().steps
    if steps < 1:
        parser.error(f"--steps must be at least 1, got {steps}")
    torch.manual_seed(0)
    digits = load(DataConfig(name="mnist67-180", source="embedded"))
    model, schedule = DigitNet(len(digits.classes)), KlSchedule(start=0.01, peak=0.11)
    optimiser = torch.optim.AdamW(model.parameters(), 4e-3, weight_decay=1e-3)
    for step in range(steps):
        batch = torch.randint(len(digits.train), (64,))
        images, labels = digits.train.images[batch] / 255, digits.train.labels[batch]
        elbo = Elbo.of(model(images), labels)
        elbo.total(schedule.at(step / steps)).backward()
        optimiser.step()
        optimiser.zero_grad()
        if step % 50 == 0:
            print(f"step {step}: nll {elbo.nll:.3f}, kl {elbo.kl:.3f}", flush=True)
    images = digits.test.images / 255
    theta = read_theta(model, images)["last"][:, 0]
    with torch.no_grad():
        right = model(images)[0].argmax(dim=1) == digits.test.labels
    print(f"accuracy on unseen digits: {right.float().mean():.1%}")
    for label, name in enumerate(digits.classes):
        print(f"share of all rotations that is used for {name}s: {theta[digits.test.labels == label].mean():.2f}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\nstopped")
