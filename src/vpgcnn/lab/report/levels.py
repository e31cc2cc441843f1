"""The learned windows of some images as a bar chart."""

from __future__ import annotations

from vpgcnn.errors import UserError
from vpgcnn.lab.report.chart import Axis, BarPanel, Bars, Chart
from vpgcnn.lab.report.picture import Picture
from vpgcnn.measure.table import LevelTable

__all__ = ["plot_levels"]

SHOWN = 60
"""The chart shows at most this many images."""
WINDOW = Axis("window", [(angle, f"{angle}°") for angle in range(-180, 181, 90)])


def plot_levels(table: LevelTable, *, axis: int = 0) -> Picture:
    """Plot the window [−180°·θ, 180°·θ] of each image, with one panel per layer.

        >>> plot_levels(levels(model, images)).save("levels.svg")

    Args:
        table: The levels, from `vpgcnn.measure.levels`.
        axis: Which circle of the group to plot; a product of groups has several.

    Returns:
        A picture, which a notebook displays and which saves itself.

    Raises:
        UserError: If the network has no level, or the group no such axis.
    """
    if not table.theta:
        raise UserError("this network has no level to plot")
    panels = []
    for layer, theta in table.theta.items():
        if not 0 <= axis < theta.shape[1]:
            raise UserError(f"layer {layer} has {theta.shape[1]} axes, numbered from 0; got axis={axis}")
        ends = [(-180 * share, 180 * share) for share in theta[:SHOWN, axis].tolist()]
        bars = Bars("elements in use (rotations or hues)", ends)
        panels.append(BarPanel(layer, list(table.names[:SHOWN]), [bars], "images", WINDOW))
    return Picture(Chart(panels, columns=1, title="Learned windows"))
