"""vpgcnn predict."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from vpgcnn.apps.commands.common import parser, print_json, table
from vpgcnn.errors import UserError

EXAMPLES = """examples:
  vpgcnn predict runs/mnist67-180 digit.png
  vpgcnn predict runs/mnist67-180 scans/*.png --json

θ is the share of all rotations (or hues) that a layer uses for an image: 1 stands for all of them. The command names
files that it cannot read and classifies the others. The images should look like the training images: MNIST digits, for
example, are white on black.
"""


def main(arguments: list[str]) -> int:
    """Classify image files."""
    command = parser("predict", "Classify image files: print class, confidence and level (θ) of each image.")
    command.epilog = EXAMPLES
    command.add_argument("run", type=Path, help="folder of a run, or a weights file")
    command.add_argument(
        "images", type=Path, nargs="+", help="image files; they are resized to the size that the network expects"
    )
    command.add_argument("--json", action="store_true", help="print JSON")
    options = command.parse_args(arguments)
    from vpgcnn.apps.commands.use import load_run

    model, card, _ = load_run(options.run)
    import torch

    from vpgcnn.lab.data.folder import read_image
    from vpgcnn.lab.networks.registry import elements_of
    from vpgcnn.measure import read_levels

    read, errors = [], {}
    for path in options.images:
        try:
            read.append((path, read_image(path, card.size, card.channels)))
        except UserError as error:
            errors[str(path)] = str(error)
    answers: list[dict[str, Any]] = []
    theta: dict[str, Any] = {}
    if read:
        reading = read_levels(model, torch.stack([pixels for _, pixels in read]))
        chances, theta = reading.logits.softmax(dim=1), reading.circles()
    for place, (path, _) in enumerate(read):
        best = int(chances[place].argmax())
        answers.append({
            "file": str(path),
            "class": card.classes[best],
            "confidence": round(float(chances[place, best]), 4),
            "theta": {layer: round(float(values[place]), 4) for layer, values in theta.items()},
        })  # fmt: skip
    if options.json:
        print_json([*answers, *({"file": file, "error": error} for file, error in errors.items())])
    elif answers:
        rows: list[tuple[str, ...]] = [("file", "class", "confidence", *(f"θ {layer}" for layer in theta))]
        for place, answer in enumerate(answers):
            levels = [f"{float(values[place]):.2f}" for values in theta.values()]
            rows.append((str(answer["file"]), str(answer["class"]), f"{answer['confidence']:.1%}", *levels))
        table(rows)
    grey = [str(path) for path, pixels in read if torch.equal(pixels.amin(dim=0), pixels.amax(dim=0))]
    if grey and elements_of(card.model)[1] > 1:
        print(f"grey, so without a hue: {', '.join(grey)}", file=sys.stderr)  # noqa: T201
    if errors:
        raise UserError("; ".join(errors.values()))
    return 0
