"""vpgcnn train."""

from __future__ import annotations

import argparse
import shlex
import sys
from dataclasses import replace
from pathlib import Path

from vpgcnn.allocator import keep_memory
from vpgcnn.commands.common import print_json
from vpgcnn.errors import UserError
from vpgcnn.models.config import ModelConfig
from vpgcnn.training.config import TrainConfig
from vpgcnn.training.recipes import RECIPES, recipe

HELP = f"""usage: vpgcnn train RECIPE [--preset cpu|paper] [--out FOLDER] [--resume] [--json] [settings]
       vpgcnn train --data FOLDER [--group auto|hue|rotation|both|none] [the same]

Recipes:
{chr(10).join(f"  {name:<14} {entry.about}" for name, entry in RECIPES.items())}

Your own images: --data FOLDER with a folder for each class (FOLDER/CLASS/*.jpg, or the same in FOLDER/train,
FOLDER/validation and FOLDER/test), or an .npz file. Split, size, network and length are chosen by looking at the
images, and said; every setting can still be changed.
  --group auto       which symmetry to build in (default: the one that tells least of the class)

  --network NAME     another network: one that `vpgcnn models` lists
  --start RUN        begin with the network and weights of a run or weights file, say of `vpgcnn convert`
  --preset cpu       small enough for two cores (default)
  --preset paper     the paper's size and number of epochs: for a GPU
  --out FOLDER       the run's folder (default: runs/RECIPE); it must not hold another run
  --resume           go on with the run in that folder exactly where it was, or begin it
  --json             print the result as JSON

Every setting of the recipe can be changed; `vpgcnn train RECIPE --help` lists them all with their values:
  vpgcnn train mnist67-180 --model.level full --seed 1 --out runs/full-1
  vpgcnn train --data photos/ --out runs/photos                          your own, photos/CLASS/*.jpg
  vpgcnn train --data photos/ --group hue --epochs 20 --data.size 96
  torchrun --nproc-per-node 2 -m vpgcnn train cifar10-se2         several processes, the same result
Ctrl-C finishes the step, saves, and says how to go on.
"""


def main(arguments: list[str]) -> int:
    """Train a recipe."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(HELP, end="")  # noqa: T201
        return 0 if arguments else 2
    options, rest = _options(arguments)
    default = _default(options, rest)
    config = _config(default, rest, f"vpgcnn train {options.recipe or f'--data {options.data}'}")
    out = options.out or Path("runs") / (options.recipe or Path(options.data).stem or "own")
    if options.data is not None and not options.json and config.epochs > 0:
        how = f"{config.epochs} epoch{'s' * (config.epochs != 1)} in batches of {config.batch_size}"
        print(f"{how}, training images augmented by {config.data.augment}")  # noqa: T201
    from vpgcnn.training.loop import Interrupted, train
    from vpgcnn.training.progress import Progress, Quiet

    keep_memory()
    try:
        result = train(config, out, resume=options.resume, progress=Quiet() if options.json else Progress())
    except Interrupted as stop:
        again = shlex.join(["vpgcnn", "train", *(word for word in arguments if word != "--resume"), "--resume"])
        print(f"vpgcnn: {stop}\ngo on with: {again}", file=sys.stderr)  # noqa: T201
        return 130
    if options.json:
        print_json(result)
    else:
        test = result["test"]
        accuracy = f"test accuracy {test['accuracy']:.2%}" if test["images"] else "no test"
        where = f"epoch {result['epoch']}, {result['parameters']:,} parameters, {result['seconds']:.0f} s"
        print(f"{accuracy} on {test['images']} images ({where})")  # noqa: T201
        print(f"written to {out}; look at it with: {shlex.join(['vpgcnn', 'evaluate', str(out)])}")  # noqa: T201
    return 0


def _options(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    command = argparse.ArgumentParser(prog="vpgcnn train", add_help=False, allow_abbrev=False)
    command.add_argument("--preset", choices=("cpu", "paper"), default="cpu")
    command.add_argument("--data", type=Path)
    command.add_argument("--group", choices=("auto", "hue", "rotation", "both", "none"))
    command.add_argument("--network")
    command.add_argument("--start", type=Path)
    command.add_argument("--out", type=Path)
    command.add_argument("--resume", action="store_true")
    command.add_argument("--json", action="store_true")
    named = not arguments[0].startswith("-")
    options, rest = command.parse_known_args(arguments[1:] if named else arguments)
    options.recipe = arguments[0] if named else None
    if not named and options.data is None:
        raise UserError("the recipe comes first: vpgcnn train mnist67-180 …; or your own images: --data FOLDER")
    if named and options.data is not None:
        raise UserError(f"a recipe ({options.recipe}) has its own data: leave it out, or say --data.name")
    if options.group is not None and (named or options.network or options.start):
        raise UserError("--group is for --data FOLDER without --network and --start: these say what it is")
    if options.network and options.start:
        raise UserError("--network and --start exclude each other: a started network is what it was")
    return options, rest


def _default(options: argparse.Namespace, rest: list[str]) -> TrainConfig:
    """What is trained before any setting is changed."""
    network = _network(options)
    if options.recipe is not None:
        config = recipe(options.recipe, options.preset)
        config = config if network is None else replace(config, model=network)
        return replace(config, start=options.start)
    from vpgcnn.training.suggest import suggest

    given = _given(rest, "--data.size"), _given(rest, "--seed")
    found = suggest(
        options.data, choice=options.group or "auto", network=network, size=None if given[0] is None else int(given[0]),
        seed=0 if given[1] is None else int(given[1]),
    )  # fmt: skip
    if not options.json and not any(word in ("-h", "--help") for word in rest):
        print("\n".join(found.said))  # noqa: T201
    return replace(found.config, start=options.start)


def _network(options: argparse.Namespace) -> ModelConfig | None:
    """The network that is wanted instead of the recipe's."""
    if options.start is not None:
        from vpgcnn.training.checkpoint import read_card
        from vpgcnn.training.run import chosen_weights

        return read_card(chosen_weights(options.start)).model
    if options.network is None:
        return None
    from vpgcnn.models import MODELS

    if options.network not in MODELS:
        raise UserError(f"unknown network {options.network!r}: choose from {', '.join(MODELS)}")
    return MODELS[options.network].config


def _given(words: list[str], name: str) -> str | None:
    """The value of a setting among words, where it is a whole number: it is needed before the others are read."""
    for place, word in enumerate(words):
        value = words[place + 1] if word == name and place + 1 < len(words) else word.removeprefix(f"{name}=")
        if (word == name or word.startswith(f"{name}=")) and value.isdigit():
            return value
    return None


def _config(default: TrainConfig, words: list[str], program: str) -> TrainConfig:
    import tyro

    return tyro.cli(
        TrainConfig, default=default, args=words, prog=program,
        description="Settings of this run with their values. Besides: --preset, --out, --resume, --json, --network and "
        "--start, which `vpgcnn train --help` explains.",
        config=(tyro.conf.AvoidSubcommands,),
    )  # fmt: skip
