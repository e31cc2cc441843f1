"""What commands share."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

__all__ = ["data_dir_option", "parser", "print_json", "table"]


def parser(name: str, about: str) -> argparse.ArgumentParser:
    """A parser whose help keeps its layout."""
    return argparse.ArgumentParser(
        prog=f"vpgcnn {name}", description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def data_dir_option(command: argparse.ArgumentParser) -> None:
    """--data-dir, where a command reads published files."""
    command.add_argument(
        "--data-dir", type=Path, help="where the published files are (default: $VPGCNN_DATA, else the user's cache)"
    )


def print_json(data: Any) -> None:
    """One JSON document on standard output."""
    print(json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False))  # noqa: T201


def table(rows: list[tuple[str, ...]]) -> None:
    """Columns, aligned."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())  # noqa: T201
