"""Side-by-side timing: two programs, alternated in one process, compared by their medians."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch


@dataclass(frozen=True)
class Measurement:
    """One row of results/bench.json."""

    name: str
    ratio: float
    goal: float
    met: bool
    shapes: str
    torch: str
    cpu: str
    note: str = ""

    def row(self) -> dict[str, object]:
        """As JSON."""
        return asdict(self)


def cpu_name() -> str:
    """The processor's own name, with the number of threads in use."""
    info = Path("/proc/cpuinfo")
    names = (
        [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line]
        if info.exists()
        else []
    )
    return f"{names[0] if names else platform.processor() or platform.machine()}, {torch.get_num_threads()} threads"


def ratio(contender: Callable[[], object], baseline: Callable[[], object], seconds: float = 4.0) -> float:
    """Time of `contender` over time of `baseline`: the median of the ratios of neighbouring runs."""
    for _ in range(2):
        contender()
        baseline()
    ratios: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(ratios) < 7:
        start = time.perf_counter()
        contender()
        middle = time.perf_counter()
        baseline()
        last = time.perf_counter()
        # The order is turned round half of the time, so that neither side always runs on a warm cache.
        baseline()
        turn = time.perf_counter()
        contender()
        stop = time.perf_counter()
        ratios.append((middle - start + stop - turn) / (turn - middle))
        del last
    return statistics.median(ratios)


def measure(
    name: str,
    contender: Callable[[], object],
    baseline: Callable[[], object],
    *,
    goal: float,
    shapes: str,
    seconds: float,
) -> Measurement:
    """Time two programs side by side and compare with the goal (at most)."""
    value = ratio(contender, baseline, seconds)
    return Measurement(name, round(value, 4), goal, value <= goal, shapes, torch.__version__, cpu_name())
