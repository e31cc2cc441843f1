"""Your first partially equivariant network: train it on real digits and see what it learned.

    python examples/first_network.py --out runs/demo

Trains a network with variational levels and the same network with full equivariance, on the same
digits for the same number of steps, and writes an HTML report with one figure.
"""

from __future__ import annotations

import argparse
import math
import sys
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from digits import CLASSES, load_digits
from figure import write_report
from vpgcnn import SO2, Full, GroupBatchNorm, GroupConv2d, GroupPool, LiftConv2d, SirenKernel, SpatialPool, Variational
from vpgcnn.levels import LevelFactory


class DigitNet(nn.Module):
    """Three convolutions over SO(2); the last one, which sees the most of the image, has the level asked for."""

    def __init__(self, level: LevelFactory, points: int = 8) -> None:
        super().__init__()
        group, kernel = SO2(), partial(SirenKernel, omega=4.0)
        self.lift = LiftConv2d(1, 10, 7, group, points=points, kernel=kernel, padding="same")
        self.middle = GroupConv2d(10, 10, 5, group, points=points, kernel=kernel, padding="same")
        self.last = GroupConv2d(10, 20, 5, group, points=points, kernel=kernel, level=level)
        self.norms = nn.ModuleList(GroupBatchNorm(width) for width in (10, 10, 20))
        self.pool, self.group_pool = SpatialPool("max", 2), GroupPool("mean")
        self.head = nn.Linear(20, len(CLASSES))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Images `(B, 1, 28, 28)` to logits `(B, 3)` and the KL of the levels `(B,)`."""
        x = self.pool(self.norms[0](self.lift(images)).map(F.relu))
        x = self.pool(self.norms[1](self.middle(x)).map(F.relu))
        x = self.norms[2](self.last(x)).map(F.relu)
        return self.head(self.group_pool(x).amax(dim=(-2, -1))), x.divergence


def train(model: DigitNet, images: Tensor, labels: Tensor, steps: int, name: str, seed: int) -> None:
    """AdamW with one cycle; the weight of the KL is small first, then grows, so that windows open where they can."""
    generator = torch.Generator().manual_seed(seed)
    encoders = [p for key, p in model.named_parameters() if ".level." in key]
    others = [p for key, p in model.named_parameters() if ".level." not in key]
    parts = [(others, 4e-3)] + ([(encoders, 2e-3)] if encoders else [])
    optimiser = torch.optim.AdamW([{"params": part, "lr": peak} for part, peak in parts], weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, [peak for _, peak in parts], total_steps=steps)
    model.train()
    for step in range(steps):
        batch = torch.randint(len(images), (64,), generator=generator)
        logits, divergence = model(images[batch])
        weight = 0.01 + 0.1 * max(0.0, 2 * step / steps - 1)
        loss = F.cross_entropy(logits, labels[batch]) + weight * divergence.mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        if sys.stderr.isatty():
            end = "\n" if step == steps - 1 else ""
            print(f"\r{name}: step {step + 1} of {steps}, loss {loss.item():.3f} ", end=end, file=sys.stderr)


@torch.no_grad()
def curve(model: DigitNet, images: Tensor, label: int, angles: range) -> Tensor:
    """Confidence in `label` for every image turned by every angle in degrees, `(angles, images)`."""
    model.eval()
    rows = [model(SO2().transform(images, math.radians(angle)))[0].softmax(dim=1)[:, label] for angle in angles]
    return torch.stack(rows)


@torch.no_grad()
def theta_of(model: DigitNet, images: Tensor) -> Tensor:
    """θ of the last layer for each image, read off its level by a hook."""
    seen: list[Tensor] = []
    hook = model.last.level.register_forward_hook(lambda _module, _inputs, q: seen.append(q.theta[:, 0]))
    model.eval()(images)
    hook.remove()
    return seen[0]


def main() -> None:
    """Train both networks, measure, write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="folder for the report")
    parser.add_argument("--steps", type=int, default=500, help="training steps of each network (default: 500)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.steps < 2:
        parser.error(f"--steps must be at least 2, got {options.steps}")
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"cannot write to {options.out}: {error.strerror}")
    images, labels, test_images, test_labels = load_digits()
    angles = range(-180, 181, 15)
    curves: dict[str, dict[str, Tensor]] = {}
    accuracy: dict[str, float] = {}
    theta: dict[str, Tensor] = {}
    networks: dict[str, LevelFactory] = {"variational": Variational, "full": Full}
    for name, level in networks.items():
        print(f"training the {name} network on {len(images)} digits, {options.steps} steps", flush=True)
        torch.manual_seed(options.seed)
        model = DigitNet(level)
        train(model, images, labels, options.steps, name, options.seed)
        with torch.no_grad():
            right = model.eval()(test_images)[0].argmax(dim=1) == test_labels
        accuracy[name] = right.float().mean().item()
        curves[name] = {
            digit: curve(model, test_images[test_labels == i][:50], i, angles) for i, digit in enumerate("67")
        }
        if level is Variational:
            theta = {digit: theta_of(model, test_images[test_labels == i]) for i, digit in enumerate(CLASSES)}
    report = write_report(options.out, angles, curves, accuracy, theta, options.steps)
    half, upright = angles.index(180), angles.index(0)
    six = curves["variational"]["6"].mean(dim=1)
    print(f"held-out accuracy: {accuracy['variational']:.1%} variational, {accuracy['full']:.1%} fully equivariant")
    print(f"confidence that a 6 is a 6: {six[upright]:.2f} upright, {six[half]:.2f} upside down")
    shares = ", ".join(f"{digit}s {values.mean():.2f}" for digit, values in theta.items())
    print(f"share of all rotations that is used: {shares}")
    print(f"report: {report}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\nstopped; nothing was written")
