"""A trained network for other programs: images in [0, 1] in, logits and levels out, as ONNX or an exported program.

>>> deployed = Deployed(model, mean=0.13, std=0.31)
>>> program = exported(deployed, channels=1, size=28)
>>> torch.export.save(program, "net.pt2")
>>> onnx_bytes(program, {"classes": ["6", "7", "9"]})
"""

from __future__ import annotations

import json
import logging
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vpgcnn.conv import fold
from vpgcnn.distributions import Distribution
from vpgcnn.errors import UserError
from vpgcnn.levels import Level, circles_of, layer_of

__all__ = ["Deployed", "exported", "onnx_bytes"]

LARGEST = 4096
"""Images of a batch, at most."""


class Deployed(nn.Module):
    """Equivariant as its network is. Images `(B, C, H, W)` in [0, 1] to logits `(B, classes)` and θ `(B, layers)`.

    Standardisation is a part of it, and kernels are expanded once and for all. θ is the share of the circle that each
    layer of `layers` uses, in that order; a group with several circles has a column for each ("last rotation", "last
    hue"). Without such layers there are no columns. The network is taken over: it stays in evaluation mode, with
    expanded kernels.
    """

    def __init__(self, network: nn.Module, *, mean: float, std: float) -> None:
        super().__init__()
        own = [(name, part) for name, part in network.named_modules() if isinstance(part, Level) and part.partial]
        if any(part.per_image for _, part in own):
            raise UserError("levels that draw elements for each image (pathwise) cannot be exported")
        self.network = fold(network.eval())
        self.mean, self.std = mean, std
        self.layers = [column for name, part in own for column in circles_of(layer_of(name), part)]
        self._levels = [name for name, _ in own]

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        heard: dict[str, Tensor] = {}

        def hear(name: str) -> Callable[[nn.Module, object, Distribution], None]:
            return lambda _, __, q: heard.update({name: q.theta.expand(images.shape[0], -1)})

        hooks = [self.network.get_submodule(name).register_forward_hook(hear(name)) for name in self._levels]
        try:
            logits = self.network((images - self.mean) / self.std)[0]
        finally:
            for hook in hooks:
                hook.remove()
        theta = [heard[name] for name in self._levels]
        return logits, torch.cat(theta, dim=1) if theta else logits[:, :0]


def exported(deployed: Deployed, channels: int, size: int) -> torch.export.ExportedProgram:
    """A program for any number of images of this size."""
    batch = torch.export.Dim("batch", min=1, max=LARGEST)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        return torch.export.export(
            deployed.eval(), (torch.rand(2, channels, size, size),), dynamic_shapes=({0: batch},), strict=False
        )


def onnx_bytes(program: torch.export.ExportedProgram, about: dict[str, Any]) -> bytes:
    """An ONNX file of a program: input "images", outputs "logits" and "theta"; `about` is in its metadata."""
    try:
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise UserError("ONNX needs onnx and onnxscript: pip install 'vpgcnn[export]'") from error
    talk = logging.getLogger("torch.onnx")
    level = talk.level
    talk.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), tempfile.TemporaryDirectory() as scratch:
            warnings.simplefilter("ignore")
            made = torch.onnx.export(
                program, dynamo=True, verbose=False, input_names=["images"], output_names=["logits", "theta"]
            )
            assert made is not None
            for value in (*made.model.graph.inputs, *made.model.graph.outputs):
                assert value.shape is not None
                value.shape[0] = "batch"
            made.model.metadata_props["vpgcnn"] = json.dumps(about, ensure_ascii=False)
            path = Path(scratch) / "net.onnx"
            made.save(str(path), external_data=False)
            return path.read_bytes()
    finally:
        talk.setLevel(level)
