"""Memory of a training step with and without recomputation: `python benchmarks/recompute.py [SECONDS]`.

Bytes for each image at the peak of a step, in a process of its own, beside the plain network with as many channels
(without a group); and the time of the step with recomputation over that without. Nothing is written.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import Tensor, nn

from memory import peak
from skipping import width
from timing import Program, ratio
from vpgcnn import Elbo, Full, Variational
from vpgcnn.lab.networks import build
from vpgcnn.lab.networks.config import COLOR_CNN, COLOR_RESNET_SMALL, DIGITS, NO_GROUP
from vpgcnn.nn import recomputed

NETWORKS = {"colour CNN": (COLOR_CNN, 3, 28, 64), "colour ResNet18": (COLOR_RESNET_SMALL, 3, 64, 16)}
NETWORKS |= {"digits": (DIGITS, 1, 28, 64)}
ARMS = ("plain", "full", "full, recomputed", "variational", "variational, recomputed")


def step(title: str, arm: str) -> tuple[Program, int]:
    """A training step, and the number of images."""
    config, channels, size, batch = NETWORKS[title]
    torch.manual_seed(0)
    if arm == "plain":
        wide = width(config) if hasattr(config, "shape") else None
        config = replace(config, group=NO_GROUP, level=Full(), elsewhere=Full(), **({"width": wide} if wide else {}))
    else:
        config = replace(config, level=Variational() if "variational" in arm else Full(), elsewhere=Full())
    net: nn.Module = build(config, channels, 10).train()
    images, labels = torch.rand(batch, channels, size, size), torch.arange(batch) % 10

    def run() -> None:
        with recomputed() if "recomputed" in arm else nullcontext():
            loss: Tensor = Elbo.of(net(images), labels).total()
        loss.backward()  # type: ignore[no-untyped-call]
        net.zero_grad(set_to_none=True)

    return run, batch


def bytes_per_image(title: str, arm: str) -> float:
    """Of the second step, above what the process had before the first."""
    run, batch = step(title, arm)
    before = peak()
    run()
    run()
    return (peak() - before) / batch


def main() -> None:
    """Print each network and arm; with a network and an arm, the bytes alone."""
    torch.set_num_threads(1)
    if len(sys.argv) > 2:
        print(bytes_per_image(*sys.argv[1:]))
        return
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 4.0
    for title in NETWORKS:
        plain = 0.0
        for arm in ARMS:
            out = subprocess.run([sys.executable, __file__, title, arm], check=True, capture_output=True, text=True)
            found = float(out.stdout)
            plain = plain or found
            line = f"{title}, {arm}: {found / 2**20:.2f} MiB for each image, {found / plain:.2f} of the plain network"
            if "recomputed" in arm:
                with_it, without = (step(title, each)[0] for each in (arm, arm.split(",")[0]))
                line += f", time {ratio(with_it, without, seconds=seconds, least=3):.2f} of that without"
            print(line, flush=True)


if __name__ == "__main__":
    main()
