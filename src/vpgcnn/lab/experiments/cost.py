"""table-cost: what a level costs in parameters, floating-point operations, time and memory of a training step.

torch counts operations while the network runs: with the cyclic algorithm for convolutions over hues, and with the
expanded weights of a straightforward implementation.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from vpgcnn.errors import UserError
from vpgcnn.kernels import TableKernel
from vpgcnn.lab.experiments.base import Claim, Count, Finding, Row, markdown
from vpgcnn.lab.experiments.verdicts import NOT_MEASURED
from vpgcnn.lab.networks import AugmenterConfig, ColorConfig, augmented, build, count_parameters
from vpgcnn.lab.networks.config import COLOR_RESNET, NO_GROUP
from vpgcnn.lab.training.config import OptimiserConfig
from vpgcnn.lab.training.optimisers import make_optimiser
from vpgcnn.lab.training.progress import Quiet
from vpgcnn.levels import Full, GumbelSoftmax, Shared
from vpgcnn.nn import all_elements
from vpgcnn.objective import Elbo

__all__ = ["ARMS", "COUNT", "count_flops"]

EVERYWHERE = ("lift", "stage1", "stage2", "stage3", "stage4")
PARTIAL = replace(COLOR_RESNET, level=Shared(GumbelSoftmax(final=0.1)), where=EVERYWHERE[1:])
FULL = replace(COLOR_RESNET, level=Full())
ORDINARY = replace(FULL, group=NO_GROUP)
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
"""The networks of the paper's table of costs; ratios are to the first."""
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
    """Floating-point operations of a forward pass in training, per image.

    Args:
        model: The network.
        images: `(B, 3, H, W)`.
        expanded: Whether to expand the weights of group convolutions instead of using the cyclic algorithm.
    """
    kernels = [kernel for kernel in model.modules() if isinstance(kernel, TableKernel)]
    try:
        for kernel in kernels:
            kernel.allow_cyclic = not expanded
        counter = FlopCounterMode(display=False)
        with counter, torch.no_grad(), all_elements():  # as in a training step
            model.train()(images)
    finally:
        for kernel in kernels:
            kernel.allow_cyclic = True
    return int(counter.get_total_flops()) // len(images)


def _step(arm: str, size: int, batch: int, width: int) -> Callable[[], None]:
    """One training step."""
    model = _make(arm, width).train()
    images, labels = torch.randn(batch, 3, size, size), torch.randint(102, (batch,))
    optimiser = make_optimiser(list(model.parameters()), OptimiserConfig(lr=1e-5))

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
        row["ratios"]["time"] = round(statistics.median(mine / base for mine, base in pairs), 4)
        row["paper"] = dict(zip(("parameters", "flops"), paper, strict=True))
        row["measured_with"] = {"size": size, "batch": batch, "width": width, "threads": torch.get_num_threads()}
    return rows


def table_cost(rows: list[Row]) -> str:
    """One line for each arm: ratios to the first, the paper's beside ours."""
    heads = ["network", "parameters", "ratio", "the paper", "operations, expanded", "the paper", "as run here"]
    lines = []
    for row in rows:
        ratios = row["ratios"]
        theirs = {key: "–" if value is None else f"{value:.4f}" for key, value in row["paper"].items()}
        cells = [row["arm"], f"{row['parameters']:,}"]
        for key in ("parameters", "flops"):
            cells += [f"{ratios[key]:.4f}", theirs[key]]
        lines.append([*cells, f"{ratios['flops_here']:.4f}", f"{ratios['time']:.2f}", f"{ratios['bytes']:.2f}"])
    return markdown([*heads, "step time", "memory"], lines)


def _peak_of(arm: str, size: int, batch: int, width: int) -> int:
    """Bytes that a training step needs at its peak, measured in a new process."""
    numbers = size, batch, width, torch.get_num_threads()
    program = f"from vpgcnn.lab.experiments.cost import _print_peak; _print_peak({arm!r}, *{numbers})"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"the memory of {arm} could not be measured: {done.stderr.strip().splitlines()[-1]}")
    return int(done.stdout)


def _print_peak(arm: str, size: int, batch: int, width: int, threads: int) -> None:
    """Print the memory that two training steps of an arm add to this process, in bytes."""
    torch.set_num_threads(threads)
    before = _resident()
    step = _step(arm, size, batch, width)
    step()
    step()
    print(_resident() - before)  # noqa: T201


def _resident() -> int:
    """The largest resident size of this process so far, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():
        return 1024 * int(status.read_text().split("VmHWM:")[1].split()[0])
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS


def costs(rows: Sequence[Row]) -> Finding:
    """Whether both ratios are within 1 % of the paper's."""
    found = {row["arm"]: row["ratios"] for row in rows}
    if "VP CEResNet" not in found:
        return NOT_MEASURED
    ratios, (_, _, parameters, flops) = found["VP CEResNet"], ARMS["VP CEResNet"]
    assert parameters is not None
    assert flops is not None
    same = abs(ratios["parameters"] / parameters - 1) < 0.01 and abs(ratios["flops"] - flops) < 0.01
    evidence = f"parameters × {ratios['parameters']:.4f}, operations × {ratios['flops']:.4f}"
    return Finding("yes" if same else "no", f"{evidence}, time × {ratios['time']:.2f}")


COUNT = Count(
    name="table-cost",
    about="parameters, operations, time and memory of the networks for Flowers102",
    rows=measure_cost,
    table=table_cost,
    notes=(
        "Ratios are to the first line.",
        "Parameters, and operations of a forward pass (torch.utils.flop_counter, multiplications, additions) for 224 "
        'pixels and full width, as in the paper. "As run here": with the cyclic algorithm.',
        "Time and peak memory of a training step, which the paper does not give: with the size, batch and width in the "
        "JSON file, the networks alternating in one process.",
        "InstaAug's ranges are predicted by a ResNet18 here, as in the paper's count; in the experiments of the cpu "
        "preset a small network predicts them.",
    ),
    claims=(Claim("VP costs × 1.2416 parameters and × 1.0006 operations", costs),),
)
