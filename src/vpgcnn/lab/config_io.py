"""Configurations to JSON and back, and files that are replaced as a whole."""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import hashlib
import json
import os
import platform
import re
import shutil
import types
import typing
from pathlib import Path
from typing import Any, TypeVar

from vpgcnn.errors import UserError
from vpgcnn.lab import specs

__all__ = ["from_json", "read_json", "scratch_beside", "to_json", "write_bytes", "write_json"]

T = TypeVar("T")


def to_json(config: Any) -> dict[str, Any]:
    """A configuration as plain data for JSON; groups, levels and kernels become text."""

    def plain(value: Any) -> Any:
        if isinstance(value, tuple(specs.KINDS)):
            return specs.text(value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {part.name: plain(getattr(value, part.name)) for part in dataclasses.fields(value)}
        if isinstance(value, tuple | list):
            return [plain(item) for item in value]
        return str(value) if isinstance(value, Path) else value

    data: dict[str, Any] = plain(config)
    return data


def from_json(kind: type[T], data: Any, where: str = "config") -> T:
    """The configuration that plain data describe.

    Args:
        kind: The dataclass to make.
        data: What `to_json` returned; fields that are missing take their defaults.
        where: Name of the data in error messages.

    Raises:
        UserError: If a field is unknown, missing or has a wrong value; the message names it.
    """
    if not isinstance(data, dict):
        raise UserError(f"{where} must be an object with fields, got {data!r}")
    hints = typing.get_type_hints(kind)
    parts = {part.name for part in dataclasses.fields(kind)}  # type: ignore[arg-type]
    unknown = sorted(set(data) - parts)
    if unknown:
        raise UserError(f"{where} has no field {unknown[0]!r}: choose from {', '.join(sorted(parts))}")
    needed = [
        part.name
        for part in dataclasses.fields(kind)  # type: ignore[arg-type]
        if part.default is dataclasses.MISSING and part.default_factory is dataclasses.MISSING
    ]
    missing = [name for name in needed if name not in data]
    if missing:
        raise UserError(f"{where} lacks the field {missing[0]!r}")
    values = {name: _value(hints[name], value, f"{where}.{name}") for name, value in data.items()}
    try:
        return kind(**values)
    except ValueError as error:
        raise UserError(f"{where}: {error}") from error


def _value(kind: Any, value: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind in specs.KINDS:
        if not isinstance(value, str):
            raise UserError(f"{where} must be a text such as 'SO2(8)', got {value!r}")
        try:
            return specs.parse(value, kind)
        except UserError as error:
            raise UserError(f"{where}: {error}") from error
    if dataclasses.is_dataclass(kind):
        return from_json(typing.cast("type[Any]", kind), value, where)
    if origin in (typing.Union, types.UnionType):
        return _one_of(arguments, value, where)
    if origin is typing.Literal:
        if value not in arguments:
            raise UserError(f"{where} must be one of {', '.join(map(str, arguments))}, got {value!r}")
        return value
    if origin is tuple and isinstance(value, list):
        return tuple(_value(arguments[0], item, where) for item in value)
    if kind is Path and isinstance(value, str):
        return Path(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**1000:
        return float(value)
    if isinstance(kind, type) and isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
        return value
    raise UserError(f"{where} must be {getattr(kind, '__name__', kind)}, got {value!r}")


def _one_of(kinds: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in kinds:
        return None
    named = [kind for kind in kinds if dataclasses.is_dataclass(kind)]
    if len(named) == 1 and isinstance(value, dict):
        return from_json(typing.cast("type[Any]", named[0]), value, where)
    if named and isinstance(value, dict):
        names = {typing.get_args(typing.get_type_hints(kind)["name"])[0]: kind for kind in named}
        chosen = value.get("name", next(iter(names)))
        if not isinstance(chosen, str) or chosen not in names:
            raise UserError(f"{where}.name must be one of {', '.join(names)}, got {chosen!r}")
        return from_json(typing.cast("type[Any]", names[chosen]), value, where)
    return _value(next(kind for kind in kinds if kind is not type(None)), value, where)


def scratch_beside(path: Path) -> Path:
    """A temporary name beside a file or folder, after what killed processes left under such names is removed.

    The name holds host and process, so that nothing is taken from a process that is still writing, here or on another
    machine that shares the folder.
    """
    host = re.sub(r"[^A-Za-z0-9-]", "-", platform.node())
    for left in path.parent.glob(f".{glob.escape(path.name)}.{host}.*.tmp"):
        number = left.name.split(".")[-2]
        if number.isdigit() and not _runs(int(number)):
            shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink(missing_ok=True)
    return path.with_name(f".{path.name}.{host}.{os.getpid()}.tmp")


def _runs(process: int) -> bool:
    """Whether a process of this machine is still there."""
    if os.name != "posix" or process == os.getpid():
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # somebody else's
        return True
    return True


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file under a temporary name, then rename it, so that it is never half written.

    Links are kept: their target is written. What is no file, such as /dev/null or a named pipe, is written as it is: a
    rename would put a file in its place.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        try:
            with path.open("wb") as stream:
                stream.write(content)
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror or error}") from error
        return
    path = Path(os.path.realpath(path)) if path.is_symlink() else path
    scratch = scratch_beside(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with scratch.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        scratch.replace(path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            scratch.unlink(missing_ok=True)


def write_json(path: Path, data: Any, *, sealed: bool = False) -> None:
    """Write plain data as a JSON file.

    Args:
        path: The file.
        data: What to write.
        sealed: Whether to add a checksum, "sha256", to an object. `read_json` checks it and leaves it out.
    """
    whole = {**data, SEAL: _checksum(data)} if sealed else data
    write_bytes(path, (json.dumps(whole, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """Read plain data from a JSON file; the message of an error names the file.

    Raises:
        UserError: If the file cannot be read, is not JSON, or does not match the checksum that it holds.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON: {error}") from error
    if isinstance(data, dict) and SEAL in data and data.pop(SEAL) != _checksum(data):
        raise UserError(
            f"{path} does not match its checksum: it is damaged, or was edited; after an edit of yours, remove the "
            f'line "{SEAL}"'
        )
    return data


SEAL = "sha256"
"""Name of the checksum in a JSON file."""


def _checksum(data: Any) -> str:
    """The SHA-256 of plain data, however they are laid out and ordered."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
