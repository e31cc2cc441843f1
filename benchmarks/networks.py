"""Programs to time: a network's whole training step, and the bare convolutions of its shapes."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from memory import peak
from timing import Program, device
from vpgcnn import GroupConv2d, LiftConv2d
from vpgcnn.features import GroupFeature
from vpgcnn.lab.networks import MODELS, ModelConfig, build
from vpgcnn.lab.networks.config import NO_GROUP
from vpgcnn.lab.training.config import OptimiserConfig
from vpgcnn.lab.training.optimisers import make_optimiser
from vpgcnn.lab.training.recipes import recipe
from vpgcnn.levels import Full, LevelSpec, ReparametrizedWindow, Shared, Variational
from vpgcnn.nn.conv import fold
from vpgcnn.objective import Elbo

NETWORKS: dict[str, tuple[Any, int, int, int]] = {
    "cifar": (MODELS["se2-resnet"].config, 3, 10, 32),
    "digits": (recipe("mnist67-180").model, 1, 3, 28),
    "color-cnn": (MODELS["color-cnn"].config, 3, 30, 28),
    "color-resnet": (MODELS["color-resnet18"].config, 3, 102, 64),
}


def config_of(network: str, arm: str) -> ModelConfig:
    """The configuration of a network with the levels of an arm."""
    config = NETWORKS[network][0]
    level = config.level
    assert isinstance(level, Variational)
    if arm == "reparametrized":
        moving = ReparametrizedWindow()
        elsewhere = Full() if config.elsewhere.is_full else Shared(moving)
        return replace(config, level=Variational(moving), elsewhere=elsewhere)
    levels: dict[str, LevelSpec] = {
        "ordinary": Full(),
        "full": Full(),
        "shared": Shared(level.family),
        "variational": level,
        "narrow": replace(level, encoder_width=16),
    }
    return replace(config, level=levels[arm], **({"group": NO_GROUP} if arm == "ordinary" else {}))


def training_program(network: str, arm: str, batch: int) -> tuple[Program, nn.Module, Tensor]:
    """One step: forward, both terms of the objective, backward, AdamW."""
    _, channels, classes, size = NETWORKS[network]
    torch.manual_seed(0)
    model = build(config_of(network, arm), channels, classes).to(device()).train()
    images = torch.randn(batch, channels, size, size, device=device())
    labels = torch.randint(classes, (batch,), device=device())
    optimiser = make_optimiser(list(model.parameters()), OptimiserConfig(lr=1e-4))

    def step() -> None:
        Elbo.of(model(images), labels).total(0.05).backward()
        optimiser.step()
        optimiser.zero_grad()

    return step, model, images


def compiled_programs(network: str, batch: int) -> dict[str, tuple[Program, Program]]:
    """A variational network as it is and by `torch.compile`: its training step, and its answer with folded kernels."""
    found = {}
    for what in ("training step", "answer"):
        programs = []
        for compiled in (True, False):
            step, model, images = training_program(network, "variational", batch)
            if what == "answer":
                model = fold(model.eval())
                called = torch.compile(model) if compiled else model
                programs.append(_answer(called, images))
            else:
                if compiled:
                    model.compile()  # in place: the step calls it
                programs.append(step)
        found[what] = (programs[0], programs[1])
    return found


def _answer(model: Any, images: Tensor) -> Program:
    def answer() -> None:
        with torch.no_grad():
            model(images)

    return answer


def bare_program(
    network: str, batch: int, layout: torch.memory_format = torch.contiguous_format
) -> tuple[Program, str]:
    """Forward and backward of plain `conv2d` calls with the expanded weights of the full network, and their shapes."""
    _, model, images = training_program(network, "full", batch)
    calls: list[tuple[Tensor, Tensor, int, int]] = []

    def note(module: nn.Module, inputs: tuple[Tensor | GroupFeature, ...], _: GroupFeature) -> None:
        assert isinstance(module, LiftConv2d | GroupConv2d)
        given = inputs[0]
        values = given if isinstance(given, Tensor) else given.values.flatten(1, 2)
        outputs = module.out_channels * module.count
        square = module.kernel_size, module.kernel_size
        weight = torch.randn(outputs, values.shape[1], *square, device=device(), requires_grad=True)
        leaf = values.detach().clone(memory_format=layout).requires_grad_(not module.lifts)
        calls.append((leaf, weight, module.stride, module.padding))

    hooks = [m.register_forward_hook(note) for m in model.modules() if isinstance(m, LiftConv2d | GroupConv2d)]
    with torch.no_grad():
        model(images)
    for hook in hooks:
        hook.remove()
    gradients = [torch.randn_like(F.conv2d(x, w, None, *steps)).detach() for x, w, *steps in calls]

    def run() -> None:
        for (values, weight, *steps), gradient in zip(calls, gradients, strict=True):
            F.conv2d(values, weight, None, *steps).backward(gradient)
            values.grad = weight.grad = None

    shapes = "; ".join(
        f"{x.shape[1]}→{w.shape[0]}, {x.shape[-1]}², k{w.shape[-1]}{f' s{s}' if s > 1 else ''}" for x, w, s, _ in calls
    )
    return run, f"batch {batch}: {shapes}"


if __name__ == "__main__":  # python networks.py cifar full 64: bytes of two training steps above the start
    step, *_ = training_program(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    before = peak()
    step()
    step()
    print(peak() - before)
