"""Reading the levels that a network uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from vpgcnn.errors import UserError
from vpgcnn.levels import Level, Variational
from vpgcnn.models.augmented import Augmented, ImageRange, SharedRange

__all__ = ["all_of_the_group", "read_theta"]


@torch.no_grad()
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
    seen: dict[str, list[Tensor]] = {}

    def reader(name: str) -> Callable[..., None]:
        def read(_module: nn.Module, _inputs: object, q: object) -> None:
            theta = q if isinstance(q, Tensor) else q.theta  # type: ignore[attr-defined]
            seen[name].append(theta.detach().cpu())

        return read

    hooks = []
    for path, module in model.named_modules():
        shown = isinstance(module, Level) and module.partial and (all_levels or isinstance(module, Variational))
        shown |= isinstance(module, ImageRange) or (all_levels and isinstance(module, SharedRange))
        if shown:
            name = path.removesuffix(".level")
            seen[name] = []
            hooks.append(module.register_forward_hook(reader(name)))
    try:
        model.eval()
        for part in images.split(batch):
            ready = prepare(part)
            if isinstance(model, Augmented):
                model.ranges(ready)
                model.network(ready)
            else:
                model(ready)
    finally:
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
