"""Reading the levels that a network uses."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from vpgcnn.levels import Level, Variational
from vpgcnn.models.augmented import ImageRange, SharedRange

__all__ = ["read_theta"]


@torch.no_grad()
def read_theta(model: nn.Module, images: Tensor, *, batch: int = 256, all_levels: bool = False) -> dict[str, Tensor]:
    """θ of each image at each variational layer: name of the layer → `(N, K)`, one for each axis of the group.

    images: `(N, C, H, W)` as the model takes them. all_levels: also the levels that all images share. The range
    of a learned augmentation is called "ranges". The model is left in evaluation mode.
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
            model(part)
    finally:
        for hook in hooks:
            hook.remove()
    return {name: torch.cat(parts) for name, parts in seen.items() if parts}
