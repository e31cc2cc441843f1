"""Side-by-side timing: two programs, alternated in one process, compared pair by pair."""

from __future__ import annotations

import math
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

Program = Callable[[], object]
_DEVICE = [torch.device("cpu")]


def device() -> torch.device:
    """Where programs are run."""
    return _DEVICE[0]


def dry() -> bool:
    """Whether programs are run once, on tensors without numbers, and not timed."""
    return device().type == "meta"


def run_on(where: torch.device) -> None:
    """Choose where programs that are made from now on are run."""
    _DEVICE[0] = where


@dataclass(frozen=True)
class Row:
    """One row of results/bench.json. `ratio` is met when it is at most `goal`."""

    name: str
    ratio: float
    goal: float | None
    met: bool | None
    shapes: str
    torch: str
    cpu: str


def row(name: str, ratio: float, goal: float | None, shapes: str) -> Row:
    """A result, with what it was measured on; no goal for rows that only explain a mean."""
    met = None if goal is None else ratio <= goal
    return Row(name, round(ratio, 4), goal, met, shapes, torch.__version__, cpu_name())


def cpu_name() -> str:
    """The name of the GPU in use, or the processor's own name with the number of threads in use."""
    if device().type != "cpu":
        return torch.cuda.get_device_name(device()) if device().type == "cuda" else device().type
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {torch.get_num_threads()} threads"


def clock(program: Program) -> float:
    """Seconds that one run takes, until its device has done all of it."""
    start = time.perf_counter()
    program()
    finish()
    return time.perf_counter() - start


def finish() -> None:
    """Wait until the GPU in use has done what it was given."""
    if device().type not in ("cpu", "meta"):
        torch.accelerator.synchronize()


def ratio(contender: Program, baseline: Program, *, seconds: float = 4.0, least: int = 7) -> float:
    """Time of `contender` over time of `baseline`: the median over rounds of a, b, b, a."""
    for _ in range(2 if least > 3 and not dry() else 1):
        contender()
        baseline()
    if dry():
        return math.nan
    finish()
    ratios: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(ratios) < least:
        first, second, third, fourth = clock(contender), clock(baseline), clock(baseline), clock(contender)
        ratios.append((first + fourth) / (second + third))
    return statistics.median(ratios)


def cpu_ratio(contender: Program, baseline: Program, *, seconds: float = 4.0, least: int = 7) -> float:
    """The same as `ratio` in CPU time of this process, for a machine that is busy; short programs run many times."""
    for _ in range(2):
        contender()
        baseline()
    start = time.process_time()
    baseline()
    times = max(1, int(0.02 / max(time.process_time() - start, 1e-4)))

    def clock_cpu(program: Program) -> float:
        start = time.process_time()
        for _ in range(times):
            program()
        return time.process_time() - start

    ratios: list[float] = []
    end = time.process_time() + seconds
    while time.process_time() < end or len(ratios) < least:
        first, second, third, fourth = map(clock_cpu, (contender, baseline, baseline, contender))
        ratios.append((first + fourth) / (second + third))
    return statistics.median(ratios)
