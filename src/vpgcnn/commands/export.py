"""vpgcnn export."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from vpgcnn.commands.common import data_dir_option, parser
from vpgcnn.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

ABOUT = """Make of a trained network a file for other programs. It takes images in [0, 1] (standardisation is in it),
any number at a time, and answers with logits and, second, θ of each layer that has a level. Before it says done, the
file is opened again and compared with PyTorch on real images."""
EXAMPLES = """examples:
  vpgcnn export runs/flowers102                            runs/flowers102/net.onnx
  vpgcnn export runs/flowers102 --format torch-export --out net.pt2
  vpgcnn diagnose runs/flowers102/net.onnx --data flowers/ --group hue

formats:
  onnx           runs in onnxruntime and elsewhere; classes and layers are in its metadata ("vpgcnn")
  torch-export   torch.export.load("net.pt2").module()(images)
  safetensors    weights with their card, for vpgcnn itself
"""
ENDINGS = {"onnx": ".onnx", "torch-export": ".pt2", "safetensors": ".safetensors"}
CHECKED = 256
LARGEST = 1e-4
"""Difference of logits, at most, as a share of their size."""
ROUNDS = 5


def main(arguments: list[str]) -> int:
    """Export a network."""
    command = parser("export", ABOUT)
    command.epilog = EXAMPLES
    command.add_argument("run", type=Path, help="a run's folder or a weights file")
    command.add_argument("--format", choices=tuple(ENDINGS), default="onnx", help="default: onnx")
    command.add_argument("--out", type=Path, help="file to write (default: net.onnx, … in the run's folder)")
    data_dir_option(command)
    options = command.parse_args(arguments)
    from vpgcnn.commands.use import load_run, test_images
    from vpgcnn.serial import write_bytes
    from vpgcnn.training.run import chosen_weights

    weights = chosen_weights(options.run)
    target = options.out or weights.parent / f"net{ENDINGS[options.format]}"
    if target.suffix != ENDINGS[options.format]:
        raise UserError(f"a file of format {options.format} ends in {ENDINGS[options.format]}, got {target.name!r}")
    model, card, data = load_run(options.run)
    if options.format == "safetensors":
        write_bytes(target, weights.read_bytes())
        print(f"written: {target}")  # noqa: T201
        return 0
    if card.augmenter.kind != "none":
        raise UserError(f"a network behind an augmentation ({card.augmenter.kind}) cannot be exported")
    import io

    import torch

    from vpgcnn.deploy import Deployed, exported, onnx_bytes

    deployed = Deployed(model, mean=card.mean, std=card.std)
    program = exported(deployed, card.channels, card.size)
    images, what = test_images(card, data, options.data_dir, CHECKED)
    if options.format == "onnx":
        about = {"classes": card.classes, "layers": deployed.layers, "dataset": Path(card.dataset).name}
        about["input"] = (
            f"{'RGB' if card.channels == 3 else 'grey'} in [0, 1], N×{card.channels}×{card.size}×{card.size}: "
            "the centre square of an image, resized bilinearly (PIL.ImageOps.fit)"
        )
        content = onnx_bytes(program, about)
        run = _onnx(content)
    else:
        stream = io.BytesIO()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.export.save(program, stream)
        content = stream.getvalue()
        stream.seek(0)
        again = torch.export.load(stream).module()
        run = lambda pixels: again(pixels)  # noqa: E731
    apart = _compared(deployed, run, images)
    if not apart <= LARGEST:
        raise UserError(
            f"the exported network differs from PyTorch by {apart:.1e} of its logits on {what}: not written"
        )
    ratio = _speed(deployed, run, images[:64])
    write_bytes(target, content)
    print(f"differs from PyTorch by at most {apart:.1e} of its logits on {what}")  # noqa: T201
    print(f"takes {ratio:.2f} of the time that PyTorch does, for {len(images[:64])} images")  # noqa: T201
    print(f"written: {target} ({len(content) / 2**20:.1f} MB)")  # noqa: T201
    return 0


def _onnx(content: bytes) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    try:
        import onnxruntime
    except ImportError as error:
        raise UserError("checking an ONNX file needs onnxruntime: pip install 'vpgcnn[export]'") from error
    import torch

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])

    def run(pixels: Tensor) -> tuple[Tensor, Tensor]:
        logits, theta = session.run(None, {"images": pixels.numpy()})
        return torch.from_numpy(logits), torch.from_numpy(theta)

    return run


def _compared(deployed: Any, run: Callable[[Tensor], Any], images: Tensor) -> float:
    """The largest difference of logits and of θ, in batches of several sizes, over the size of the logits."""
    import torch

    worst, start = 0.0, 0
    with torch.no_grad():
        for count in (1, 7, 64, *[64] * (len(images) // 64)):
            part = images[start : start + count]
            start += count
            if not len(part):
                break
            for one, two in zip(deployed(part), run(part), strict=True):
                if one.numel():
                    worst = max(worst, float((one - two).abs().max()) / max(1.0, float(one.abs().max())))
    return worst


def _speed(deployed: Any, run: Callable[[Tensor], Any], images: Tensor) -> float:
    """Time of the exported network over that of PyTorch's, side by side."""
    import torch

    ratios = []
    with torch.no_grad():
        for _ in range(ROUNDS):
            times = []
            for function in (run, deployed):
                begin = time.perf_counter()
                function(images)
                times.append(time.perf_counter() - begin)
            ratios.append(times[0] / times[1])
    return median(ratios)
