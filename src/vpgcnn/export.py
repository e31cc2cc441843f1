"""A trained network for other programs: images in [0, 1] in, logits and levels out, as ONNX or an exported program.

>>> deployed = Deployed(net, example=images[:1])
>>> program = exported(deployed, channels=1, size=28)
>>> torch.export.save(program, "net.pt2")
>>> onnx_bytes(program, {"classes": ["6", "7", "9"]})
"""

from __future__ import annotations

import json
import logging
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vpgcnn.errors import UserError
from vpgcnn.features import Prediction
from vpgcnn.levels import Level
from vpgcnn.nn import fold

__all__ = ["Deployed", "exported", "onnx_bytes"]

LARGEST = 4096
"""Images of a batch, at most."""


class Deployed(nn.Module):
    """Equivariant as its network is. Images `(B, C, H, W)` in [0, 1] to logits `(B, classes)` and θ `(B, columns)`.

    Logits may be maps `(B, classes, H, W)`. Of several outputs of a converted network they are the first.

    θ is the share of the circle that each of `layers` uses, in that order; a group with several circles has a column
    for each ("last rotation", "last hue"). Without such layers there are no columns. The network is taken over: it
    stays in evaluation mode, with folded kernels, without the elements that `Shared` and `Fixed` levels leave out.

    Args:
        network: Images in [0, 1] to a `Prediction`.
        example: Images `(B, C, H, W)` to find out which levels it has.
    """

    def __init__(self, network: nn.Module, example: Tensor) -> None:
        super().__init__()
        if any(part.moves_elements for part in network.modules() if isinstance(part, Level)):
            raise UserError("levels that move elements (ReparametrizedWindow) cannot be exported")
        self.network = fold(network.eval(), example)
        with torch.no_grad():
            answer = self.network(example)
        if not isinstance(answer, Prediction):
            raise UserError(f"the network must return a Prediction, got {type(answer).__name__}")
        trace = answer.trace
        circles = {layer: q.group.circles_of(q.theta.shape[1]) for layer, q in trace.items()}
        self.layers = [f"{layer} {name}".rstrip() for layer, names in circles.items() for name in names.values()]
        self._columns = {layer: list(names) for layer, names in circles.items()}

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and θ `(B, columns)`."""
        answer = self.network(images)
        theta = [q.theta[:, self._columns[name]].expand(images.shape[0], -1) for name, q in answer.trace.items()]
        return answer.logits, torch.cat(theta, dim=1) if theta else answer.logits.flatten(1)[:, :0]


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
