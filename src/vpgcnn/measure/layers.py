"""Equivariance layer by layer: where a network loses the symmetry.

    >>> found = layer_errors(model, images, "rotation", [math.pi / 4, math.pi / 2])
    >>> found["lift"].relative          # (angles, N)

Works for any `nn.Module`. A layer is a module without submodules, or a layer of this package.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
import torch.nn.utils.parametrize
from torch import Tensor, nn

from vpgcnn.errors import UserError
from vpgcnn.features import GroupFeature
from vpgcnn.measure.motion import Kind, check_images, move
from vpgcnn.nn.conv import GroupConv2d, LiftConv2d
from vpgcnn.nn.norm import GroupBatchNorm
from vpgcnn.nn.pool import GroupPool, SpatialPool
from vpgcnn.testing import flat

__all__ = ["Call", "LayerError", "layer_errors", "layers_of", "recorded", "still"]

WHOLE = (
    LiftConv2d, GroupConv2d, GroupBatchNorm, GroupPool, SpatialPool,
    nn.modules.conv._ConvNd, nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.Linear,
)  # fmt: skip
"""Modules that count as one layer, although they may have submodules: also convolutions that hold their padding and
norms that hold their activation, as subclasses of torch's do."""


@dataclass(frozen=True)
class LayerError:
    """How far the output of a layer is from where it should be. Features with weights are compared as values × weights.

    Args:
        absolute: `(A, N)`, the norm of the difference for each angle and image.
        relative: `(A, N)`, the same over the norm of the output.
        floor: `(A, N)`, relative, for the image moved there and back: what resampling alone does.
    """

    absolute: Tensor
    relative: Tensor
    floor: Tensor


@dataclass(frozen=True)
class Call:
    """One call of a layer: its input and its output."""

    name: str
    given: Tensor | GroupFeature
    gave: Tensor | GroupFeature


def layers_of(model: nn.Module) -> dict[str, nn.Module]:
    """The layers of a network, by name, in the order in which they were registered."""
    found: dict[str, nn.Module] = {}
    seen: set[nn.Module] = set()

    def look(module: nn.Module, path: str) -> None:
        if module in seen:  # a shared module keeps its first name
            return
        seen.add(module)
        if isinstance(module, nn.utils.parametrize.ParametrizationList):
            return
        if nn.utils.parametrize.is_parametrized(module):  # its submodules produce weights, not maps
            found[path] = module
            return
        if isinstance(module, WHOLE) or not any(True for _ in module.children()):
            found[path] = module
            return
        for name, part in module.named_children():
            look(part, f"{path}.{name}" if path else name)

    look(model, "")
    return {name or type(module).__name__: module for name, module in found.items()}


@contextmanager
def still(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, and no activation that overwrites its input, for the length of a `with` block."""
    modes = {module: module.training for module in model.modules()}
    inplace = [module for module in model.modules() if getattr(module, "inplace", False) is True]
    try:
        for module in modes:
            module.training = False
        for module in inplace:
            module.inplace = False  # type: ignore[assignment]
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
        for module in inplace:
            module.inplace = True  # type: ignore[assignment]


@contextmanager
def recorded(model: nn.Module, batch: int) -> Iterator[list[Call]]:
    """Record the calls of layers with one map or feature as input and output, for the length of a `with` block.

    Args:
        model: The network.
        batch: Number of images.

    Yields:
        A list that grows with every call. The second call of a layer is named "name #2".
    """
    calls: list[Call] = []
    uses: Counter[str] = Counter()

    given: dict[nn.Module, list[object]] = {}

    def copy_inputs(layer: nn.Module, inputs: tuple[object, ...]) -> tuple[object, ...]:
        """Copy twice: one for a derivative through this layer alone, one that the layer may overwrite."""
        given[layer] = [_copied(part) for part in inputs]
        return tuple(_copied(part) for part in given[layer])

    def record(name: str) -> Callable[..., object]:
        def hook(layer: nn.Module, _: object, gave: object) -> object:
            inputs = given.pop(layer, [])
            if len(inputs) == 1 and _is_map(inputs[0], batch) and _is_map(gave, batch):
                uses[name] += 1
                shown = name if uses[name] == 1 else f"{name} #{uses[name]}"
                calls.append(Call(shown, inputs[0], gave))  # type: ignore[arg-type]
            return _copied(gave)  # a copy that the network may overwrite

        return hook

    hooks = []
    for name, layer in layers_of(model).items():
        hooks += [layer.register_forward_pre_hook(copy_inputs), layer.register_forward_hook(record(name))]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def _copied(given: object) -> object:
    if isinstance(given, GroupFeature):
        weights = None if given.weights is None else given.weights.clone()
        return replace(given, values=given.values.clone(), weights=weights)
    return given.clone() if isinstance(given, Tensor) else given


def _is_map(output: object, batch: int) -> bool:
    """Whether an output has one entry per image and a known motion: a feature, a map, or a vector."""
    if isinstance(output, GroupFeature):
        return len(output) == batch
    return isinstance(output, Tensor) and output.dim() in (2, 4) and len(output) == batch and output.is_floating_point()


@torch.no_grad()
def layer_errors(model: nn.Module, images: Tensor, kind: Kind, angles: Sequence[float]) -> dict[str, LayerError]:
    """The error of every layer's output, accumulated from the image on.

    Args:
        model: Any network with maps `(B, C, H, W)` inside; channels-last layouts are not supported.
        images: `(N, C, H, W)` as the model takes them; RGB for hue.
        kind: "rotation" or "hue".
        angles: In radians; they may lie between the elements of a feature, see `vpgcnn.measure.motion`.

    Returns:
        Layer → error, in the order of the calls.
    """
    check_images(images, kind)
    if not len(angles):
        raise UserError("there are no angles to move by")
    rows: dict[str, list[tuple[Tensor, Tensor, Tensor]]] = {}
    with still(model):
        plain = _outputs(model, images)
        for angle in angles:
            there = move(images, kind, angle)
            moved, back = _outputs(model, there), _outputs(model, move(there, kind, -angle))
            for name, output in plain.items():
                if name in moved and flat(moved[name]).shape == flat(output).shape:
                    expected = move(output, kind, angle, image=images.shape)
                    size = _norm(flat(output)).clamp_min(torch.finfo(images.dtype).tiny)
                    error = _norm(flat(moved[name]) - flat(expected))
                    rows.setdefault(name, []).append(
                        (error, error / size, _norm(flat(back[name]) - flat(output)) / size)
                    )
    return {
        name: LayerError(*(torch.stack(column) for column in zip(*each, strict=True))) for name, each in rows.items()
    }


def _outputs(model: nn.Module, images: Tensor) -> dict[str, Tensor | GroupFeature]:
    with recorded(model, len(images)) as calls:
        model(images)
    return {call.name: call.gave for call in calls}


def _norm(values: Tensor) -> Tensor:
    return torch.linalg.vector_norm(values, dim=1)
