"""vpgcnn convert."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vpgcnn.apps.commands.common import check_file, data_dir_option, parser
from vpgcnn.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from vpgcnn.lab.data.config import DataConfig
    from vpgcnn.lab.networks import PlainConfig
    from vpgcnn.lab.training.checkpoint import Card

ABOUT = """Make an ordinary network (a ResNet in plain PyTorch, or what a function of yours returns) equivariant to hue
shifts, quarter turns, reflections or several of them, as far as a level for each image allows. The converted network
starts with the answers of the original; the command checks this on images before it writes the file. Then fine-tune
it."""
EXAMPLES = """examples:
  vpgcnn train flowers102 --network resnet18-small --out runs/plain      an ordinary network to start with
  vpgcnn convert runs/plain --hues 3 --out runs/plain-hues.safetensors
  vpgcnn train flowers102 --start runs/plain-hues.safetensors --epochs 20 --out runs/tuned
  vpgcnn convert runs/plain --rotations 4 --levels layer4
  vpgcnn convert runs/plain --group "Product(Dihedral(4), Hue(3))"
  vpgcnn convert resnet18.safetensors --config card.json --hues 3        weights with torchvision's names
  vpgcnn convert my_models:resnet --weights trained.safetensors --hues 3 --size 224 --classes names.txt
      any network: a function without arguments in my_models.py, here or installed, or code/net.py:build. Without
      --weights, the function loads them. Later commands need the file that holds the function, because it is code:
  vpgcnn --use my_models.py evaluate converted.safetensors     and train --start, diagnose, serve, export, hub

