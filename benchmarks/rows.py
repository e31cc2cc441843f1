"""Rows of results, one for each arm and seed: kept in a file, so that a stopped run goes on, and shown in tables."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def kept(file: Path) -> list[Row]:
    """The rows of an earlier run, if there was one."""
    found: list[Row] = json.loads(file.read_text(encoding="utf-8"))["rows"] if file.exists() else []
    return found


def keep(rows: list[Row], file: Path, command: str, page: Callable[[list[Row]], str]) -> None:
    """Write rows, and beside them the page that shows them.

    Args:
        rows: In the order of the page.
        file: A JSON file.
        command: What made them.
        page: Rows to Markdown.
    """
    text = json.dumps({"command": command, "rows": rows}, ensure_ascii=False, indent=1)
    file.write_text(text + "\n", encoding="utf-8")
    file.with_suffix(".md").write_text(page(rows), encoding="utf-8")


def level_cells(found: list[Row]) -> list[str]:
    """What the levels of an arm decide, as cells: θ of each kind of image, θ AUROC, multiplications."""
    theta = "; ".join(", ".join(f"{value:.2f}" for value in row["theta"]) for row in found if "theta" in row)
    ranks = ", ".join(f"{row['auroc']:.2f}" for row in found if "auroc" in row)
    return [theta or "–", ranks or "–", f"{found[0]['cost']:.2f}"]
