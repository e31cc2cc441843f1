"""Helpers that several commands share."""

from __future__ import annotations

import argparse
import difflib
import json
import re
import shlex
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from vpgcnn.errors import UserError

if TYPE_CHECKING:
    from tyro.constructors import ConstructorRegistry

__all__ = [
    "BadSpecError",
    "CommandParser",
    "UsageError",
    "check_file",
    "check_out",
    "closest",
    "command_line",
    "data_dir_option",
    "parser",
    "plural",
    "print_json",
    "remember_use",
    "spec_registry",
    "table",
    "unknown",
]


class UsageError(UserError):
    """A command line that was not understood."""

    exit_code = 2


class BadSpecError(Exception):
    """Passes through tyro, which would catch a ValueError and print a box."""


class CommandParser(argparse.ArgumentParser):
    """A parser that says what is wrong in one sentence, with the closest name that exists.

    Args:
        strict: Whether arguments that are not known are errors. False leaves them to the caller.
        options: As for `argparse.ArgumentParser`.
    """

    def __init__(self, *, strict: bool = True, **options: Any) -> None:
        super().__init__(**options)
        self.strict = strict

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """As in argparse, but strict parsers refuse what they do not know, and "-3%" is a value, not an option."""
        words = list(sys.argv[1:] if args is None else args)
        for place in reversed(range(1, len(words))):
            odd = re.match(r"-\.?\d", words[place]) and not re.fullmatch(r"-\d+|-\d*\.\d+", words[place])
            if odd and re.fullmatch(r"--[\w-]+", words[place - 1]):  # argparse knows plain numbers
                words[place - 1 : place + 1] = [f"{words[place - 1]}={words[place]}"]
        found, rest = super().parse_known_args(words, namespace)
        once = [word for action in self._actions if action.nargs != 0 for word in action.option_strings]
        self._check_once(words, once)
        if rest and self.strict:
            name = rest[0].partition("=")[0]
            if not name.startswith("-"):
                self.error(f"unexpected argument {name!r}")
            hint = closest(name, re.findall(r"--[\w-]+", self.format_usage()))
            self.error(f"unknown option {name}{f': did you mean {hint}?' if hint else ''}")
        return found, rest

    def _check_once(self, words: Sequence[str], options: Sequence[str]) -> None:
        """Refuse an option that is given twice, of which the last would count without a word."""
        given = [word.partition("=")[0] for word in words if word.startswith("--")]
        for place, name in enumerate(given):
            if name in options and name in given[:place]:
                self.error(f"{name} is given twice: leave one out")

    def error(self, message: str) -> NoReturn:
        """Raise a `UsageError` instead of printing the usage."""
        message = message.removeprefix("argument ")
        message = re.sub(r": invalid int value: ", " takes a whole number, got ", message)
        message = re.sub(r": invalid float value: ", " takes a number, got ", message)
        wrong = re.fullmatch(r"(?:argument )?(.*): invalid choice: '(.*)' \(choose from (.*)\)", message)
        if wrong:
            choices = [choice.strip("' ") for choice in wrong[3].split(",")]
            hint = closest(wrong[2], choices)
            advice = f"did you mean {hint}?" if hint else f"choose from {', '.join(choices)}"
            message = f"{wrong[1]}: unknown value {wrong[2]!r}: {advice}"
        raise UsageError(f"{message} (see `{self.prog} --help`)")


_USED: list[str] = []
"""The words `--use FILE.py` of this command line."""


def remember_use(words: Iterable[str]) -> None:
    """Keep the words before the command, so that advice can repeat them."""
    _USED[:] = words


def command_line(*words: object) -> str:
    """A command to paste into a shell, with the plug-ins of this one."""
    return shlex.join(["vpgcnn", *_USED, *map(str, words)])


def closest(name: str, choices: Iterable[str]) -> str | None:
    """Return the choice that looks most like a name, None if none does."""
    return next(iter(difflib.get_close_matches(name, list(choices), 1)), None)


def parser(name: str, about: str) -> CommandParser:
    """Return a parser whose help keeps its line breaks."""
    return CommandParser(
        prog=f"vpgcnn {name}",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def data_dir_option(command: argparse.ArgumentParser) -> None:
    """Add --data-dir, the directory of the published files."""
    command.add_argument(
        "--data-dir", type=Path, help="directory of the published files (default: $VPGCNN_DATA, or your cache)"
    )


def check_file(path: Path) -> None:
    """Refuse a file that cannot be written before the work starts, not after it."""
    there = next(each for each in path.absolute().parents if each.exists())
    if path.is_dir():
        raise UserError(f"cannot write {path}: it is a folder")
    if not _is_writable(there):
        raise UserError(f"cannot write {path}: {there} is not a writable folder")


def check_out(out: Path) -> None:
    """Refuse a folder that cannot be written before the work starts, not after it."""
    there = next(path for path in (out, *out.absolute().parents) if path.exists())
    if not _is_writable(there):
        raise UserError(f"cannot write to {out}: {there} is not a writable folder")


def _is_writable(folder: Path) -> bool:
    """Whether a file can be made in a folder. Its permissions do not say: /proc has those of any other folder."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def print_json(data: Any) -> None:
    """Print one JSON document to standard output."""
    print(json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False))  # noqa: T201


def table(rows: list[tuple[str, ...]]) -> None:
    """Print aligned columns."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())  # noqa: T201


def plural(count: int, noun: str) -> str:
    """Return "1 image", "2 images" or "1,000 images"."""
    return f"{count:,} {noun if count == 1 else 'classes' if noun == 'class' else noun + 's'}"


def unknown(what: str, name: str, choices: Iterable[str], otherwise: str = "") -> UserError:
    """Return the error for a name that does not exist, with the closest one that does.

    Args:
        what: What the name should be, such as "recipe".
        name: What the user wrote.
        choices: All names.
        otherwise: What else there is, said after the choices.
    """
    names = list(choices)
    close = closest(name, names)
    hint = f"did you mean {close}?" if close else f"choose from {', '.join(names)}{otherwise}"
    return UserError(f"unknown {what} {name!r}: {hint}")


def spec_registry() -> ConstructorRegistry:
    """Return a registry with which tyro reads groups, levels and kernels as text, such as "SO2(8)"."""
    from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

    from vpgcnn.lab import specs

    registry = ConstructorRegistry()

    @registry.primitive_rule
    def rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
        kind = info.type
        if kind not in specs.KINDS:
            return None

        def read(words: list[str]) -> Any:
            try:
                return specs.parse(words[0], kind)
            except UserError as error:
                raise BadSpecError(str(error)) from error

        return PrimitiveConstructorSpec(
            nargs=1,
            metavar=specs.KINDS[kind].upper(),
            instance_from_str=read,
            is_instance=lambda value: isinstance(value, kind),
            str_from_instance=lambda value: [specs.text(value).replace("'", '"')],  # in single quotes for the shell
        )

    return registry
