"""The levels of some images as a table.

>>> table = levels(model, images)
>>> table.theta["last"]                   # (N, K)

`vpgcnn.lab.report.levels.plot_levels(table)` draws it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from vpgcnn.errors import UserError
from vpgcnn.groups import Group
from vpgcnn.measure.idle import idle_levels
from vpgcnn.measure.reading import read_levels

__all__ = ["LevelTable", "levels"]

ENOUGH = 20
"""Images from which levels that do nothing are named."""
SHOWN = 60
"""`repr` prints at most this many images."""


@dataclass(frozen=True, eq=False)
class LevelTable:
    """How much of the group each layer uses for each of N images.

    Args:
        names: Names of the images.
        theta: Layer → θ `(N, K)`, the share of the circle in use on each of the group's K axes.
        weights: Layer → `(N, G)`, the weight of every element on the group's grid; rows sum to 1.
        idle: One sentence for each level that does nothing for these images, as `idle_levels` says; none if there are
            fewer than 20 images, which say little about the others.
        groups: Layer → its group; where it is missing, axes have no names.
    """

    names: tuple[str, ...]
    theta: dict[str, Tensor]
    weights: dict[str, Tensor]
    idle: tuple[str, ...] = ()
    groups: dict[str, Group] = field(default_factory=dict)

    @property
    def layers(self) -> list[str]:
        """Names of the layers that have a level."""
        return list(self.theta)

    def __len__(self) -> int:
        return len(self.names)

    def rows(self) -> list[dict[str, Any]]:
        """One JSON-serialisable row per image and layer.

        θ and the window in degrees, one for each circle of the group, whose names are `axes`. Axes of one element are
        no circles, and a mirror has no degrees: its window is None.
        """
        rows = []
        for place, name in enumerate(self.names):
            for layer, values in self.theta.items():
                circles = self._circles(layer)
                shares = [float(values[place, column]) for column in circles]
                windows = [
                    None if axis == "mirror" else [-180 * share, 180 * share]
                    for axis, share in zip(circles.values(), shares, strict=True)
                ]
                weights = [float(w) for w in self.weights[layer][place]] if layer in self.weights else None
                rows.append({
                    "image": name, "layer": layer, "axes": list(circles.values()), "theta": shares, "window": windows,
                    "weights": weights,
                })  # fmt: skip
        return rows

    def _circles(self, layer: str) -> dict[int, str]:
        """Column of θ → the name of its circle; "" where one θ stands for several."""
        columns, group = self.theta[layer].shape[1], self.groups.get(layer)
        if group is None:
            return dict.fromkeys(range(columns), "")
        return {0: group.axes[0].name} if len(group.axes) == 1 else group.circles_of(columns)

    def __repr__(self) -> str:
        if not self.theta:
            return f"{len(self)} images; no layer has a level"
        circles = [
            (
                f"θ {layer} {axis}".rstrip() if self.theta[layer].shape[1] > 1 else f"θ {layer}",
                self.theta[layer][:, place],
            )
            for layer in self.layers
            for place, axis in self._circles(layer).items()
        ]
        heads = ["image", *(head for head, _ in circles)]
        lines = [heads]
        for place, name in enumerate(self.names[:SHOWN]):
            lines.append([name, *(f"{float(values[place]):.3f}" for _, values in circles)])
        widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
        text = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
        ]
        text += [f"… {len(self) - SHOWN} more"] * (len(self) > SHOWN)
        return "\n".join(text + [f"note: {sentence}" for sentence in self.idle])


@torch.no_grad()
def levels(
    model: nn.Module,
    images: Tensor,
    names: Sequence[str] | None = None,
) -> LevelTable:
    """Read the levels of a network, including those that all images share.

    Args:
        model: The network. It is in evaluation mode meanwhile.
        images: `(N, C, H, W)` as the model takes them; bytes are scaled to [0, 1].
        names: Names of the images; their numbers by default.

    Returns:
        θ and weights of each layer and image, and which levels do nothing.

    Raises:
        UserError: If there are not as many names as images.
    """
    names = tuple(map(str, range(len(images)) if names is None else names))
    if len(names) != len(images):
        some = "1 name" if len(names) == 1 else f"{len(names)} names"
        raise UserError(f"levels takes one name for each image, got {some} for {len(images)} images")
    reading = read_levels(model, images)
    idle = idle_levels(reading) if len(images) >= ENOUGH else []
    return LevelTable(names, reading.theta, reading.weights, tuple(idle), reading.groups)
