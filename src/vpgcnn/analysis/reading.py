"""Reading the levels that a network uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vpgcnn.distributions import Distribution
from vpgcnn.errors import UserError
from vpgcnn.levels import Level, Variational, circles_of, layer_of
from vpgcnn.models.augmented import Augmented, ImageRange, SharedRange

__all__ = [
    "Observation",
    "all_of_the_group",
    "apart",
    "marginals",
    "observe",
    "read_theta",
    "read_weights",
    "same_for_all",
]


def read_theta(
    model: nn.Module,
    images: Tensor,
    *,
    batch: int = 256,
    all_levels: bool = False,
    prepare: Callable[[Tensor], Tensor] = lambda part: part,
) -> dict[str, Tensor]:
    """θ of each image at each variational layer: name of the layer → `(N, K)`, one for each axis of the group.

    images: `(N, C, H, W)` as `prepare` takes them, which makes of a batch what the model takes. all_levels: also the
    levels that all images share. The range of a learned augmentation is called "ranges", and the levels of a
    network behind one are those for the image as it is. The model is left in evaluation mode.
    """

    def theta(_: nn.Module, q: Distribution | Tensor) -> Tensor:
        return q if isinstance(q, Tensor) else q.theta

    return _read(model, images, theta, _shown(model, all_levels), batch, prepare)


def read_weights(
    model: nn.Module,
    images: Tensor,
    *,
    drawn: bool = False,
    batch: int = 256,
    prepare: Callable[[Tensor], Tensor] = lambda part: part,
) -> dict[str, Tensor]:
    """The weight of every element for each image: name of the layer → `(N, G)`, rows sum to 1.

    images: `(N, C, H, W)`, prepare: as for `read_theta`. drawn: with the noise that training has, for families that
    have some. Of levels that are not full, on a shared grid. The model is left in evaluation mode.
    """

    def weights(level: nn.Module, q: Distribution | Tensor) -> Tensor:
        assert isinstance(q, Distribution)
        return _weights(level, q)

    chosen = {name: m for name, m in _shown(model, True).items() if isinstance(m, Level) and not m.per_image}
    return _read(model, images, weights, chosen, batch, prepare, drawn=drawn)


def apart(model: nn.Module, theta: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """θ of every circle by itself, `(N,)`, of what `read_theta` gives for this model.

    A layer whose level has several circles becomes several entries, say "last rotation" and "last hue".
    """
    modules = _shown(model, True)
    return {
        name: column
        for layer, values in theta.items()
        for name, column in zip(circles_of(layer, modules[layer]), values.unbind(dim=1), strict=True)
    }


def marginals(model: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of the points of every circle by itself, `(N, points)`, of what `read_weights` gives."""
    modules, parts = _shown(model, True), {}
    for layer, values in weights.items():
        level = modules[layer]
        assert isinstance(level, Level)
        counts = level.group.counts(level.group.points_of(values.shape[1]))
        table = values.unflatten(1, counts)
        for place, name in enumerate(circles_of(layer, level)):
            others = [1 + other for other in range(len(counts)) if other != place]
            parts[name] = table.sum(dim=others) if others else table
    return parts


@dataclass(frozen=True, eq=False)
class Observation:
    """logits: `(N, classes)`. theta: layer → `(N, K)`. weights: layer → `(N, G)`, where elements are shared."""

    logits: Tensor
    theta: dict[str, Tensor]
    weights: dict[str, Tensor]


@torch.no_grad()
def observe(model: nn.Module, images: Tensor) -> Observation:
    """What a network says of images `(N, C, H, W)`, as it takes them, and its levels, in one forward pass.

    Behind an augmentation it is two: the levels are those for the images as they are.
    """
    if isinstance(model, Augmented):
        logits = model.eval()(images)[0]
        return Observation(logits, read_theta(model, images, all_levels=True), read_weights(model, images))
    theta: dict[str, Tensor] = {}
    weights: dict[str, Tensor] = {}

    def reader(name: str) -> Callable[..., None]:
        def hook(level: nn.Module, _: object, q: Distribution) -> None:
            theta[name] = q.theta.detach().cpu()
            if isinstance(level, Level) and not level.per_image:
                weights[name] = _weights(level, q).detach().cpu()

        return hook

    hooks = [level.register_forward_hook(reader(name)) for name, level in _shown(model, True).items()]
    try:
        logits = model.eval()(images)[0]
    finally:
        for hook in hooks:
            hook.remove()
    return Observation(logits, theta, weights)


