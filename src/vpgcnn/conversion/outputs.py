"""What a network answers, one tensor or several, and how each of them moves with the image.

    >>> net = convert(unet, Rotations(4))                                         # one map: every channel a scalar
    >>> net = convert(pyramid, Rotations(4), outputs="map")                       # several, all like that
    >>> net = convert(detector, Rotations(4), outputs={"scores": "map", "boxes": Directions(sides=((0, 1, 2, 3),))})

The views of an image answer for the image as each of them shows it. Before they are averaged, every answer is turned
back: a map as a whole, and channels that have a direction among each other too.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from vpgcnn.conversion.moves import moved
from vpgcnn.conversion.views import Matrix, NeedsAll, Record, Views, record_of
from vpgcnn.errors import UserError
from vpgcnn.features import Prediction, Trace
from vpgcnn.groups import Group

__all__ = [
    "Directions",
    "Kind",
    "Kinds",
    "Outputs",
    "averaged",
    "check_kinds",
    "kinds_of",
    "merged_record",
    "parts_of",
    "pooled",
    "rebuilt",
]


@dataclass(frozen=True)
class Directions:
    """Channels of a map that have a direction, as boxes and flows have; all others are scalars.

    Coordinates are those of image files, x to the right and y down. A quarter turn exchanges x and y, so a pair may be
    of two anchors: the x of the wide one, the y of the tall one.

    Args:
        vectors: Pairs of channels (x, y), such as the offset of a box's centre, or the flow of a pixel.
        sizes: Pairs of channels (width, height), or their logarithms.
        sides: Four channels (left, top, right, bottom): distances to the sides of a box, positive to the outside.
    """

    vectors: tuple[tuple[int, int], ...] = ()
    sizes: tuple[tuple[int, int], ...] = ()
    sides: tuple[tuple[int, int, int, int], ...] = ()

    def __post_init__(self) -> None:
        for name, width in (("vectors", 2), ("sizes", 2), ("sides", 4)):
            value = getattr(self, name)
            rows = [tuple(row) if isinstance(row, list | tuple) else () for row in value]
            if any(len(row) != width for row in rows):
                shape = "((0, 1),)" if width == 2 else "((0, 1, 2, 3),)"
                raise UserError(f"{name} are groups of {width} channels, such as {shape}, got {value!r}")
            object.__setattr__(self, name, tuple(rows))
        for channel in self.channels:
            if isinstance(channel, bool) or not isinstance(channel, int) or channel < 0:
                raise UserError(f"channels are counted from 0, got {channel!r}")
        twice = [channel for channel in self.channels if self.channels.count(channel) > 1]
        if twice:
            raise UserError(f"channel {twice[0]} has two directions: name it once")
        if not self.channels:
            raise UserError('no channel has a direction: say "map"')

    @property
    def channels(self) -> list[int]:
        """All channels that have a direction."""
        return [channel for row in (*self.vectors, *self.sizes, *self.sides) for channel in row]

    def moved(self, maps: Tensor, matrix: Matrix) -> Tensor:
        """The channels of maps `(B, C, H, W)` after a quarter turn or mirror of the image.

        Args:
            maps: Where they are does not change here.
            matrix: On points (x right, y up).
        """
        (a, b), (c, d) = matrix
        index, sign = list(range(maps.shape[1])), [1] * maps.shape[1]
        for x, y in self.vectors:  # in y down, (x, y) becomes (a·x − b·y, −c·x + d·y)
            index[x], sign[x] = (x, a) if a else (y, -b)
            index[y], sign[y] = (y, d) if a else (x, -c)
        for width, height in self.sizes:
            index[width], index[height] = (width, height) if a else (height, width)
        ways = ((-1, 0), (0, 1), (1, 0), (0, -1))
        for sides in self.sides:
            for side, (x, y) in zip(sides, ways, strict=True):
                index[sides[ways.index((a * x + b * y, c * x + d * y))]] = side
        if index != list(range(len(index))):
            maps = maps[:, index]
        if min(sign) < 0:
            maps = maps * maps.new_tensor(sign).view(-1, 1, 1)
        return maps


Kind = Literal["map", "invariant"] | Directions
"""How a tensor `(B, …)` moves: a map `(B, C, H, W)` or `(B, H, W)` with the image, "invariant" not at all."""
Kinds = Kind | Mapping[str, Kind] | None
"""The same for all outputs, or by name or the start of it; None where it is clear."""


class Outputs(Prediction):
    """The prediction of a network that answers with several tensors: `logits` is the first of them.

    Args:
        logits: The first tensor.
        trace: What its levels decided.
        outputs: All that the network returned, in lists and dictionaries as it returned them.
    """

    _fields = ("logits", "trace", "outputs")  # type: ignore[assignment]

    def __new__(cls, logits: Tensor, trace: Trace, outputs: Any) -> Outputs:
        return tuple.__new__(cls, (logits, trace, outputs))

    @property
    def outputs(self) -> Any:
        return self[2]  # type: ignore[misc]


# ---------------------------------------------------------------- lists and dictionaries of tensors


def _children(output: Any) -> list[tuple[str, Any]] | None:
    """The named parts of a list, tuple, dictionary or dataclass; None for anything else."""
    if dataclasses.is_dataclass(output) and not isinstance(output, type):
        return [(field.name, getattr(output, field.name)) for field in dataclasses.fields(output)]
    if isinstance(output, Mapping):
        return [(str(name), part) for name, part in output.items()]
    if isinstance(output, list | tuple):
        names = getattr(output, "_fields", None) or range(len(output))
        return [(str(name), part) for name, part in zip(names, output, strict=True)]
    return None


def parts_of(output: Any, name: str = "") -> dict[str, Tensor]:
    """The tensors of an answer by name: "boxes", "0", "pyramid.2"; "" for a tensor alone."""
    if isinstance(output, Tensor):
        return {name: output}
    found: dict[str, Tensor] = {}
    for child, part in _children(output) or ():
        found |= parts_of(part, f"{name}.{child}" if name else child)
    return found


def rebuilt(output: Any, parts: Mapping[str, Tensor], name: str = "") -> Any:
    """The same answer with other tensors."""
    if isinstance(output, Tensor):
        return parts[name]
    children = _children(output)
    if children is None:
        return output
    made = [rebuilt(part, parts, f"{name}.{child}" if name else child) for child, part in children]
    if dataclasses.is_dataclass(output):
        return dataclasses.replace(output, **dict(zip([child for child, _ in children], made, strict=True)))  # type: ignore[type-var]
    if isinstance(output, Mapping):
        pairs = dict(zip(output, made, strict=True))
        if not isinstance(output, dict):
            return pairs
        whole = copy.copy(output)  # of its own class, with its own defaults
        whole.update(pairs)
        return whole
    return type(output)(*made) if hasattr(output, "_fields") else type(output)(made)


# ---------------------------------------------------------------- how each of them moves


def kinds_of(parts: Mapping[str, Tensor], group: Group, kinds: Kinds) -> dict[str, Kind]:
    """How each tensor of an answer moves.

    Args:
        parts: Those that depend on the image, by name.
        group: The group.
        kinds: What the user said.

    Raises:
        UserError: If that does not fit a tensor, or if a guess could be wrong.
    """
    return {name: _kind(name, part, group, kinds, alone=len(parts) == 1) for name, part in parts.items()}


def check_kinds(parts: Mapping[str, Tensor], kinds: Kinds) -> None:
    """Refuse what is no kind, and names that no output has."""
    for value in kinds.values() if isinstance(kinds, Mapping) else [kinds]:
        if not (isinstance(value, Directions) or value in ("map", "invariant") or (value is None and kinds is None)):
            raise UserError(f'outputs are "map", "invariant" or Directions(…), got {value!r}')
    for wanted in kinds if isinstance(kinds, Mapping) else ():
        if not any(_is_named(name, wanted) for name in parts):
            names = ", ".join(map(repr, parts))
            raise UserError(f"outputs: the network returns nothing called {wanted!r}: choose from {names}")


def _is_named(name: str, wanted: str) -> bool:
    return name == wanted or name.startswith(f"{wanted}.")


def _kind(name: str, part: Tensor, group: Group, kinds: Kinds, *, alone: bool) -> Kind:
    if not group.acts_on_plane:
        return "invariant"
    if isinstance(kinds, Mapping):
        said = next((kind for wanted, kind in kinds.items() if _is_named(name, wanted)), None)
    else:  # of all outputs: logits among the maps do not move
        said = None if kinds == "map" and part.dim() <= 2 else kinds
    shape, what = "×".join(map(str, ("B", *part.shape[1:]))), f"the output {name!r}" if name else "the output"
    if isinstance(said, Directions):
        if part.dim() != 4:
            raise UserError(f"{what} has the shape {shape}: directions are those of channels of maps B×C×H×W")
        if max(said.channels) >= part.shape[1]:
            raise UserError(f"{what} has {part.shape[1]} channels, and no channel {max(said.channels)}")
    if said == "map" and part.dim() not in (3, 4):
        raise UserError(f"{what} has the shape {shape}, which is no map B×C×H×W or B×H×W")
    if said is not None:
        return said
    if part.dim() <= 2:
        return "invariant"
    if part.dim() == 4 and alone:
        return "map"
    raise UserError(
        f"{what}, {shape}, may move with the image: say how by outputs=, for each of several by its name: "
        '"map" (every channel is a scalar), "invariant", or Directions(…) for boxes and flows'
    )


# ---------------------------------------------------------------- averages over views


def pooled(folded: Tensor, record: Record, weights: Tensor | None, kind: Kind) -> Tensor:
    """The mean over views `(B·m, …)` under their weights, each moved back: `(B, …)`. A map moves with the image.

    Args:
        folded: The views that are run.
        record: What is known about them.
        weights: `(B, count)`; None for all the same.
        kind: How it moves.
    """
    if not (folded.is_floating_point() or folded.is_complex()):
        raise UserError(
            f"whole numbers of several views ({folded.dtype}) have no mean: let the network return scores instead"
        )
    views = folded.unflatten(0, (-1, record.count))
    if record.group.acts_on_plane and kind != "invariant":
        back = [moved(views[:, number], record.moves[u]) for number, u in enumerate(record.shown)]
        if isinstance(kind, Directions):
            back = [kind.moved(maps, record.moves[u]) for maps, u in zip(back, record.shown, strict=True)]
        views = torch.stack(back, dim=1)
    if weights is None:
        if record.kept is not None:
            raise NeedsAll
        return views.mean(dim=1)
    shares = weights.to(views.dtype).reshape(*views.shape[:2], *(1 for _ in views.shape[2:]))
    return (views * shares).sum(dim=1)


def averaged(parts: Mapping[str, Tensor], record: Record, kinds: Mapping[str, Kind]) -> tuple[dict[str, Tensor], Trace]:
    """The tensors of an answer, averaged over views under the window that all levels leave.

    A level that decides for one output counts for all: there is one window for an image.

    Args:
        parts: Those that depend on the image, as `(B·m, …)`, or as `(B, …)` if they were averaged on the way.
        record: The merged record of all.
        kinds: How each moves.

    Returns:
        The tensors `(B, …)`, and the trace.
    """
    with torch._C.DisableTorchFunctionSubclass():
        anchor = next(iter(parts.values()))
        if record.severed and len(parts) > 1 and torch.is_grad_enabled():
            # Gradients of decisions come by way of a tensor that is computed from what each level decided for.
            anchor = torch.stack([part.flatten()[0].float() for part in parts.values()])
        trace = record.trace_at(anchor)
        if record.pooled:
            return {name: _plain(part) for name, part in parts.items()}, trace
        weights = record.weights_at(anchor)
        found = {}
        for name, part in parts.items():
            own = record_of(part)
            assert own is not None
            found[name] = _plain(part) if own.pooled else pooled(part, record, weights, kinds[name])
        return found, trace


def _plain(part: Tensor) -> Tensor:
    return part.as_subclass(Tensor) if isinstance(part, Views) else part


def merged_record(parts: Mapping[str, Tensor]) -> Record:
    """What is known about all tensors of an answer together."""
    records = [found for part in parts.values() if (found := record_of(part)) is not None]
    return functools.reduce(Record.merged, records)
