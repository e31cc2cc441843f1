"""Charts as SVG and PNG, drawn by matplotlib.

The same chart always gives the same bytes (for one version of matplotlib): the style does not depend on the user's
settings, and the files carry no date. matplotlib is imported on the first call; no pyplot state is touched.
"""

from __future__ import annotations

import io
import re
import textwrap
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

from vpgcnn.errors import UserError
from vpgcnn.lab.report.chart import NAMED_BARS, BarPanel, Chart, Panel, PointPanel

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["require_matplotlib", "to_png", "to_svg"]

INK, LINE = "#1b1f24", "#d8dce2"
"""Colours of text and of grid lines. An SVG replaces both in dark mode."""
DARK = (
    f"svg {{ --ink: {INK}; --line: {LINE} }} "
    "@media (prefers-color-scheme: dark) { svg { --ink: #e8eaee; --line: #444b57 } }"
)
PIXELS = 96
"""CSS pixels per inch."""
CURVE_SIZE, BAR_SIZE = (460, 300), (920, 280)
"""Width and height of a panel in CSS pixels."""
STYLE: dict[str, Any] = {
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib
    "svg.fonttype": "none",  # text stays text: selectable, and set in a font that the reader's system has
    "text.parse_math": False,  # a file name may contain two dollar signs
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.edgecolor": INK,
    "axes.linewidth": 0.7,
    "axes.facecolor": "none",
    "grid.color": LINE,
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.labelsize": 9,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "figure.titlesize": 11,
    "figure.constrained_layout.h_pad": 0.07,
    "figure.constrained_layout.w_pad": 0.07,
}


def require_matplotlib() -> None:
    """Check that charts can be drawn; commands that run for long call this first.

    Raises:
        UserError: If matplotlib is not installed.
    """
    try:
        import matplotlib.figure
        import matplotlib.style  # noqa: F401
    except ImportError as error:
        raise UserError("figures need matplotlib: pip install 'vpgcnn[report]'") from error


def to_svg(chart: Chart, panel_size: tuple[int, int] | None = None) -> str:
    """Draw a chart as an SVG document, which can also be placed inside an HTML page.

    Text and grid lines adapt to dark mode, the background is transparent, and curves and bars have tooltips.

    Args:
        chart: What to draw.
        panel_size: Width and height of a panel in CSS pixels.

    Returns:
        The document, without an XML declaration.
    """
    with _figure(chart, panel_size) as (figure, tooltips):
        stream = io.BytesIO()
        figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None})
    label = ". ".join(filter(None, [chart.title, *(panel.title for panel in chart.panels)]))
    return _tidy(stream.getvalue(), tooltips, label)


def to_png(chart: Chart, dpi: int = 150) -> bytes:
    """Draw a chart as a PNG file.

    Args:
        chart: What to draw.
        dpi: Dots per inch; a panel of curves is about 4.8 inches wide.

    Returns:
        The bytes of the file.
    """
    with _figure(chart, None) as (figure, _):
        stream = io.BytesIO()
        figure.savefig(stream, format="png", dpi=dpi, metadata={"Software": None})
    return stream.getvalue()


