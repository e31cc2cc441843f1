"""vpgcnn export."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from vpgcnn.apps.commands.common import check_file, data_dir_option, parser, plural
from vpgcnn.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

ABOUT = """Export a trained network to a file for other programs. The exported network takes batches of any size of
images in [0, 1], which it standardises itself, and returns logits and θ of every layer that has a level. Before it
writes the file, the command compares the exported network with PyTorch on real images."""
EXAMPLES = """examples:
  vpgcnn export runs/flowers102                            writes runs/flowers102/net.onnx
  vpgcnn export runs/flowers102 --format torch-export --out net.pt2
  vpgcnn diagnose runs/flowers102/net.onnx --data flowers/ --group hue

formats:
  onnx           for onnxruntime and others; its metadata ("vpgcnn") name classes and layers
  torch-export   torch.export.load("net.pt2").module()(images)
  safetensors    weights and card, for vpgcnn itself
"""
ENDINGS = {"onnx": ".onnx", "torch-export": ".pt2", "safetensors": ".safetensors"}
CHECKED = 256
LARGEST = 1e-4
"""Largest accepted difference, relative to the largest logit."""
ROUNDS = 5


def main(arguments: list[str]) -> int:
    """Export a network."""
    command = parser("export", ABOUT)
    command.epilog = EXAMPLES
    command.add_argument("run", type=Path, help="folder of a run, or a weights file")
    command.add_argument("--format", choices=tuple(ENDINGS), default="onnx", help="format of the file (default: onnx)")
    command.add_argument(
        "--out",
        type=Path,
        help="file to write (default: net.onnx, net.pt2 or net.safetensors in the folder of the run)",
    )
    data_dir_option(command)
    options = command.parse_args(arguments)
    from vpgcnn.apps.commands.use import load_run, test_images
    from vpgcnn.lab.config_io import write_bytes
    from vpgcnn.lab.training.run import chosen_weights

    weights = chosen_weights(options.run)
    target = options.out or weights.parent / f"net{ENDINGS[options.format]}"
    if target.suffix != ENDINGS[options.format]:
        raise UserError(f"a file in format {options.format} must end in {ENDINGS[options.format]}, got {target.name!r}")
    check_file(target)
    model, card, data = load_run(options.run)
    if options.format == "safetensors":
        write_bytes(target, weights.read_bytes())
        print(f"written: {target}")  # noqa: T201
        return 0
    if card.augmenter.in_network:
        raise UserError(
            f"a network behind an augmenter ({card.augmenter.kind}) cannot be exported, because it is random"
        )
    import io

    import torch

    from vpgcnn.export import Deployed, exported, onnx_bytes

    deployed = Deployed(model, torch.rand(1, card.channels, card.size, card.size))
    program = exported(deployed, card.channels, card.size)
    images, what = test_images(card, data, options.data_dir, CHECKED)
    if options.format == "onnx":
        about = {"classes": card.classes, "layers": deployed.layers, "dataset": Path(card.dataset).name}
        about["input"] = (
            f"{'RGB' if card.channels == 3 else 'grey'} in [0, 1], N×{card.channels}×{card.size}×{card.size}: "
            "the central square of each image, resized bilinearly (PIL.ImageOps.fit)"
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
    difference = _compare(deployed, run, images)
    if not difference <= LARGEST:
        raise UserError(
            f"nothing was written: the exported network differs from PyTorch by {difference:.1e} of the largest logit "
            f"on {what}"
        )
    ratio = _speed(deployed, run, images[:64])
    write_bytes(target, content)
    print(f"differs from PyTorch by at most {difference:.1e} of the largest logit on {what}")  # noqa: T201
    print(f"takes {ratio:.2f} times as long as PyTorch for {plural(len(images[:64]), 'image')}")  # noqa: T201
    print(f"written: {target} ({len(content) / 2**20:.1f} MB)")  # noqa: T201
    return 0


def _onnx(content: bytes) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    try:
        import onnxruntime
    except ImportError as error:
        raise UserError("ONNX export needs onnxruntime: pip install 'vpgcnn[export]'") from error
    import torch

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])

    def run(pixels: Tensor) -> tuple[Tensor, Tensor]:
        logits, theta = session.run(None, {"images": pixels.numpy()})
        return torch.from_numpy(logits), torch.from_numpy(theta)

    return run


def _compare(deployed: Any, run: Callable[[Tensor], Any], images: Tensor) -> float:
    """The largest difference of logits and θ over batches of several sizes, relative to the largest of them."""
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
    """Time of the exported network relative to PyTorch, measured alternately."""
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
