"""Plug-ins: files with groups, levels, kernels, datasets and arms that are not part of the package.

A plug-in is a Python file that registers what it defines (`vpgcnn.lab.specs.register`, `vpgcnn.lab.data.register`,
`vpgcnn.lab.experiments.register_arm`). Loading a plug-in runs it, so load only files that you trust.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import traceback
from pathlib import Path

from vpgcnn.errors import UserError

__all__ = ["load_plugin"]


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
    name = f"vpgcnn_plugin_{file.stem}_{hashlib.blake2b(str(file).encode(), digest_size=4).hexdigest()}"
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
