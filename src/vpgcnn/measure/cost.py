"""What an answer costs: multiplications of the group convolutions, image by image, as θ makes it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vpgcnn.features import GroupFeature
from vpgcnn.nn import GroupConv2d, LiftConv2d, all_elements

__all__ = ["Cost", "multiplications"]

BATCH = 256
"""Images at a time."""


@dataclass(frozen=True)
class Cost:
    """Multiplications of the group convolutions of a network, as sums over taps.

    Args:
        used: `(B,)`, with only the elements that each image uses.
        whole: With all elements, the same for every image.
    """

    used: Tensor
    whole: float

    @property
    def share(self) -> Tensor:
        """The share of the whole cost that each image needs, `(B,)` in (0, 1]."""
        return self.used / self.whole if self.whole else torch.ones_like(self.used)


def multiplications(model: nn.Module, images: Tensor) -> Cost:
    """Count the multiplications that evaluation needs for each image.

    An element counts if its weight is not 0. A level that sees the layer's output needs all of that output. Encoders,
    norms and ordinary layers are not counted, nor what faster algorithms save.

    Args:
        model: In evaluation mode.
        images: `(B, C, H, W)`, as the model takes them.

    Returns:
        The cost of each image, and of an image that uses the whole group.
    """
    used, whole = [], 0.0
    layers = [module for module in model.modules() if isinstance(module, GroupConv2d | LiftConv2d)]
    device = next((parameter.device for parameter in model.parameters()), images.device)
    for some in images.split(BATCH):
        own, all_of_it = torch.zeros(len(some), dtype=torch.float64), [0.0]

        def note(
            layer: nn.Module,
            given: tuple[Tensor | GroupFeature, ...],
            out: GroupFeature,
            own: Tensor = own,
            all_of_it: list[float] = all_of_it,
        ) -> None:
            assert isinstance(layer, GroupConv2d | LiftConv2d)
            taps = layer.in_channels * layer.out_channels * layer.kernel_size**2 * out.shape[-2] * out.shape[-1]
            inputs = _used(given[0]) if isinstance(given[0], GroupFeature) else torch.ones(1)
            first = layer.condition == "input" or layer.level.same_for_all
            outputs = _used(out) if first else torch.full((1,), float(out.shape[2]))
            own += taps * inputs * outputs
            all_of_it[0] += taps * out.shape[2] * (given[0].shape[2] if isinstance(given[0], GroupFeature) else 1)

        hooks = [layer.register_forward_hook(note) for layer in layers]
        try:
            with torch.no_grad(), all_elements():
                model(some.to(device))
        finally:
            for hook in hooks:
                hook.remove()
        used.append(own)
        whole = all_of_it[0]
    return Cost(torch.cat(used) if used else torch.zeros(0, dtype=torch.float64), whole)


def _used(feature: GroupFeature) -> Tensor:
    """How many elements each image uses: `(B,)`, or `(1,)` for all of them."""
    if feature.weights is None:
        return torch.full((1,), float(feature.shape[2]))
    return (feature.weights != 0).sum(dim=1).double().cpu()
