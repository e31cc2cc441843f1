"""vpgcnn diagnose."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vpgcnn.commands.common import parser, print_json
from vpgcnn.errors import UserError

if TYPE_CHECKING:
    from vpgcnn.diagnosis.study import Study
    from vpgcnn.report.diagnosis import Shown

ABOUT = """Is a classifier sensitive to rotation or hue, for which images and classes, and is that right? It is shown
every image of a folder (folder/class/*.jpg) at every place of a circle. Written are diagnosis.json and report.html,
one page that opens from disk."""
EXAMPLES = """classifiers:
  runs/flowers102            a run of vpgcnn, or its .safetensors
  my_models:resnet           a function without arguments (or a module) in my_models.py, here or installed
  code/net.py:build          the same, in a file
  net.pt2, net.pt            torch.export and TorchScript; with --trust, since such files can run anything
  net.onnx                   needs onnxruntime: pip install 'vpgcnn[export]'

examples:
  vpgcnn diagnose runs/flowers102 --data flowers/ --group hue
  vpgcnn diagnose my_models:resnet --data photos/ --group rotation --size 224 --mean .485 .456 .406 --std .229 .224 .225
  vpgcnn diagnose net.onnx --data photos/ --group hue --classes names.txt --limit 500

A classifier that is not ours has the sorted names of the folder's classes for its logits, unless --classes names them.
What torch.save wrote is not opened.
"""
GROUPS = ("rotation", "hue", "linear-hue")
SHOWN = 6
"""Images that the page shows, of each kind."""


def main(arguments: list[str]) -> int:
    """Diagnose a classifier."""
    command = parser("diagnose", ABOUT)
    command.epilog = EXAMPLES
    command.add_argument("classifier", help="see below")
    command.add_argument("--data", type=Path, required=True, help="image folder, with a folder for each class")
    command.add_argument(
        "--group", choices=GROUPS, required=True, help="what moves; hue: in HSV, linear-hue: as Hue(m) of vpgcnn does"
    )
    command.add_argument("--steps", type=int, default=12, help="places on the circle (default: 12)")
    command.add_argument("--limit", type=int, help="look at so many images, drawn at random")
    command.add_argument("--size", type=int, help="pixels of a side (default: the model's own, else 224)")
    command.add_argument("--mean", type=float, nargs="+", default=[0.0], help="of the pixels in [0, 1], one or three")
    command.add_argument("--std", type=float, nargs="+", default=[1.0], help="likewise")
    command.add_argument("--grey", action="store_true", help="the model takes images of one channel")
    command.add_argument("--classes", type=Path, help="a text file, a name a line, in the order of the logits")
    command.add_argument("--batch", type=int, default=64, help="images at a time (default: 64)")
    command.add_argument("--device", help="cpu, cuda, mps (default: the fastest that is there)")
    command.add_argument("--trust", action="store_true", help="open .pt2 and .pt files, which can run what is in them")
    command.add_argument("--out", type=Path, default=Path("diagnosis"), help="folder to write to (default: diagnosis)")
    command.add_argument("--json", action="store_true", help="print the JSON instead of the verdict")
    options = command.parse_args(arguments)
    for name in ("steps", "size", "batch"):
        value = getattr(options, name)
        if value is not None and value < (2 if name == "steps" else 1):
            raise UserError(f"--{name} must be at least {2 if name == 'steps' else 1}, got {value}")
    import torch

    from vpgcnn.analysis import moves_of
    from vpgcnn.data.stream import ImageFolder
    from vpgcnn.diagnosis.classifiers import open_classifier
    from vpgcnn.diagnosis.study import study
    from vpgcnn.diagnosis.words import verdict
    from vpgcnn.report.diagnosis import page
    from vpgcnn.serial import write_bytes, write_json
    from vpgcnn.training.progress import Progress

    folder = ImageFolder.open(options.data, options.limit)
    names = _names(options.classes)
    moves = moves_of(options.group, options.steps)
    classifier = open_classifier(
        options.classifier, size=options.size, channels=1 if options.grey else 3, mean=options.mean, std=options.std,
        device=_device(options.device), trust=options.trust,
    )  # fmt: skip
    _check_out(options.out)
    if _trained_on(options.classifier, options.data):
        print(  # noqa: T201
            "note: the network was trained on most of these images, and knows them better than others", file=sys.stderr
        )
    with Progress() as progress:
        if not options.json:
            progress.say(f"{len(folder)} images, as {classifier.size}×{classifier.size} pixels")
        found = study(classifier, folder, moves, names, batch=options.batch, progress=progress)
    said, plain = verdict(found), found.as_json()
    made = f"vpgcnn diagnose {' '.join(arguments)}; torch {torch.__version__}."
    most, least = ([_shown(found, image) for image in images] for images in found.ranked(SHOWN))
    write_json(options.out / "diagnosis.json", {"command": made, "verdict": said, **plain})
    report = options.out / "report.html"
    write_bytes(report, page(plain, said, most, least, moves.whole, made).encode())
    for reason in list(folder.skipped.values())[:5]:
        print(f"left out: {reason}", file=sys.stderr)  # noqa: T201
    if len(folder.skipped) > 5:
        print(f"left out: {len(folder.skipped) - 5} more, see the report", file=sys.stderr)  # noqa: T201
    if found.grey:
        print(f"left out: {len(found.grey)} grey images, which have no hue", file=sys.stderr)  # noqa: T201
    if options.json:
        print_json({"verdict": said, **plain})
        return 0
    print("\n\n".join([said["headline"], *said["sentences"], said["text"]]))  # noqa: T201
    print(f"\nreport: {report}")  # noqa: T201
    return 0


def _trained_on(classifier: str, folder: Path) -> bool:
    """Whether a run of ours was trained on this very folder, without parts of its own."""
    from vpgcnn.commands.use import same_place
    from vpgcnn.data.own import part_folders
    from vpgcnn.training.record import read_settings
    from vpgcnn.training.run import chosen_weights

    path = Path(classifier)
    if not path.is_dir() and path.suffix != ".safetensors":
        return False
    settings = read_settings(chosen_weights(path))
    return settings is not None and same_place(settings.data.name, folder) and "" in part_folders(folder)


def _names(path: Path | None) -> list[str] | None:
    if path is None:
        return None
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read class names from {path}: {error}") from error
    return [line.strip() for line in lines if line.strip()]


def _check_out(out: Path) -> None:
    """Say before the work, and not after it, that nothing can be written there."""
    there = next(path for path in (out, *out.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise UserError(f"cannot write to {out}: {there} is no folder that can be written to")


def _device(name: str | None) -> Any:
    import torch

    if name is None:
        return torch.accelerator.current_accelerator() or torch.device("cpu")
    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"there is no device {name!r} here: {str(error).splitlines()[0]}") from error
    return torch.device(name)


def _shown(found: Study, image: int) -> Shown:
    """One image at all places, read again."""
    import torch

    from vpgcnn.report.diagnosis import Shown

    orbit, classifier = found.orbit, found.classifier
    pixels = found.folder.image(found.places[image], classifier.size, classifier.channels)[None]
    moved = torch.cat([orbit.moves(pixels, place) for place in orbit.moves.places])
    small = torch.nn.functional.interpolate(moved, (64, 64), mode="area") if moved.shape[-1] > 64 else moved
    said = [
        (orbit.classes[int(guess)], float(sure))
        for guess, sure in zip(orbit.guesses[:, image], orbit.certainty[:, image], strict=True)
    ]
    return Shown(
        found.path(image), orbit.classes[int(orbit.labels[image])], float(orbit.distance[1:, image].mean()),
        small.numpy(), said, orbit.confidence[:, image].tolist(),
    )  # fmt: skip