@contextmanager
def _figure(chart: Chart, panel_size: tuple[int, int] | None) -> Iterator[tuple[Figure, dict[str, str]]]:
    """Yield the figure and its tooltips (by group id) while our style is in force."""
    require_matplotlib()
    from matplotlib.figure import Figure
    from matplotlib.style import context

    rows, columns = chart.grid
    width, height = panel_size or (BAR_SIZE if chart.wide else CURVE_SIZE)
    names = [name for name, _ in chart.names]
    if names == [chart.panels[0].y.name]:  # the vertical axis says it already
        names = []
    salt = {"svg.hashsalt": repr(chart)}  # ids are reproducible, and differ between the charts of a page
    with context(["default", STYLE, salt]), warnings.catch_warnings():
        # The SVG keeps text as text, so a browser finds the glyph even where matplotlib's own font lacks it.
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from")
        title = _wrap(chart.title, columns * width - 30, "figure.titlesize")
        labels = [_wrap(name, columns * width - 60, "legend.fontsize") for name in names]
        lines = [line for label in labels for line in label.split("\n")]
        entry = 60 + max((_width(line, "legend.fontsize") for line in lines), default=0)
        legend_columns = max(1, min(len(names), int(columns * width / entry)))
        legend_lines = -(-len(names) // legend_columns) * max((label.count("\n") + 1 for label in labels), default=0)
        extra = 20 * legend_lines + 22 * len(title.splitlines())
        figure = Figure((columns * width / PIXELS, (rows * height + extra) / PIXELS), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False).ravel()
        handles: dict[str, Artist] = {}
        tooltips: dict[str, str] = {}
        colors = chart.colors
        for axes, panel in zip(grid, chart.panels, strict=False):
            _frame(axes, panel, width)
            drawn = _drawn(axes, panel, colors)
            for artist, name, tooltip in drawn:
                handles.setdefault(name, artist)
                artist.set_gid(f"tooltip{len(tooltips)}")
                tooltips[f"tooltip{len(tooltips)}"] = tooltip
            if isinstance(panel, BarPanel):
                _name_bars(axes, panel, width)
        for axes in grid[len(chart.panels) :]:
            axes.set_axis_off()
        if names:
            figure.legend([handles[name] for name in names], labels, loc="outside lower center", ncols=legend_columns)
        if title:
            figure.suptitle(title)
        yield figure, tooltips


def _width(text: str, size: str, weight: str = "normal") -> float:
    """The width of a line in CSS pixels. `size` names a font size in `STYLE`."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(size=STYLE[size], weight=weight)
    return text_to_path.get_text_width_height_descent(text, font, ismath=False)[0] * PIXELS / 72


def _wrap(text: str, pixels: float, size: str, weight: str = "normal") -> str:
    """Break a text into lines that are at most about `pixels` CSS pixels wide."""
    if not text or (width := _width(text, size, weight)) <= pixels:
        return text
    return textwrap.fill(text, max(8, int(0.93 * len(text) * pixels / width)))


Drawn = list[tuple["Artist", str, str]]
"""Artists with their name in the legend and their tooltip."""


def _drawn(axes: Axes, panel: Panel | BarPanel | PointPanel, colors: Mapping[str, str]) -> Drawn:
    if isinstance(panel, BarPanel):
        return _bars(axes, panel, colors)
    return _points(axes, panel, colors) if isinstance(panel, PointPanel) else _curves(axes, panel, colors)


def _frame(axes: Axes, panel: Panel | BarPanel | PointPanel, width: int) -> None:
    axes.set_title(_wrap(panel.title, width - 75, "axes.titlesize", "bold"))
    axes.set_ylabel(panel.y.name)
    axes.set_yticks([value for value, _ in panel.y.ticks], [text for _, text in panel.y.ticks])
    low, high = panel.y.ends
    margin = 0.03 * (high - low) or 1.0
    axes.set_ylim(low - margin, high + margin)


def _curves(axes: Axes, panel: Panel, colors: Mapping[str, str]) -> Drawn:
    axes.set_xlabel(panel.x.name)
    axes.set_xticks([value for value, _ in panel.x.ticks], [text for _, text in panel.x.ticks])
    axes.set_xmargin(0.02)
    axes.grid(visible=True)
    for values in panel.faint:
        axes.plot(panel.places, values, color=colors[panel.curves[0].name], linewidth=0.7, alpha=0.35)
    drawn: Drawn = []
    for curve in panel.curves:
        color = colors[curve.name]
        if curve.low is not None and curve.high is not None:
            axes.fill_between(panel.places, curve.low, curve.high, color=color, alpha=0.15, linewidth=0)
        (line,) = axes.plot(
            panel.places,
            curve.values,
            color=color,
            linewidth=2,
            linestyle=(0, (3, 2)) if curve.dashed else "-",
            marker="o" if len(panel.places) == 1 else "",
        )
        drawn.append((line, curve.name, curve.name))
    return drawn


def _points(axes: Axes, panel: PointPanel, colors: Mapping[str, str]) -> Drawn:
    axes.set_xlabel(panel.x.name)
    axes.set_xticks([value for value, _ in panel.x.ticks], [text for _, text in panel.x.ticks])
    low, high = panel.x.ends
    axes.set_xlim(low - 0.04 * (high - low), high + 0.12 * (high - low))  # room for the text beside the points
    axes.grid(visible=True)
    drawn: Drawn = []
    for points in panel.series:
        x, y = zip(*points.places, strict=True)
        joining = "-" if points.joined else ""
        (line,) = axes.plot(x, y, color=colors[points.name], marker="o", linewidth=1, linestyle=joining)
        named = list(zip(points.labels, points.places, strict=True))
        for label, place in named:
            axes.annotate(label, place, xytext=(5, 4), textcoords="offset points", fontsize=7.5)
        said = ", ".join(f"{label} ({place[0]:.1%}, {place[1]:.1%})" for label, place in named)
        drawn.append((line, points.name, f"{points.name}: {said}"))
    return drawn


def _bars(axes: Axes, panel: BarPanel, colors: Mapping[str, str]) -> Drawn:
    axes.set_xlabel(panel.below)
    axes.grid(visible=True, axis="y")
    thick = 0.8 / len(panel.series)
    drawn: Drawn = []
    for place, series in enumerate(panel.series):
        offset = (place - (len(panel.series) - 1) / 2) * thick
        for number, (name, (low, high)) in enumerate(zip(panel.classes, series.ends, strict=True)):
            # The outline keeps a bar of no height visible.
            (bar,) = axes.bar(
                number + offset, high - low, thick, low, color=colors[series.name], edgecolor=colors[series.name],
                linewidth=0.5,
            )  # fmt: skip
            drawn.append((bar, series.name, f"{name}, {series.name}: {low:.3g} to {high:.3g}"))
    return drawn


def _name_bars(axes: Axes, panel: BarPanel, width: int) -> None:
    """Write the names of the classes under their bars, slanted if they are long."""
    count = len(panel.classes)
    axes.set_xlim(-0.6, count - 0.4)
    if count > NAMED_BARS:
        axes.set_xticks([])
        return
    labels = [name if len(name) <= 28 else f"…{name[-27:]}" for name in panel.classes]  # layers differ at the end
    fits = max(_width(label, "xtick.labelsize") for label in labels) < 0.8 * width / count
    slanted: dict[str, Any] = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"}
    axes.set_xticks(range(count), labels, **({} if fits else slanted))
    axes.tick_params(axis="x", length=0)


def _tidy(document: bytes, tooltips: Mapping[str, str], label: str) -> str:
    """Make matplotlib's SVG fit for an HTML page: no metadata, no clashing ids, colours for dark mode, tooltips."""
    root = ET.fromstring(document)
    for element in list(root.iter()):
        element.tag = element.tag.split("}")[-1]
        if target := element.attrib.pop("{http://www.w3.org/1999/xlink}href", None):
            element.set("href", target)
        for key in element.attrib.keys() & {"d", "x", "y", "transform"}:  # a hundredth of a point is fine enough
            element.set(key, re.sub(r"\d+\.\d+", lambda match: f"{float(match[0]):.2f}", element.attrib[key]))
        if style := element.get("style"):
            for name, color in (("ink", INK), ("line", LINE)):
                style = style.replace(color, f"var(--{name}, {color})")
            element.set("style", style.replace("'DejaVu Sans'", "system-ui, 'DejaVu Sans'"))
    references = " ".join(value for element in root.iter() for value in element.attrib.values() if "#" in value)
    for element in root.iter():
        name = element.get("id", "")
        if name in tooltips:
            title = ET.Element("title")
            title.text = tooltips[name]
            element.insert(0, title)
        if name and f"#{name}" not in references:  # figure_1, axes_1, …: the same in every figure of a page
            del element.attrib["id"]
    root[:] = [part for part in root if part.tag != "metadata"]
    style_element = ET.Element("style")
    style_element.text = DARK
    root.insert(0, style_element)
    root.attrib = {"xmlns": "http://www.w3.org/2000/svg", "role": "img", "aria-label": label, **root.attrib}
    return ET.tostring(root, encoding="unicode")
