"""vpgcnn train."""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
import textwrap
import types
import typing
from collections import Counter
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from vpgcnn.apps.commands.common import (
    BadSpecError,
    CommandParser,
    UsageError,
    check_out,
    closest,
    command_line,
    plural,
    print_json,
    spec_registry,
    unknown,
)
from vpgcnn.errors import UserError
from vpgcnn.lab.malloc import keep_memory
from vpgcnn.lab.networks.config import ModelConfig
from vpgcnn.lab.training.config import OBJECTIVES, TrainConfig
from vpgcnn.lab.training.recipes import RECIPES, recipe


def _entry(name: str, about: str) -> str:
    """A line of the list of recipes, wrapped."""
    return textwrap.fill(about, 118, initial_indent=f"  {name:<15}", subsequent_indent=" " * 17)


HELP = f"""usage: vpgcnn train RECIPE [--preset cpu|paper] [--out FOLDER] [--resume] [--json] [settings]
       vpgcnn train FOLDER [--group auto|hue|rotation|both|mirror|none] [the same options]

Recipes:
{chr(10).join(_entry(name, entry.about) for name, entry in RECIPES.items())}

Your images: FOLDER (or --data FOLDER) has one folder per class (FOLDER/CLASS/*.jpg, or the same inside FOLDER/train,
FOLDER/validation and FOLDER/test); or give an .npz file. The name of a recipe is the recipe: write ./NAME for a folder
of that name. The command looks at the images, chooses split, image size, network
and number of epochs, and prints its choices; you can change every setting.
  --group auto       which symmetry to build in (default: auto, the one that `vpgcnn look FOLDER` begins with)

Options:
  --network NAME     use another network; `vpgcnn models` lists them
  --objective NAME   what windows cost in the loss: price, schedule, dual or band (default: the recipe's)
  --lr LR            highest learning rate: short for --optimiser.lr
  --start RUN        start from the network and weights of a run or weights file, such as one from `vpgcnn convert`
  --preset cpu       small enough for two cores (default)
  --preset paper     the paper's network size and number of epochs: needs a GPU
  --out FOLDER       folder of the run (default: runs/RECIPE); it must not contain another run
  --skip-damaged     leave out images of a folder that cannot be read, and list them
  --resume           continue the run in that folder exactly where it stopped; start it if there is none
  --track NAME       also send the metrics to tensorboard or wandb; `vpgcnn watch FOLDER` shows them without either
  --json             print the result as JSON

Settings: you can change every setting of a recipe; `vpgcnn train RECIPE --help` lists those that are changed most, with
their values, and --help-all all of them.
Groups, levels and kernels are written as in Python, in quotes.
  vpgcnn train mnist67-180 --model.level full --seed 1 --out runs/full-1
  vpgcnn train mnist67-180 --model.level "Variational(Window(0.5), condition='output')" --out runs/half
  vpgcnn train mnist67-180 --model.group "SO2(16)" --model.kernel "Siren(omega=8)" --out runs/fine
  vpgcnn train photos/ --out runs/photos                          your images in photos/CLASS/*.jpg
  vpgcnn train photos/ --group hue --epochs 20 --data.size 96
  torchrun --nproc-per-node 2 -m vpgcnn train cifar10-se2         several processes, same result

Ctrl-C finishes the current step, saves the state, and prints the command that continues the run.
"""


HELPS = ("-h", "--help", "--help-all")