ResNet weights that vpgcnn did not write need a card, which describes their network:
  {"model": {"name": "plain", "width": 64}, "classes": ["daisy", "rose"], "channels": 3, "size": 224,
   "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
"""
CHECKED, FEW = 256, 32
"""Images on which the answers are compared: as many if they are small, fewer if they are large."""
SIZE = 224
"""Image side that functions take, unless it is given."""
LARGEST = 1e-5
"""Largest accepted difference of logits, relative to the largest logit."""


def main(arguments: list[str]) -> int:
    """Convert a network."""
    command = parser("convert", ABOUT)
    command.epilog = EXAMPLES
    command.add_argument("run", type=Path, help="folder of a run, a weights file, or MODULE:FUNCTION")
    command.add_argument("--weights", type=Path, help="safetensors file with the weights of MODULE:FUNCTION")
    command.add_argument("--size", type=int, help=f"image side that MODULE:FUNCTION takes (default: {SIZE})")
    command.add_argument(
        "--mean", type=float, nargs="+",
        help="MODULE:FUNCTION expects (pixels - mean) / std, with pixels in [0, 1]: one number, or one per channel",
    )  # fmt: skip
    command.add_argument("--std", type=float, nargs="+", help="see --mean")
    command.add_argument(
        "--grey", action="store_true", default=None, help="MODULE:FUNCTION takes images with one channel"
    )
    command.add_argument(
        "--classes",
        type=Path,
        help="text file with class names for MODULE:FUNCTION, one per line (default: numbers)",
    )
    command.add_argument(
        "--hues", "--hue", type=int, default=1, help="number of hue shifts, such as 3 (default: no hue shifts)"
    )
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
        "(default): the last ones, as far as --budget goes",
    )  # fmt: skip
    command.add_argument(
        "--budget", type=float,
        help="with --mix auto: multiplications for mixing, relative to those of the views (default: 0.05, a twentieth)",
    )  # fmt: skip
    command.add_argument(
        "--softness", type=float,
        help="instead of views and levels: move the kernels themselves towards equivariant ones, from 0 (equivariant) "
        "to 1 (as they are), without training; writes an ordinary network",
    )  # fmt: skip
    command.add_argument("--config", type=Path, help="card (JSON file) for weights that vpgcnn did not write")
    command.add_argument("--out", type=Path, help="file to write (default: converted.safetensors next to the weights)")
    data_dir_option(command)
    if two := re.search(r"--size[ =](\d+) (\d+)(?: |$)", " ".join(arguments)):
        raise UserError(
            f"commands take square images, got --size {two[1]} {two[2]}: in Python, "
            f"convert(model, Hue(3), example=torch.rand(2, 3, {two[1]}, {two[2]})) takes others, too"
        )
    options = command.parse_args(arguments)
    from vpgcnn.lab.networks import PlainConfig
    from vpgcnn.lab.training.checkpoint import read_card
    from vpgcnn.lab.training.run import chosen_weights

    function = str(options.run) if ":" in str(options.run) and not options.run.exists() else ""
    if options.weights and not function:
        raise UserError("--weights belongs to MODULE:FUNCTION: give a weights file of vpgcnn as it is")
    given = [f"--{name}" for name in ("size", "mean", "std", "grey", "classes") if getattr(options, name) is not None]
    if given and not function:
        where = "the card" if options.config else f"{options.run} itself"
        raise UserError(f"{', '.join(given)}: only for MODULE:FUNCTION; {where} says which images the network takes")
    if function:
        weights = options.weights or Path("converted.safetensors")
    else:
        weights = options.run if options.config else chosen_weights(options.run)
    target = options.out or weights.parent / "converted.safetensors"
    if target.suffix != ".safetensors":
        raise UserError(f"--out must end in .safetensors, got {target.name!r}")
    check_file(target)
    if function:
        return _convert_function(function, target, options)
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
        budget=options.budget,
    )  # fmt: skip


def _convert_function(function: str, target: Path, options: argparse.Namespace) -> int:
    """Convert what a function of the user returns."""
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from vpgcnn.conversion.outputs import parts_of
    from vpgcnn.features import output_of
    from vpgcnn.lab.data.config import DataConfig
    from vpgcnn.lab.networks import PlainConfig, PlainNet
    from vpgcnn.lab.plugins import allow_network, build_network
    from vpgcnn.lab.training.checkpoint import Card, load_weights, unreadable

    if options.config:
        raise UserError("--config belongs to weights files: MODULE:FUNCTION takes --size, --mean, --std and --classes")
    size = SIZE if options.size is None else options.size
    if size < 1:
        raise UserError(f"--size must be at least 1, got {size}")
    config = _chosen(PlainConfig(factory=function, example=size), options)
    if config.group.order == 1:
        raise UserError("no group to convert to: give --hues 3, --rotations 4, --mirror, or several of them")
    channels = 1 if options.grey else 3
    mean, std = _standard(options, channels)
    allow_network(function)
    network = build_network(function).eval()
    if options.weights:
        if not options.weights.is_file():
            raise UserError(f"there is no weights file {options.weights}")
        try:
            load_weights(network, load_file(options.weights), options.weights)
        except (SafetensorError, OSError) as error:
            raise unreadable(options.weights, error) from error
    shape = (2, channels, size, size)
    try:
        with torch.no_grad():
            answer = network(torch.full(shape, 0.5))
        logits, outputs = output_of(answer), parts_of(answer)
    except Exception as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise UserError(f"{function} does not accept images {shape}: {reason[-1]} (see --size and --grey)") from error
    if not isinstance(logits, torch.Tensor) or logits.dim() != 2 or len(logits) != 2:
        raise UserError(f"{function} is not a classifier: it turns images {shape} into {tuple(logits.shape)}")
    names = tuple(_lines(options.classes) if options.classes else map(str, range(logits.shape[1])))
    if len(names) != logits.shape[1]:
        raise UserError(f"{options.classes} has {len(names)} names, but {function} has {logits.shape[1]} classes")
    if options.classes:
        _check_distinct(names, options.classes)
    if len(outputs) > 1:
        print(f"{function} has {len(outputs)} outputs: only the first counts, {len(names)} classes")  # noqa: T201
    card = Card(config, names, channels, size, mean, std)
    before = PlainNet(
        replace(config, group=PlainConfig().group), channels, len(names), card.mean, card.std
    ).eval()  # fmt: skip
    before.network = network
    if options.softness is not None:
        return _softened(
            replace(card, model=PlainConfig(factory=function, example=size)),
            before,
            config,
            function,
            target,
            options,
        )
    after = PlainNet(config, channels, len(names), card.mean, card.std)
    after.network = after.converted(network)
    data = DataConfig(name="", size=size)
    return _written(card, before, after.eval(), data, function, target, options)


def _standard(options: argparse.Namespace, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """--mean and --std, as many numbers of each."""
    from vpgcnn.conversion.checks import check_channels, standard_of

    mean, std = (0.0 if options.mean is None else options.mean), (1.0 if options.std is None else options.std)
    found = standard_of(mean, std, names=("--mean", "--std"))
    for name, values in zip(("--mean", "--std"), found, strict=True):
        check_channels(values, channels, name)
    most = max(map(len, found))
    one, two = (values if len(values) == most else values * most for values in found)
    return one, two


def _stem(function: str) -> str:
    """The name of the file that holds a function, without .py."""
    where = function.rpartition(":")[0]
    return Path(where).stem if where.endswith(".py") else where.rpartition(".")[2]


def _check_distinct(names: Sequence[str], where: Path) -> None:
    """Refuse two classes of one name: every table and answer is by name."""
    twice = next((name for place, name in enumerate(names) if name in names[:place]), None)
    if twice is not None:
        raise UserError(f"{where} has the class {twice!r} twice: give each class a name of its own")


def _lines(path: Path) -> list[str]:
    try:
        return [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read class names from {path}: {error}") from error


def _convert(card: Card, config: PlainConfig, weights: Path, target: Path, options: argparse.Namespace) -> int:
    from vpgcnn.apps.commands.use import data_of
    from vpgcnn.lab.data.config import DataConfig
    from vpgcnn.lab.training.checkpoint import load_foreign, load_model, started

    if options.softness is not None:
        plain = load_foreign(weights, card) if options.config else load_model(weights)[0]
        return _softened(card, plain, config, str(weights), target, options)
    if options.config:
        before = load_foreign(weights, card)
        network = replace(card, model=config).build()
        network.network = network.converted(before.network)  # type: ignore[operator]
    else:
        before, _ = load_model(weights)
        network, _ = started(replace(card, model=config), weights)
    data = DataConfig(name=card.dataset, size=card.size) if options.config else data_of(weights, card)
    return _written(replace(card, model=config), before, network, data, str(weights), target, options)


def _written(
    card: Card,
    before: nn.Module,
    network: nn.Module,
    data: DataConfig,
    source: str,
    target: Path,
    options: argparse.Namespace,
) -> int:
    """Write the converted network, if it has the answers of the original."""
    import torch

    from vpgcnn.apps.commands.use import test_images
    from vpgcnn.lab.networks import count_parameters
    from vpgcnn.lab.training.checkpoint import save_model

    images, what = test_images(card, data, options.data_dir, CHECKED if card.size < 128 else FEW)
    with torch.no_grad():
        pairs = [
            (before.eval()(part)[0], network.eval()(part)[0])
            for part in images.split(64)
        ]  # fmt: skip
    size = max(float(one.abs().max()) for one, _ in pairs)
    difference = max(float((one - two).abs().max()) for one, two in pairs) / max(size, 1e-12)
    if not card.model.level.is_full and not difference <= LARGEST:
        raise UserError(
            f"nothing was written: the converted network's logits differ by {difference:.1e} of the largest on {what}"
        )
    save_model(target, network, card, {"converted": source})
    print(f"logits differ by at most {difference:.1e} of the largest on {what}")  # noqa: T201
    parameters = count_parameters(before), count_parameters(network)
    print(f"{parameters[0]:,} parameters before, {parameters[1]:,} after; {network.network.cost}")  # type: ignore[union-attr]  # noqa: T201
    print(_windows(network, images))  # noqa: T201
    use = ["--use", f"{_stem(card.model.factory)}.py"] if card.model.factory else []  # type: ignore[union-attr]
    where = [data.name] if data.name and Path(data.name).exists() else ["FOLDER" if use else "RECIPE"]
    again = shlex.join(["vpgcnn", *use, "train", *where, "--start", str(target)])
    print(f"written: {target}; fine-tune it with: {again}")  # noqa: T201
    return 0


def _softened(
    card: Card, before: nn.Module, config: PlainConfig, source: str, target: Path, options: argparse.Namespace
) -> int:
    """Write the network with softened kernels."""
    import copy

    import torch

    from vpgcnn.conversion import soften
    from vpgcnn.lab.training.checkpoint import save_model

    usual: dict[str, object] = {"level": "variational", "levels": [], "until": "", "mix": "auto", "budget": None}
    given = [f"--{name}" for name, value in usual.items() if getattr(options, name) != value]
    if given:
        raise UserError(f"--softness has no views and no levels: {', '.join(given)} cannot be combined with it")
    example = torch.rand(8, card.channels, card.size, card.size, generator=torch.Generator().manual_seed(0))
    network = copy.deepcopy(before.eval())
    soft = soften(
        network.network, config.group, options.softness,  # type: ignore[arg-type]
        layers=config.layers or None, mean=card.mean, std=card.std, example=example,
    )  # fmt: skip
    network.network = soft.network
    save_model(target, network, card, {"softened": source})
    print(f"{soft.summary} (on random images)")  # noqa: T201
    use = ["--use", f"{_stem(card.model.factory)}.py"] if card.model.factory else []  # type: ignore[union-attr]
    again = shlex.join(["vpgcnn", *use, "evaluate", str(target)])
    print(f"written: {target}, an ordinary network; measure it with: {again}")  # noqa: T201
    return 0


def _windows(network: nn.Module, images: Tensor) -> str:
    """Where the windows of a converted network start, and what that means until it is trained."""
    from vpgcnn.measure import read_levels

    found = read_levels(network, images[:64]).per_image()
    if not found.theta:
        return "no level for each image: it stays as equivariant as it is now"
    shares = [float(theta.mean()) for theta in found.circles().values()]
    alone = all(float(weights[:, 0].min()) > 0.999 for weights in found.weights.values())
    where = f", which is the identity alone (1 of {network.network.group.order} elements)" if alone else ""  # type: ignore[union-attr]
    return (
        f"windows start at θ = {sum(shares) / len(shares):.2f} for every image{where}, and learn from your images when "
        "you fine-tune it; `vpgcnn evaluate` says if they then do nothing"
    )


def _foreign_card(path: Path) -> Card:
    from vpgcnn.lab.config_io import from_json, read_json
    from vpgcnn.lab.training.checkpoint import Card

    card = from_json(Card, read_json(path), str(path))
    _check_distinct(card.classes, path)
    return card
