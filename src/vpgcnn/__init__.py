"""vpgcnn: networks that learn, for each image, how much of a symmetry to use.

The public names are listed in `__init__.pyi`. They are imported on first use, so that `vpgcnn --help` does not
wait for torch.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

__version__ = "0.3.0.dev0"

_STUB = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
_HOMES: dict[str, str] = {name: home for home, name in re.findall(r"^from (\S+) import (\S+) as", _STUB, re.M)}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'vpgcnn' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
