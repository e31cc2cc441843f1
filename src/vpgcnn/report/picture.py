"""A chart that shows itself in a notebook and saves itself under any name: .svg, .png or .html."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vpgcnn.errors import UserError
from vpgcnn.report import interactive, png, svg
from vpgcnn.report.chart import Chart
from vpgcnn.serial import write_bytes

__all__ = ["Picture"]


@dataclass(frozen=True)
class Picture:
    """A chart, drawn when it is looked at."""

    chart: Chart

    def _repr_svg_(self) -> str:
        return svg.draw(self.chart)

    def save(self, path: Path | str) -> Path:
        """Write it as a drawing (.svg), an image (.png) or a page to point at (.html)."""
        path = Path(path)
        drawers: dict[str, Callable[[Chart], str | bytes]] = {
            ".svg": svg.draw,
            ".png": png.draw,
            ".html": interactive.draw,
        }
        if path.suffix.lower() not in drawers:
            raise UserError(f"a picture is saved as .svg, .png or .html, got {str(path)!r}")
        drawn = drawers[path.suffix.lower()](self.chart)
        write_bytes(path, drawn if isinstance(drawn, bytes) else drawn.encode())
        return path
