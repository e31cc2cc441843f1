"""What `convert` costs: CPU time and memory of a training step, time of an evaluation, over those of the original.

python benchmarks/convert.py                   the four networks below; they need torchvision and timm
python benchmarks/convert.py tv:resnet18 …     those alone

One thread, both sides alternated in one process, CPU time instead of wall-clock time: other programs disturb it less.
Peak memory is that of a process of its own for each side. Writes results/scripts/convert-cost.json after every row;
`make results` makes the table in docs/convert.md from it.
"""

from __future__ import annotations

import platform
import statistics
import subprocess
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
from vpgcnn import Elbo, Group, Hue, Product, Rotations, convert
from vpgcnn.export import Deployed, exported
from vpgcnn.lab.config_io import read_json, write_json
from vpgcnn.lab.experiments.base import markdown

RESULT = Path(__file__).parents[1] / "results" / "scripts" / "convert-cost.json"
NAMES = {
    "tv:resnet18": "ResNet18",
    "tv:resnet50": "ResNet50",
    "tv:mobilenet_v2": "MobileNetV2",
    "timm:tf_efficientnet_lite0": "EfficientNet-Lite0",
}
GROUPS: dict[str, Group] = {"hue": Hue(3), "turns": Rotations(4), "both": Product(Rotations(4), Hue(3))}
GOALS = {"hue": 3.6, "turns": 4.8, "both": 15.0}
CLOSED, MEMORY, EXPORT = 1.15, 1.2, 30.0
"""Goals: evaluation over the original's, peak memory over views times the original's, seconds of an export."""
SIDE = 112


def batch(group: Group) -> tuple[Tensor, Tensor]:
    """Images and labels, fewer for many views."""
    count = 4 if group.count > 4 else 8
    generator = torch.Generator().manual_seed(0)
    return torch.rand(count, 3, SIDE, SIDE, generator=generator), torch.arange(count)


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
    return round(statistics.median(found), 3)


def peak(name: str, key: str, side: str) -> int:
    """Peak memory of two training steps, in bytes, above that before them; in this process, which did nothing else."""
    images, labels = batch(GROUPS[key])
    model = build(name)
    run = step((model if side == "original" else convert(model, GROUPS[key], example=images)).train(), images, labels)
    status = Path("/proc/self/status")
    Path("/proc/self/clear_refs").write_text("5")  # the largest size so far is forgotten (Linux)
    before = int(status.read_text().split("VmRSS:")[1].split()[0])
    run()
    run()
    return 1024 * (int(status.read_text().split("VmHWM:")[1].split()[0]) - before)


def memory(name: str, key: str) -> float:
    """Peak memory of the converted network's step, over views times the original's."""
    command = [sys.executable, "-W", "ignore", __file__, "--memory", name, key]
    one, two = (int(subprocess.check_output([*command, side]).split()[-1]) for side in ("converted", "original"))
    return round(one / two / GROUPS[key].count, 3)


def measured(name: str, key: str) -> dict[str, Any]:
    """One network converted to one group."""
    group = GROUPS[key]
    images, labels = batch(group)
    model = build(name)
    net = convert(model, group, example=images)
    row: dict[str, Any] = {"network": name, "group": key, "multiplications": round(net.cost.ratio, 2)}
    row["training"] = ratio(step(net.train(), images, labels), step(model.train(), images, labels))
    # As it starts: windows that are closed. (The steps above have moved the network.)
    closed, model = convert(build(name), group, example=images).eval(), build(name)
    with torch.no_grad():
        row["closed"] = ratio(lambda: closed(images), lambda: model(images), 8)
    by_pixel = [each.train().to(memory_format=torch.channels_last) for each in (closed, model)]  # type: ignore[call-overload]
    shown = images.contiguous(memory_format=torch.channels_last)
    row["by_pixel"] = ratio(step(by_pixel[0], images, labels), step(by_pixel[1], shown, labels))
    row["memory"] = memory(name, key)
    start = time.process_time()
    exported(Deployed(convert(build(name), group, example=images), images[:1]), 3, SIDE)
    row["export_seconds"] = round(time.process_time() - start, 1)
    return row | {"torch": torch.__version__, "cpu": platform.processor() or platform.machine()}


def short(rows: list[dict[str, Any]]) -> str:
    """A line for each network."""
    heads = ["network", *(f"`{group}`" for group in ("Hue(3)", "Rotations(4)", "Rotations(4)` × `Hue(3)"))]
    heads += ["evaluation, closed windows", "peak memory, over views × the original's", "export, seconds"]
    lines = []
    for name, shown in NAMES.items():
        same = {row["group"]: row for row in rows if row["network"] == name}
        if same.keys() != GROUPS.keys():
            continue
        cells = [f"{same[key]['training']:.1f} ({same[key]['by_pixel']:.1f})" for key in GROUPS]
        cells += [" / ".join(f"{same[key][what]:.2f}" for key in GROUPS) for what in ("closed", "memory")]
        lines.append([shown, *cells, " / ".join(f"{same[key]['export_seconds']:.0f}" for key in GROUPS)])
    missed = [
        f"{NAMES[row['network']]} {row['group']}: {what} {row[field]:g} instead of {goal:g}"
        for row in rows
        for what, field, goal in (
            ("training", "training", GOALS[row["group"]]),
            ("evaluation", "closed", CLOSED),
            ("memory", "memory", MEMORY),
            ("export", "export_seconds", EXPORT),
        )
        if row[field] > goal
    ]
    goals = f"Goals: {', '.join(f'{goal:g}' for goal in GOALS.values())}; {CLOSED}; {MEMORY}; {EXPORT:g} seconds. "
    return f"{markdown(heads, lines)}\n\n{goals}{'Missed: ' + '; '.join(missed) if missed else 'All are met'}."


def main(names: tuple[str, ...]) -> None:
    """Measure each network with each group."""
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = read_json(RESULT)["rows"] if RESULT.exists() else []
    for name in names:
        for key in GROUPS:
            row = measured(name, key)
            rows = [each for each in rows if (each["network"], each["group"]) != (name, key)] + [row]
            write_json(RESULT, {"rows": rows})
            print(row, flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--memory"]:
        torch.set_num_threads(1)
        print(peak(*sys.argv[2:5]))
    else:
        main(tuple(sys.argv[1:]) or tuple(NAMES))
