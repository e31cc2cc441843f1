"""Speed ratios of the core layers, into results/bench.json: `make bench`.

Every ratio of times is measured by running both sides in turn in this process, which keeps its memory as `vpgcnn
train` does (allocator.py); see timing.py. Peak memory is that of processes that do not. Rows named "… mean" and
"… total" have goals, the rows of single shapes explain them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from statistics import mean

import torch

import exported
import skipping
from layers import SEPARABLE, Shape, bare_step, folded_pass, layer, training_step
from networks import bare_program, compiled_programs, training_program
from pathwise import programs
from report import update_documents, write
from timing import Program, Row, ratio, row
from vpgcnn import SO2, Full, Group, Hue, Variational
from vpgcnn.kernels import KernelSpec
from vpgcnn.lab.malloc import keep_memory

HERE = Path(__file__).parent
DEFAULT = HERE.parent / "results" / "bench.json"
COLOR_CNN = [Shape(64, 17, 17, size, 3, 0) for size in (26, 12, 10, 8)] + [Shape(64, 17, 17, 6, 4, 0)]
RESNET = [
    Shape(batch, width, width, size)
    for batch, sizes in ((64, (16, 8, 4, 2)), (8, (56, 28, 14, 7)))
    for width, size in zip((55, 110, 221, 443), sizes, strict=True)
]
CIFAR = [
    Shape(16, 3, 32, 32, 7, 3, lift=True),
    Shape(16, 32, 32, 32, 7, 3),
    Shape(16, 32, 64, 16, 7, 3),
    Shape(16, 64, 64, 16, 7, 3),
    Shape(64, 64, 64, 8, 7, 0),
]


def together(programs: list[Program]) -> Program:
    """Run all of them: the shapes of a network, one after the other."""

    def run() -> None:
        for program in programs:
            program()

    return run


def against_bare(
    name: str,
    group: Group,
    kernel: KernelSpec | None,
    shapes: list[Shape],
    goal: float,
    seconds: float,
) -> Iterator[Row]:
    """Each shape's training step over its bare `conv2d`, and their mean."""
    values = []
    for shape in shapes:
        conv = layer(shape, group, kernel).eval()  # evaluation: the grid at offset 0; gradients flow
        values.append(ratio(training_step(shape, conv), bare_step(shape, conv), seconds=seconds))
        yield row(f"{name}: {shape}", values[-1], None, str(shape))
    yield row(f"{name}: mean", mean(values), goal, f"{len(values)} shapes: {'; '.join(map(str, shapes))}")


def total_against_bare(name: str, group: Group, shapes: list[Shape], goal: float, seconds: float) -> Iterator[Row]:
    """All shapes of a network in turn, as in a training step."""
    convs = [layer(shape, group, SEPARABLE) for shape in shapes]
    pairs = [(training_step(shape, conv), bare_step(shape, conv)) for shape, conv in zip(shapes, convs, strict=True)]
    yield from total(name, pairs, shapes, goal, seconds)


def total(
    name: str, pairs: list[tuple[Program, Program]], shapes: list[Shape], goal: float, seconds: float
) -> Iterator[Row]:
    """Each shape by itself, then all of them one after the other: large maps weigh most in that."""
    for shape, (ours, bare) in zip(shapes, pairs, strict=True):
        yield row(f"{name}: {shape}", ratio(ours, bare, seconds=seconds), None, str(shape))
    ours, bare = (together(list(side)) for side in zip(*pairs, strict=True))
    yield row(f"{name}: total", ratio(ours, bare, seconds=3 * seconds), goal, "; ".join(map(str, shapes)))


def folded_against_bare(name: str, group: Group, shapes: list[Shape], goal: float, seconds: float) -> Iterator[Row]:
    """Evaluation with cached kernels over the bare `conv2d`, all shapes in turn."""
    pairs = [folded_pass(shape, layer(shape, group, SEPARABLE)) for shape in shapes]
    yield from total(name, pairs, shapes, goal, seconds)


def against_full(
    name: str,
    group: Group,
    kernel: KernelSpec | None,
    shapes: list[Shape],
    goal: float,
    seconds: float,
) -> Iterator[Row]:
    """A variational layer over the same layer with `Full`: on plain input, and on input that brings weights."""
    layers = [[layer(s, group, kernel, level).eval() for s in shapes] for level in (Variational(), Full())]
    full = together([training_step(s, conv) for s, conv in zip(shapes, layers[1], strict=True)])
    for weighted in (False, True):
        steps = [training_step(s, conv, weighted and not s.lift) for s, conv in zip(shapes, layers[0], strict=True)]
        value = ratio(together(steps), full, seconds=3 * seconds)
        title = f"{name}, weighted input: total" if weighted else f"{name}: total"
        yield row(title, value, goal, "; ".join(map(str, shapes)))


