"""Read the levels that a network uses, and replace them to see what they are worth.

>>> reading = read_levels(net, images)
>>> reading.theta["last"]                 # (N, K): one θ for each image and axis of the group
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from vpgcnn.errors import UserError
from vpgcnn.features import GroupFeature, Prediction
from vpgcnn.groups import Group
from vpgcnn.levels import Distribution, Full, Level
from vpgcnn.measure.layers import still

__all__ = ["LevelReading", "read_levels", "whole_group", "with_mean_levels"]


@dataclass(frozen=True, eq=False)
class LevelReading:
    """What a network answers for N images, and what its levels decided.

    Args:
        logits: `(N, classes)`.
        theta: Layer → θ, `(N, K)`: one for each axis of the layer's group (or one in all, for some families).
        weights: Layer → weight of every element on the group's grid, `(N, G)`; rows sum to 1.
        groups: Layer → its group.
        shared: Layers whose level is the same for all images.
    """

    logits: Tensor
    theta: dict[str, Tensor]
    weights: dict[str, Tensor]
    groups: dict[str, Group]
    shared: frozenset[str]

    def per_image(self) -> LevelReading:
        """Only the layers with a level for each image."""
        keep = [layer for layer in self.theta if layer not in self.shared]
        parts = ({layer: part[layer] for layer in keep} for part in (self.theta, self.weights, self.groups))
        theta, weights, groups = parts
        return LevelReading(self.logits, theta, weights, groups, frozenset())  # type: ignore[arg-type]

    def circles(self) -> dict[str, Tensor]:
        """θ of every circle, `(N,)`. A layer on several circles has several: "last rotation" and "last hue"."""
        return {
            name: values[:, place]
            for layer, values in self.theta.items()
            for place, name in self._names(layer, values.shape[1]).items()
        }

    def marginals(self) -> dict[str, Tensor]:
        """The weights of the points of every circle, `(N, points)`, under the names that `circles` gives."""
        parts = {}
        for layer, values in self.weights.items():
            counts = self.groups[layer].counts_of(values.shape[1])
            table = values.unflatten(1, counts)
            for place, name in self._names(layer, len(counts)).items():
                others = [1 + other for other in range(len(counts)) if other != place]
                parts[name] = table.sum(dim=others) if others else table
        return parts

    def _names(self, layer: str, columns: int) -> dict[int, str]:
        """Column → the name of its circle."""
        circles = self.groups[layer].circles_of(columns)
        return {place: f"{layer} {circle}".rstrip() for place, circle in circles.items()}


@torch.no_grad()
def read_levels(model: nn.Module, images: Tensor, *, batch: int = 256, sampled: bool = False) -> LevelReading:
    """The answers of a network and the decisions of all its levels.

    Args:
        model: A network that returns a `Prediction`. It is in evaluation mode meanwhile.
        images: `(N, C, H, W)` as the model takes them; bytes are scaled to [0, 1].
        batch: Images at a time.
        sampled: Whether levels draw the noise that training has, for families that have some.

    Returns:
        Everything on the CPU.
    """
    device = next((parameter.device for parameter in model.parameters()), images.device)
    levels = [module for module in model.modules() if isinstance(module, Level)] if sampled else []
    explored = [level.explore for level in levels]
    parts = []
    with still(model):
        try:
            for level in levels:
                level.training = True  # only the level: norms inside its encoder stay in evaluation mode
                level.explore = 0.0
            for part in images.split(batch):
                part = part.to(device)
                answer = model(part if part.is_floating_point() else part.to(torch.get_default_dtype()) / 255)
                if not isinstance(answer, Prediction):
                    raise UserError(
                        f"levels are read from a network that returns a Prediction, got {type(answer).__name__}"
                    )
                parts.append(answer)
        finally:
            for level, share in zip(levels, explored, strict=True):
                level.explore = share
    first = parts[0].trace
    theta = {layer: torch.cat([part.trace[layer].theta for part in parts]).cpu() for layer in first}
    weights = {layer: torch.cat([_on_grid(part.trace[layer]) for part in parts]).cpu() for layer in first}
    return LevelReading(
        logits=torch.cat([part.logits for part in parts]).cpu(),
        theta=theta,
        weights=weights,
        groups={layer: q.group for layer, q in first.items()},
        shared=frozenset(layer for layer, q in first.items() if q.shared),
    )


def _on_grid(q: Distribution) -> Tensor:
    """The weight of every element of the group's grid."""
    return q.weights(q.group.grid(dtype=q.theta.dtype, device=q.theta.device))


