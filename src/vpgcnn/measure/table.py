"""The levels of some images as a table.

>>> table = levels(model, images)
>>> table.theta["last"]                   # (N, K)

`vpgcnn.lab.report.levels.plot_levels(table)` draws it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vpgcnn.errors import UserError
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
    """

    names: tuple[str, ...]
    theta: dict[str, Tensor]
    weights: dict[str, Tensor]
    idle: tuple[str, ...] = ()

    @property
    def layers(self) -> list[str]:
        """Names of the layers that have a level."""
        return list(self.theta)

    def __len__(self) -> int:
        return len(self.names)

    def rows(self) -> list[dict[str, Any]]:
        """One JSON-serialisable row per image and layer; windows are in degrees, one per axis."""
        return [
            {
                "image": name,
                "layer": layer,
                "theta": (shares := [float(value) for value in values[place]]),
                "window": [[-180 * share, 180 * share] for share in shares],
                "weights": [float(w) for w in self.weights[layer][place]] if layer in self.weights else None,
            }
            for place, name in enumerate(self.names)
            for layer, values in self.theta.items()
        ]

    def __repr__(self) -> str:
        if not self.theta:
            return f"{len(self)} images; no layer has a level"
        heads = ["image", *(f"θ {layer}" for layer in self.layers)]
        lines = [heads]
        for place, name in enumerate(self.names[:SHOWN]):
            lines.append([name, *(" ".join(f"{v:.3f}" for v in values[place]) for values in self.theta.values())])
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
        model: The network.
        images: `(N, C, H, W)` as the model takes them; bytes are scaled to [0, 1].
        names: Names of the images; their numbers by default.

    Returns:
        θ and weights of each layer and image, and which levels do nothing.

    Raises:
        UserError: If there are not as many names as images.
    """
    names = tuple(map(str, range(len(images)) if names is None else names))
    if len(names) != len(images):
        raise UserError(f"expected one name per image, got {len(images)} images and {len(names)} names")
    reading = read_levels(model, images)
    idle = idle_levels(reading) if len(images) >= ENOUGH else []
    return LevelTable(names, reading.theta, reading.weights, tuple(idle))