def pathwise_time(elements: int, batch: int) -> Iterator[Row]:
    """Per-image kernels: ours over the materialised ones; a tenth is the goal."""
    shapes = f"{batch}×64→64, {elements} elements, 8², k7 p0, training step"
    ours, materialised = programs(elements, batch)
    yield row(
        f"pathwise over materialised, time, n={elements}", ratio(ours, materialised, seconds=0, least=3), 0.1, shapes
    )


def pathwise(elements: int, batch: int) -> Iterator[Row]:
    """Likewise in time and in memory."""
    yield from pathwise_time(elements, batch)
    shapes = f"{batch}×64→64, {elements} elements, 8², k7 p0, training step"

    def memory(which: str) -> int:
        call = [sys.executable, str(HERE / "memory.py"), which, str(elements), str(batch)]
        return int(subprocess.run(call, capture_output=True, check=True, text=True).stdout)

    yield row(
        f"pathwise over materialised, peak memory, n={elements}", memory("ours") / memory("materialised"), 0.1, shapes
    )


TITLES = {"cifar": "SE(2) ResNet, n=4, CIFAR", "digits": "SE(2) net, n=8, MNIST67-180"}


def networks(network: str, batch: int, goals: dict[str, float], seconds: float) -> Iterator[Row]:
    """A network's whole training step over the bare convolutions of its shapes, and its peak memory."""
    yield from training_steps(network, batch, goals, seconds)
    yield from peak_memory(network, batch, goals)


def training_steps(network: str, batch: int, goals: dict[str, float], seconds: float) -> Iterator[Row]:
    """A network's whole training step over the bare convolutions of its shapes."""
    title = TITLES[network]
    bare, shapes = bare_program(network, batch)
    for arm, goal in goals.items():
        step, *_ = training_program(network, arm, batch)
        value = ratio(step, bare, seconds=seconds, least=2 if network == "cifar" else 7)
        yield row(f"training step over bare convolutions, {title}: {arm}", value, goal, shapes)
        del step


def peak_memory(network: str, batch: int, goals: dict[str, float]) -> Iterator[Row]:
    """The largest resident size of processes that train a network, over that of the full one."""
    title = TITLES[network]

    def memory(arm: str) -> float:
        """The median of five processes: what an allocator keeps differs from run to run."""
        call = [sys.executable, str(HERE / "networks.py"), network, arm, str(batch)]
        each = [int(subprocess.run(call, capture_output=True, check=True, text=True).stdout) for _ in range(5)]
        return statistics.median(each)

    full = memory("full")
    for arm in goals:
        if arm != "full":
            limit = 1.1 if arm in ("variational", "reparametrized") else None
            shapes = f"batch {batch}, full: {full / 2**20:.0f} MiB"
            yield row(f"peak memory over full, {title}: {arm}", memory(arm) / full, limit, shapes)


def color_networks(network: str, goal: float, seconds: float) -> Iterator[Row]:
    """A colour network's whole training step: over its bare convolutions, and those of its arms over each other."""
    batch, least = 64, 3 if network == "color-resnet" else 7
    title = {"color-cnn": "colour CNN, m=3, 28²", "color-resnet": "colour ResNet18, m=3, 64²"}[network]
    bare, shapes = bare_program(network, batch)
    full, variational, ordinary = (
        training_program(network, arm, batch)[0] for arm in ("full", "variational", "ordinary")
    )
    value = ratio(full, bare, seconds=seconds, least=least)
    yield row(f"training step over bare convolutions, {title}: full", value, goal, shapes)
    other, _ = bare_program(network, batch, torch.channels_last)
    value = ratio(full, other, seconds=seconds, least=least)
    yield row(f"training step over bare convolutions that lie pixel by pixel, {title}: full", value, None, shapes)
    del other
    value = ratio(variational, full, seconds=seconds, least=least)
    yield row(f"training step, variational over full, {title}", value, 1.05, shapes)
    if network == "color-resnet":  # where encoders as wide as their layers are a quarter of the parameters more
        del variational
        value = ratio(training_program(network, "narrow", batch)[0], full, seconds=seconds, least=least)
        yield row(f"training step, variational with encoders of 16 channels over full, {title}", value, 1.05, shapes)
    value = ratio(full, ordinary, seconds=seconds, least=least)
    limit = 5.5 if network == "color-resnet" else None
    alike = "" if network == "color-cnn" else " of equal parameters"
    yield row(f"training step, full over the ordinary network{alike}, {title}", value, limit, shapes)


def compiled(network: str, batch: int, seconds: float) -> Iterator[Row]:
    """torch.compile over the program as it is; no goal, it is good to know."""
    for what, (fast, plain) in compiled_programs(network, batch).items():
        value = ratio(fast, plain, seconds=seconds, least=3)
        yield row(f"torch.compile over without, {network}, variational: {what}", value, None, f"batch {batch}")


