"""Charts as PNG, by matplotlib."""

from __future__ import annotations

import io
import math
import textwrap
from typing import Any

from vpgcnn.errors import UserError
from vpgcnn.report.chart import BarPanel, Chart, Panel

__all__ = ["draw"]


def draw(chart: Chart, dots_per_inch: int = 150) -> bytes:
    """The whole chart as the bytes of a PNG file."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError("figures as PNG need matplotlib: pip install 'vpgcnn[report]'") from error

    columns = 1 if chart.wide else chart.columns or len(chart.panels)
    rows = math.ceil(len(chart.panels) / columns)
    size = (10.0, 2.8 * rows + 0.5) if chart.wide else (4.6 * columns, 3.2 * rows + 0.5)
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, panel in zip(grid, chart.panels, strict=False):
        _style(axes, panel)
        if isinstance(panel, BarPanel):
            _bars(axes, panel, chart.colors)
        else:
            _curves(axes, panel, chart.colors)
    for axes in grid[len(chart.panels) :]:
        axes.axis("off")
    found: dict[str, Any] = {}
    for axes in grid:
        handles, labels = axes.get_legend_handles_labels()
        found |= dict(zip(labels, handles, strict=True)) | found
    names = [name for name, _ in chart.names]
    fit = int(size[0] / (0.075 * max(map(len, names)) + 0.6))
    figure.legend(
        [found[name] for name in names],
        names,
        loc="outside lower center",
        ncols=max(1, min(len(names), 3, fit)),
        frameon=False,
        fontsize=9,
    )
    if chart.title:
        figure.suptitle(textwrap.fill(chart.title, int(9 * size[0])), fontsize=12)
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=dots_per_inch, metadata={"Software": None})
    return stream.getvalue()


def _style(axes: Any, panel: Panel | BarPanel) -> None:
    axes.set_title(panel.title, fontsize=10, loc="left", fontweight="bold", wrap=True)
    axes.set_ylabel(panel.y.name, fontsize=9)
    axes.set_yticks([place for place, _ in panel.y.ticks], [text for _, text in panel.y.ticks], fontsize=8)
    low, high = panel.y.ends
    axes.set_ylim(low - 0.02 * (high - low), high + 0.02 * (high - low))
    axes.grid(color="#d8dce2", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _curves(axes: Any, panel: Panel, colors: dict[str, str]) -> None:
    axes.set_xlabel(panel.x.name, fontsize=9)
    axes.set_xticks([place for place, _ in panel.x.ticks], [text for _, text in panel.x.ticks], fontsize=8)
    for line in panel.faint:
        axes.plot(panel.places, line, color=colors[panel.names[0][0]], linewidth=0.7, alpha=0.35)
    for curve in panel.curves:
        color = colors[curve.name]
        if curve.low is not None and curve.high is not None:
            axes.fill_between(panel.places, curve.low, curve.high, color=color, alpha=0.15, linewidth=0)
        style = (0, (5, 3)) if curve.dashed else "-"
        axes.plot(panel.places, curve.values, color=color, linewidth=2, linestyle=style, label=curve.name)


def _bars(axes: Any, panel: BarPanel, colors: dict[str, str]) -> None:
    axes.set_xlabel(panel.below, fontsize=9)
    axes.grid(visible=False, axis="x")
    few = len(panel.classes) <= 24
    axes.set_xticks(range(len(panel.classes)) if few else [], panel.classes if few else [], fontsize=8, rotation=30)
    axes.set_xlim(-0.7, len(panel.classes) - 0.3)
    thick = 0.8 / len(panel.series)
    for place, series in enumerate(panel.series):
        at = [number + (place - (len(panel.series) - 1) / 2) * thick for number in range(len(panel.classes))]
        low, tall = [a for a, _ in series.ends], [b - a for a, b in series.ends]
        axes.bar(at, tall, thick, bottom=low, color=colors[series.name], label=series.name)
