"""vpgcnn info."""

from __future__ import annotations

import os
import platform
from importlib import metadata

from vpgcnn import __version__
from vpgcnn.apps.commands.common import parser, print_json, table

PACKAGES = ("torch", "numpy", "safetensors", "accelerate", "tyro", "rich", "pillow", "mlxtend", "matplotlib", "plotly")


def main(arguments: list[str]) -> int:
    """Show versions, devices and folders."""
    command = parser("info", "Show versions, devices and folders. Please include the output in bug reports.")
    command.add_argument("--json", action="store_true", help="print JSON")
    options = command.parse_args(arguments)
    import torch

    from vpgcnn.lab.data.files import data_directory

    facts = {"vpgcnn": __version__, "python": platform.python_version(), "system": platform.platform()}
    for name in PACKAGES:
        try:
            facts[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            facts[name] = "not installed"
    facts["device"] = _device(torch)
    facts["threads"] = f"{torch.get_num_threads()} of {os.cpu_count()} cores"
    directory = data_directory()
    facts["data directory"] = f"{directory}{'' if directory.is_dir() else ' (does not exist)'}"
    if options.json:
        print_json(facts)
    else:
        table(list(facts.items()))
    return 0


def _device(torch: object) -> str:
    if torch.cuda.is_available():  # type: ignore[attr-defined]
        return f"cuda: {torch.cuda.get_device_name()}"  # type: ignore[attr-defined]
    return "mps" if torch.backends.mps.is_available() else "cpu"  # type: ignore[attr-defined]
