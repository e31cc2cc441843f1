"""What a figure shows, independent of how it is drawn.

`static` draws a chart as SVG or PNG, `interactive` as an HTML page, and `Picture` chooses between them:

>>> chart = Chart([Panel("A rotated 6", [-180, 0, 180], [Curve("fully equivariant", [0.5, 0.5, 0.5])])])
>>> chart.colors
{'fully equivariant': '#0072b2'}
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = [
    "COLORS",
    "CONFIDENCE",
    "HUE",
    "NAMED_BARS",
    "ROTATION",
    "Axis",
    "BarPanel",
    "Bars",
    "Chart",
    "Curve",
    "Panel",
    "PointPanel",
    "Points",
    "around",
    "up_to",
]

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""A palette that colour-blind readers can distinguish (Okabe and Ito)."""
NAMED_BARS = 24
"""A panel with more classes than this shows their names only when the reader hovers over a bar."""


@dataclass(frozen=True)
class Axis:
    """An axis: its name, with the unit, and its ticks.

    Args:
        name: The label of the axis.
        ticks: Pairs of a value and its text. The axis spans the smallest to the largest value.
    """

    name: str
    ticks: Sequence[tuple[float, str]]

    @property
    def ends(self) -> tuple[float, float]:
        """The smallest and the largest tick."""
        values = [value for value, _ in self.ticks]
        return min(values), max(values)


ROTATION = Axis("rotation of the image", [(angle, f"{angle}°") for angle in range(-180, 181, 90)])
HUE = Axis("hue shift", [(angle / 360, f"{angle}°") for angle in range(-180, 181, 90)])
"""Places are shares of the circle, and shown in degrees."""


def up_to(name: str, top: float = 1.0) -> Axis:
    """Make an axis from 0 to `top` with a tick at every quarter."""
    return Axis(name, [(quarter * top / 4, f"{quarter * top / 4:.3g}") for quarter in range(5)])


def around(name: str, values: Sequence[float]) -> Axis:
    """Make an axis of shares, as percentages, that holds all values, with round ticks."""
    low, high = min(values), max(values)
    step = next((each for each in (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2) if high - low <= 5 * each), 0.25)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = [round(number * step, 6) for number in range(first, max(last, first + 1) + 1)]
    return Axis(name, [(tick, f"{100 * tick:.3g}%") for tick in ticks])


CONFIDENCE = up_to("confidence")


@dataclass(frozen=True)
class Curve:
    """A line, with an optional band around it.

    Args:
        name: What the legend calls the curve.
        values: One value for each of the panel's places; NaN leaves a gap.
        low: Lower edge of the band, as long as `values`.
        high: Upper edge of the band, as long as `values`.
        dashed: Whether the line is dashed.
    """

    name: str
    values: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    dashed: bool = False


@dataclass(frozen=True)
class Panel:
    """Curves over a common horizontal axis.

    Args:
        title: Text above the panel.
        places: Horizontal coordinates that all curves share.
        curves: The curves.
        x: Horizontal axis.
        y: Vertical axis.
        faint: Additional thin lines in the colour of the first curve, each as long as `places`.
    """

    title: str
    places: Sequence[float]
    curves: Sequence[Curve]
    x: Axis = ROTATION
    y: Axis = CONFIDENCE
    faint: Sequence[Sequence[float]] = ()

    @property
    def names(self) -> list[tuple[str, bool]]:
        """The legend: the name of each curve and whether the curve is dashed."""
        return [(curve.name, curve.dashed) for curve in self.curves]


@dataclass(frozen=True)
class Bars:
    """One bar per class, from its lowest to its highest value."""

    name: str
    ends: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class BarPanel:
    """Several series of bars, grouped by class.

    Args:
        title: Text above the panel.
        classes: Names of the classes, from left to right.
        series: The bars; every series has one bar per class.
        below: Label of the horizontal axis.
        y: Vertical axis.
    """

    title: str
    classes: Sequence[str]
    series: Sequence[Bars]
    below: str = ""
    y: Axis = CONFIDENCE

    @property
    def names(self) -> list[tuple[str, bool]]:
        """The legend: the name of each series; bars are never dashed."""
        return [(bars.name, False) for bars in self.series]


@dataclass(frozen=True)
class Points:
    """Points of one kind, each with a short text.

    Args:
        name: What the legend calls them.
        places: Their coordinates.
        labels: The text beside each point.
        joined: Whether a thin line joins them in their order.
    """

    name: str
    places: Sequence[tuple[float, float]]
    labels: Sequence[str]
    joined: bool = False


@dataclass(frozen=True)
class PointPanel:
    """Points of several kinds.

    Args:
        title: Text above the panel.
        series: The points.
        x: Horizontal axis.
        y: Vertical axis.
    """

    title: str
    series: Sequence[Points]
    x: Axis
    y: Axis

    @property
    def names(self) -> list[tuple[str, bool]]:
        """The legend: the name of each kind; points are never dashed."""
        return [(points.name, False) for points in self.series]


@dataclass(frozen=True)
class Chart:
    """Panels that share a legend; a name has the same colour in every panel.

    Args:
        panels: The panels, row by row.
        columns: Panels per row; all panels share one row by default.
        title: Text above all panels.
    """

    panels: Sequence[Panel | BarPanel | PointPanel]
    columns: int | None = None
    title: str = ""

    @property
    def wide(self) -> bool:
        """Whether every panel needs a row of its own, as bars do."""
        return any(isinstance(panel, BarPanel) for panel in self.panels)

    @property
    def grid(self) -> tuple[int, int]:
        """The number of rows and columns."""
        columns = 1 if self.wide else self.columns or len(self.panels)
        return -(-len(self.panels) // columns), columns

    @property
    def names(self) -> list[tuple[str, bool]]:
        """The legend: every name once, and whether it is dashed."""
        return list({name: (name, dashed) for panel in self.panels for name, dashed in panel.names}.values())

    @property
    def colors(self) -> dict[str, str]:
        """The colour of each name.

        Raises:
            ValueError: If the chart has more names than there are colours.
        """
        names = [name for name, _ in self.names]
        if len(names) > len(COLORS):
            raise ValueError(f"a chart can distinguish at most {len(COLORS)} names, got {', '.join(names)}")
        return dict(zip(names, COLORS, strict=False))
