"""vpgcnn predict."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vpgcnn.apps.commands.common import check_file, parser, plural, print_json, table
from vpgcnn.errors import UserError

if TYPE_CHECKING:
    from torch import nn

    from vpgcnn.lab.training.checkpoint import Card

EXAMPLES = """examples:
  vpgcnn predict runs/mnist67-180 digit.png
  vpgcnn predict runs/mnist67-180 scans/*.png --json
  vpgcnn predict runs/mnist67-180 scans/                         a folder, with its folders: writes predictions.csv
  vpgcnn predict runs/mnist67-180 scans/ --csv scans.csv

θ is the share of all rotations (or hues) that a layer uses for an image: 1 stands for all of them. The command names
files that it cannot read and classifies the others. The images should look like the training images: MNIST digits, for
example, are white on black.
"""
DEFAULT = Path("predictions.csv")
"""What the answers for a folder are written to, unless --csv or --json is given."""
AT_A_TIME = 256
"""Images that are read and classified at a time."""


def main(arguments: list[str]) -> int:
    """Classify image files."""
    command = parser("predict", "Classify image files: print class, confidence and level (θ) of each image.")
    command.epilog = EXAMPLES
    command.add_argument("run", type=Path, help="folder of a run, or a weights file")
    command.add_argument(
        "images", type=Path, nargs="+",
        help="image files, or folders of them; they are resized to the size that the network expects",
    )  # fmt: skip
    command.add_argument("--json", action="store_true", help="print JSON")
    command.add_argument("--csv", type=Path, help=f"file to write the answers to (default for a folder: {DEFAULT})")
    options = command.parse_args(arguments)
    from vpgcnn.apps.commands.use import load_run

    target = options.csv
    if target is None and not options.json and any(path.is_dir() for path in options.images):
        target = DEFAULT
        if target.exists():
            raise UserError(f"{target} exists already: choose a file with --csv FILE")
    if target is not None:
        check_file(target)
    model, card, _ = load_run(options.run)
    from vpgcnn.lab.config_io import write_bytes
    from vpgcnn.lab.networks.registry import elements_of

    paths = [file for path in options.images for file in _files(path)]
    answers: list[dict[str, Any]] = []
    errors: dict[str, str] = {}
    grey: list[str] = []
    for start in range(0, len(paths), AT_A_TIME):
        answers += _answers(model, card, paths[start : start + AT_A_TIME], errors, grey)
    if options.json:
        print_json([*answers, *({"file": file, "error": error} for file, error in errors.items())])
    if target is not None:
        write_bytes(target, _csv(answers, errors).encode("utf-8", "backslashreplace"))
        if not options.json:
            print(f"written: {target}, with {plural(len(answers), 'image')}")  # noqa: T201
    elif answers and not options.json:
        rows: list[tuple[str, ...]] = [("file", "class", "confidence", *(f"θ {name}" for name in answers[0]["theta"]))]
        for answer in answers:
            levels = [f"{value:.2f}" for value in answer["theta"].values()]
            rows.append((answer["file"], answer["class"], f"{answer['confidence']:.1%}", *levels))
        table(rows)
    if grey and elements_of(card.model)[1] > 1:
        print(f"grey, so without a hue: {', '.join(grey)}", file=sys.stderr)  # noqa: T201
    if errors and target is not None:
        raise UserError(f"{len(errors)} of {len(paths)} images cannot be read, see the column error in {target}")
    if errors:
        raise UserError("; ".join(errors.values()))
    return 0


def _files(path: Path) -> Sequence[Path]:
    """The image files in a folder and its folders; a file as it is."""
    if not path.is_dir():
        return [path]
    from vpgcnn.lab.pixels import suffixes

    known = suffixes()
    found = sorted(file for file in path.rglob("*") if file.suffix.lower() in known and file.is_file())
    if not found:
        raise UserError(f"there is no image in {path}")
    return found


def _answers(
    model: nn.Module, card: Card, paths: Sequence[Path], errors: dict[str, str], grey: list[str]
) -> list[dict[str, Any]]:
    """Classify some files; those that cannot be read are added to `errors`, grey ones to `grey`."""
    import torch

    from vpgcnn.lab.data.images import read_image
    from vpgcnn.measure import read_levels

    read = []
    for path in paths:
        try:
            read.append((path, read_image(path, card.size, card.channels)))
        except UserError as error:
            errors[str(path)] = str(error)
    if not read:
        return []
    grey += [str(path) for path, pixels in read if torch.equal(pixels.amin(dim=0), pixels.amax(dim=0))]
    reading = read_levels(model, torch.stack([pixels for _, pixels in read]))
    chances, theta = reading.logits.softmax(dim=1), reading.circles()
    return [
        {
            "file": str(path),
            "class": card.classes[int(chances[place].argmax())],
            "confidence": round(float(chances[place].max()), 4),
            "theta": {layer: round(float(values[place]), 4) for layer, values in theta.items()},
        }
        for place, (path, _) in enumerate(read)
    ]


def _csv(answers: Sequence[dict[str, Any]], errors: dict[str, str]) -> str:
    """The answers as comma-separated values: a line for each image, then those that cannot be read."""
    layers = list(answers[0]["theta"]) if answers else []
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(["file", "class", "confidence", *(f"theta {layer}" for layer in layers), "error"])
    for answer in answers:
        levels = [f"{value:.4f}" for value in answer["theta"].values()]
        lines.writerow([answer["file"], answer["class"], f"{answer['confidence']:.4f}", *levels, ""])
    for file, error in errors.items():
        lines.writerow([file, "", "", *("" for _ in layers), error])
    return text.getvalue()
