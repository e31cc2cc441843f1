"""What a figure shows, apart from how it is drawn: as SVG (`svg`), PNG (`png`) or an interactive page (`interactive`).

>>> chart = Chart([Panel("A 6, turned", angles, [Curve("a level for each image", values)])])
>>> svg.draw(chart), png.draw(chart), interactive.draw(chart)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["COLORS", "CONFIDENCE", "HUE", "ROTATION", "Axis", "BarPanel", "Bars", "Chart", "Curve", "Panel", "up_to"]

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Told apart by everyone (Okabe and Ito)."""


@dataclass(frozen=True)
class Axis:
    """A name with its unit, and the values with the texts that stand there; it reaches from the first to the last."""

    name: str
    ticks: Sequence[tuple[float, str]]

    @property
    def ends(self) -> tuple[float, float]:
        places = [place for place, _ in self.ticks]
        return min(places), max(places)


ROTATION = Axis("rotation of the image", [(angle, f"{angle}°") for angle in range(-180, 181, 90)])
HUE = Axis("hue shift, as a share of the circle", [(share / 4, f"{share / 4:g}") for share in range(-2, 3)])


def up_to(name: str, top: float = 1.0) -> Axis:
    """An axis from 0 to `top`, in quarters."""
    return Axis(name, [(quarter * top / 4, f"{quarter * top / 4:.3g}") for quarter in range(5)])


CONFIDENCE = up_to("confidence")


@dataclass(frozen=True)
class Curve:
    """A line with an optional band around it; all of the same length. A value that is not a number is a gap."""

    name: str
    values: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    dashed: bool = False


@dataclass(frozen=True)
class Panel:
    """Curves over the same places. faint: thin lines in the first curve's colour."""

    title: str
    places: Sequence[float]
    curves: Sequence[Curve]
    x: Axis = ROTATION
    y: Axis = CONFIDENCE
    faint: Sequence[Sequence[float]] = ()

    @property
    def names(self) -> list[tuple[str, bool]]:
        """What a legend says: the name of each curve, and whether it is dashed."""
        return [(curve.name, curve.dashed) for curve in self.curves]


@dataclass(frozen=True)
class Bars:
    """For each class a bar from its lowest to its highest value."""

    name: str
    ends: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class BarPanel:
    """Series of bars side by side, one of each for each class; below: what stands under them."""

    title: str
    classes: Sequence[str]
    series: Sequence[Bars]
    below: str = ""
    y: Axis = CONFIDENCE

    @property
    def names(self) -> list[tuple[str, bool]]:
        return [(bars.name, False) for bars in self.series]


@dataclass(frozen=True)
class Chart:
    """Panels side by side, or in so many columns. A name has the same colour in all of them."""

    panels: Sequence[Panel | BarPanel]
    columns: int | None = None
    title: str = ""

    @property
    def wide(self) -> bool:
        """Whether panels need the whole width: bars of many classes."""
        return any(isinstance(panel, BarPanel) for panel in self.panels)

    @property
    def names(self) -> list[tuple[str, bool]]:
        """What the legend says: every name once, and whether it is dashed."""
        return list({name: (name, dashed) for panel in self.panels for name, dashed in panel.names}.values())

    @property
    def colors(self) -> dict[str, str]:
        """The colour of each name."""
        names = [name for name, _ in self.names]
        if len(names) > len(COLORS):
            raise ValueError(f"a chart has at most {len(COLORS)} names to tell apart, got {', '.join(names)}")
        return dict(zip(names, COLORS, strict=False))
