"""Memory of a training step with and without recomputation: `python benchmarks/recompute.py [SECONDS]`.

Bytes for each image beside the plain network with as many channels (without a group): what the forward pass keeps for
the gradient, counted, and the peak of a step, in a process of its own; and the time of the step with recomputation
over that without. Nothing is written.
"""

from __future__ import annotations

import subprocess
import sys
import weakref
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from memory import peak
from skipping import width
from timing import Program, ratio
from vpgcnn import Elbo, Full, Variational
from vpgcnn._ops import recompute
from vpgcnn.lab.networks import build
from vpgcnn.lab.networks.config import COLOR_CNN, COLOR_RESNET_SMALL, DIGITS, NO_GROUP
from vpgcnn.nn import recomputed

NETWORKS: dict[str, tuple[Any, int, int, int]] = {
    "colour CNN": (COLOR_CNN, 3, 28, 64),
    "colour ResNet18": (COLOR_RESNET_SMALL, 3, 64, 16),
}
NETWORKS |= {"digits": (DIGITS, 1, 28, 64)}
ARMS = ("plain", "full", "full, recomputed", "variational", "variational, recomputed")


def network(title: str, arm: str) -> tuple[nn.Module, Tensor]:
    """A network in training and its images."""
    config, channels, size, batch = NETWORKS[title]
    torch.manual_seed(0)
    if arm == "plain":
        wide = width(config) if hasattr(config, "shape") else None
        config = replace(config, group=NO_GROUP, level=Full(), elsewhere=Full(), **({"width": wide} if wide else {}))
    else:
        config = replace(config, level=Variational() if "variational" in arm else Full(), elsewhere=Full())
    net: nn.Module = build(config, channels, 10).train()
    return net, torch.rand(batch, channels, size, size)


def step(title: str, arm: str) -> tuple[Program, int]:
    """A training step, and the number of images."""
    net, images = network(title, arm)
    labels = torch.arange(len(images)) % 10

    def run() -> None:
        with recomputed() if "recomputed" in arm else nullcontext():
            loss: Tensor = Elbo.of(net(images), labels).total()
        loss.backward()
        net.zero_grad(set_to_none=True)

    return run, len(images)


def kept_per_image(title: str, arm: str) -> float:
    """What the forward pass leaves for the backward pass, without the parameters."""
    _, batch = step(title, arm)
    net, images = network(title, arm)
    found: list[weakref.ref[Any]] = []
    pack, note = recompute._Book.pack, recompute._Book.note

    def noticed(book: Any, tensor: Tensor) -> Any:
        result = pack(book, tensor)
        found.append(weakref.ref(result))
        return result

    recompute._Book.pack = noticed  # type: ignore[assignment,method-assign]
    if "recomputed" not in arm:
        recompute._Book.note = lambda *_: None  # type: ignore[method-assign]
    try:
        with recomputed():
            out = net(images)
    finally:
        recompute._Book.pack, recompute._Book.note = pack, note  # type: ignore[method-assign]
    contents = [each.content for reference in found if isinstance(each := reference(), recompute._Kept)]
    contents += [part for each in contents if isinstance(each, recompute._View) for part in each.recipe.inputs]
    storages = [each.untyped_storage() for each in contents if isinstance(each, Tensor)]
    del out
    return sum({each.data_ptr(): each.nbytes() for each in storages}.values()) / batch


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
        plain, kept = 0.0, kept_per_image(title, "plain")
        for arm in ARMS:
            out = subprocess.run([sys.executable, __file__, title, arm], check=True, capture_output=True, text=True)
            found = float(out.stdout)
            plain = plain or found
            own = kept_per_image(title, arm)
            line = f"{title}, {arm}: {own / 2**20:.2f} MiB kept for each image, {own / kept:.2f} of the plain network; "
            line += f"{found / 2**20:.2f} MiB at the peak, {found / plain:.2f} of the plain network"
            if "recomputed" in arm:
                with_it, without = (step(title, each)[0] for each in (arm, arm.split(",")[0]))
                line += f", time {ratio(with_it, without, seconds=seconds, least=3):.2f} of that without"
            print(line, flush=True)


if __name__ == "__main__":
    main()
