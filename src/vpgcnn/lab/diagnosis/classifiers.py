"""Any classifier as a function of images in [0, 1]: runs, modules, exported programs and ONNX files."""

from __future__ import annotations

import math
import warnings
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from vpgcnn.errors import UserError
from vpgcnn.lab.plugins import build_network
from vpgcnn.lab.training.checkpoint import Card, load_model
from vpgcnn.lab.training.run import chosen_weights
from vpgcnn.measure.scores import as_logits

__all__ = ["Classifier", "open_classifier"]

FORMS = (
    "a run's folder, a .safetensors file of vpgcnn, MODULE:FUNCTION, file.py:FUNCTION, .pt2, .pt (TorchScript), .onnx"
)
SCRIPTS = (".pt", ".ts", ".torchscript", ".pth", ".jit")
USUAL = 224
"""Image side in pixels if neither the model nor the user gives one."""


@dataclass(frozen=True)
class Classifier:
    """A classifier of images.

    Args:
        name: What the user called it.
        predict: Images `(B, C, H, W)` in [0, 1] to logits `(B, classes)`.
        size: Image side in pixels.
        channels: Of the images.
        classes: Names of the logits, if they are known.
        module: The same as a module, if its layers are accessible.
        card: The card, for networks of vpgcnn.
    """

    name: str
    predict: Callable[[Tensor], Tensor]
    size: int
    channels: int
    classes: tuple[str, ...] | None = None
    module: nn.Module | None = None
    card: Card | None = None

    def check(self) -> int:
        """Show the classifier a grey image and noise.

        Returns:
            The number of logits.

        Raises:
            UserError: If it does not take such images, or does not work as a classifier in evaluation mode.
        """
        pixels = torch.full((2, self.channels, self.size, self.size), 0.5)
        shown = f"{self.channels}×{self.size}×{self.size}"
        try:
            with torch.no_grad():
                logits = self.predict(pixels)
        except UserError:
            raise
        except Exception as error:
            reason = [line for line in str(error).strip().splitlines() if line.strip()] or [type(error).__name__]
            raise UserError(
                f"{self.name} does not accept 2 images of {shown}: {reason[-1]} (see --size and --grey)"
            ) from error
        if logits.dim() != 2 or len(logits) != 2 or logits.shape[1] < 2:
            raise UserError(
                f"{self.name} is not a classifier: it turns images 2×{shown} into {tuple(logits.shape)}, not 2×classes"
            )
        if not bool(logits.isfinite().all()):
            raise UserError(f"{self.name} returns NaN or infinity for a grey image")
        noise = torch.rand(3, *pixels.shape[1:], generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            together, alone = self.predict(noise), self.predict(noise[:1])
        if not torch.allclose(together[:1], alone, rtol=1e-2, atol=1e-2 * float(together.abs().max())):
            raise UserError(
                f"{self.name} gives an image another answer in another batch: it was probably exported in training "
                "mode (call eval() first)"
            )
        return logits.shape[1]


class Standardised(nn.Module):
    """Standardises images in [0, 1], and returns the logits of a network.

    Args:
        network: Takes standardised images.
        mean: One number, or one for each channel.
        std: Likewise.
    """

    def __init__(self, network: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1), persistent=False)

    def standardised(self, images: Tensor) -> Tensor:
        """(images − mean) / std."""
        ready: Tensor = (images - self.mean.to(images)) / self.std.to(images)  # type: ignore[operator]
        return ready

    def forward(self, images: Tensor) -> Tensor:
        ready = self.standardised(images)
        dtype = next((part.dtype for part in self.network.parameters() if part.is_floating_point()), ready.dtype)
        return as_logits(self.network(ready.to(dtype))).to(ready.dtype)


def open_classifier(
    text: str,
    *,
    size: int | None = None,
    channels: int = 3,
    mean: Sequence[float] = (0.0,),
    std: Sequence[float] = (1.0,),
    device: torch.device | str = "cpu",
    trust: bool = False,
) -> Classifier:
    """Open the classifier that a text names.

    Args:
        text: A run, a file, or a function as MODULE:FUNCTION.
        size: Image side in pixels, if the model does not fix it.
        channels: Of the images.
        mean: The model expects (images − mean) / std. Networks of vpgcnn standardise images themselves.
        std: Likewise.
        device: Where to run it.
        trust: Whether exported programs and TorchScript may be opened. torch loads them in ways that can run any
            code (pickles, expressions, native code), and a check of the file cannot rule that out.
    """
    _check_statistics(mean, std, channels)
    path = Path(text)
    if path.suffix == ".onnx" and path.is_file():
        return _from_onnx(path, Fit(size, channels), mean, std)
    if path.suffix in SCRIPTS and path.is_file() and not _is_script(path):
        raise UserError(
            f"{path} is not TorchScript, and files of torch.save are never opened: write a function without arguments "
            "that builds the model and loads the file, and give it as my_models.py:build"
        )
    if path.suffix in (".pt2", *SCRIPTS) and path.is_file() and not trust:
        raise UserError(
            f"{path} can run any code when it is opened: add --trust if you trust its author; .onnx and .safetensors "
            "files need no trust"
        )
    if path.suffix == ".pt2" and path.is_file():
        return _from_export(path, Fit(size, channels), mean, std, device)
    if path.suffix in SCRIPTS and path.is_file():
        return _from_script(path, size, channels, mean, std, device)
    if path.is_dir() or path.suffix == ".safetensors":
        return _from_run(path, device)
    if ":" in text:
        module = Standardised(build_network(text), mean, std).to(device).eval()
        return _from_module(text, module, size or USUAL, channels, device)
    if path.suffix in (".onnx", ".pt2", *SCRIPTS):
        raise UserError(f"there is no file {text}")
    raise UserError(f"{text!r} is not a classifier: give {FORMS}")


