"""Small tasks that a reviewer invented, each trained by the README's loop in a minute or two.

python benchmarks/small_tasks.py                 3 seeds of every task; an hour on one core
python benchmarks/small_tasks.py --only arrows --seeds 0

Every task has images of two kinds: of *free* ones the class is the same in every pose, of *bound* ones the class says
which pose it is. The default level is compared with fixed ones. Settings of the default were chosen with an eye on the
arrows (seed 0), not on the rings. Writes results/scripts/small-tasks.json and .md; what is there is not run again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vpgcnn import (
    Elbo,
    Fixed,
    Full,
    Group,
    GroupBatchNorm,
    GroupConv2d,
    GroupFeature,
    GroupPool,
    Hue,
    LiftConv2d,
    Prediction,
    Rotations,
    Variational,
    name_layers,
    parameter_groups,
)
from vpgcnn.lab.experiments.base import markdown
from vpgcnn.levels import LevelSpec
from vpgcnn.measure import auroc

COMMAND = "python benchmarks/small_tasks.py"
SIZE, TRAIN, TEST, BATCH, RATE = 12, 4000, 2000, 64, 2e-3


@dataclass(frozen=True)
class Examples:
    """Images `(N, C, 12, 12)`, classes `(N,)`, and whether each image is free `(N,)`."""

    images: Tensor
    labels: Tensor
    free: Tensor


@dataclass(frozen=True)
class Task:
    """Images drawn at random, the group that moves them, and the length of the training."""

    about: str
    group: Group
    channels: int
    draw: Callable[[int, torch.Generator], Examples]
    steps: int
    widths: tuple[float, ...]
    """Of the fixed levels."""


def moved(shape: Tensor, generator: torch.Generator) -> Tensor:
    """The shape, shifted by up to a pixel."""
    shift = torch.randint(-1, 2, (2,), generator=generator).tolist()
    return shape.roll(shift, (-2, -1))


def arrows(noise: float) -> Callable[[int, torch.Generator], Examples]:
    """Arrows, whose class is the one of four directions; Ls and Ts, whose class is the letter."""
    arrow, ell, tee = (torch.zeros(SIZE, SIZE) for _ in range(3))
    arrow[2:10, 5:7] = ell[2:10, 3:5] = ell[8:10, 3:9] = tee[2:4, 2:10] = tee[2:10, 5:7] = 1
    for step in range(4):
        arrow[2 + step, 5 - step] = arrow[2 + step, 6 + step] = 1

    def draw(count: int, generator: torch.Generator) -> Examples:
        kinds = torch.randint(3, (count,), generator=generator)
        turns = torch.randint(4, (count,), generator=generator)
        shapes = [
            moved(torch.rot90((arrow, ell, tee)[int(kind)], int(turn)), generator)
            for kind, turn in zip(kinds, turns, strict=True)
        ]
        images = torch.stack(shapes)[:, None]
        images = images + noise * torch.randn(images.shape, generator=generator)
        return Examples(images, torch.where(kinds == 0, turns, kinds + 3), kinds > 0)

    return draw


def rings(count: int, generator: torch.Generator) -> Examples:
    """Rings, whose class is the one of three colours; discs, crosses and frames, whose class is the shape."""
    y, x = torch.meshgrid(*[torch.arange(SIZE) - (SIZE - 1) / 2] * 2, indexing="ij")
    radius, cross = (y.square() + x.square()).sqrt(), (y.abs() < 1.2) | (x.abs() < 1.2)
    frame = (torch.maximum(y.abs(), x.abs()) < 3) & (torch.maximum(y.abs(), x.abs()) >= 1.6)
    shapes = [(radius < 4.5) & (radius > 2.2), radius < 3.5, cross & (radius < 5), frame]
    kinds = torch.randint(4, (count,), generator=generator)
    hues = torch.randint(3, (count,), generator=generator)
    colors = torch.stack([torch.tensor([0.8, 0.2, 0.2]).roll(int(hue)) for hue in hues])
    colors = colors + 0.1 * torch.randn(colors.shape, generator=generator)
    masks = torch.stack([moved(shapes[int(kind)].float(), generator) for kind in kinds])
    images = colors[:, :, None, None] * masks[:, None]
    images = images + 0.3 * torch.randn(images.shape, generator=generator)
    return Examples(images, torch.where(kinds == 0, hues, kinds + 2), kinds > 0)


QUARTERS = (0.25, 0.5, 0.75, 1.0)
TASKS = {
    "arrows": Task("arrows, Ls and Ts in four directions", Rotations(4), 1, arrows(0.2), 800, QUARTERS),
    "noisy-arrows": Task("the same in strong noise", Rotations(4), 1, arrows(0.5), 2000, QUARTERS),
    "noisy-arrows-short": Task("the same, in fewer steps", Rotations(4), 1, arrows(0.5), 800, QUARTERS),
    "rings": Task("rings in three colours, and shapes of any colour", Hue(3), 3, rings, 900, (1 / 3, 0.67, 1.0)),
}
CLASSES = 6


class Net(nn.Module):
    """Three convolutions; the second has the level."""

    def __init__(self, task: Task, level: LevelSpec) -> None:
        super().__init__()
        group = task.group
        self.lift, self.norm1 = LiftConv2d(task.channels, 12, 3, group, padding="same"), GroupBatchNorm(12)
        self.conv1 = GroupConv2d(12, 16, 3, group, padding="same", level=level)
        self.norm2, self.norm3 = GroupBatchNorm(16), GroupBatchNorm(16)
        self.conv2 = GroupConv2d(16, 16, 3, group, padding="same")
        self.pool, self.head = GroupPool("mean"), nn.Linear(16, CLASSES)
        name_layers(self)

    def forward(self, images: Tensor) -> Prediction:
        x: GroupFeature = self.norm1(self.lift(images)).map(F.relu)
        x = self.norm2(self.conv1(x)).map(F.relu)
        x = self.norm3(self.conv2(x)).map(F.relu)
        return Prediction(self.head(self.pool(x).mean(dim=(-2, -1))), x.trace)


def trained(task: Task, level: LevelSpec, examples: Examples, seed: int) -> Net:
    """The README's loop, with a learning rate that falls to 0."""
    torch.manual_seed(seed)
    net = Net(task, level)
    optimiser = torch.optim.AdamW(parameter_groups(net, lr=RATE))
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.0, task.steps)
    for _ in range(task.steps):
        chosen = torch.randint(TRAIN, (BATCH,))
        optimiser.zero_grad()
        Elbo.of(net(examples.images[chosen]), examples.labels[chosen]).total().backward()
        optimiser.step()
        schedule.step()
    return net.eval()