# ---------------------------------------------------------------- other levels for a while


class _Constant(Level):
    """The same decision for every image."""

    def __init__(self, q: Distribution, level: Level) -> None:
        super().__init__()
        self.group, self.moves_elements, self.q = level.group, level.moves_elements, q

    def forward(self, feature: GroupFeature, generator: torch.Generator | None = None) -> Distribution:
        return _each(self.q, lambda part: part.to(feature.device).expand(len(feature), *part.shape[1:]))


def _each(q: Distribution, change: Callable[[Tensor], Tensor]) -> Distribution:
    """A distribution with every tensor changed."""
    changed: Distribution = tree_map(lambda part: change(part) if isinstance(part, Tensor) else part, q)
    return changed


def _layers(model: nn.Module) -> dict[str, nn.Module]:
    """The layers with a level that is not full, by the name that stands in the trace."""
    found = {}
    for path, module in model.named_modules():
        level = getattr(module, "level", None)
        if isinstance(level, Level) and not level.is_full:
            name = str(getattr(module, "name", path))
            if name in found:
                raise UserError(f"two layers are called {name!r}: call name_layers on the whole network")
            found[name] = module
    return found


@contextmanager
def _replaced(levels: dict[nn.Module, Level]) -> Iterator[None]:
    before = {layer: layer.level for layer in levels}
    try:
        for layer, level in levels.items():
            layer.level = level.to(next(layer.parameters()).device).eval()
        yield
    finally:
        for layer, old in before.items():
            layer.level = old


@contextmanager
def whole_group(model: nn.Module) -> Iterator[nn.Module]:
    """The model as if every θ were 1, for the length of a `with` block: what its levels are worth."""
    pairs = ((layer, getattr(layer, "level", None)) for layer in model.modules())
    levels = {layer: level for layer, level in pairs if isinstance(level, Level) and not level.is_full}
    full: dict[nn.Module, Level] = {}
    for layer, level in levels.items():
        if level.moves_elements:
            raise UserError("a level that moves elements cannot be replaced by the whole group")
        full[layer] = Full().build(level.group)
    with _replaced(full):
        yield model


@contextmanager
def with_mean_levels(model: nn.Module, images: Tensor, *, batch: int = 256) -> Iterator[nn.Module]:
    """The model with the mean level for every image, for the length of a `with` block: what seeing the image is worth.

    In the block it is in evaluation mode.

    Args:
        model: As for `read_levels`.
        images: `(N, C, H, W)`, over which the mean is taken; as for `read_levels`.
        batch: Images at a time.
    """
    if not len(images):
        raise UserError("a mean level needs at least one image")
    layers = _layers(model)
    sums: dict[str, Distribution] = {}
    device = next(model.parameters()).device
    with torch.no_grad(), still(model):
        for part in images.split(batch):
            part = part.to(device)
            answer = model(part if part.is_floating_point() else part.to(torch.get_default_dtype()) / 255)
            for name, q in answer.trace.items():
                if name in layers and not q.shared:
                    total = _each(q, lambda values: values.sum(dim=0, keepdim=True))
                    sums[name] = _added(sums[name], total) if name in sums else total
    means = {name: _each(total, lambda part: part / len(images)) for name, total in sums.items()}
    constant = {layers[name]: _Constant(q, layers[name].level) for name, q in means.items()}  # type: ignore[arg-type]
    with still(model), _replaced(constant):  # type: ignore[arg-type]
        yield model


def _added(one: Distribution, two: Distribution) -> Distribution:
    added: Distribution = tree_map(lambda a, b: a + b if isinstance(a, Tensor) else a, one, two)
    return added
