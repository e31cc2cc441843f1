"""What a level costs: parameters, floating-point operations, time and memory of a training step.

Operations are counted by torch while the network runs: as it does here, where convolutions over hues take the cyclic
algorithm, and with the expanded weights that a straightforward implementation has. Called as a program, it prints the
peak memory of one arm: `python -m vpgcnn.experiments.cost ARM SIZE BATCH WIDTH THREADS`.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from vpgcnn.conv import GroupConv2d, LiftConv2d
from vpgcnn.errors import UserError
from vpgcnn.experiments.base import Row, markdown
from vpgcnn.models import AugmenterConfig, ColorConfig, augmented, build, count_parameters
from vpgcnn.models.config import COLOR_RESNET
from vpgcnn.objective import Elbo
from vpgcnn.training.config import OptimiserConfig
from vpgcnn.training.optimisers import make_optimiser
from vpgcnn.training.progress import Quiet

__all__ = ["ARMS", "count_flops", "measure_cost", "table_cost"]

EVERYWHERE = ("lift", "stage1", "stage2", "stage3", "stage4")
PARTIAL = replace(COLOR_RESNET, level="learned", family="gumbel", where=EVERYWHERE[1:])
FULL = replace(COLOR_RESNET, level="full")
ORDINARY = replace(FULL, elements=1)
INSTAAUG = AugmenterConfig("image", "hue", predictor="resnet")
NONE = AugmenterConfig()

ARMS: dict[str, tuple[ColorConfig, AugmenterConfig, float | None, float | None]] = {
    # network, augmentation, the paper's ratio of parameters and of operations
    "CEResNet": (FULL, NONE, 1.0, 1.0),
    "ResNet": (ORDINARY, NONE, None, None),
    "ResNet w/ InstaAug": (ORDINARY, INSTAAUG, 1.9628, 0.3161),
    "Partial CEResNet": (PARTIAL, NONE, 1.0, 1.0),
    "Partial CEResNet w/ InstaAug": (PARTIAL, INSTAAUG, 1.9814, 1.1581),
    "VP CEResNet": (COLOR_RESNET, NONE, 1.2416, 1.0006),
    "VP CEResNet, all layers": (replace(COLOR_RESNET, where=EVERYWHERE), NONE, 1.3211, 1.0007),
}
"""The networks of the paper's table on Flowers102; the first is what others are compared with."""
SIZES = {"cpu": (64, 16, 24), "paper": (224, 16, 64)}
"""For time and memory: pixels of a side, images of a batch, width of the networks."""
COUNTED = (224, 64)
"""For parameters and operations: pixels of a side, width. They cost nothing to count as in the paper."""
ROUNDS = 7


def _make(arm: str, width: int, classes: int = 102) -> nn.Module:
    config, augmenter, _, _ = ARMS[arm]
    torch.manual_seed(0)
    return augmented(build(replace(config, width=width), 3, classes), augmenter, 3)


def count_flops(model: nn.Module, images: Tensor, *, expanded: bool) -> int:
    """Floating-point operations of a forward pass in training, for each image.

    expanded: group convolutions with the expanded weights, instead of the cyclic algorithm where it pays.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, LiftConv2d | GroupConv2d)]
    before = [layer.cyclic for layer in layers]
    try:
        for layer in layers:
            layer.cyclic = layer.cyclic and not expanded
        counter = FlopCounterMode(display=False)
        with counter, torch.no_grad():
            model.train()(images)
    finally:
        for layer, cyclic in zip(layers, before, strict=True):
            layer.cyclic = cyclic
    return int(counter.get_total_flops()) // len(images)


def _step(arm: str, size: int, batch: int, width: int) -> Callable[[], None]:
    """One training step."""
    model = _make(arm, width).train()
    images, labels = torch.randn(batch, 3, size, size), torch.randint(102, (batch,))
    optimiser = make_optimiser(list(model.parameters()), OptimiserConfig(rate=1e-5))

    def step() -> None:
        Elbo.of(model(images), labels).total(0.01).backward()
        optimiser.step()
        optimiser.zero_grad()

    return step


def measure_cost(preset: str, progress: Quiet) -> list[Row]:
    """A row for each arm, with ratios to the first."""
    size, batch, width = SIZES[preset]
    side, full_width = COUNTED
    steps = {arm: _step(arm, size, batch, width) for arm in ARMS}
    progress.begin("cost", ROUNDS + 1 + 2 * len(ARMS))
    times: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for number in range(ROUNDS + 1):  # the first is to warm up
        for arm, step in steps.items():
            start = time.perf_counter()
            step()
            times[arm].append(time.perf_counter() - start)
        progress.advance(1, f"round {number} of {ROUNDS}")
    del steps
    rows: list[Row] = []
    for arm, (_, _, *paper) in ARMS.items():
        model, images = _make(arm, full_width), torch.randn(2, 3, side, side)
        row: Row = {"arm": arm, "parameters": count_parameters(model)}
        row["flops"] = count_flops(model, images, expanded=True)
        row["flops_here"] = count_flops(model, images, expanded=False)
        progress.advance(1, arm)
        row["bytes"] = _peak_of(arm, size, batch, width)
        progress.advance(1, arm)
        row["milliseconds"] = round(1000 * statistics.median(times[arm][1:]), 1)
        rows.append(row)
        first = rows[0]
        row["ratios"] = {key: round(row[key] / first[key], 4) for key in ("parameters", "flops", "bytes")}
        row["ratios"]["flops_here"] = round(row["flops_here"] / first["flops"], 4)
        pairs = zip(times[arm][1:], times[first["arm"]][1:], strict=True)
        row["ratios"]["time"] = round(statistics.median(own / base for own, base in pairs), 4)
        row["paper"] = dict(zip(("parameters", "flops"), paper, strict=True))
        row["measured_with"] = {"size": size, "batch": batch, "width": width, "threads": torch.get_num_threads()}
    return rows


def table_cost(rows: list[Row]) -> str:
    """One line for each arm: ratios to the first, the paper's beside ours."""
    heads = ["network", "parameters", "ratio", "the paper", "operations, expanded", "the paper", "as run here"]
    lines = []
    for row in rows:
        said = row["ratios"]
        theirs = {key: "–" if value is None else f"{value:.4f}" for key, value in row["paper"].items()}
        cells = [row["arm"], f"{row['parameters']:,}"]
        for key in ("parameters", "flops"):
            cells += [f"{said[key]:.4f}", theirs[key]]
        lines.append([*cells, f"{said['flops_here']:.4f}", f"{said['time']:.2f}", f"{said['bytes']:.2f}"])
    return markdown([*heads, "step time", "memory"], lines)


def _peak_of(arm: str, size: int, batch: int, width: int) -> int:
    """Bytes that a training step needs at its peak, measured in a process of its own."""
    numbers = size, batch, width, torch.get_num_threads()
    command = [sys.executable, "-m", "vpgcnn.experiments.cost", arm, *map(str, numbers)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"the memory of {arm} could not be measured: {done.stderr.strip().splitlines()[-1]}")
    return int(done.stdout)


def _resident() -> int:
    """The largest resident size of this process so far, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():
        return 1024 * int(status.read_text().split("VmHWM:")[1].split()[0])
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[5]))
    before = _resident()
    program = _step(sys.argv[1], *map(int, sys.argv[2:5]))
    program()
    program()
    print(_resident() - before)  # noqa: T201