@torch.no_grad()
def measured(net: Net, examples: Examples) -> dict[str, Any]:
    """Accuracies, and θ of free and bound images."""
    prediction = net(examples.images)
    right, free = (prediction.logits.argmax(dim=1) == examples.labels).double(), examples.free
    row: dict[str, Any] = {
        name: round(float(right[chosen].mean()), 4) for name, chosen in (("free", free), ("bound", ~free))
    }
    row["accuracy"] = round(float(right.mean()), 4)
    row["nll"] = round(float(F.cross_entropy(prediction.logits, examples.labels)), 4)
    q = prediction.trace.get("conv1")
    if q is not None and not q.shared:
        theta = q.theta[:, 0]
        row["theta"] = [round(float(theta[chosen].mean()), 3) for chosen in (free, ~free)]
        row["auroc"] = round(auroc(theta[free], theta[~free]), 3)
    return row


def page(rows: list[dict[str, Any]]) -> str:
    """All rows as a page."""
    lines = []
    for row in rows:
        shares = [f"{row[key]:.1%}" for key in ("accuracy", "free", "bound")]
        theta = ", ".join(map(str, row.get("theta", []))) or "–"
        cells = [row["task"], row["level"], row["seed"], *shares, row["nll"], theta, row.get("auroc", "–")]
        lines.append([str(cell) for cell in cells])
    heads = ["task", "level", "seed", "accuracy", "of free", "of bound", "NLL", "θ of free, bound", "θ AUROC"]
    about = "\n".join(f"- {name}: {task.about}; {task.steps} steps." for name, task in TASKS.items())
    return f"# small-tasks\n\nWritten by `{COMMAND}`; do not edit.\n\n{about}\n\n{markdown(heads, lines)}\n"


def main() -> None:
    """Train and measure what the command line asks for, and write it down after each network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=TASKS, default=list(TASKS), help="tasks")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="seeds")
    parser.add_argument("--out", type=Path, default=Path("results/scripts"), help="folder of the results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    file = options.out / "small-tasks.json"
    rows: list[dict[str, Any]] = json.loads(file.read_text()) if file.exists() else []
    for name in options.only:
        task = TASKS[name]
        generator = torch.Generator().manual_seed(0)
        train, test = task.draw(TRAIN, generator), task.draw(TEST, generator)
        arms: dict[str, LevelSpec] = {"default": Variational()}
        arms |= {f"{width:.2f}": Full() if width == 1 else Fixed(width) for width in task.widths}
        for seed in options.seeds:
            for arm, level in arms.items():
                if any((row["task"], row["level"], row["seed"]) == (name, arm, seed) for row in rows):
                    continue
                row = {"task": name, "level": arm, "seed": seed, **measured(trained(task, level, train, seed), test)}
                print(row, flush=True)
                rows.append(row)
                order = list(TASKS)
                rows.sort(key=lambda row: (order.index(row["task"]), row["level"], row["seed"]))
                file.write_text(json.dumps(rows, indent=1) + "\n")
                file.with_suffix(".md").write_text(page(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
