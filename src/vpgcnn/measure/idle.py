"""Levels that do nothing: one sentence about each, with the likely reason and what to do.

>>> for sentence in idle_levels(read_levels(model, images)):
...     print(sentence)
all windows of layer last are open …
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from vpgcnn.groups import Axis
from vpgcnn.measure.awareness import ACTIVE
from vpgcnn.measure.reading import LevelReading

__all__ = ["idle_levels"]

State = Literal["open", "closed", "same"]
OPEN = 0.98
"""A wider window is as good as open."""
NEARLY_CLOSED = 0.05
"""On a finite axis, a window wider by at most this than the identity alone is as good as closed."""
NEARLY_ALL = 0.98
"""This share of the images speaks for all of them."""


def idle_levels(reading: LevelReading) -> list[str]:
    """Say which levels for each image do nothing: all open, all closed, or the same for every image.

    Args:
        reading: From `read_levels`, on images that the network should know how to treat, best a hundred or more.

    Returns:
        One sentence for each circle of each such level; none if all levels depend on the image. On a product of groups
        it speaks of the circle alone, unless all circles of the layer are in the same state.
    """
    found = []
    per_image = reading.per_image()
    for layer, theta in per_image.theta.items():
        axes = per_image.groups[layer].axes
        one = theta.shape[1] != len(axes)  # one θ for the whole group
        circles = {place: None if one else axes[place] for place in range(theta.shape[1])}
        circles = {place: axis for place, axis in circles.items() if axis is None or axis.count > 1}
        states = {place: _state(theta[:, place], axis) for place, axis in circles.items()}
        for place, axis in circles.items():
            alone = len(set(states.values())) == 1
            others = [circle.name for at, circle in circles.items() if circle is not None and at != place]
            name = f"layer {layer}" if axis is None or len(axes) == 1 else f"layer {layer} ({axis.name})"
            if states[place] is not None:
                moves = None if alone or axis is None else axis.name
                found.append(_sentence(states[place], name, theta[:, place], axis, moves, others))
    return found


def _closed(axis: Axis | None) -> float:
    """The widest window that is as good as closed."""
    return 0.05 if axis is None or axis.order is None else 1 / axis.order + NEARLY_CLOSED


def _state(theta: Tensor, axis: Axis | None) -> State | None:
    if float((theta >= OPEN).double().mean()) >= NEARLY_ALL:
        return "open"
    if float((theta <= _closed(axis)).double().mean()) >= NEARLY_ALL:
        return "closed"
    return "same" if len(theta) > 1 and float(theta.std()) < ACTIVE else None


def _sentence(
    state: State | None, name: str, theta: Tensor, axis: Axis | None, moves: str | None, others: list[str]
) -> str:
    """What a level does, and what to do.

    Args:
        state: What the windows have in common.
        name: The layer, and the circle if it has several.
        theta: `(N,)`.
        axis: The circle; None for one θ for the whole group.
        moves: The name of the circle, if the layer's other circles are in another state; None if all are alike.
        others: The names of these others.
    """
    rest = " and ".join(others)
    if state == "open":
        which = f"all windows of {name} are open (θ ≥ {OPEN:g})"
        if moves is not None:
            return f"{which}: for every image the layer is fully equivariant to {moves}, but not to {rest}"
        return (
            f"{which}: it is a fully equivariant layer. Train Fixed() with a narrow window to compare. If that is no "
            "better, take Full(), which gives the same answers for less; if it is better, the levels did not find it: "
            "train for longer, or take Fixed()"
        )
    if state == "closed":
        which = f"all windows of {name} are closed, or nearly (θ ≤ {_closed(axis):.2g})"
        why = "costs these images accuracy, or there were too few training steps to open the windows"
        if moves is not None:
            return f"{which}: the layer does not use {moves}, only {rest}. {moves.capitalize()} {why}"
        return (
            f"{which}: it is an ordinary layer. The group {why}; a network without a group (or Fixed() with a wider "
            "window) tells which"
        )
    less = "" if moves is not None else ". Shared() does the same for less"
    what = "be moved" if moves is None else f"be moved by {moves}"
    return (
        f"θ of {name} is {float(theta.mean()):.2f} for every image: nothing in the images tells it which of them "
        f"may {what}{less}"
    )
