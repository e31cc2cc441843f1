"""What `convert` costs: CPU time of a training step and of an evaluation, over those of the original.

python benchmarks/convert.py                   the four networks below; they need torchvision and timm
python benchmarks/convert.py tv:resnet18 …     those alone

One thread, both sides alternated in one process, CPU time instead of wall-clock time: other programs disturb it less.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.append(str(Path(__file__).parents[1] / "tools"))
from architectures import build
from vpgcnn import Elbo, Hue, Product, Rotations, convert

NETWORKS = ("tv:resnet18", "tv:resnet50", "tv:mobilenet_v2", "timm:tf_efficientnet_lite0")
GOALS = {Hue(3): 3.6, Rotations(4): 4.8, Product(Rotations(4), Hue(3)): 15.0}
CLOSED = 1.15
SIDE = 112


def step(net: nn.Module, images: Tensor, labels: Tensor) -> Callable[[], Any]:
    """One training step."""
    optimiser = torch.optim.SGD(net.parameters(), 1e-4)

    def run() -> None:
        optimiser.zero_grad()
        answer = net(images)
        loss = F.cross_entropy(answer, labels) if isinstance(answer, Tensor) else Elbo.of(answer, labels).total()
        loss.backward()
        optimiser.step()

    return run


def ratio(one: Callable[[], Any], two: Callable[[], Any], rounds: int = 4) -> float:
    """CPU time of one over that of two: the median over rounds of one, two, two, one."""

    def clock(program: Callable[[], Any]) -> float:
        start = time.process_time()
        program()
        return time.process_time() - start

    one()
    two()
    found = []
    for _ in range(rounds):
        first, second, third, fourth = clock(one), clock(two), clock(two), clock(one)
        found.append((first + fourth) / (second + third))
    return statistics.median(found)


def main(names: tuple[str, ...]) -> None:
    """Print a line for each network and group."""
    torch.set_num_threads(1)
    for name in names:
        for group, goal in GOALS.items():
            count = 4 if group.count > 4 else 8
            images, labels = torch.rand(count, 3, SIDE, SIDE), torch.randint(1000, (count,))
            model = build(name)
            net = convert(model, group, example=images)
            trained = ratio(step(net.train(), images, labels), step(model.train(), images, labels))
            with torch.no_grad():
                # As it starts: windows that are closed. (The steps above have moved the network.)
                closed, model = convert(build(name), group, example=images).eval(), build(name)
                evaluated = ratio(lambda: closed(images), lambda: model(images), 8)  # noqa: B023
            print(
                f"{name} {group}: training {trained:.2f} (goal {goal}), evaluation with closed windows "
                f"{evaluated:.2f} (goal {CLOSED}); {net.cost}",
                flush=True,
            )


if __name__ == "__main__":
    main(tuple(sys.argv[1:]) or NETWORKS)
