"""vpgcnn train."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from vpgcnn.commands.common import print_json
from vpgcnn.errors import UserError
from vpgcnn.training.config import TrainConfig
from vpgcnn.training.recipes import RECIPES, recipe

HELP = f"""usage: vpgcnn train RECIPE [--preset cpu|paper] [--out FOLDER] [--resume] [--json] [settings]

Recipes:
{chr(10).join(f"  {name:<14} {entry.about}" for name, entry in RECIPES.items())}

  --preset cpu       small enough for two cores (default)
  --preset paper     the paper's size and number of epochs: for a GPU
  --out FOLDER       the run's folder (default: runs/RECIPE); it must not hold another run
  --resume           go on with the run in that folder exactly where it was, or begin it
  --json             print the result as JSON

Every setting of the recipe can be changed; `vpgcnn train RECIPE --help` lists them all with their values:
  vpgcnn train mnist67-180 --model.level full --seed 1 --out runs/full-1
  vpgcnn train mnist67-180 --data.name photos/ --data.size 28 --batch-size 16    your own, photos/CLASS/*.png
  torchrun --nproc-per-node 2 -m vpgcnn train cifar10-se2         several processes, the same result
Ctrl-C finishes the step, saves, and says how to go on.
"""


def main(arguments: list[str]) -> int:
    """Train a recipe."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(HELP, end="")  # noqa: T201
        return 0 if arguments else 2
    options, rest = _options(arguments)
    config = _config(recipe(options.recipe, options.preset), rest)
    out = options.out or Path("runs") / options.recipe
    from vpgcnn.training.loop import Interrupted, train
    from vpgcnn.training.progress import Progress, Quiet

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
        print(f"written to {out}; look at it with: vpgcnn evaluate {out}")  # noqa: T201
    return 0


def _options(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    command = argparse.ArgumentParser(prog="vpgcnn train", add_help=False, allow_abbrev=False)
    command.add_argument("recipe")
    command.add_argument("--preset", choices=("cpu", "paper"), default="cpu")
    command.add_argument("--out", type=Path)
    command.add_argument("--resume", action="store_true")
    command.add_argument("--json", action="store_true")
    options, rest = command.parse_known_args(arguments)
    if options.recipe.startswith("-"):
        raise UserError("the recipe comes first: vpgcnn train mnist67-180 …")
    return options, rest


def _config(default: TrainConfig, words: list[str]) -> TrainConfig:
    import tyro

    return tyro.cli(
        TrainConfig, default=default, args=words, prog="vpgcnn train RECIPE", description=HELP,
        config=(tyro.conf.AvoidSubcommands,),
    )  # fmt: skip
