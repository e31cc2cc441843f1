"""Groups, levels and kernels as text, for configuration files and the command line.

    >>> parse("Variational(Window(initial=0.5), condition='output')", LevelSpec)
    Variational(family=Window(initial=0.5, floor=0.03), condition='output', encoder_width=None, detach_features=False)
    >>> text(SO2(8))
    'SO2(8)'

The text is the call that makes the value. It is parsed, never executed: only names that are registered can be
called, and only with numbers, texts, None, True, False and other such values. `register` adds a class.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import inspect
import math
import types
import typing
from typing import Any, TypeVar

from vpgcnn.errors import UserError
from vpgcnn.groups import O2, SO2, Dihedral, Group, Hue, Luminance, Product, Rotations, Saturation
from vpgcnn.kernels import (
    Constrained,
    Harmonic,
    KernelSpec,
    Nonstationary,
    Projected,
    Relaxed,
    ResidualPathway,
    Siren,
    Table,
)
from vpgcnn.levels import (
    Family,
    Fixed,
    Full,
    GumbelSoftmax,
    LevelSpec,
    Mixture,
    RankedSoftmax,
    ReparametrizedWindow,
    SampledWindow,
    Shared,
    Variational,
    Window,
)

__all__ = ["KINDS", "names", "parse", "register", "text"]

T = TypeVar("T")

KINDS: dict[type[Any], str] = {Group: "group", LevelSpec: "level", KernelSpec: "kernel", Family: "family"}
"""The kinds of values, and what each is called."""
ALIASES: dict[str, str] = {
    "none": "Rotations(1)",
    "full": "Full()",
    "shared": "Shared()",
    "variational": "Variational()",
}
"""Shorthands for the command line."""
LONGEST = 1000
"""Characters of a text, at most."""
_known: dict[str, type] = {}


def register(kind: type[T]) -> type[T]:
    """Let a class be named in configurations and on the command line. Usable as a decorator.

    Args:
        kind: A frozen dataclass that derives from `Group`, `LevelSpec`, `KernelSpec` or `Family`.

    Returns:
        The class.
    """
    if not any(issubclass(kind, base) for base in KINDS) or not dataclasses.is_dataclass(kind):
        raise TypeError(f"expected a dataclass that is a group, level, kernel or family, got {kind!r}")
    taken = _known.get(kind.__name__)
    if taken is not None and taken.__module__ != kind.__module__:
        raise ValueError(f"the name {kind.__name__} is taken by {taken.__module__}.{taken.__qualname__}")
    _known[kind.__name__] = kind
    return kind


for _kind in (
    *(O2, SO2, Dihedral, Hue, Saturation, Luminance, Product, Rotations, Fixed, Full, Shared, Variational),
    *(Siren, Table, Harmonic, Relaxed, ResidualPathway, Projected, Nonstationary, Constrained),
    *(Window, SampledWindow, ReparametrizedWindow, RankedSoftmax, GumbelSoftmax, Mixture),
):
    register(_kind)


def names(kind: type) -> list[str]:
    """The registered names of a kind, say of `LevelSpec`."""
    return [name for name, each in _known.items() if issubclass(each, kind)]


def text(value: object) -> str:
    """The call that makes a value, without arguments that have their default; those of groups are always written.

    Required arguments and the first one are positional, the others are named, as in
    "Variational(Window(0.5), condition='output')".
    """
    if not isinstance(value, tuple(KINDS)):
        return repr(value)
    words = []
    for place, part in enumerate(dataclasses.fields(value)):  # type: ignore[arg-type]
        argument = getattr(value, part.name)
        default = part.default if part.default_factory is dataclasses.MISSING else part.default_factory()
        required = default is dataclasses.MISSING
        if not required and argument == default and not isinstance(value, Group):
            continue
        positional = not part.kw_only and (required or (place == 0 and not isinstance(argument, bool)))
        words.append(text(argument) if positional else f"{part.name}={text(argument)}")
    return f"{type(value).__name__}({', '.join(words)})"


def parse(call: str, kind: type[T]) -> T:
    """The value that a text describes.

    Args:
        call: Such as "SO2(8)", "Variational(Window(0.5))", or a shorthand: "full", "shared", "variational", "none".
        kind: What it must be: `Group`, `LevelSpec`, `KernelSpec` or `Family`.
    """
    what = KINDS[kind]
    shown = call if len(call) <= LONGEST else f"{call[:LONGEST]}…"
    refusal = f"{shown!r} is not a {what}: write one such as {_example(kind)}"
    if len(call) > LONGEST:
        raise UserError(refusal)
    try:
        tree = ast.parse(ALIASES.get(call.strip().lower(), call.strip()), mode="eval").body
    except (SyntaxError, ValueError, RecursionError) as error:
        raise UserError(refusal) from error
    value = _evaluate(tree, call, kind)
    if not isinstance(value, kind):
        raise UserError(refusal)
    return value


def _example(kind: type[Any]) -> str:
    examples: dict[type[Any], str] = {Group: "SO2(8)", LevelSpec: "Variational()", KernelSpec: "Siren(omega=4)"}
    return examples.get(kind, "Window(0.5)")


def _evaluate(tree: ast.expr, call: str, kind: type) -> Any:
    if isinstance(tree, ast.Name | ast.Call):
        name = tree.id if isinstance(tree, ast.Name) else getattr(tree.func, "id", "")
        if name not in _known:
            close = difflib.get_close_matches(name, [*_known, *ALIASES], 1)
            hint = f"did you mean {close[0]}?" if close else f"choose from {', '.join(names(kind))}"
            hint += "" if close else ", or load the file that registers it with --use FILE.py"
            raise UserError(f"unknown {KINDS[kind]} {name or call!r}: {hint}")
        if isinstance(tree, ast.Name):
            return _make(_known[name], call, [], {})
        starred = any(isinstance(argument, ast.Starred) for argument in tree.args)
        if starred or any(part.arg is None for part in tree.keywords):
            raise UserError(f"cannot read {call!r}: * and ** have no meaning here")
        arguments = [_evaluate(argument, call, kind) for argument in tree.args]
        named = {str(part.arg): _evaluate(part.value, call, kind) for part in tree.keywords}
        if len(named) < len(tree.keywords):
            raise UserError(f"cannot read {call!r}: an argument is given twice")
        return _make(_known[name], call, arguments, named)
    try:
        return ast.literal_eval(tree)
    except (ValueError, TypeError, RecursionError) as error:
        raise UserError(f"cannot read {call!r}: arguments are numbers, texts or other values") from error


def _make(kind: type, call: str, arguments: list[Any], named: dict[str, Any]) -> Any:
    """Call a registered class, once its arguments are known to be of the right types."""
    try:
        given = inspect.signature(kind).bind(*arguments, **named).arguments
        hints = _hints(kind)
        for name, value in given.items():
            if name in hints and not _fits(value, hints[name]):
                raise TypeError(f"{name} must be {_in_words(hints[name])}, got {value!r}")
        return kind(*arguments, **named)
    except (TypeError, ValueError) as error:
        raise UserError(f"{call!r}: {kind.__name__}: {error}") from error


def _hints(kind: type) -> dict[str, Any]:
    """The types of a class's fields; nothing where they cannot be found, say in a plug-in that imports them later."""
    try:
        return typing.get_type_hints(kind)
    except NameError:
        return {}


def _fits(value: object, hint: Any) -> bool:
    """Whether a value is of a type, as far as that can be checked: True for types that are not known here."""
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, option) for option in options)
    if origin is typing.Literal:
        return value in options
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return not isinstance(hint, type) or isinstance(value, hint)


def _in_words(hint: Any) -> str:
    options = typing.get_args(hint)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " or ".join(_in_words(option) for option in options)
    if typing.get_origin(hint) is typing.Literal:
        return " or ".join(map(repr, options))
    words = {float: "a number", int: "a whole number", bool: "True or False", str: "a text", type(None): "None"}
    kinds = {kind: f"a {name} such as {_example(kind)}" for kind, name in KINDS.items()}
    return (words | kinds).get(hint, str(hint))
