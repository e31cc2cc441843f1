"""The levels of some images as a small table.

>>> table = levels(model, images)
>>> table.theta["last"]                   # (N, K)
>>> table.plot().save("levels.svg")
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vpgcnn.analysis.reading import read_theta, read_weights
from vpgcnn.errors import UserError
from vpgcnn.report.chart import Axis, BarPanel, Bars, Chart
from vpgcnn.report.picture import Picture

__all__ = ["LevelTable", "levels"]

SHOWN = 60
"""Images in a plot, at most."""
WINDOW = Axis("window", [(angle, f"{angle}°") for angle in range(-180, 181, 90)])


@dataclass(frozen=True, eq=False)
class LevelTable:
    """What each layer uses of the group for each of N images.

    names: of the images. theta: layer → `(N, K)`, the share of the circle in use, one for each axis of the group.
    weights: layer → `(N, G)`, of every element of the group on its grid, rows sum to 1; layers whose elements are
    drawn for each image have none.
    """

    names: tuple[str, ...]
    theta: dict[str, Tensor]
    weights: dict[str, Tensor]

    @property
    def layers(self) -> list[str]:
        return list(self.theta)

    def __len__(self) -> int:
        return len(self.names)

    def rows(self) -> list[dict[str, Any]]:
        """One for each image and layer, as JSON takes them; window: in degrees, of each axis."""
        return [
            {
                "image": name,
                "layer": layer,
                "theta": (own := [float(value) for value in values[place]]),
                "window": [[-180 * share, 180 * share] for share in own],
                "weights": [float(w) for w in self.weights[layer][place]] if layer in self.weights else None,
            }
            for place, name in enumerate(self.names)
            for layer, values in self.theta.items()
        ]

    def __repr__(self) -> str:
        if not self.theta:
            return f"{len(self)} images, and no layer with a level"
        heads = ["image", *(f"θ {layer}" for layer in self.layers)]
        lines = [heads]
        for place, name in enumerate(self.names[:SHOWN]):
            lines.append([name, *(" ".join(f"{v:.3f}" for v in values[place]) for values in self.theta.values())])
        widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
        text = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
        ]
        return "\n".join(text + [f"… {len(self) - SHOWN} more"] * (len(self) > SHOWN))

    def plot(self, *, axis: int = 0) -> Picture:
        """The window [−180°·θ, 180°·θ] of each image, a panel for each layer. axis: which of the group's circles."""
        if not self.theta:
            raise UserError("this network has no level that could be plotted")
        panels = []
        for layer, values in self.theta.items():
            shares = [float(value) for value in values[:SHOWN, axis]]
            ends = [(-180 * share, 180 * share) for share in shares]
            series = [Bars("rotations (or hues) in use", ends)]
            panels.append(BarPanel(layer, list(self.names[:SHOWN]), series, "images", WINDOW))
        return Picture(Chart(panels, columns=1, title="Learned windows"))


@torch.no_grad()
def levels(
    model: nn.Module,
    images: Tensor,
    names: Sequence[str] | None = None,
    *,
    prepare: Callable[[Tensor], Tensor] = lambda part: part,
) -> LevelTable:
    """The levels of a network for images `(N, C, H, W)`, as `prepare` takes them: the model's input, unless given.

    names: of the images; otherwise their numbers. Levels that all images share are there too.
    """
    names = tuple(map(str, range(len(images)) if names is None else names))
    if len(names) != len(images):
        raise UserError(f"{len(images)} images, but {len(names)} names")
    theta = read_theta(model, images, all_levels=True, prepare=prepare)
    return LevelTable(names, theta, read_weights(model, images, prepare=prepare))
