"""A level plot of a few test images of each class, and how much the levels depend on the image.

    vpgcnn demo
    python examples/read_levels.py runs/demo/variational --out levels.svg

The run may be any of yours; the picture is an .svg, a .png or an .html page, by its name.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from vpgcnn.analysis import awareness, levels, read_theta
from vpgcnn.commands.use import load_run
from vpgcnn.data import load
from vpgcnn.errors import UserError


def main() -> None:
    """Read the run, print its levels, draw them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the folder of a run")
    parser.add_argument("--out", type=Path, default=Path("levels.svg"), help="the picture (default: levels.svg)")
    parser.add_argument("--each", type=int, default=6, help="images of each class (default: 6)")
    options = parser.parse_args()
    model, card, data = load_run(options.run)
    test = load(data).test
    some = torch.cat([(test.labels == label).nonzero()[: options.each, 0] for label in range(len(card.classes))])
    names = [card.classes[int(label)] for label in test.labels[some]]
    table = levels(model, test.images[some], names, prepare=card.standardised)
    print(table)
    for layer, theta in read_theta(model, test.images, prepare=card.standardised).items():
        found = awareness(theta[:, 0], test.labels)
        print(f"{layer}, {len(test)} images: " + ", ".join(f"{name} {value:.3g}" for name, value in found.items()))
    print(f"picture: {table.plot().save(options.out)}")


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"read_levels: {error}")
