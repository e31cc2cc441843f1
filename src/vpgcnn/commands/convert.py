"""vpgcnn convert."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vpgcnn.commands.common import data_dir_option, parser
from vpgcnn.errors import UserError

if TYPE_CHECKING:
    from vpgcnn.models import PlainConfig
    from vpgcnn.training.checkpoint import Card

ABOUT = """Make an ordinary network (`plain`: a ResNet in plain PyTorch) equivariant to hue, to quarter turns, to
mirrors or to several of them, as far as a level for each image allows. It begins with the answers it had: that is
checked on real images before it is written. Then fine-tune it."""
EXAMPLES = """examples:
  vpgcnn train flowers102 --network resnet18-small --out runs/plain      an ordinary network to begin with
  vpgcnn convert runs/plain --hues 3 --out runs/plain-hues.safetensors
  vpgcnn train flowers102 --start runs/plain-hues.safetensors --epochs 20 --out runs/tuned
  vpgcnn convert runs/plain --group rotations --elements 4 --levels layer4
  vpgcnn convert resnet18.safetensors --config card.json --hues 3        weights with torchvision's names

A card says what the weights are of, and is needed only for weights that vpgcnn did not write:
  {"model": {"name": "plain", "width": 64, "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]},
   "classes": ["daisy", "rose"], "channels": 3, "size": 224, "mean": 0, "std": 1}

Networks of your own are converted in Python: from vpgcnn.convert import convert
"""
CHECKED = 256
LARGEST = 1e-5
"""Difference of logits, at most, as a share of their size."""


def main(arguments: list[str]) -> int:
    """Convert a network."""
    command = parser("convert", ABOUT)
    command.epilog = EXAMPLES
    command.add_argument("run", type=Path, help="a run's folder or a weights file")
    command.add_argument("--hues", type=int, default=1, help="how many hue shifts, say 3 (default: none)")
    command.add_argument("--group", choices=("rotations", "dihedral"), help="rotations, or rotations and mirrors")
    command.add_argument("--elements", type=int, default=4, help="how many rotations: 4 (default) or 2, 1 for mirrors")
    command.add_argument(
        "--level", choices=("variational", "learned", "full"), default="variational",
        help="a level for each image (default), one for all, or all of the group at once (other answers then)",
    )  # fmt: skip
    command.add_argument("--layers", nargs="+", default=[], help="convolutions that look at other views (default: all)")
    command.add_argument("--levels", nargs="+", default=[], help="those that have a level (default: the last)")
    command.add_argument("--until", default="", help="pool the views after this module, say layer3 (default: the end)")
    command.add_argument("--mix", choices=("pointwise", "full", "none"), default="pointwise", help="size of kernels")
    command.add_argument("--config", type=Path, help="a card (JSON), for weights that vpgcnn did not write")
    command.add_argument("--out", type=Path, help="file to write (default: converted.safetensors beside the weights)")
    data_dir_option(command)
    options = command.parse_args(arguments)
    from vpgcnn.models import PlainConfig
    from vpgcnn.training.checkpoint import read_card
    from vpgcnn.training.run import chosen_weights

    weights = options.run if options.config else chosen_weights(options.run)
    target = options.out or weights.parent / "converted.safetensors"
    if target.suffix != ".safetensors":
        raise UserError(f"--out is a file that ends in .safetensors, got {target.name!r}")
    card = _foreign_card(options.config) if options.config else read_card(weights)
    if not isinstance(card.model, PlainConfig):
        raise UserError(
            f"{weights} is a network of kind {card.model.name!r}, made of group convolutions: only ordinary ones "
            "(plain) are converted; `--model.level` of `vpgcnn train` chooses its levels"
        )
    if not card.model.ordinary:
        raise UserError(f"{weights} is converted already")
    config = _chosen(card.model, options)
    if config.ordinary:
        raise UserError("to which group? --hues 3, --group rotations or --group dihedral, or hues and one of them")
    return _convert(card, config, weights, target, options)


def _chosen(before: PlainConfig, options: argparse.Namespace) -> PlainConfig:
    return replace(
        before, group=options.group or "t2", elements=options.elements, hues=options.hues, level=options.level,
        layers=tuple(options.layers), levels=tuple(options.levels), until=options.until, mix=options.mix,
    )  # fmt: skip


def _convert(card: Card, config: PlainConfig, weights: Path, target: Path, options: argparse.Namespace) -> int:
    import torch

    from vpgcnn.commands.use import data_of, test_images
    from vpgcnn.data.config import DataConfig
    from vpgcnn.models import count_parameters
    from vpgcnn.training.checkpoint import load_foreign, load_model, save_model, started

    if options.config:
        before = load_foreign(weights, card)
        network = replace(card, model=config).build()
        network.network = network.converted(before.network)  # type: ignore[operator]
    else:
        before, _ = load_model(weights)
        network, _ = started(replace(card, model=config), weights)
    data = DataConfig(name=card.dataset, size=card.size) if options.config else data_of(weights, card)
    images, what = test_images(card, data, options.data_dir, CHECKED)
    with torch.no_grad():
        pairs = [
            (before.eval()(part)[0], network.eval()(part)[0])
            for part in card.standardised(255 * images).split(64)
        ]  # fmt: skip
    size = max(float(one.abs().max()) for one, _ in pairs)
    apart = max(float((one - two).abs().max()) for one, two in pairs) / max(size, 1e-12)
    if config.level != "full" and not apart <= LARGEST:
        raise UserError(f"the converted network's logits differ by {apart:.1e} of their size on {what}: not written")
    save_model(target, network, replace(card, model=config), {"converted": str(weights)})
    print(f"logits differ by at most {apart:.1e} of their size on {what}")  # noqa: T201
    parameters = count_parameters(before), count_parameters(network)
    order = network.group.order  # type: ignore[union-attr]
    print(f"{parameters[0]:,} parameters before, {parameters[1]:,} now; {order} times the computation")  # noqa: T201
    where = ["--data", data.name] if Path(data.name).exists() else ["RECIPE"]
    again = shlex.join(["vpgcnn", "train", *where, "--start", str(target)])
    print(f"written: {target}; fine-tune it with: {again}")  # noqa: T201
    return 0


def _foreign_card(path: Path) -> Card:
    from vpgcnn.serial import from_json, read_json
    from vpgcnn.training.checkpoint import Card

    return from_json(Card, read_json(path), str(path))