def main(arguments: list[str]) -> int:
    """Train a recipe, or a network on the user's images."""
    if not arguments:
        raise UsageError("name a recipe or a folder of images: vpgcnn train mnist67-180 (see `vpgcnn train --help`)")
    if arguments[0] in ("-h", "--help"):
        print(HELP, end="")  # noqa: T201
        return 0
    options, rest = _options(arguments)
    program = f"vpgcnn train {options.recipe or options.folder or f'--data {options.data}'}"
    out = options.out or Path("runs") / (options.recipe or Path(options.data).stem or "images")
    if options.data is not None and not any(word in HELPS for word in rest):
        _check_first(rest, program, out, options)
    config = _config(_default(options, rest, out), rest, program)
    if any(word.startswith("--model.level") for word in rest) and not config.model.level.is_full:
        from vpgcnn.lab.networks import symmetry

        if symmetry(config.model) == "none":
            raise UserError("--model.level has no effect on a network without a group: leave it out, or choose a group")
    if options.data is not None and not options.json and config.epochs > 0:
        print(f"{plural(config.epochs, 'epoch')}, batch size {config.batch_size}, augmentation {config.data.augment}")  # noqa: T201
    from vpgcnn.lab.training.loop import Interrupted, train
    from vpgcnn.lab.training.progress import Progress, Quiet

    keep_memory()
    if options.resume and not (out / "config.json").exists() and os.environ.get("RANK", "0") == "0":
        print(f"vpgcnn: there is no run in {out} to resume, so a new one begins", file=sys.stderr)  # noqa: T201
    try:
        result = train(config, out, resume=options.resume, progress=Quiet() if options.json else Progress())
    except Interrupted as stop:
        again = command_line("train", *(word for word in arguments if word != "--resume"), "--resume")
        print(f"vpgcnn: {stop}\ncontinue with: {again}", file=sys.stderr)  # noqa: T201
        return 130
    if options.json:
        print_json(result)
    else:
        test = result["test"]
        accuracy = f"test accuracy {test['accuracy']:.2%}" if test["images"] else "no test"
        where = f"epoch {result['epoch']}, {result['parameters']:,} parameters, {result['seconds']:.0f} s"
        print(f"{accuracy} on {plural(test['images'], 'image')} ({where})")  # noqa: T201
        print(f"written to {out}; inspect it with: {command_line('evaluate', out)}")  # noqa: T201
    return 0


