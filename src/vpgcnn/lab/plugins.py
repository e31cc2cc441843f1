"""Plug-ins: files with groups, levels, kernels, datasets and arms that are not part of the package.

A plug-in is a Python file that registers what it defines (`vpgcnn.lab.specs.register`, `vpgcnn.lab.data.register`,
`vpgcnn.lab.experiments.register_arm`). Loading a plug-in runs it, so load only files that you trust.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
import traceback
from pathlib import Path

from torch import nn

from vpgcnn.errors import UserError

__all__ = ["allow_network", "build_network", "load_plugin", "trusted_network"]

PREFIX = "vpgcnn_plugin_"
_ALLOWED: set[str] = set()
"""Functions that the user named on this command line."""


def load_plugin(path: Path) -> None:
    """Run a plug-in file, once per process.

    Args:
        path: A Python file.

    Raises:
        UserError: If there is no such file, or if it raises an error; the message names the line.
    """
    if path.suffix != ".py":
        raise UserError(f"--use expects a Python file, got {str(path)!r}")
    if not path.is_file():
        raise UserError(f"--use: there is no file {str(path)!r}")
    file = path.resolve()
    name = f"{PREFIX}{file.stem}_{hashlib.blake2b(str(file).encode(), digest_size=4).hexdigest()}"
    if name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        place = f", line {line}" if (line := _line(error, file)) else ""
        raise UserError(f"{path}{place}: {type(error).__name__}: {error}") from error


def _line(error: Exception, file: Path) -> int | None:
    """The last line of the file that the error passed through."""
    if isinstance(error, SyntaxError) and error.filename == str(file):
        return error.lineno
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    return lines[-1] if lines else None


# ---------------------------------------------------------------- networks that are made by a user's function


def allow_network(text: str) -> None:
    """Let `trusted_network` call a function, because the user named it.

    Args:
        text: MODULE:FUNCTION or file.py:FUNCTION.
    """
    _ALLOWED.add(text)


def trusted_network(text: str) -> nn.Module:
    """The network of a function that a weights file names, if the user trusts it.

    A weights file must not choose which code runs. A function is called if it is in a plug-in of that name that was
    loaded (`vpgcnn --use FILE.py`), or if the user named it on the command line.

    Args:
        text: MODULE:FUNCTION or file.py:FUNCTION.

    Raises:
        UserError: If it is neither, or fails.
    """
    where, _, name = text.rpartition(":")
    stem = Path(where).stem if where.endswith(".py") else where.rpartition(".")[2]
    for key, module in list(sys.modules.items()):
        if key.startswith(f"{PREFIX}{stem}_") and hasattr(module, name):
            return _called(getattr(module, name), text)
    if text in _ALLOWED:
        return build_network(text)
    raise UserError(
        f"this network is made by {text}, which is code: if you trust it, load the file that holds {name} first: "
        f"vpgcnn --use {stem}.py COMMAND …"
    )


def build_network(text: str) -> nn.Module:
    """Call the function that MODULE:FUNCTION or file.py:FUNCTION names. It is the user's code.

    Raises:
        UserError: If there is no such function, if it fails, or if it does not return a module.
    """
    where, _, name = text.rpartition(":")
    try:
        if where.endswith(".py"):
            path = Path(where)
            if not path.is_file():
                raise UserError(f"there is no file {where}")
            spec = importlib.util.spec_from_file_location(path.stem, path)
            assert spec is not None
            assert spec.loader is not None
            module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
            sys.path.insert(0, str(path.parent.resolve()))
            spec.loader.exec_module(module)
        else:
            sys.path.insert(0, str(Path.cwd()))
            module = importlib.import_module(where)
    except UserError:
        raise
    except ModuleNotFoundError as error:
        raise UserError(f"cannot import {where!r}: {error}") from error
    except Exception as error:
        raise UserError(f"cannot import {where!r}: {type(error).__name__}: {error}") from error
    function = getattr(module, name, None)
    if function is None:
        raise UserError(f"{where} has no {name!r}")
    return _called(function, text)


def _called(function: object, text: str) -> nn.Module:
    try:
        model = function if isinstance(function, nn.Module) else function()  # type: ignore[operator]
    except Exception as error:
        raise UserError(f"{text} failed: {type(error).__name__}: {error}") from error
    if not isinstance(model, nn.Module):
        raise UserError(f"{text} must return a torch.nn.Module, got {type(model).__name__}")
    return model