def _weights(level: nn.Module, q: Distribution) -> Tensor:
    """The weight of every element of a shared grid."""
    return q.weights(q.group.grid(getattr(level, "points", None), dtype=q.theta.dtype, device=q.theta.device))


def _shown(model: nn.Module, all_levels: bool) -> dict[str, nn.Module]:
    """The modules that choose something for images, by the name of their layer."""
    found: dict[str, nn.Module] = {}
    for path, module in model.named_modules():
        shown = isinstance(module, Level) and module.partial and (all_levels or isinstance(module, Variational))
        shown |= isinstance(module, ImageRange) or (all_levels and isinstance(module, SharedRange))
        if shown:
            found[layer_of(path)] = module
    return found


@torch.no_grad()
def _read(
    model: nn.Module,
    images: Tensor,
    pick: Callable[[nn.Module, Any], Tensor],
    modules: Mapping[str, nn.Module],
    batch: int,
    prepare: Callable[[Tensor], Tensor],
    *,
    drawn: bool = False,
) -> dict[str, Tensor]:
    """What `pick` takes from the answers of modules, for all images."""
    seen: dict[str, list[Tensor]] = {name: [] for name in modules}

    def reader(name: str) -> Callable[..., None]:
        return lambda module, _inputs, answer: seen[name].append(pick(module, answer).detach().cpu())

    model.eval()
    hooks = [module.register_forward_hook(reader(name)) for name, module in modules.items()]
    try:
        for module in modules.values() if drawn else ():
            module.training = True  # the level alone: norms inside an encoder stay as they are
        for part in images.split(batch):
            ready = prepare(part)
            if isinstance(model, Augmented):
                model.ranges(ready)
                model.network(ready)
            else:
                model(ready)
    finally:
        model.eval()
        for hook in hooks:
            hook.remove()
    return {name: torch.cat(parts) for name, parts in seen.items() if parts}


@contextmanager
def all_of_the_group(model: nn.Module) -> Iterator[nn.Module]:
    """The model as if every level were θ = 1, for the length of a `with` block: what its levels are good for."""
    levels = [module for module in model.modules() if isinstance(module, Level) and module.partial]
    if any(level.per_image for level in levels):
        raise UserError("levels that place elements of each image's own cannot be left out")
    try:
        for level in levels:
            level.partial = False
        yield model
    finally:
        for level in levels:
            del level.partial  # the class's own again


@contextmanager
def same_for_all(
    model: nn.Module, images: Tensor, *, prepare: Callable[[Tensor], Tensor] = lambda part: part
) -> Iterator[nn.Module]:
    """The model as if every variational level were the same for all images: what looking at the image is good for.

    The level is the mean over `images`, which are as in `read_theta`. For the length of a `with` block.
    """
    levels = {name: module for name, module in model.named_modules() if isinstance(module, Variational)}
    encoders = {name: level.encoder for name, level in levels.items()}

    def bounded(encoder: nn.Module, raw: Tensor) -> Tensor:
        level = next(level for level in levels.values() if level.encoder is encoder)
        return level.family.bounded(raw, level.group, level.points)

    each = _read(model, images, bounded, encoders, 256, prepare)

    def constant(mean: Tensor) -> Callable[..., Tensor]:
        return lambda _module, _inputs, raw: mean.to(raw).expand_as(raw)

    hooks = [encoders[name].register_forward_hook(constant(found.mean(dim=0))) for name, found in each.items()]
    try:
        yield model
    finally:
        for hook in hooks:
            hook.remove()
