"""The whole bench on a GPU, by one command, into results/bench-cuda.json or results/bench-mps.json.

    python benchmarks/gpu.py                  # on the GPU that torch finds
    python benchmarks/gpu.py --dry-run        # runs every program once on meta tensors, without numbers: needs no GPU

The rows are those of `make bench` (see run.py), but for what is about the processor: exported programs and the memory
of processes. Besides, for each network: its training step in bfloat16 and under `torch.compile`, over the one in
float32 as it is; its milliseconds; on CUDA the peak memory of a step over that of the ordinary network. Nobody has run
it on a GPU yet.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

import torch

from networks import NETWORKS, training_program
from report import write
from run import GOALS, pathwise_time, sections, show, training_steps
from timing import Program, Row, clock, device, dry, finish, ratio, row, run_on

ROOT = Path(__file__).parent.parent
LEFT_OUT = ("export", "pathwise", "net-cifar", "net-digits")
"""Sections of run.py about the processor, or with rows about its memory: their other rows come by themselves."""
READING = ("skip-rotations", "skip-hues")
"""Sections that look at numbers to decide what to run, which tensors without numbers do not have."""
ARMS = ("ordinary", "full", "variational")
BATCH = 64


def precisions(network: str, seconds: float) -> Iterator[Row]:
    """A training step in bfloat16, compiled, and both, over that in float32 as it is."""
    shapes = f"batch {BATCH}"
    for arm in ARMS:
        plain = training_program(network, arm, BATCH)[0]
        for half, compiled in ((True, False), (False, True), (True, True)):
            if compiled and dry():
                continue  # compilers need a device
            step, model, _ = training_program(network, arm, BATCH)
            if compiled:
                model.compile()
            how = " and ".join([*(["bfloat16"] if half else []), *(["compiled"] if compiled else [])])
            value = ratio(within(step, half), plain, seconds=seconds)
            yield row(f"training step, {how} over float32, {network}: {arm}", value, None, shapes)


def within(step: Program, half: bool) -> Program:
    """A step under autocast, if it is to be in bfloat16."""

    def run() -> None:
        with torch.autocast(device().type, torch.bfloat16) if half and not dry() else nullcontext():
            step()

    return run


def step_times(network: str) -> Iterator[Row]:
    """Milliseconds of a training step: the unit is in the name, it is no ratio."""
    for arm in ARMS:
        step = training_program(network, arm, BATCH)[0]
        step()
        times = [math.nan] if dry() else sorted(clock(step) for _ in range(11))
        yield row(
            f"milliseconds of a training step, {network}: {arm}", 1000 * times[len(times) // 2], None, f"batch {BATCH}"
        )


def memory(network: str) -> Iterator[Row]:
    """Peak memory of a training step over that of the ordinary network; CUDA counts it."""
    found = {}
    for arm in ARMS:
        step = training_program(network, arm, BATCH)[0]
        step()  # makes the optimiser's state
        if not dry():
            finish()
            torch.cuda.reset_peak_memory_stats()
            step()
            finish()
        found[arm] = math.nan if dry() else float(torch.cuda.max_memory_allocated())
        del step
    for arm in ARMS[1:]:
        mebibytes = found["ordinary"] / 2**20
        yield row(
            f"peak memory of a training step over the ordinary network, {network}: {arm}",
            found[arm] / found["ordinary"], None, f"batch {BATCH}, ordinary: {mebibytes:.0f} MiB",
        )  # fmt: skip


def chosen_sections(seconds: float) -> dict[str, Callable[[], Iterator[Row]]]:
    """Every measurement by name."""
    found = {name: section for name, section in sections(seconds).items() if name not in LEFT_OUT}
    if dry():
        found = {name: each for name, each in found.items() if name not in READING and not name.startswith("compile-")}
    found["pathwise-time"] = lambda: pathwise_time(4, 64)
    for network in NETWORKS:
        if network in GOALS:
            found[f"steps-{network}"] = lambda network=network: training_steps(  # type: ignore[misc]
                network, BATCH, GOALS[network], seconds
            )
        found[f"times-{network}"] = lambda network=network: step_times(network)  # type: ignore[misc]
        found[f"precision-{network}"] = lambda network=network: precisions(network, seconds)  # type: ignore[misc]
        if device().type in ("cuda", "meta"):
            found[f"memory-{network}"] = lambda network=network: memory(network)  # type: ignore[misc]
    return found


def device_of(name: str | None) -> torch.device:
    """The device to measure on."""
    if name is not None:
        return torch.device(name)
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if found is None:
        raise SystemExit("torch finds no GPU here: --dry-run tries every program without one")
    return found


def main() -> None:
    """Measure, print, and write each row at once; rows that are not measured again stay as they were."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", metavar="NAME", help="sections to measure, all without it")
    parser.add_argument("--seconds", type=float, default=3.0, help="time for each ratio (default: 3)")
    parser.add_argument("--device", help="cuda, cuda:1, mps or cpu (default: the GPU that torch finds)")
    parser.add_argument("--dry-run", action="store_true", help="run every program once on tensors without numbers")
    parser.add_argument("--out", type=Path, help="file to write (default: results/bench-DEVICE.json)")
    options = parser.parse_args()
    run_on(torch.device("meta") if options.dry_run else device_of(options.device))
    chosen = chosen_sections(options.seconds)
    unknown = set(options.only or ()) - set(chosen)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; choose from {', '.join(chosen)}")
    out = options.out or ROOT / "results" / f"bench-{device().type}.json"
    rows = {old["name"]: old for old in json.loads(out.read_text())} if out.exists() else {}
    torch.manual_seed(0)
    count = 0
    for name in options.only or chosen:
        for result in chosen[name]():
            show(result)
            count += 1
            if not dry():
                rows[result.name] = asdict(result)
                out.parent.mkdir(parents=True, exist_ok=True)
                write(out, json.dumps(list(rows.values()), indent=1, ensure_ascii=False) + "\n")
    print(f"{count} rows would be measured" if dry() else f"written to {out}")


if __name__ == "__main__":
    main()