def _is_script(path: Path) -> bool:
    """Whether a file may be TorchScript: an archive with code. Files of torch.save have none. Nothing is executed."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.split("/", 1)[-1].startswith(("constants.pkl", "code/")) for name in archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return False


def _from_run(path: Path, device: torch.device | str) -> Classifier:
    model, card = load_model(chosen_weights(path))
    module = Standardised(model, [0.0], [1.0]).to(device).eval()
    found = _from_module(str(path), module, card.size, card.channels, device)
    return Classifier(found.name, found.predict, card.size, card.channels, card.classes, module, card)


def _from_module(name: str, module: nn.Module, size: int, channels: int, device: torch.device | str) -> Classifier:
    return Classifier(name, lambda images: module(images.to(device)), size, channels, module=module)


def _from_script(
    path: Path,
    size: int | None,
    channels: int,
    mean: Sequence[float],
    std: Sequence[float],
    device: torch.device | str,
) -> Classifier:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TorchScript is deprecated
            script = torch.jit.load(str(path), map_location=device)
    except Exception as error:
        raise UserError(
            f"{path} is not TorchScript that this version of torch reads: give MODULE:FUNCTION, a function that builds "
            "the model and loads its weights"
        ) from error
    module = Standardised(script, mean, std).to(device).eval()
    found = _from_module(str(path), module, size or USUAL, channels, device)
    return Classifier(found.name, found.predict, found.size, channels)


def _from_export(
    path: Path, fit: Fit, mean: Sequence[float], std: Sequence[float], device: torch.device | str
) -> Classifier:
    try:
        program = torch.export.load(str(path))
        taken = next(node for node in program.graph.nodes if node.name in program.graph_signature.user_inputs)
        module = Standardised(program.module(), mean, std).to(device)
        batch, channels, size = fit.to(path, taken.meta["val"].shape)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"cannot read {path} as an exported program: {str(error).splitlines()[0]}") from error
    _check_statistics(mean, std, channels)
    return Classifier(
        str(path), lambda images: _in_parts(lambda p: module(p.to(device)), images, batch), size, channels
    )


def _from_onnx(path: Path, fit: Fit, mean: Sequence[float], std: Sequence[float]) -> Classifier:
    try:
        import onnxruntime
    except ImportError as error:
        raise UserError("ONNX files need onnxruntime: pip install 'vpgcnn[export]'") from error
    try:
        session = onnxruntime.InferenceSession(str(path), providers=onnxruntime.get_available_providers())
        taken = session.get_inputs()[0]
        kind = {"tensor(float)": torch.float32, "tensor(double)": torch.float64, "tensor(float16)": torch.float16}
        dtype = kind[taken.type]
        batch, channels, size = fit.to(path, taken.shape)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"cannot read {path} as an ONNX model of images: {str(error).splitlines()[0]}") from error
    _check_statistics(mean, std, channels)
    middle, scale = (torch.tensor(values).view(1, -1, 1, 1) for values in (mean, std))

    def run(images: Tensor) -> Tensor:
        ready = ((images.cpu() - middle) / scale).to(dtype)
        return as_logits(torch.from_numpy(session.run(None, {taken.name: ready.numpy()})[0]).float())

    return Classifier(str(path), lambda images: _in_parts(run, images, batch), size, channels)


@dataclass(frozen=True)
class Fit:
    """What the user states about a model's images.

    Args:
        size: Image side in pixels, or None.
        channels: Number of channels.
    """

    size: int | None
    channels: int

    def to(self, path: Path, shape: Sequence[object]) -> tuple[int | None, int, int]:
        """Compare with the shape B×C×H×W that a model takes, in which a length may be free.

        Returns:
            Batch size (None if it is free), channels, image side.
        """
        batch, channels, side = (
            length if isinstance(length, int) and length > 0 else None for length in (shape[0], shape[1], shape[2])
        )
        if self.size is not None and side is not None and self.size != side:
            raise UserError(f"{path} expects images of {side}×{side} pixels, got --size {self.size}")
        if self.channels == 1 and channels not in (None, 1):
            raise UserError(f"{path} expects images with {channels} channels, got --grey")
        return batch, channels or self.channels, side or self.size or USUAL


def _in_parts(run: Callable[[Tensor], Tensor], images: Tensor, batch: int | None) -> Tensor:
    """Run a model with a fixed batch size (None: any) on all images."""
    if batch is None:
        return run(images)
    rows = []
    for part in images.split(batch):
        padded = torch.cat([part, part[:1].expand(batch - len(part), -1, -1, -1)]) if len(part) < batch else part
        rows.append(run(padded)[: len(part)])
    return torch.cat(rows)


def _check_statistics(mean: Sequence[float], std: Sequence[float], channels: int) -> None:
    for name, values in (("mean", mean), ("std", std)):
        if len(values) not in (1, channels) or not all(map(math.isfinite, values)):
            raise UserError(
                f"--{name} must be one number, or one for each of {channels} channels, got {_listed(values)}"
            )
    if min(std) <= 0:
        raise UserError(f"--std must be above 0, got {_listed(std)}")


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)
