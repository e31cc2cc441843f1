"""vpgcnn convert."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vpgcnn.apps.commands.common import data_dir_option, parser
from vpgcnn.errors import UserError

if TYPE_CHECKING:
    from vpgcnn.lab.networks import PlainConfig
    from vpgcnn.lab.training.checkpoint import Card

ABOUT = """Make an ordinary network (a ResNet in plain PyTorch) equivariant to hue shifts, quarter turns, reflections or
several of them, as far as a level for each image allows. The converted network starts with the answers of the original;
the command checks this on real images before it writes the file. Then fine-tune it."""
EXAMPLES = """examples:
  vpgcnn train flowers102 --network resnet18-small --out runs/plain      an ordinary network to start with
  vpgcnn convert runs/plain --hues 3 --out runs/plain-hues.safetensors
  vpgcnn train flowers102 --start runs/plain-hues.safetensors --epochs 20 --out runs/tuned
  vpgcnn convert runs/plain --rotations 4 --levels layer4
  vpgcnn convert runs/plain --group "Product(Dihedral(4), Hue(3))"
  vpgcnn convert resnet18.safetensors --config card.json --hues 3        weights with torchvision's names

Weights that vpgcnn did not write need a card, which describes their network:
  {"model": {"name": "plain", "width": 64}, "classes": ["daisy", "rose"], "channels": 3, "size": 224,
   "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}

To convert any other network, use Python: from vpgcnn import convert
"""
CHECKED = 256
LARGEST = 1e-5
"""Largest accepted difference of logits, relative to the largest logit."""


def main(arguments: list[str]) -> int:
    """Convert a network."""
    command = parser("convert", ABOUT)
    command.epilog = EXAMPLES
    command.add_argument("run", type=Path, help="folder of a run, or a weights file")
    command.add_argument("--hues", type=int, default=1, help="number of hue shifts, such as 3 (default: no hue shifts)")
    command.add_argument("--rotations", type=int, default=1, help="number of rotations, 2 or 4 (default: no rotations)")
    command.add_argument("--mirror", action="store_true", help="include reflections")
    command.add_argument(
        "--group", help='the group itself, such as "Product(Dihedral(4), Hue(3))", instead of the three options above'
    )
    command.add_argument(
        "--level", default="variational",
        help="variational: a level for each image (default); shared: one level for all images; full: the whole group "
        "at once, which changes the answers; or with settings, such as 'Variational(encoder_width=16)'",
    )  # fmt: skip
    command.add_argument("--layers", nargs="+", default=[], help="convolutions that see other views (default: all)")
    command.add_argument("--levels", nargs="+", default=[], help="convolutions that have a level (default: the last)")
    command.add_argument(
        "--until", default="", help="pool the views after this module, such as layer3 (default: the end)"
    )
    command.add_argument(
        "--mix", choices=("auto", "pointwise", "full", "none"), default="auto",
        help="how convolutions see other views: through 1×1 kernels, kernels of their size, or not at all; auto "
        "(default): the last ones, for at most a twentieth of the multiplications",
    )  # fmt: skip
    command.add_argument("--config", type=Path, help="card (JSON file) for weights that vpgcnn did not write")
    command.add_argument("--out", type=Path, help="file to write (default: converted.safetensors next to the weights)")
    data_dir_option(command)
    options = command.parse_args(arguments)
    from vpgcnn.lab.networks import PlainConfig
    from vpgcnn.lab.training.checkpoint import read_card
    from vpgcnn.lab.training.run import chosen_weights

    weights = options.run if options.config else chosen_weights(options.run)
    target = options.out or weights.parent / "converted.safetensors"
    if target.suffix != ".safetensors":
        raise UserError(f"--out must end in .safetensors, got {target.name!r}")
    card = _foreign_card(options.config) if options.config else read_card(weights)
    if not isinstance(card.model, PlainConfig):
        raise UserError(
            f"{weights} is a network of kind {card.model.name!r}, which already has group convolutions: only ordinary "
            "networks (plain) can be converted; set its level with `vpgcnn train --model.level`"
        )
    if card.model.group.order != 1:
        raise UserError(f"{weights} is already converted to {card.model.group}: convert the original instead")
    config = _chosen(card.model, options)
    if config.group.order == 1:
        raise UserError("no group to convert to: give --hues 3, --rotations 4, --mirror, or several of them")
    return _convert(card, config, weights, target, options)


def _chosen(before: PlainConfig, options: argparse.Namespace) -> PlainConfig:
    from vpgcnn.groups import Dihedral, Group, Hue, Product, Rotations
    from vpgcnn.lab.specs import parse
    from vpgcnn.levels import LevelSpec

    chosen = options.hues > 1 or options.rotations > 1 or options.mirror
    if options.group and chosen:
        raise UserError("--group cannot be combined with --hues, --rotations or --mirror")
    try:
        turns = Dihedral(options.rotations) if options.mirror else Rotations(options.rotations)
        hues = Hue(options.hues)
    except ValueError as error:
        raise UserError(str(error)) from error
    group: Group = turns
    if hues.m > 1:
        group = Product(turns, hues) if turns.order != 1 else hues
    if options.group:
        group = parse(options.group, Group)  # type: ignore[type-abstract]
    return replace(
        before, group=group, level=parse(options.level, LevelSpec),  # type: ignore[type-abstract]
        layers=tuple(options.layers), levels=tuple(options.levels), until=options.until, mix=options.mix,
    )  # fmt: skip


def _convert(card: Card, config: PlainConfig, weights: Path, target: Path, options: argparse.Namespace) -> int:
    import torch

    from vpgcnn.apps.commands.use import data_of, test_images
    from vpgcnn.lab.data.config import DataConfig
    from vpgcnn.lab.networks import count_parameters
    from vpgcnn.lab.training.checkpoint import load_foreign, load_model, save_model, started

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
            for part in images.split(64)
        ]  # fmt: skip
    size = max(float(one.abs().max()) for one, _ in pairs)
    difference = max(float((one - two).abs().max()) for one, two in pairs) / max(size, 1e-12)
    if not config.level.is_full and not difference <= LARGEST:
        raise UserError(
            f"nothing was written: the converted network's logits differ by {difference:.1e} of the largest on {what}"
        )
    save_model(target, network, replace(card, model=config), {"converted": str(weights)})
    print(f"logits differ by at most {difference:.1e} of the largest on {what}")  # noqa: T201
    parameters = count_parameters(before), count_parameters(network)
    print(f"{parameters[0]:,} parameters before, {parameters[1]:,} after; {network.network.cost}")  # type: ignore[union-attr]  # noqa: T201
    where = ["--data", data.name] if Path(data.name).exists() else ["RECIPE"]
    again = shlex.join(["vpgcnn", "train", *where, "--start", str(target)])
    print(f"written: {target}; fine-tune it with: {again}")  # noqa: T201
    return 0


def _foreign_card(path: Path) -> Card:
    from vpgcnn.lab.config_io import from_json, read_json
    from vpgcnn.lab.training.checkpoint import Card

    return from_json(Card, read_json(path), str(path))
