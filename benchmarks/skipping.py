"""Evaluation that leaves out elements of weight 0, over the same network with all of them: ratios of CPU time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from timing import Program, Row, cpu_ratio, row
from vpgcnn import SO2, Elbo, Fixed, Full, Variational
from vpgcnn.lab.networks import build
from vpgcnn.lab.networks.config import COLOR_CNN, COLOR_RESNET_SMALL, DIGITS, NO_GROUP, RESNET
from vpgcnn.levels import InvariantEncoder, VariationalLevel
from vpgcnn.levels.costs import bowl
from vpgcnn.nn import all_elements, fold, used_elements

STAGES = tuple(f"stage{number}" for number in range(1, 5))
ROTATIONS: dict[str, tuple[Any, int, int]] = {
    "digits": (replace(DIGITS, level=Variational(), where=("lift", "stage1", "last")), 1, 28),
    "SE(2) ResNet": (
        replace(RESNET, group=SO2(8), where=("lift", "stage1", "stage2", "last"), elsewhere=Full()),
        3,
        32,
    ),
}
HUES: dict[str, tuple[Any, int, int]] = {
    "colour CNN": (replace(COLOR_CNN, where=tuple(f"conv{number}" for number in range(1, 8))), 3, 28),
    "colour ResNet18": (replace(COLOR_RESNET_SMALL, where=("lift", *STAGES)), 3, 64),
}


class _Scripted(InvariantEncoder):
    """An encoder that does its work and then gives a scripted answer."""

    script: Tensor

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return super().forward(*args, **kwargs) * 0 + self.script


def network(config: Any, channels: int, theta: list[float]) -> nn.Module:
    """A folded network whose variational levels answer with this θ, image by image (one number: for all images)."""
    torch.manual_seed(0)
    net = build(config, channels, 10).eval()
    for level in net.modules():
        if isinstance(level, VariationalLevel):
            ends = level.family.opened(torch.tensor([[0.0], [1.0]]), level.group)
            assert ends is not None
            closed, whole = ends
            opening = ((torch.tensor(theta).unsqueeze(1) - closed) / (whole - closed)).clamp(0, 1)
            level.encoder.__class__ = _Scripted
            level.encoder.script = bowl(opening)  # slopes of a cost that is lowest there
    return fold(net)


def answer(net: nn.Module, images: Tensor, *, everything: bool = False) -> Program:
    """One evaluation of the network."""

    def run() -> None:
        context: AbstractContextManager[None] = all_elements() if everything else nullcontext()
        with torch.no_grad(), context:
            net(images)

    return run


def rows(kind: str, seconds: float) -> Iterator[Row]:
    """Every network, level and batch size of a kind: "rotations" or "hues"."""
    closed = 0.25 if kind == "rotations" else 1 / 3
    what = "windows of 1/4, n=8" if kind == "rotations" else "closed windows, m=3"
    goal = 0.35 if kind == "rotations" else 0.45
    for title, (config, channels, size) in (ROTATIONS if kind == "rotations" else HUES).items():
        fixed = replace(config, level=Fixed(closed), elsewhere=Fixed(closed))
        for batch in (1, 8 if title == "SE(2) ResNet" else 64 if title in ("digits", "colour CNN") else 16):
            images = torch.rand(batch, channels, size, size)
            cases = [(f"{what}, fixed", fixed, [closed], goal), (f"{what}, variational", config, [closed], goal)]
            cases += [("all open, variational", config, [1.0], 1.03)]
            if batch > 1:
                cases += [("half open, half narrow, variational", config, [1.0, closed] * (batch // 2), 0.75)]
            for name, of, theta, limit in cases:
                net = network(of, channels, theta)
                fast = answer(net, images)
                value = cpu_ratio(fast, answer(net, images, everything=True), seconds=seconds)
                shapes = f"batch {batch}, folded kernels, CPU time"
                yield row(f"evaluation over all elements, {title}, batch {batch}: {name}", value, limit, shapes)
                if kind == "hues" and theta == [closed]:
                    ordinary = network(
                        replace(config, group=NO_GROUP, level=Full(), width=width(config)), channels, [1.0]
                    )
                    value = cpu_ratio(fast, answer(ordinary, images), seconds=seconds)
                    yield row(
                        f"evaluation over the ordinary network, {title}, batch {batch}: {name}", value, 1.1, shapes
                    )


def training_rows(seconds: float) -> Iterator[Row]:
    """A training step that computes the elements in use, over one with all of them."""
    for title, (config, channels, size) in {**ROTATIONS, **HUES}.items():
        closed, batch = (0.25, 8) if title in ROTATIONS else (1 / 3, 16)
        level = Fixed(closed)
        net = build(replace(config, level=level, elsewhere=level), channels, 10).train()
        images, labels = torch.rand(batch, channels, size, size), torch.arange(batch) % 10

        def run(
            *, everything: bool = False, net: nn.Module = net, images: Tensor = images, labels: Tensor = labels
        ) -> None:
            with nullcontext() if everything else used_elements():
                loss = Elbo.of(net(images), labels).total()
            loss.backward()
            net.zero_grad(set_to_none=True)

        value = cpu_ratio(run, lambda run=run: run(everything=True), seconds=seconds)  # type: ignore[misc]
        name = (
            f"training step with the elements in use over all, {title}, batch {batch}: windows of {closed:.2f}, fixed"
        )
        yield row(name, value, None, f"batch {batch}, CPU time")


def width(config: Any) -> int:
    """The width at which the ordinary network has as many channels: `width` of a ResNet is that of equal parameters."""
    return int(config.width) if config.shape == "cnn" else int(config.width * (9 / (9 + config.group.count)) ** 0.5)
