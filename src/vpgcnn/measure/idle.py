"""Levels that do nothing: one sentence about each, with the likely reason and what to do.

>>> for sentence in idle_levels(read_levels(model, images)):
...     print(sentence)
all windows of last are open …
"""

from __future__ import annotations

from torch import Tensor

from vpgcnn.groups import Axis
from vpgcnn.measure.awareness import ACTIVE
from vpgcnn.measure.reading import LevelReading

__all__ = ["idle_levels"]

OPEN = 0.98
"""A wider window is as good as open."""
NEARLY_ALL = 0.98
"""This share of the images speaks for all of them."""


def idle_levels(reading: LevelReading) -> list[str]:
    """Say which levels for each image do nothing: all open, all closed, or the same for every image.

    Args:
        reading: From `read_levels`, on images that the network should know how to treat, best a hundred or more.

    Returns:
        One sentence for each circle of each such level; none if all levels depend on the image.
    """
    found = []
    per_image = reading.per_image()
    for layer, theta in per_image.theta.items():
        axes = per_image.groups[layer].axes
        for place, column in enumerate(theta.unbind(dim=1)):
            axis = axes[place] if theta.shape[1] == len(axes) else None
            if axis is not None and axis.count == 1:
                continue
            name = layer if theta.shape[1] == 1 or axis is None else f"{layer} ({axis.name})"
            sentence = _sentence(name, column, axis)
            found += [] if sentence is None else [sentence]
    return found


def _sentence(name: str, theta: Tensor, axis: Axis | None) -> str | None:
    closed = 0.05 if axis is None or axis.order is None else 1 / axis.order + 0.02
    if float((theta >= OPEN).double().mean()) >= NEARLY_ALL:
        return (
            f"all windows of {name} are open (θ ≥ {OPEN:g}): it is a fully equivariant layer. If Fixed() with a narrow "
            "window is no better, no image needs less, and Full() gives the same answers for less; if it is, the "
            "levels did not find it: train for longer, or take Fixed()"
        )
    if float((theta <= closed).double().mean()) >= NEARLY_ALL:
        return (
            f"all windows of {name} are closed (θ ≤ {closed:.2g}): it is an ordinary layer. The group costs these "
            "images accuracy, or there were too few training steps to open the windows; a network without a group "
            "(or Fixed() with a wider window) tells which"
        )
    if len(theta) > 1 and float(theta.std()) < ACTIVE:
        return (
            f"θ of {name} is {float(theta.mean()):.2f} for every image: nothing in the images tells it which of them "
            "may be moved. Shared() does the same for less"
        )
    return None
