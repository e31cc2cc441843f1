"""Every recipe's network as an ONNX file, compared with PyTorch on real images."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import onnxruntime
import torch
from torch import Tensor

from timing import Program, Row, ratio, row
from vpgcnn.errors import UserError
from vpgcnn.export import Deployed, exported, onnx_bytes
from vpgcnn.lab.data import Split, load
from vpgcnn.lab.networks import to_unit
from vpgcnn.lab.training.checkpoint import Card
from vpgcnn.lab.training.loop import make_card
from vpgcnn.lab.training.recipes import RECIPES

IMAGES, TIMED = 256, 64
LARGEST = 1e-4


def warmed(card: Card, split: Split) -> torch.nn.Module:
    """A network with random weights whose norms and levels have seen some images."""
    torch.manual_seed(0)
    model = card.build().train()
    with torch.no_grad():
        for part in split.images[:128].split(64):
            model(to_unit(part))
    return model.eval()


def recipe_rows(name: str, seconds: float) -> Iterator[Row]:
    """How far ONNX is from PyTorch, in units of what is allowed, and its time."""
    config = RECIPES[name].cpu
    dataset = load(replace(config.data, augment="none"))
    card = make_card(config, dataset)
    deployed = Deployed(warmed(card, dataset.validation), to_unit(dataset.test.images[:1]))
    session = onnxruntime.InferenceSession(onnx_bytes(exported(deployed, card.channels, card.size), {}))
    images = dataset.test.images[:IMAGES].float() / 255
    with torch.no_grad():
        expected = deployed(images)
    given = session.run(None, {"images": images.numpy()})
    apart = max(_share(torch.from_numpy(one), two) for one, two in zip(given, expected, strict=True) if two.numel())
    about = f"{len(images)} test images"
    yield row(f"difference of ONNX from PyTorch, over {LARGEST:g} of the answer: {name}", apart / LARGEST, 1.0, about)
    value = ratio(_onnx(session, images[:TIMED]), _torch(deployed, images[:TIMED]), seconds=seconds, least=3)
    yield row(f"time of ONNX over PyTorch: {name}", value, None, f"batch {TIMED}")


def rows(seconds: float) -> Iterator[Row]:
    """All recipes whose data are there."""
    for name in RECIPES:
        try:
            yield from recipe_rows(name, seconds)
        except UserError as error:
            print(f"{name}: {error}")


def _share(given: Tensor, expected: Tensor) -> float:
    return float((given - expected).abs().max() / expected.abs().max())


def _onnx(session: onnxruntime.InferenceSession, images: Tensor) -> Program:
    return lambda: session.run(None, {"images": images.numpy()})


def _torch(deployed: Deployed, images: Tensor) -> Program:
    def run() -> None:
        with torch.no_grad():
            deployed(images)

    return run
