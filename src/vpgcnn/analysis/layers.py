"""Equivariance layer by layer: where in a network the symmetry is lost.

    >>> found = layer_errors(model, images, "rotation", [math.pi / 4, math.pi / 2])
    >>> found["lift"].relative          # (angles, N)

Any `nn.Module` will do. A layer is a module without parts of its own, or one of ours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
import torch.nn.utils.parametrize
from torch import Tensor, nn

from vpgcnn.analysis.motion import Kind, check_images, move
from vpgcnn.conv import GroupConv2d, LiftConv2d
from vpgcnn.errors import UserError
from vpgcnn.features import GroupFeature
from vpgcnn.norm import GroupBatchNorm
from vpgcnn.pool import GroupPool, SpatialPool
from vpgcnn.testing import flat

__all__ = ["Call", "LayerError", "layer_errors", "layers_of", "recorded", "still"]

WHOLE = (LiftConv2d, GroupConv2d, GroupBatchNorm, GroupPool, SpatialPool)
"""Modules whose parts are not looked at one by one."""


@dataclass(frozen=True)
class LayerError:
    """How far the output of a layer is from where it ought to be, for each angle and image: `(A, N)`.

    absolute: the norm of the difference. relative: over the norm of the output. floor: relative, of the image moved
    there and back. Differences of weighted features are those of values × coverage.
    """

    absolute: Tensor
    relative: Tensor
    floor: Tensor


@dataclass(frozen=True)
class Call:
    """One use of a layer: what it was given and what it gave."""

    name: str
    given: Tensor | GroupFeature
    gave: Tensor | GroupFeature


def layers_of(model: nn.Module) -> dict[str, nn.Module]:
    """The layers of a network, by name, in the order in which they were registered."""
    found: dict[str, nn.Module] = {}
    seen: set[nn.Module] = set()

    def look(module: nn.Module, path: str) -> None:
        if module in seen:  # shared: it keeps its first name
            return
        seen.add(module)
        if isinstance(module, nn.utils.parametrize.ParametrizationList):
            return
        if nn.utils.parametrize.is_parametrized(module):  # its parts make weights, not maps
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
    """The uses of layers that take one map or feature to one, as they happen, for the length of a `with` block.

    batch: how many images there are. The second use of a layer is called "name #2".
    """
    calls: list[Call] = []
    uses: Counter[str] = Counter()

    given: dict[nn.Module, list[object]] = {}

    def apart(layer: nn.Module, inputs: tuple[object, ...]) -> tuple[object, ...]:
        """A copy for each layer, so that a derivative by it is the derivative through this layer alone; and one more,
        which the layer may overwrite.
        """
        given[layer] = [_copied(part) for part in inputs]
        return tuple(_copied(part) for part in given[layer])

    def hear(name: str) -> Callable[..., object]:
        def hook(layer: nn.Module, _: object, gave: object) -> object:
            inputs = given.pop(layer, [])
            if len(inputs) == 1 and _is_map(inputs[0], batch) and _is_map(gave, batch):
                uses[name] += 1
                shown = name if uses[name] == 1 else f"{name} #{uses[name]}"
                calls.append(Call(shown, inputs[0], gave))  # type: ignore[arg-type]
            return _copied(gave)  # which the network may overwrite

        return hook

    hooks = []
    for name, layer in layers_of(model).items():
        hooks += [layer.register_forward_pre_hook(apart), layer.register_forward_hook(hear(name))]
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
    """Whether it is something that moves with the images, one for each: a feature, a map, or a vector that stays."""
    if isinstance(output, GroupFeature):
        return len(output) == batch
    return isinstance(output, Tensor) and output.dim() in (2, 4) and len(output) == batch and output.is_floating_point()


@torch.no_grad()
def layer_errors(model: nn.Module, images: Tensor, kind: Kind, angles: Sequence[float]) -> dict[str, LayerError]:
    """The error of every layer's output, accumulated from the image on, under moves by angles in radians.

    images: `(N, C, H, W)` as the model takes them; hue: RGB. Angles may lie between the elements of a feature, see
    `motion`. Maps are taken for B×C×H×W: networks that keep channels last inside are not for this.
    """
    check_images(images, kind)
    if not len(angles):
        raise UserError("say by which angles to move")
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
