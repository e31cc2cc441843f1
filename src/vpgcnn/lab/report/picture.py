"""A chart that a notebook displays and that saves itself as .svg, .png or .html."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vpgcnn.errors import UserError
from vpgcnn.lab.config_io import write_bytes
from vpgcnn.lab.report.chart import Chart
from vpgcnn.lab.report.interactive import to_html
from vpgcnn.lab.report.static import to_png, to_svg

__all__ = ["Picture"]

WRITERS: dict[str, Callable[[Chart], bytes]] = {
    ".svg": lambda chart: to_svg(chart).encode(),
    ".png": to_png,
    ".html": lambda chart: to_html(chart).encode(),
}


@dataclass(frozen=True)
class Picture:
    """A chart that is drawn when someone looks at it or saves it."""

    chart: Chart

    def _repr_svg_(self) -> str:
        """Draw the chart for a notebook."""
        return to_svg(self.chart)

    def save(self, path: Path | str) -> Path:
        """Write the chart to a file.

        Args:
            path: Where to write. The suffix selects the format: .svg, .png, or .html for an interactive page.

        Returns:
            The path of the file.

        Raises:
            UserError: If the suffix is none of these.
        """
        path = Path(path)
        if path.suffix.lower() not in WRITERS:
            raise UserError(f"a picture can be saved as .svg, .png or .html, got {str(path)!r}")
        write_bytes(path, WRITERS[path.suffix.lower()](self.chart))
        return path