def _options(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    command = CommandParser(prog="vpgcnn train", add_help=False, allow_abbrev=False, strict=False)
    command.add_argument("--preset", choices=("cpu", "paper"), default="cpu")
    command.add_argument("--data", type=Path)
    command.add_argument("--group", choices=("auto", "hue", "rotation", "both", "mirror", "none"))
    command.add_argument("--network")
    command.add_argument("--objective", choices=tuple(OBJECTIVES))
    command.add_argument("--lr")
    command.add_argument("--start", type=Path)
    command.add_argument("--out", type=Path)
    command.add_argument("--resume", action="store_true")
    command.add_argument("--skip-damaged", action="store_true")
    command.add_argument("--json", action="store_true")
    named = not arguments[0].startswith("-")
    options, rest = command.parse_known_args(arguments[1:] if named else arguments)
    options.recipe, options.folder = arguments[0] if named else None, None
    if named and options.recipe not in RECIPES and _is_place(options.recipe):
        if options.data is not None:
            raise UserError("the folder is given twice: leave out --data")
        options.folder = options.recipe
        options.data, options.recipe, named = Path(options.recipe), None, False
    if options.data is not None and options.data.is_file() and options.data.suffix != ".npz":
        raise UserError(f"{options.data} is a file: give the folder of the images, or an .npz file")
    given = {word.split("=")[0] for word in rest if word.startswith("--")}
    for short, name in (("lr", "--optimiser.lr"), ("start", "--start-from")):
        if getattr(options, short) is not None and name in given:
            raise UserError(f"--{short} cannot be combined with {name}: they set the same thing")
    if "--use" in given:
        raise UserError("--use goes before the command: vpgcnn --use FILE.py train …")
    rest += [] if options.lr is None else ["--optimiser.lr", options.lr]
    rest += ["--data.skip-damaged"] if options.skip_damaged else []
    if not named and options.data is None:
        raise UserError("the recipe comes first: vpgcnn train mnist67-180 …; for your images: vpgcnn train FOLDER …")
    if named and options.data is not None:
        raise UserError(
            f"--data cannot be combined with the recipe {options.recipe}: leave the recipe out, or set --data.name"
        )
    if options.group is not None and named:
        raise UserError(
            f"--group belongs to a folder of images, and {options.recipe} is a recipe: set its --model.group instead"
        )
    fixed = "--network" if options.network else "--start" if options.start else "--model.group"
    if options.group is not None and (fixed != "--model.group" or fixed in given):
        raise UserError(f"--group cannot be combined with {fixed}, which sets the group already: leave one out")
    if options.network and options.start:
        raise UserError("--network and --start cannot be combined: --start already fixes the network")
    return options, rest


def _is_place(word: str) -> bool:
    """Whether a word is a folder or file, or can only be meant as one."""
    return Path(word).exists() or "/" in word or "\\" in word or word.endswith(".npz")


def _default(options: argparse.Namespace, rest: list[str], out: Path) -> TrainConfig:
    """The run before any setting is changed."""
    network = _network(options)
    if options.recipe is not None:
        if options.recipe not in RECIPES:
            if closest(options.recipe, RECIPES) is None:
                raise UserError(
                    f"there is no folder or file {options.recipe}, and no recipe of that name: recipes are "
                    f"{', '.join(RECIPES)}"
                )
            raise unknown("recipe", options.recipe, RECIPES)
        config = recipe(options.recipe, options.preset)
        config = config if network is None else replace(config, model=network)
    elif options.resume and network is None and options.group is None and (out / "config.json").is_file():
        from vpgcnn.apps.commands.use import same_place
        from vpgcnn.lab.config_io import from_json, read_json

        begun = from_json(TrainConfig, read_json(out / "config.json"), str(out / "config.json"))
        same = same_place(begun.data.name, options.data)
        config = begun if same else replace(begun, data=replace(begun.data, name=str(options.data.resolve())))
        options.start = options.start or config.start_from
    else:
        from vpgcnn.lab.diagnosis.suggest import suggest
        from vpgcnn.lab.training.progress import Progress, Quiet

        size, seed = _given(rest, "--data.size") or _start_size(options), _given(rest, "--seed")
        quiet = options.json or any(word in HELPS for word in rest)
        with Quiet() if quiet else Progress() as progress:
            found = suggest(
                options.data, choice=options.group or "auto", network=network, size=size, seed=seed or 0,
                skip_damaged=options.skip_damaged or "--data.skip-damaged" in rest, progress=progress,
            )  # fmt: skip
        if not quiet:
            print("\n".join(found.messages))  # noqa: T201
        config = found.config
    if options.objective is not None and options.objective != config.objective.name:
        config = replace(config, objective=OBJECTIVES[options.objective]())
    return replace(config, start_from=options.start)


def _check_first(words: list[str], program: str, out: Path, options: argparse.Namespace) -> None:
    """Check what can be checked before the user's photographs are looked at, which takes a while.

    The network is not known yet: of its settings, only names, groups, levels and kernels are checked.
    """
    from vpgcnn.lab.specs import KINDS, parse
    from vpgcnn.lab.training.checks import check_numbers, check_settings, check_threads
    from vpgcnn.lab.training.run import Run

    kinds = {f"--model.{what}": kind for kind, what in KINDS.items()}
    others: list[str] = []
    setting = ""
    for word in words:
        setting, equals, inline = word.partition("=") if word.startswith("--") else (setting, "=", word)
        if not setting.startswith("--model."):
            others.append(word)
        elif setting in kinds and equals:
            try:
                parse(inline, kinds[setting])
            except UserError as error:
                raise UsageError(f"{error} (see `{program} --help`)") from error
    start = TrainConfig()
    if options.objective is not None:
        start = replace(start, objective=OBJECTIVES[options.objective]())
    _check_names(start, words, program)
    config = _config(start, others, program)
    check_numbers(config, "")
    check_settings(config, processes=1)
    check_threads(config.threads)
    if not options.resume:
        Run(out, config).check(resume=False)
        check_out(out)


def _network(options: argparse.Namespace) -> ModelConfig | None:
    """The network that replaces the recipe's, if any."""
    if options.start is not None:
        from vpgcnn.lab.training.checkpoint import read_card
        from vpgcnn.lab.training.run import chosen_weights

        return read_card(chosen_weights(options.start)).model
    if options.network is None:
        return None
    from vpgcnn.lab.networks import MODELS

    if options.network not in MODELS:
        raise unknown("network", options.network, MODELS)
    return MODELS[options.network].config


def _start_size(options: argparse.Namespace) -> int | None:
    """The image side that the network to start from was made for; None without one."""
    if options.start is None:
        return None
    from vpgcnn.lab.training.checkpoint import read_card
    from vpgcnn.lab.training.run import chosen_weights

    return read_card(chosen_weights(options.start)).size


def _given(words: list[str], name: str) -> int | None:
    """The whole number that a setting has among the words; it is needed before the others are read."""
    for place, word in enumerate(words):
        value = words[place + 1] if word == name and place + 1 < len(words) else word.removeprefix(f"{name}=")
        if (word == name or word.startswith(f"{name}=")) and value.isdigit():
            return int(value)
    return None


def _config(default: TrainConfig, words: list[str], program: str) -> TrainConfig:
    """The run with the settings that the words change."""
    import tyro

    _check_names(default, words, program)
    whole = "--help-all" in words
    words = ["--help"] if any(word in HELPS for word in words) else words
    said, shown = io.StringIO(), io.StringIO()
    try:
        with spec_registry(), redirect_stderr(said), redirect_stdout(shown if words == ["--help"] else sys.stdout):
            return tyro.cli(
                TrainConfig, default=default, args=words, prog=program,
                description="The settings of this run and their values. `vpgcnn train --help` explains --preset, "
                "--out, --resume, --json, --network, --objective and --start.",
                config=(tyro.conf.AvoidSubcommands,),
            )  # fmt: skip
    except BadSpecError as error:
        raise UsageError(f"{error} (see `{program} --help`)") from error
    except SystemExit as stop:
        if not stop.code:  # --help
            print(shown.getvalue() if whole else _most_used(shown.getvalue(), program), end="")  # noqa: T201
            raise
        wrong = _in_words(_in_the_box(said.getvalue()))
        raise UsageError(f"{wrong}{_instead(wrong, default)} (see `{program} --help`)") from stop


MOST_USED = (
    "--epochs", "--batch-size", "--seed", "--device", "--threads", "--data.name", "--data.size", "--data.limit",
    "--data.augment", "--model.group", "--model.level", "--model.where", "--model.kernel", "--model.width",
    "--model.widths", "--optimiser.lr",
)  # fmt: skip
"""The settings that --help lists; --help-all lists all."""


def _most_used(text: str, program: str) -> str:
    """The most used settings out of tyro's help, with what it says about each."""
    entries: dict[str, list[str]] = {}
    name = ""
    for line in text.splitlines():
        line = line.strip("│ ")
        found = re.match(r"--[\w.-]+", line)
        name = found[0] if found else name if line and line.strip("─-") else ""
        if name:
            entries.setdefault(name, []).append(line)
    groups = Counter(each.partition(".")[0] for each in entries if "." in each)
    listed = ", ".join(f"{group}.* ({count})" for group, count in groups.items())
    lines = [f"usage: {program} [settings]", "", "The settings that are changed most, and their values:"]
    for each in MOST_USED:
        if each in entries:
            first, *about = entries[each]
            lines += [
                f"  {first}",
                textwrap.fill(" ".join(about), 112, initial_indent=" " * 6, subsequent_indent=" " * 6),
            ]
    lines += ["", f"All {len(entries)} settings, {listed} and others: {program} --help-all"]
    lines.append("--preset, --out, --resume, --network, --objective and --start: vpgcnn train --help")
    return "\n".join(lines) + "\n"


def _instead(wrong: str, config: TrainConfig) -> str:
    """The setting of this network or objective that may have been meant; empty if none looks alike."""
    found = re.match(rf"(--\S+) {FOREIGN}", wrong)
    if not found:
        return ""
    group, _, name = found[1].rpartition(".")
    part = getattr(config, group.removeprefix("--").replace("-", "_"), None)
    own = [inner.name.replace("_", "-") for inner in fields(part)] if is_dataclass(part) else []
    near = closest(name, own)  # of the last part: the first one is the same for all
    close = f"{group}.{near}" if near else None
    return f": did you mean {close}?" if close else ""


FOREIGN = "does not belong to this network or objective"
"""What is said of a setting that another network or objective has."""


def _in_words(text: str) -> str:
    """What tyro says about a wrong value, as a person would say it."""
    for pattern, plain in (
        (r"Error parsing (\S+): invalid literal for int\(\) with base 10: (.*)", r"\1 takes a whole number, got \2"),
        (r"Error parsing (\S+): could not convert string to float: (.*)", r"\1 takes a number, got \2"),
        (r"Error parsing (\S+): Could not find valid parse for arguments: \[(.*)\]", r"\1 does not take \2"),
        (r"Missing value for argument '(\S+)'.*", r"\1 needs a value"),
        (r"Unrecognized options: (--\S+?),? .*", rf"\1 {FOREIGN}"),
        (r"Error parsing (\w[\w-]*): (.*)", r"--\1: \2"),
        (r"Unrecognized options: (\S+).*", r"unexpected argument '\1'"),
    ):
        text, found = re.subn(f"^{pattern}$", plain, text)
        if found:
            return text
    wrong = re.fullmatch(r"invalid choice '(.*)' for argument '(\S+)'. Expected one of \((.*)\)", text)
    if wrong:
        choices = [choice.strip("' ") for choice in wrong[3].split(",") if choice.strip()]
        close = closest(wrong[1], choices)
        return f"{wrong[2]}: unknown value {wrong[1]!r}: " + (
            f"did you mean {close}?" if close else f"choose from {', '.join(choices)}"
        )
    return text


def _in_the_box(text: str) -> str:
    """The sentence in a box that tyro printed: what follows the title, up to the next rule."""
    lines = [line.strip(" │╭╮╰╯") for line in text.splitlines()]
    kept: list[str] = []
    for line in lines[1:]:
        if not line.strip("─-"):
            if kept:
                break
            continue
        kept.append(line)
    return " ".join(kept).removesuffix(".").strip() or "the settings were not understood"


def _check_names(default: TrainConfig, words: list[str], program: str) -> None:
    """Refuse settings that do not exist."""
    known = {"--help", "--help-all", *_settings(default)}
    seen: set[str] = set()
    for word in words:
        name = word.partition("=")[0].replace("_", "-")
        if name in seen:
            raise UsageError(f"{name} is given twice: leave one out (see `{program} --help`)")
        if name in known and name not in HELPS:
            seen.add(name)
        if word.startswith("--") and name not in known:
            close = _meant(name, known)
            hint = f": did you mean {close}?" if close else ""
            raise UsageError(f"unknown setting {word.partition('=')[0]}{hint} (see `{program} --help`)")


SYNONYMS = {"--learning-rate": "--lr", "--rate": "--lr", "--batch": "--batch-size", "--size": "--data.size"}
"""What other programs call a setting."""
OPTIONS = (
    "--preset",
    "--data",
    "--group",
    "--network",
    "--objective",
    "--lr",
    "--start",
    "--out",
    "--resume",
    "--json",
    "--skip-damaged",
)
"""The options that are not settings of a run."""


def _meant(name: str, known: set[str]) -> str | None:
    """The setting that a wrong name was meant to be: a synonym, the last part of a setting's name, or a typo."""
    ends = sorted(each for each in known if each.rpartition(".")[2] == name.removeprefix("--"))
    return SYNONYMS.get(name) or next(iter(ends), None) or closest(name, [*OPTIONS, *sorted(known)])


def _settings(config: Any, prefix: str = "--") -> Iterator[str]:
    """The names of all settings on the command line, including those of alternatives."""
    kind = config if isinstance(config, type) else type(config)
    hints = typing.get_type_hints(kind)
    for part in fields(kind):
        name = part.name.replace("_", "-")
        value = None if isinstance(config, type) else getattr(config, part.name)
        union = isinstance(hints[part.name], types.UnionType)
        parts = [value] if is_dataclass(value) else []
        parts += [each for each in typing.get_args(hints[part.name]) if union and is_dataclass(each)]
        parts += [hints[part.name]] if not parts and is_dataclass(hints[part.name]) else []
        inner = [found for each in parts for found in _settings(each, f"{prefix}{name}.")]
        yield from inner
        yield f"{prefix}{name}"
        if hints[part.name] is bool:
            yield f"{prefix}no-{name}"