GOALS = {
    "cifar": {"full": 1.05, "shared": 1.05, "variational": 1.05, "reparametrized": 2.0},
    "digits": {"full": 1.1, "shared": 1.1, "variational": 1.1, "reparametrized": 2.0},
}


def sections(seconds: float) -> dict[str, Callable[[], Iterator[Row]]]:
    """Every measurement by name."""
    return {
        "hue-color-m3": lambda: total_against_bare(
            "hue m=3 training over conv2d, colour CNN", Hue(3), COLOR_CNN, 1.05, seconds
        ),
        "hue-color-m6": lambda: total_against_bare(
            "hue m=6 training over conv2d, colour CNN", Hue(6), COLOR_CNN, 1.05, seconds
        ),
        "hue-resnet-m3": lambda: against_bare(
            "hue m=3 training over conv2d, ResNet18", Hue(3), SEPARABLE, RESNET, 0.6, seconds
        ),
        "hue-resnet-m6": lambda: against_bare(
            "hue m=6 training over conv2d, ResNet18", Hue(6), SEPARABLE, RESNET, 0.4, seconds
        ),
        "hue-folded": lambda: folded_against_bare(
            "hue m=3 evaluation, cached kernels, over conv2d, colour CNN", Hue(3), COLOR_CNN, 1.02, seconds
        ),
        "se2-n4": lambda: against_bare("SE(2) n=4 training over conv2d, CIFAR", SO2(4), None, CIFAR, 1.15, seconds),
        "se2-n8": lambda: against_bare("SE(2) n=8 training over conv2d, CIFAR", SO2(8), None, CIFAR, 1.15, seconds),
        "pathwise": lambda: pathwise(4, 64),
        "vp-color": lambda: against_full(
            "VP over Full, hue m=3, colour CNN", Hue(3), SEPARABLE, COLOR_CNN, 1.05, seconds
        ),
        "vp-resnet": lambda: against_full(
            "VP over Full, hue m=3, ResNet18", Hue(3), SEPARABLE, RESNET[:4], 1.05, seconds
        ),
        "net-cifar": lambda: networks("cifar", 64, GOALS["cifar"], seconds),
        "net-digits": lambda: networks("digits", 64, GOALS["digits"], 5 * seconds),
        "net-color-cnn": lambda: color_networks("color-cnn", 1.15, 4 * seconds),
        "net-color-resnet": lambda: color_networks("color-resnet", 0.7, 10 * seconds),
        "export": lambda: exported.rows(seconds),
        "skip-rotations": lambda: skipping.rows("rotations", seconds),
        "skip-hues": lambda: skipping.rows("hues", seconds),
        "skip-training": lambda: skipping.training_rows(seconds),
        "compile-digits": lambda: compiled("digits", 64, seconds),
        "compile-cifar": lambda: compiled("cifar", 16, seconds),
        "compile-color-cnn": lambda: compiled("color-cnn", 64, seconds),
        "compile-color-resnet": lambda: compiled("color-resnet", 16, seconds),
        "vp-se2": lambda: against_full("VP over Full, SE(2) n=4, CIFAR", SO2(4), None, CIFAR[-2:], 1.05, seconds),
    }


def show(result: Row) -> None:
    """Print a row."""
    verdict = {True: "met", False: "NOT met", None: ""}[result.met]
    goal = "" if result.goal is None else f"goal ≤ {result.goal:g}"
    print(f"{result.ratio:7.3f}  {goal:12} {verdict:8} {result.name}", flush=True)


def main() -> None:
    """Measure, print, and write the rows; rows that are not measured again stay as they were."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", metavar="NAME", help="sections to measure, all without it")
    parser.add_argument("--seconds", type=float, default=3.0, help="time for each ratio")
    parser.add_argument("--out", type=Path, default=DEFAULT)
    options = parser.parse_args()
    chosen = sections(options.seconds)
    unknown = set(options.only or ()) - set(chosen)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; choose from {', '.join(chosen)}")
    torch.manual_seed(0)
    keep_memory()  # as commands that train do
    rows: dict[str, dict[str, object]] = {}
    if options.out.exists():
        rows = {old["name"]: old for old in json.loads(options.out.read_text())}
    for name in options.only or chosen:
        for result in chosen[name]():
            show(result)
            rows[result.name] = asdict(result)
            options.out.parent.mkdir(parents=True, exist_ok=True)
            write(options.out, json.dumps(list(rows.values()), indent=1, ensure_ascii=False) + "\n")
    print(f"written to {options.out}")
    if options.out == DEFAULT:
        update_documents()
        print("and into docs/speed.md")


if __name__ == "__main__":
    main()
